package client

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Errors that callers act on.
var (
	// ErrClosed: the client was closed before the event was taken. It is not in the log.
	ErrClosed = errors.New("the client is closed: open a new one and send the event again")
	// ErrUnacknowledged: the client closed before the log acknowledged the event. It may be in the log; send it again with the same id.
	ErrUnacknowledged = errors.New("not acknowledged before the client closed: send it again with the same id")
	// ErrRefused: the log or the gateway will never take this event. Sending it again does not help.
	ErrRefused = errors.New("refused")
)

// Config of a Client. The zero value of a field means its default.
type Config struct {
	// Tenant owns everything that this client sends. Required; over HTTP it must be the tenant of the API key.
	Tenant string
	// Source names the producer in each event. Default "client/go".
	Source string
	// BatchRecords and BatchBytes bound one append. Defaults 1000 and 1 MiB.
	BatchRecords int
	BatchBytes   int
	// Linger is how long an append waits for more events. Default 0: what is there goes out at once, and the next batch gathers meanwhile.
	Linger time.Duration
	// Lanes is the number of appends in flight; each session keeps to one lane. Default 4.
	Lanes int
	// BufferedBytes bounds the events that are not acknowledged yet. Default 64 MiB.
	BufferedBytes int64
	// BackoffMin and BackoffMax bound the pause before an append is tried again. Defaults 20 ms and 5 s.
	BackoffMin, BackoffMax time.Duration
	// DeltaWithin is the age up to which an action refers to the session's last acknowledged turn instead of writing its messages again.
	// It must stay below the idle timeout of pair, which forgets a session's turns (30 minutes). Default 10 minutes; negative: never.
	DeltaWithin time.Duration
	// OnRetry is told of each failed append that will be tried again: the client itself never gives up before Close. May be nil. It is
	// called from the lanes' goroutines, several at once, and must not block.
	OnRetry func(attempt int, err error)
}

// Validate reports the first setting that cannot work, and what to do about it.
func (c Config) Validate() error {
	if err := schemas.CheckTenant(c.Tenant); err != nil {
		return fmt.Errorf("client: Tenant: %w", err)
	}
	switch {
	case c.BatchRecords < 0 || c.BatchBytes < 0 || c.Lanes < 0 || c.BufferedBytes < 0:
		return errors.New("client: BatchRecords, BatchBytes, Lanes and BufferedBytes must not be negative")
	case c.Lanes > 256:
		return errors.New("client: Lanes: at most 256")
	case c.Linger < 0 || c.Linger > time.Minute:
		return errors.New("client: Linger: 0 to 1m")
	case c.BackoffMin < 0 || c.BackoffMax < 0 || c.BackoffMax != 0 && c.BackoffMin > c.BackoffMax:
		return errors.New("client: BackoffMin must not exceed BackoffMax, and neither may be negative")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Source == "" {
		c.Source = "client/go"
	}
	if c.BatchRecords == 0 {
		c.BatchRecords = 1000
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 1 << 20
	}
	if c.Lanes == 0 {
		c.Lanes = 4
	}
	if c.BufferedBytes == 0 {
		c.BufferedBytes = 64 << 20
	}
	if c.BackoffMin == 0 {
		c.BackoffMin = 20 * time.Millisecond
	}
	if c.BackoffMax == 0 {
		c.BackoffMax = max(5*time.Second, c.BackoffMin)
	}
	c.BackoffMin = min(c.BackoffMin, c.BackoffMax)
	if c.DeltaWithin == 0 {
		c.DeltaWithin = 10 * time.Minute
	}
	return c
}

// Client appends events. Safe for concurrent use.
type Client struct {
	cfg      Config
	appender schemas.Appender
	lanes    []*lane
	seed     maphash.Seed
	buffered *semaphore.Weighted

	running *errgroup.Group // owns the lanes' goroutines
	stop    context.CancelFunc
	closing sync.Once
}

// New starts a client on an appender, which stays the caller's and must outlive it. Close ends it.
func New(appender schemas.Appender, cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		cfg: cfg, appender: appender, seed: maphash.MakeSeed(), buffered: semaphore.NewWeighted(cfg.BufferedBytes),
		running: new(errgroup.Group), stop: stop,
	}
	for range cfg.Lanes {
		l := &lane{c: c, wake: make(chan struct{}, 1)}
		c.lanes = append(c.lanes, l)
		c.running.Go(func() error { l.run(ctx); return nil })
	}
	return c, nil
}

// Session returns a handle for one conversation or episode; it sends nothing. Keep it while the session lasts: it remembers the last
// turn, so that long conversations are not written again with each. An id that is not allowed is refused by the first call.
func (c *Client) Session(id string) *Session {
	return &Session{c: c, id: id, lane: c.lanes[maphash.String(c.seed, id)%uint64(len(c.lanes))]}
}

// Close takes no further events and waits until everything that was taken is acknowledged. When ctx ends first the rest is given up: its
// futures answer ErrUnacknowledged, and Close returns ctx's error. Closing again only waits.
func (c *Client) Close(ctx context.Context) error {
	c.closing.Do(func() {
		for _, l := range c.lanes {
			l.close()
		}
	})
	drained := make(chan error, 1)
	go func() { drained <- c.running.Wait() }() // ends with the lanes, which ctx or their draining ends below
	select {
	case err := <-drained:
		c.stop()
		return err
	case <-ctx.Done():
		c.stop()
		return errors.Join(fmt.Errorf("client: closed before everything was acknowledged: %w", ctx.Err()), <-drained)
	}
}

// send encodes an event and hands it to its lane. It waits only for room in the buffer.
func (c *Client) send(ctx context.Context, l *lane, e schemas.Event, acked func()) (*Future, error) {
	f := &Future{id: e.ID}
	record, err := schemas.Encode(e)
	if err != nil {
		return f, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	f.record, f.acked, f.done = record, acked, make(chan struct{})
	f.bytes = min(int64(len(record.Value)+len(record.Key))+perEventBytes, c.cfg.BufferedBytes)
	if err := c.buffered.Acquire(ctx, f.bytes); err != nil {
		return f, fmt.Errorf("client: the buffer of unacknowledged events is full (the log is slow or away): %w", err)
	}
	if err := l.add(f); err != nil {
		c.buffered.Release(f.bytes)
		return f, err
	}
	return f, nil
}

// perEventBytes is what an event costs besides its payload: headers, the future, the queue.
const perEventBytes = 768

// Future is an event on its way. Safe for concurrent use.
type Future struct {
	id     string
	done   chan struct{}
	err    error
	record schemas.Record
	bytes  int64
	acked  func()
}

// ID is the event's id; of an action, the turn's id. Send with client.ID(id) again after an error.
func (f *Future) ID() string { return f.id }

// Done is closed when the event is acknowledged or given up.
func (f *Future) Done() <-chan struct{} { return f.done }

// Wait returns nil when the event is acknowledged as durable. When ctx ends first it returns ctx's error, and the event goes on its way.
func (f *Future) Wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return fmt.Errorf("client: event %s is not acknowledged yet: %w", f.id, ctx.Err())
	}
}
