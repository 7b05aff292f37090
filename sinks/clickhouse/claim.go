package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

// depth is how many batches of one partition exist: one is read and decoded while another is inserted, and one waits between them.
const depth = 3

// claim is one partition while this sink owns it. The reading goroutine fills batches, the writing one inserts them in order.
type claim struct {
	*Sink
	schemas.Claim
	topic     string
	partition int
	owner     ownership
	seen      *seen
	batches   [depth]*Batch
	// next is the offset that the reader expects; what is missing below the first record was lost.
	next  int64
	fresh bool
	// waiting counts the batches that were read and are not inserted yet.
	waiting atomic.Int32
}

// own takes a partition, repeats the range that its former owner wrote down, and goes on behind it.
func (s *Sink) own(ctx context.Context, c schemas.Claim) error {
	p := &claim{Sink: s, Claim: c, topic: c.Topic(), partition: c.Partition()}
	var recorded span
	err := s.retry(ctx, "postgres", func() (err error) {
		p.owner, recorded, err = s.ranges.take(ctx, p.topic, p.partition)
		return err
	})
	if err != nil {
		return err
	}
	p.next, p.fresh = recorded.last+1, recorded.last < 0
	messages, tools := newRecent(20_000), newRecent(1_000)
	for i := range p.batches {
		p.batches[i] = newBatch(p.topic, p.partition, messages, tools)
	}
	if err := p.recover(ctx, recorded); err != nil {
		return err
	}
	return p.follow(ctx)
}

// recover learns the ids of the partition, and does the recorded range again unless it is there. Tables that have it already are left alone,
// whenever that was.
func (p *claim) recover(ctx context.Context, recorded span) error {
	done, err := p.done(ctx, recorded)
	if err != nil {
		return err
	}
	if recorded.empty() || done["events"] { // events comes last: the whole range is there
		if err := p.learn(ctx, p.next); err != nil || recorded.empty() {
			return err
		}
		return p.Commit(ctx, schemas.Commit{Offset: p.next})
	}
	if err := p.learn(ctx, recorded.first); err != nil {
		return err
	}
	bounds, err := p.bounds(ctx)
	if err != nil {
		return err
	}
	if bounds.Next <= recorded.last {
		return p.shorter(bounds, recorded.last)
	}
	from := max(recorded.first, bounds.First)
	p.lose(ctx, recorded.first, min(from, recorded.last+1))
	b := p.batches[0]
	defer p.release(b)
	weight := min(int64(p.cfg.Bytes), p.cfg.MemoryBytes)
	if err := p.memory.Acquire(ctx, weight); err != nil {
		return err
	}
	b.held = weight
	if from <= recorded.last {
		if err := p.readRange(ctx, b, from, recorded.last); err != nil {
			return err
		}
	}
	b.span = recorded
	return p.write(ctx, b, done)
}

// learn reads the ids before an offset: every id that has a row there, or a repeated one would not be known.
func (p *claim) learn(ctx context.Context, before int64) error {
	return p.retry(ctx, "clickhouse", func() (err error) {
		p.seen, err = newSeen(ctx, p.conn, p.topic, p.partition, before)
		return err
	})
}

// readRange fills one batch with exactly a range.
func (p *claim) readRange(ctx context.Context, b *Batch, first, last int64) error {
	cursor, err := p.log.Open(ctx, p.topic, p.partition, first)
	if err != nil {
		return fmt.Errorf("repeat %d-%d of %s/%d: %w", first, last, p.topic, p.partition, err)
	}
	defer func() { _ = cursor.Close() }() // nothing is written through it
	ids := idSets{{}}
	for at := first; at <= last; {
		records, err := cursor.Next(ctx, int(min(1000, last-at+1)))
		if err != nil {
			return fmt.Errorf("repeat %d-%d of %s/%d: %w", first, last, p.topic, p.partition, err)
		}
		at = records[len(records)-1].Offset + 1
		if n := slices.IndexFunc(records, func(r schemas.Record) bool { return r.Offset > last }); n >= 0 {
			records = records[:n]
		}
		whole := func(*Batch) bool { return false }
		if _, err := p.fill(ctx, b, records, ids, first, whole); err != nil {
			return err
		}
	}
	return nil
}

// follow reads behind the last range until ctx ends or the partition is lost.
func (p *claim) follow(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	free, full := make(chan *Batch, depth), make(chan *Batch, depth)
	for _, b := range p.batches {
		free <- b
	}
	g.Go(func() error {
		defer close(full)
		return p.read(ctx, free, full)
	})
	g.Go(func() error {
		for b := range full {
			if !b.slot { // it was full before a place was free
				if err := p.writers.Acquire(ctx, 1); err != nil {
					return err
				}
				b.slot = true
			}
			if err := p.write(ctx, b, nil); err != nil {
				return err
			}
			p.waiting.Add(-1)
			p.release(b)
			free <- b
		}
		return nil
	})
	err := g.Wait()
	for _, b := range p.batches {
		p.release(b)
	}
	return err
}

// release gives back what a batch holds of the process's memory and places for writing.
func (p *claim) release(b *Batch) {
	if b.slot {
		p.writers.Release(1)
		b.slot = false
	}
	p.memory.Release(b.held)
	b.held = 0
	b.Reset()
}

// read fills free batches. A batch ends when it is full, when it is old enough and could be inserted at once, or when the process's memory for
// batches is used up.
func (p *claim) read(ctx context.Context, free <-chan *Batch, full chan<- *Batch) error {
	bounds, err := p.bounds(ctx)
	if err != nil {
		return err
	}
	if bounds.Next < p.next {
		return p.shorter(bounds, p.next-1)
	}
	if bounds.First > p.next {
		if !p.fresh {
			p.lose(ctx, p.next, bounds.First)
		}
		p.next = bounds.First
	}
	cursor, err := p.log.Open(ctx, p.topic, p.partition, p.next)
	if err != nil {
		return fmt.Errorf("read %s/%d at %d: %w", p.topic, p.partition, p.next, err)
	}
	defer func() { _ = cursor.Close() }() // nothing is written through it
	var pending []schemas.Record
	ids := idSets{}
	for {
		var b *Batch
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b = <-free:
		}
		if len(pending) == 0 {
			if pending, err = cursor.Next(ctx, min(1000, p.cfg.Rows)); err != nil {
				return fmt.Errorf("read %s/%d: %w", p.topic, p.partition, err)
			}
		}
		ids = ids.next()
		if pending, err = p.readBatch(ctx, cursor, b, pending, ids); err != nil {
			return err
		}
		p.waiting.Add(1)
		full <- b // never blocks: there are as many places as batches
	}
}

// readBatch fills b from pending and the cursor, and returns the records that did not fit.
func (p *claim) readBatch(ctx context.Context, cursor schemas.Cursor, b *Batch, pending []schemas.Record, ids idSets) ([]schemas.Record, error) {
	old := time.Now().Add(p.cfg.Age)
	for {
		if pending[0].Offset > p.next && !p.fresh {
			p.lose(ctx, p.next, pending[0].Offset)
		}
		fit, err := p.fit(ctx, b, pending)
		if err != nil || len(fit) == 0 {
			return pending, err
		}
		first := fit[0].Offset
		if b.records > 0 {
			first = b.span.first
		}
		took, err := p.fill(ctx, b, fit, ids, first, func(b *Batch) bool { return b.full(p.cfg) })
		if err != nil {
			return nil, err
		}
		p.next, p.fresh = pending[took-1].Offset+1, false
		pending = pending[took:]
		if len(pending) > 0 || b.full(p.cfg) {
			return pending, nil
		}
		if pending, err = p.more(ctx, cursor, b, old); err != nil || pending == nil {
			return nil, err
		}
	}
}

// more waits for further records of a batch; nil: the batch ends here. Once it is old it ends when it can be inserted at once. Before that it would
// only wait behind the batch before it: under load batches grow instead, because large blocks cost less.
func (p *claim) more(ctx context.Context, cursor schemas.Cursor, b *Batch, old time.Time) ([]schemas.Record, error) {
	for {
		records, err := within(ctx, cursor, min(1000, p.cfg.Rows-b.records), old)
		if err == nil {
			return records, nil
		}
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("read %s/%d: %w", p.topic, p.partition, err)
		}
		if p.waiting.Load() == 0 && p.writers.TryAcquire(1) {
			b.slot = true
			return nil, nil
		}
		old = time.Now().Add(max(p.cfg.Age/8, time.Millisecond))
	}
}

func within(ctx context.Context, cursor schemas.Cursor, limit int, deadline time.Time) ([]schemas.Record, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return cursor.Next(ctx, limit)
}

// fit returns the records that memory allows. With an empty batch it waits for memory: this partition holds none then, so that others can
// finish. Otherwise no room ends the batch.
func (p *claim) fit(ctx context.Context, b *Batch, records []schemas.Record) ([]schemas.Record, error) {
	n, size := 0, 0
	for n < len(records) && (n == 0 || size < p.cfg.Bytes) {
		size += recordBytes(records[n])
		n++
	}
	weight := min(int64(size), p.cfg.MemoryBytes)
	if b.records > 0 {
		if !p.memory.TryAcquire(weight) {
			return nil, nil
		}
	} else if err := p.memory.Acquire(ctx, weight); err != nil {
		return nil, err
	}
	b.held += weight
	return records[:n], nil
}

// fill decodes records into b until full says so, and returns how many it took. A record whose id stands at a smaller offset of the
// partition gets no row: in this batch, in a batch that is on its way, or in ClickHouse before the offset first, where this batch begins.
func (p *claim) fill(ctx context.Context, b *Batch, records []schemas.Record, ids idSets, first int64, full func(*Batch) bool) (int, error) {
	type decoded struct {
		event schemas.Event
		id    uuid.UUID
		err   error
	}
	all := make([]decoded, len(records))
	var doubtful []uuid.UUID
	for i, r := range records {
		e, err := schemas.Decode(r)
		all[i] = decoded{event: e, err: err}
		if err != nil {
			continue
		}
		all[i].id = parseID(e.ID)
		if p.seen.filter.maybe(all[i].id) && !ids.has(all[i].id) {
			doubtful = append(doubtful, all[i].id)
		}
	}
	var old map[uuid.UUID]struct{}
	if err := p.retry(ctx, "clickhouse", func() (err error) {
		old, err = p.seen.inClickHouse(ctx, first, doubtful)
		return err
	}); err != nil {
		return 0, err
	}
	for i, r := range records {
		d := all[i]
		_, stored := old[d.id]
		switch {
		case d.err != nil:
			b.addUndecodable(r, d.err.Error())
		case stored || ids.has(d.id):
			b.addDuplicate(r)
		default:
			b.addEvent(r, d.event)
			p.seen.filter.add(d.id)
			ids.add(d.id)
		}
		if full(b) {
			return i + 1, nil
		}
	}
	return len(records), nil
}

// idSets holds the ids of the batches that may not be in ClickHouse yet, the newest first: there are never more than depth of them, because a
// batch is used again only after it was inserted. They belong to the reading goroutine alone.
type idSets []map[uuid.UUID]struct{}

// next begins a new batch and forgets the oldest.
func (s idSets) next() idSets {
	if len(s) == depth {
		s = s[:depth-1]
	}
	return append(idSets{{}}, s...)
}

func (s idSets) add(id uuid.UUID) { s[0][id] = struct{}{} }

func (s idSets) has(id uuid.UUID) bool {
	for _, set := range s {
		if _, ok := set[id]; ok {
			return true
		}
	}
	return false
}

func (p *claim) bounds(ctx context.Context) (schemas.Bounds, error) {
	all, err := p.log.Bounds(ctx, p.topic)
	if err != nil {
		return schemas.Bounds{}, fmt.Errorf("bounds of %s: %w", p.topic, err)
	}
	if p.partition >= len(all) {
		return schemas.Bounds{}, fmt.Errorf("topic %s has no partition %d: its number of partitions must never change", p.topic, p.partition)
	}
	return all[p.partition], nil
}

func (p *claim) shorter(b schemas.Bounds, last int64) error {
	return fmt.Errorf("the log of %s/%d ends at offset %d, but its history reaches %d: this is an older or another log; bring that log back, "+
		"or give this one a ClickHouse database and a sink name of its own", p.topic, p.partition, b.Next, last)
}

// lose reports records that the log dropped before they were read. They are gone: all that is left is to say so, loudly, and go on.
func (p *claim) lose(ctx context.Context, from, to int64) {
	if to <= from {
		return
	}
	p.metrics.lost.WithLabelValues(p.topic).Add(float64(to - from))
	p.logger.LogAttrs(ctx, slog.LevelError, "records were dropped by the log before the history had them; raise the retention above the longest outage",
		slog.String("topic", p.topic), slog.Int("partition", p.partition), slog.Int64("first", from), slog.Int64("last", to-1))
}
