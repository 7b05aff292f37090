package memlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Log is a log in memory. Safe for concurrent use. Nothing needs closing.
type Log struct {
	partitions int
	options    Options

	mu     sync.Mutex
	topics map[string][]*partition
	groups map[groupKey]*group
	fault  func([]schemas.Record) Fault
}

// Options of a log; the zero value has the defaults.
type Options struct {
	// Handover is how long a group waits for an owner to return when partitions move, before it goes on without that member and the
	// member is fenced. Default 2 s.
	Handover time.Duration
	// Backoff is how long a member whose handler failed stays away. Default 10 ms.
	Backoff time.Duration
	// Now stamps records that bring no time. Default time.Now.
	Now func() time.Time
}

// partition holds the records [first, first+len(records)).
type partition struct {
	mu      sync.Mutex
	first   int64
	records []schemas.Record
	// grown is closed when the partition changes, so that every waiting cursor looks again; nil while none waits.
	grown chan struct{}
}

// New returns an empty log whose topics have the given number of partitions. It panics unless that is positive.
func New(partitions int) *Log { return NewWith(partitions, Options{}) }

// NewWith is New with options.
func NewWith(partitions int, o Options) *Log {
	if partitions < 1 {
		panic("memlog: a topic needs at least one partition")
	}
	if o.Handover <= 0 {
		o.Handover = 2 * time.Second
	}
	if o.Backoff <= 0 {
		o.Backoff = 10 * time.Millisecond
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Log{partitions: partitions, options: o, topics: map[string][]*partition{}, groups: map[groupKey]*group{}}
}

func (l *Log) topic(name string) ([]*partition, error) {
	if name == "" {
		return nil, errors.New("memlog: a record without a topic: set Record.Topic")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ps, ok := l.topics[name]
	if !ok {
		ps = make([]*partition, l.partitions)
		for i := range ps {
			ps[i] = &partition{}
		}
		l.topics[name] = ps
	}
	return ps, nil
}

func (l *Log) partition(topic string, n int) (*partition, error) {
	ps, err := l.topic(topic)
	if err != nil {
		return nil, err
	}
	if n < 0 || n >= len(ps) {
		return nil, fmt.Errorf("memlog: topic %s has no partition %d: it has %d", topic, n, len(ps))
	}
	return ps[n], nil
}

// Append implements schemas.Appender. Nothing is appended when a record is too large or has no topic.
func (l *Log) Append(ctx context.Context, records ...schemas.Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, r := range records {
		if _, err := l.topic(r.Topic); err != nil {
			return err
		}
		if !r.Time.IsZero() && r.Time.UnixMilli() < 0 {
			return fmt.Errorf("memlog: a record of topic %s has a time before 1970, which no log takes: %s", r.Topic, r.Time.Format(time.RFC3339))
		}
		if n := recordSize(r); n > schemas.MaxRecordBytes {
			return fmt.Errorf("memlog: a record of %d bytes for topic %s, at most %d are allowed: %w", n, r.Topic, schemas.MaxRecordBytes, schemas.ErrTooLarge)
		}
	}
	fault := l.nextFault(records)
	if fault == Refused {
		return fmt.Errorf("memlog: append of %d records: %w", len(records), ErrInjected)
	}
	if err := l.store(records); err != nil {
		return err
	}
	switch fault {
	case Duplicated:
		return l.store(records)
	case AckLost:
		return fmt.Errorf("memlog: acknowledgement of %d records: %w", len(records), ErrInjected)
	default:
		return nil
	}
}

func (l *Log) store(records []schemas.Record) error {
	now := l.options.Now()
	for _, r := range records {
		ps, err := l.topic(r.Topic)
		if err != nil {
			return err
		}
		n := schemas.PartitionOf(r.Key, len(ps))
		c := clone(r)
		c.Partition = n
		if c.Time.IsZero() {
			c.Time = now
		}
		c.Time = c.Time.Truncate(time.Millisecond).UTC()
		ps[n].add(c)
	}
	return nil
}

func (p *partition) add(r schemas.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Offset = p.first + int64(len(p.records))
	p.records = append(p.records, r)
	p.wake()
}

// wake lets waiting cursors look again. The caller holds the lock.
func (p *partition) wake() {
	if p.grown != nil {
		close(p.grown)
		p.grown = nil
	}
}

func recordSize(r schemas.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// clone copies a record into one allocation, since the caller keeps its own.
func clone(r schemas.Record) schemas.Record {
	buf := make([]byte, 0, recordSize(r))
	keep := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		start := len(buf)
		buf = append(buf, b...)
		return buf[start:len(buf):len(buf)]
	}
	c := r
	c.Key, c.Value = keep(r.Key), keep(r.Value)
	if len(r.Headers) > 0 {
		c.Headers = make([]schemas.Header, len(r.Headers))
		for i, h := range r.Headers {
			c.Headers[i] = schemas.Header{Key: h.Key, Value: keep(h.Value)}
		}
	}
	return c
}

// Bounds implements schemas.Reader.
func (l *Log) Bounds(ctx context.Context, topic string) ([]schemas.Bounds, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ps, err := l.topic(topic)
	if err != nil {
		return nil, err
	}
	bs := make([]schemas.Bounds, len(ps))
	for i, p := range ps {
		p.mu.Lock()
		bs[i] = schemas.Bounds{First: p.first, Next: p.first + int64(len(p.records))}
		p.mu.Unlock()
	}
	return bs, nil
}

// Open implements schemas.Reader. The bytes of the records that the cursor returns are shared with the log: they must not be changed.
func (l *Log) Open(ctx context.Context, topic string, n int, offset int64) (schemas.Cursor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if offset < 0 {
		return nil, fmt.Errorf("memlog: cannot open %s/%d at offset %d: take the first one from Bounds", topic, n, offset)
	}
	p, err := l.partition(topic, n)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	first := p.first
	p.mu.Unlock()
	if offset < first {
		return nil, truncated(topic, n, offset, first)
	}
	return &cursor{p: p, topic: topic, partition: n, next: offset}, nil
}

func truncated(topic string, n int, offset, first int64) error {
	return fmt.Errorf("memlog: %s/%d at offset %d, the first retained is %d: %w", topic, n, offset, first, schemas.ErrTruncated)
}

type cursor struct {
	p         *partition
	topic     string
	partition int
	next      int64
	closed    bool
}

// Next implements schemas.Cursor.
func (c *cursor) Next(ctx context.Context, limit int) ([]schemas.Record, error) {
	if limit < 1 {
		return nil, fmt.Errorf("memlog: Next of %d records: at least 1 is needed", limit)
	}
	for {
		if c.closed {
			return nil, errors.New("memlog: the cursor is closed")
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c.p.mu.Lock()
		first := c.p.first
		rest := c.p.records[min(max(c.next-first, 0), int64(len(c.p.records))):]
		if len(rest) == 0 && c.p.grown == nil {
			c.p.grown = make(chan struct{})
		}
		grown := c.p.grown
		c.p.mu.Unlock()
		if c.next < first {
			return nil, truncated(c.topic, c.partition, c.next, first)
		}
		if len(rest) > 0 {
			out := append([]schemas.Record(nil), rest[:min(limit, len(rest))]...)
			c.next += int64(len(out))
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-grown:
		}
	}
}

// Close implements schemas.Cursor.
func (c *cursor) Close() error {
	c.closed = true
	return nil
}
