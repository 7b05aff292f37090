package kafka

import (
	"context"
	"net"
	"sync"
)

// groupConns keeps the connections of one group membership, so that they can be cut: kafka-go's group has no other way to end a request
// that a broker does not answer.
type groupConns struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu   sync.Mutex
	open map[*groupConn]struct{}
	shut bool
}

// groupConn is one of them; closing it forgets it.
type groupConn struct {
	net.Conn
	of *groupConns
}

// Dial opens a connection, unless they were shut.
func (g *groupConns) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut {
		return nil, net.ErrClosed
	}
	conn, err := g.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &groupConn{Conn: conn, of: g}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	if g.open == nil {
		g.open = map[*groupConn]struct{}{}
	}
	g.open[c] = struct{}{}
	return c, nil
}

// Shut closes every connection and refuses new ones.
func (g *groupConns) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	for c := range g.open {
		_ = c.Conn.Close()
	}
	g.open = nil
}

// Close closes the connection.
func (c *groupConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
