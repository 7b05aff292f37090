package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/logtest"
)

const partitions = 4

// prefixes makes each test's topics its own.
var prefixes atomic.Int64

// quietLogger shows what the log says when a test fails.
func quietLogger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
}

// discard is for benchmarks.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// config is one that moves partitions fast.
func config(brokers []string, replication int) kafka.Config {
	return kafka.Config{
		Brokers: brokers, TopicPrefix: fmt.Sprintf("t%d-%d.", time.Now().UnixNano(), prefixes.Add(1)), Partitions: partitions, Replication: replication,
		Retention: -1, SessionTimeout: 3 * time.Second, RebalanceTimeout: 1500 * time.Millisecond, HeartbeatInterval: 100 * time.Millisecond,
	}
}

func open(t *testing.T, c kafka.Config) *kafka.Log {
	t.Helper()
	l, err := kafka.Open(t.Context(), c, quietLogger(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// harness is a fresh log on the given brokers.
func harness(t *testing.T, brokers []string, replication int) logtest.Harness {
	t.Helper()
	c := config(brokers, replication)
	faults := &ackLoser{}
	faulty := c
	faulty.Dial = faults.dial
	return logtest.Harness{
		Log: open(t, faulty), Partitions: partitions,
		Peer: func(t *testing.T) schemas.Log { return open(t, c) },
		Truncate: func(t *testing.T, topic string, partition int, offset int64) {
			truncate(t, brokers, c.TopicPrefix+topic, partition, offset)
		},
		LoseAck: func(*testing.T) { faults.armed.Store(true) },
	}
}

// truncate deletes records as retention does. kafka-go has no call for it.
func truncate(t *testing.T, brokers []string, topic string, partition int, offset int64) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var to kadm.Offsets
	to.AddOffset(topic, int32(partition), offset, -1) //nolint:gosec // a handful
	res, err := kadm.NewClient(client).DeleteRecords(t.Context(), to)
	if err == nil {
		err = res.Error()
	}
	if err != nil {
		t.Fatalf("truncate: %v", err)
	}
}

// ackLoser dials connections that, once armed, lose the answer to one produce request: the broker has applied it, and the connection breaks.
type ackLoser struct{ armed atomic.Bool }

func (a *ackLoser) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &losingConn{Conn: conn, of: a}, nil
}

type losingConn struct {
	net.Conn
	of   *ackLoser
	lose atomic.Bool
}

// Write looks at the key of a request (bytes 4 and 5; 0 is produce).
func (c *losingConn) Write(b []byte) (int, error) {
	if len(b) >= 6 && b[4] == 0 && b[5] == 0 && c.of.armed.CompareAndSwap(true, false) {
		c.lose.Store(true)
	}
	return c.Conn.Write(b)
}

// Read waits for the answer, so that the request is surely applied, and loses it.
func (c *losingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.lose.Load() {
		return 0, errors.Join(net.ErrClosed, c.Conn.Close())
	}
	return n, err
}
