package spool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// stage is what dead letters name as their origin's reader.
const stage = "spool"

// deliver appends records until the log has them; false: ctx ended first. What the log refuses for good becomes a dead letter.
func (d *drainer) deliver(ctx context.Context, records []schemas.Record) bool {
	d.mu.Lock()
	d.oldest = records[0].Time.UnixMilli()
	d.mu.Unlock()
	for failures := 0; ; failures++ {
		err := d.attempt(ctx, records)
		switch {
		case err == nil:
			d.back()
			return true
		case errors.Is(err, schemas.ErrTooLarge) && len(records) > 1:
			// The error does not say which one: one at a time only that one fails.
			for i := range records {
				if !d.deliver(ctx, records[i:i+1]) {
					return false
				}
			}
			return true
		case errors.Is(err, schemas.ErrTooLarge):
			return d.refused(ctx, records[0], err)
		case ctx.Err() != nil:
			return false
		}
		d.metrics.retries.Inc()
		d.gone(err)
		if !pause(ctx, backoff(failures, d.cfg.BackoffMax)) {
			return false
		}
	}
}

func (d *drainer) attempt(ctx context.Context, records []schemas.Record) error {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.AppendTimeout)
	defer cancel()
	return d.to.Append(ctx, records...)
}

// refused appends a dead letter in the place of a record that the log will never take.
func (d *drainer) refused(ctx context.Context, r schemas.Record, cause error) bool {
	dead, err := deadLetter(r, cause)
	if err != nil || r.Topic == schemas.TopicDeadLetters {
		kept, asideErr := d.setAside()
		d.logger.Error("the log refuses a record for good, and its dead letter, too: the file of the journal that holds it is kept aside", "kept", kept, "error", errors.Join(cause, err, asideErr))
		return true
	}
	d.metrics.refused.Inc()
	d.logger.Error("the log refuses a record for good: it becomes a dead letter", "topic", r.Topic, "bytes", len(r.Value), "dead_letter", dead.Topic, "error", cause)
	return d.deliver(ctx, []schemas.Record{dead})
}

// deadLetter describes a record that never was in the log. Its id depends on the record only.
func deadLetter(r schemas.Record, cause error) (schemas.Record, error) {
	e := schemas.DeadLetter(stage, cause.Error(), r)
	h := sha256.New()
	h.Write(r.Key)
	for _, header := range r.Headers {
		h.Write(header.Value)
	}
	h.Write(r.Value)
	e.ID = schemas.DerivedID(stage, "dead", e.Kind(), hex.EncodeToString(h.Sum(nil)), 0)
	return schemas.Encode(e)
}

// gone says that the log fails, once.
func (d *drainer) gone(err error) {
	d.attempts++
	if !d.away.IsZero() {
		return
	}
	d.away = time.Now()
	d.mu.Lock()
	records, bytes := d.records, d.bytes
	d.mu.Unlock()
	d.logger.Warn("the log does not take records: they are kept in the spool until it does", "error", err, "records", records, "bytes", bytes, "max_bytes", d.cfg.MaxBytes)
}

// back says that the log takes records again.
func (d *drainer) back() {
	if d.away.IsZero() {
		return
	}
	d.mu.Lock()
	records, bytes := d.records, d.bytes
	d.mu.Unlock()
	d.logger.Info("the log takes records again", "away_seconds", time.Since(d.away).Seconds(), "attempts", d.attempts, "records", records, "bytes", bytes)
	d.away, d.attempts = time.Time{}, 0
}

// backoff doubles the pause with each failure, and spreads it.
func backoff(failures int, most time.Duration) time.Duration {
	p := most
	if failures < 20 {
		p = min(p, backoffFirst<<failures)
	}
	return p/2 + rand.N(p/2+1) //nolint:gosec // jitter needs no cryptographic randomness
}

// pause waits; false: ctx ended.
func pause(ctx context.Context, p time.Duration) bool {
	timer := time.NewTimer(p)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
