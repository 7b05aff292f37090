package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	// fetchWait is how long a broker holds a fetch while there is nothing new. Records that come meanwhile are sent at once, so a long
	// wait costs no latency and spares idle brokers the asking.
	fetchWait = 5 * time.Second
	// endPoll is how often a cursor beyond the end looks whether the log has come so far.
	endPoll = 100 * time.Millisecond
)

// Open implements schemas.Reader. The cursor reads ahead by one answer of the broker, in a goroutine that Close ends.
func (l *Log) Open(ctx context.Context, topic string, partition int, offset int64) (schemas.Cursor, error) {
	if offset < 0 {
		return nil, fmt.Errorf("kafka: cannot open %s/%d at offset %d: take the first one from Bounds", topic, partition, offset)
	}
	lanes, ok := l.lanes[topic]
	if !ok {
		return nil, unknownTopic(topic)
	}
	if partition < 0 || partition >= len(lanes) {
		return nil, fmt.Errorf("kafka: topic %s has no partition %d: it has %d", topic, partition, len(lanes))
	}
	c := &cursor{log: l, topic: topic, partition: partition, answers: make(chan answer), ended: make(chan struct{})}
	if err := c.checkStart(ctx, offset); err != nil {
		return nil, err
	}
	readCtx, cancel := context.WithCancel(l.ctx)
	c.cancel = cancel
	go c.read(readCtx, offset) //nolint:contextcheck // a cursor outlives the call that opens it
	return c, nil
}

type cursor struct {
	log       *Log
	topic     string
	partition int
	cancel    context.CancelFunc
	answers   chan answer
	// ended is closed when the reading goroutine has ended.
	ended chan struct{}
	// pending are records that were read and not yet handed out; failed is the error that ended the reading. The caller's.
	pending []schemas.Record
	failed  error
}

// answer is what one fetch brought: records, or the error that ends the reading.
type answer struct {
	records []schemas.Record
	err     error
}

// Next implements schemas.Cursor.
func (c *cursor) Next(ctx context.Context, limit int) ([]schemas.Record, error) {
	if limit < 1 {
		return nil, fmt.Errorf("kafka: Next of %d records: at least 1 is needed", limit)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(c.pending) == 0 {
		if c.failed != nil {
			return nil, c.failed
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.ended:
			return nil, ErrClosed
		case a := <-c.answers:
			c.pending, c.failed = a.records, a.err
			if a.err != nil {
				return nil, a.err
			}
		}
	}
	n := min(limit, len(c.pending))
	out := c.pending[:n:n]
	c.pending = c.pending[n:]
	c.log.metrics.read(out)
	return out, nil
}

// Close implements schemas.Cursor.
func (c *cursor) Close() error {
	c.cancel()
	<-c.ended
	return nil
}

// read fetches one answer after another from offset on, until ctx ends or something fails for good.
func (c *cursor) read(ctx context.Context, offset int64) {
	defer close(c.ended)
	for ctx.Err() == nil {
		var a answer
		a.err = c.log.retry(ctx, func(ctx context.Context) (err error) {
			a.records, err = c.fetch(ctx, offset)
			return err
		})
		if a.err != nil {
			a = answer{err: fmt.Errorf("kafka: reading %s/%d at offset %d: %w", c.topic, c.partition, offset, a.err)}
		} else if len(a.records) == 0 {
			continue
		}
		select {
		case c.answers <- a:
		case <-ctx.Done():
			return
		}
		if a.err != nil {
			<-ctx.Done()
			return
		}
		offset = a.records[len(a.records)-1].Offset + 1
	}
}

// fetch asks the broker once for records from offset on; none when there were none for a while.
func (c *cursor) fetch(ctx context.Context, offset int64) ([]schemas.Record, error) {
	res, err := c.log.client.Fetch(ctx, &kafka.FetchRequest{
		Topic: c.log.config.TopicPrefix + c.topic, Partition: c.partition, Offset: offset,
		MinBytes: 1, MaxBytes: int64(c.log.config.FetchBytes), MaxWait: fetchWait,
	})
	if err != nil {
		return nil, err
	}
	if errors.Is(res.Error, kafka.OffsetOutOfRange) {
		// Either the log does not reach so far yet, or it no longer reaches back so far.
		if err := c.checkStart(ctx, offset); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(endPoll):
		}
		return nil, nil
	}
	if res.Error != nil {
		return nil, res.Error
	}
	records, err := c.decode(res.Records, offset)
	if err != nil {
		return nil, err
	}
	if len(records) > 0 && records[0].Offset > offset {
		// Retention may have overtaken the cursor; a broker that compacts, which we do not ask for, would leave gaps as well.
		if err := c.checkStart(ctx, offset); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// checkStart returns ErrTruncated when offset is before the first retained record.
func (c *cursor) checkStart(ctx context.Context, offset int64) error {
	b, err := c.log.bounds(ctx, c.topic, []int{c.partition})
	if err != nil {
		return err
	}
	if offset < b[0].First {
		return &truncatedError{topic: c.topic, partition: c.partition, offset: offset, first: b[0].First}
	}
	return nil
}

// truncatedError says what is still there. It is a schemas.ErrTruncated.
type truncatedError struct {
	topic         string
	partition     int
	offset, first int64
}

func (e *truncatedError) Error() string {
	return fmt.Sprintf("kafka: %s/%d at offset %d, the first retained is %d: %v", e.topic, e.partition, e.offset, e.first, schemas.ErrTruncated)
}

func (e *truncatedError) Unwrap() error { return schemas.ErrTruncated }

// decode copies the records from offset on out of kafka-go's buffers, which it recycles.
func (c *cursor) decode(from kafka.RecordReader, offset int64) ([]schemas.Record, error) {
	var out []schemas.Record
	var mem arena
	for {
		r, err := from.ReadRecord()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if r.Offset < offset { // a compressed batch comes whole
			closeBytes(r.Key, r.Value)
			continue
		}
		rec := schemas.Record{Topic: c.topic, Partition: c.partition, Offset: r.Offset, Time: r.Time.UTC(), Headers: mem.headers(r.Headers)}
		if rec.Key, err = mem.read(r.Key); err == nil {
			rec.Value, err = mem.read(r.Value)
		}
		closeBytes(r.Key, r.Value)
		if err != nil {
			return nil, err
		}
		out = append(out, rec)
	}
}

func closeBytes(bs ...protocol.Bytes) {
	for _, b := range bs {
		if b != nil {
			_ = b.Close() // gives pages back; kafka-go's never fails
		}
	}
}

// arena allocates the bytes and headers of many records in few pieces.
type arena struct {
	bytes []byte
	heads []schemas.Header
}

func (a *arena) read(b protocol.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	n := b.Len()
	if n > cap(a.bytes)-len(a.bytes) {
		a.bytes = make([]byte, 0, max(n, 64<<10))
	}
	start := len(a.bytes)
	a.bytes = a.bytes[:start+n]
	out := a.bytes[start : start+n : start+n]
	_, err := io.ReadFull(b, out)
	return out, err
}

func (a *arena) headers(from []kafka.Header) []schemas.Header {
	if len(from) == 0 {
		return nil
	}
	if len(from) > cap(a.heads)-len(a.heads) {
		a.heads = make([]schemas.Header, 0, max(len(from), 1024))
	}
	start := len(a.heads)
	for _, h := range from {
		a.heads = append(a.heads, schemas.Header{Key: h.Key, Value: h.Value})
	}
	return a.heads[start:len(a.heads):len(a.heads)]
}
