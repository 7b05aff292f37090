package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"sync"
	"syscall"
	"time"
)

// direct is the way to an upstream that speaks HTTP/1.1 without TLS, for requests whose body is in memory. http.Transport gives each connection two
// goroutines, and each request three changes between them: that is most of what a relay on one machine would add to a request's time, and a
// third of what an open stream takes. Here the handler's own goroutine writes and reads, with the standard library's encoder and parser.
// It implements http.RoundTripper. Safe for concurrent use.
type direct struct {
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	addr    string
	header  time.Duration // until the first byte of an answer
	keep    int           // idle connections
	keepFor time.Duration
	// requests lends the buffers in which requests are encoded.
	requests sync.Pool

	mu   sync.Mutex
	idle []*directConn // the one used last is last
}

// directConn is one connection, of one request at a time.
type directConn struct {
	net.Conn
	in    *bufio.Reader
	room  int // bytes that the head of an answer may still have; negative: no bound
	came  bool
	since time.Time // idle
}

const (
	// maxAnswerHead bounds the head of an answer, maxHints the 1xx answers before it.
	maxAnswerHead = 256 << 10
	maxHints      = 8
	// maxKeptRequest bounds the buffers that are kept for the next request.
	maxKeptRequest = 256 << 10
)

// Read implements io.Reader below the buffer.
func (c *directConn) Read(p []byte) (int, error) {
	if c.room == 0 {
		return 0, fmt.Errorf("the head of the answer is longer than %d bytes", maxAnswerHead)
	}
	if c.room > 0 {
		p = p[:min(len(p), c.room)]
	}
	n, err := c.Conn.Read(p)
	if c.room > 0 {
		c.room -= n
	}
	c.came = c.came || n > 0
	return n, err
}

// RoundTrip implements http.RoundTripper. The request needs a GetBody when it has a body.
func (d *direct) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		c, reused, err := d.conn(r.Context())
		if err != nil {
			return nil, err
		}
		res, err := d.ask(c, r)
		if err == nil {
			return res, nil
		}
		_ = c.Close()
		switch {
		case r.Context().Err() != nil:
			return nil, r.Context().Err()
		case !reused || c.came || errors.Is(err, os.ErrDeadlineExceeded):
			return nil, err
		}
		// The upstream closed the connection just when it was used again: that says nothing of the request.
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// conn returns an idle connection that is still good, or a new one.
func (d *direct) conn(ctx context.Context) (c *directConn, reused bool, err error) {
	for {
		d.mu.Lock()
		n := len(d.idle) - 1
		if n >= 0 {
			c = d.idle[n]
			d.idle[n] = nil
			d.idle = d.idle[:n]
		}
		d.mu.Unlock()
		if n < 0 {
			break
		}
		if time.Since(c.since) < d.keepFor && silent(c.Conn) {
			return c, true, nil
		}
		_ = c.Close()
	}
	conn, err := d.dial(ctx, "tcp", d.addr)
	if err != nil {
		return nil, false, err
	}
	c = &directConn{Conn: conn}
	c.in = bufio.NewReaderSize(c, relayBuffer)
	return c, false, nil
}

// silent says whether a connection is open and has nothing to read, as an idle one must. It does not wait.
func silent(c net.Conn) bool {
	conn, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var n int
	var b [1]byte
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, failed = syscall.Read(int(fd), b[:]) //nolint:gosec // a file descriptor
		return true
	})
	return err == nil && n <= 0 && (errors.Is(failed, syscall.EAGAIN) || errors.Is(failed, syscall.EWOULDBLOCK))
}

// put keeps a connection for the next request, within bounds.
func (d *direct) put(c *directConn) {
	c.since = time.Now()
	d.mu.Lock()
	var old *directConn
	if len(d.idle) >= d.keep || len(d.idle) > 0 && c.since.Sub(d.idle[0].since) > d.keepFor {
		old = d.idle[0]
		d.idle = append(d.idle[:0], d.idle[1:]...)
	}
	d.idle = append(d.idle, c)
	d.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
}

// ask sends the request and reads the head of the answer.
func (d *direct) ask(c *directConn, r *http.Request) (*http.Response, error) {
	// From here on, the end of the request's context closes the connection, until the body is read or closed.
	stop := context.AfterFunc(r.Context(), func() { _ = c.Conn.Close() })
	c.came, c.room = false, maxAnswerHead
	sent := d.send(c, r)
	if sent != nil && !errors.Is(sent, syscall.EPIPE) && !errors.Is(sent, syscall.ECONNRESET) {
		stop()
		return nil, sent
	}
	// An upstream that does not read a request to its end may have said why.
	if err := c.SetReadDeadline(time.Now().Add(d.header)); err != nil {
		stop()
		return nil, errors.Join(sent, err)
	}
	res, err := d.head(c, r)
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	if err != nil {
		stop()
		return nil, errors.Join(sent, err)
	}
	c.room = -1
	res.Body = &directBody{ReadCloser: res.Body, d: d, c: c, stop: stop, ctx: r.Context(), again: sent == nil && !res.Close}
	return res, nil
}

// send writes the whole request at once.
func (d *direct) send(c *directConn, r *http.Request) error {
	b, ok := d.requests.Get().(*bytes.Buffer)
	if !ok {
		b = new(bytes.Buffer)
	}
	b.Reset()
	err := r.Write(b)
	if err == nil {
		_, err = c.Write(b.Bytes())
	}
	if b.Cap() <= maxKeptRequest {
		d.requests.Put(b)
	}
	return err
}

// head reads the head of the answer; hints that come before it are told to whoever traces the request.
func (d *direct) head(c *directConn, r *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(r.Context())
	for range maxHints {
		res, err := http.ReadResponse(c.in, r)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("the upstream closed the connection without an answer: %w", err)
		case err != nil:
			return nil, err
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the upstream changes the protocol, which it was not asked for")
		case res.StatusCode >= 200:
			return res, nil
		}
		if trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
		}
	}
	return nil, errors.New("the upstream sends nothing but 1xx answers")
}

// directBody gives its connection back when it was read to its end, and closes it otherwise: what is left would have to be read first.
type directBody struct {
	io.ReadCloser
	d     *direct
	c     *directConn
	ctx   context.Context //nolint:containedctx // of the request that the body belongs to
	stop  func() bool
	again bool // the connection may serve another request
	whole bool
}

// Read implements io.Reader.
func (b *directBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.whole = true
	case err != nil && b.ctx.Err() != nil: // it closed the connection
		err = b.ctx.Err()
	}
	return n, err
}

// Close implements io.Closer.
func (b *directBody) Close() error {
	if b.c == nil {
		return nil
	}
	c := b.c
	b.c = nil
	if b.stop() && b.again && b.whole && c.in.Buffered() == 0 {
		b.d.put(c)
		return nil
	}
	return c.Close()
}
