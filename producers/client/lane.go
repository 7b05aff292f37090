package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// lane is a queue with one append in flight. While an append is on its way the next batch gathers, so that a loaded client writes large
// batches and an idle one answers at once.
type lane struct {
	c    *Client
	wake chan struct{} // holds one token when the queue changed since the lane last looked

	mu     sync.Mutex
	queue  []*Future
	bytes  int64
	closed bool
}

func (l *lane) add(f *Future) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.queue = append(l.queue, f)
	l.bytes += f.bytes
	l.signal()
	return nil
}

func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.signal()
}

func (l *lane) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // a token is there already: the lane will look
	}
}

// run appends batches until the lane is closed and empty, or ctx ends.
func (l *lane) run(ctx context.Context) {
	for {
		if ctx.Err() != nil {
			l.close() // before the queue is looked at: nothing may come after it was found empty
		}
		batch, closed := l.take()
		switch {
		case len(batch) > 0 && ctx.Err() != nil:
			l.giveUp(batch)
		case len(batch) > 0:
			l.deliver(ctx, batch)
		case closed:
			return
		default:
			select {
			case <-l.wake:
				l.linger(ctx)
			case <-ctx.Done():
			}
		}
	}
}

// take removes the first batch from the queue.
func (l *lane) take() (batch []*Future, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int
	var bytes int64
	for n < len(l.queue) && n < l.c.cfg.BatchRecords {
		b := l.queue[n].bytes
		if n > 0 && bytes+b > int64(l.c.cfg.BatchBytes) {
			break
		}
		bytes += b
		n++
	}
	batch = l.queue[:n:n]
	l.queue = l.queue[n:]
	if len(l.queue) == 0 {
		l.queue = nil // the batch keeps the array; the next add starts a new one
	}
	l.bytes -= bytes
	return batch, l.closed
}

// linger waits for a fuller batch, at most Config.Linger.
func (l *lane) linger(ctx context.Context) {
	if l.c.cfg.Linger == 0 {
		return
	}
	timer := time.NewTimer(l.c.cfg.Linger)
	defer timer.Stop()
	for {
		l.mu.Lock()
		full := l.closed || len(l.queue) >= l.c.cfg.BatchRecords || l.bytes >= int64(l.c.cfg.BatchBytes)
		l.mu.Unlock()
		if full {
			return
		}
		select {
		case <-l.wake:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// deliver appends a batch until every event of it is acknowledged or refused for good, or ctx ends.
func (l *lane) deliver(ctx context.Context, batch []*Future) {
	for attempt := 1; ; attempt++ {
		records := make([]schemas.Record, len(batch))
		for i, f := range batch {
			records[i] = f.record
		}
		err := l.c.appender.Append(ctx, records...)
		if err == nil {
			for _, f := range batch {
				l.settle(f, nil)
			}
			return
		}
		if batch = l.sort(ctx, batch, err); len(batch) == 0 {
			return
		}
		if ctx.Err() != nil {
			l.giveUp(batch)
			return
		}
		if l.c.cfg.OnRetry != nil {
			l.c.cfg.OnRetry(attempt, err)
		}
		l.pause(ctx, attempt, err)
	}
}

// sort settles what an append's error decides and returns the events that must be tried again.
func (l *lane) sort(ctx context.Context, batch []*Future, err error) []*Future {
	var partial *PartialError
	switch {
	case errors.As(err, &partial) && len(partial.Errs) == len(batch):
		again := make([]*Future, 0, len(batch))
		for i, f := range batch {
			if e := partial.Errs[i]; e == nil || permanent(e) {
				l.settle(f, e)
			} else {
				again = append(again, f)
			}
		}
		return again
	case permanent(err) && len(batch) == 1:
		l.settle(batch[0], err)
		return nil
	case permanent(err):
		// One event spoils the batch, and the error does not say which: one at a time only that one fails.
		for i := range batch {
			l.deliver(ctx, batch[i:i+1])
		}
		return nil
	default:
		return batch
	}
}

func permanent(err error) bool {
	return errors.Is(err, ErrRefused) || errors.Is(err, schemas.ErrTooLarge)
}

// pause backs off exponentially with jitter, and at least as long as the server asked for.
func (l *lane) pause(ctx context.Context, attempt int, err error) {
	d := l.c.cfg.BackoffMax
	if shift := attempt - 1; shift < 20 {
		d = min(d, l.c.cfg.BackoffMin<<shift)
	}
	d = d/2 + rand.N(d/2+1) //nolint:gosec // jitter needs no cryptographic randomness
	var h *HTTPError
	if errors.As(err, &h) {
		d = max(d, min(h.RetryAfter, time.Minute))
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (l *lane) giveUp(batch []*Future) {
	for _, f := range batch {
		l.settle(f, ErrUnacknowledged)
	}
}

// settle completes a future. acked runs before done closes, so that a caller who waited sees the session's new last turn.
func (l *lane) settle(f *Future, err error) {
	if err != nil {
		f.err = fmt.Errorf("event %s: %w", f.id, err)
	} else if f.acked != nil {
		f.acked()
	}
	f.record, f.acked = schemas.Record{}, nil
	l.c.buffered.Release(f.bytes)
	close(f.done)
}

// PartialError is what an Appender may return when it knows the fate of each record: Errs has one entry a record in the order of the
// call, nil for an acknowledged one. An entry that is ErrRefused or schemas.ErrTooLarge is final, any other may be retried.
type PartialError struct{ Errs []error }

func (e *PartialError) Error() string {
	var first error
	n := 0
	for _, err := range e.Errs {
		if err != nil {
			if first == nil {
				first = err
			}
			n++
		}
	}
	return fmt.Sprintf("%d of %d records were not taken; the first: %v", n, len(e.Errs), first)
}

// Unwrap gives errors.Is and errors.As the errors of the single records.
func (e *PartialError) Unwrap() []error {
	errs := make([]error, 0, len(e.Errs))
	for _, err := range e.Errs {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
