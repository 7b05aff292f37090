package processors

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// maxStack bounds the stack in a dead letter's reason, in bytes.
const maxStack = 4096

// handle processes one chunk. An error means that ctx ended.
func (r *run) handle(ctx context.Context, chunk []schemas.Record) (handled, error) {
	h := handled{next: chunk[len(chunk)-1].Offset + 1}
	for _, record := range chunk {
		live := record.Offset >= r.liveFrom
		if live {
			h.events++
		} else {
			r.o.Metrics.rebuilt.WithLabelValues(r.stage.Name).Inc()
		}
		outputs, trace, err := r.one(ctx, record)
		if err != nil {
			return handled{}, err
		}
		if !live {
			continue
		}
		if trace != "" && len(h.traces) < maxLinks {
			h.traces = append(h.traces, trace)
		}
		for _, output := range outputs {
			if output.Topic == schemas.TopicDeadLetters {
				h.dead++
			}
		}
		h.outputs = append(h.outputs, outputs...)
	}
	h.commit = r.progress(h.next)
	return h, nil
}

// one takes one record as far as it goes: decoded, processed, its outputs encoded; or its dead letter.
func (r *run) one(ctx context.Context, record schemas.Record) (outputs []schemas.Record, trace string, err error) {
	e, err := schemas.Decode(record)
	if err != nil {
		return r.dead(fmt.Sprintf("the record cannot be decoded: %v", err), record), "", nil
	}
	events, err := r.process(ctx, e)
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	if err != nil {
		return r.dead(err.Error(), record), "", nil
	}
	outputs = make([]schemas.Record, 0, len(events))
	for _, out := range events {
		encoded, err := schemas.Encode(out)
		if err != nil {
			outputs = append(outputs, r.dead(fmt.Sprintf("an output cannot be encoded: %v", err), record)...)
			continue
		}
		outputs = append(outputs, encoded)
	}
	return outputs, e.TraceParent, nil
}

// process calls the processor until it succeeds, fails for good, or ctx ends.
func (r *run) process(ctx context.Context, e schemas.Event) ([]schemas.Event, error) {
	for pause := r.o.BackoffMin; ; pause = min(2*pause, r.o.BackoffMax) {
		events, err := guarded(ctx, r.processor, e)
		if err == nil || IsPermanent(err) || ctx.Err() != nil {
			return events, err
		}
		r.o.Metrics.retries.WithLabelValues(r.stage.Name, "process").Inc()
		r.ctxLog.Warn("an event could not be processed yet, it is tried again", "offset", e.Position.Offset, "event_id", e.ID, "pause", pause, "error", err)
		if !sleep(ctx, pause) {
			return nil, ctx.Err()
		}
	}
}

// guarded turns a panic into a permanent error: no input may crash a stage. The claim goes on with the state as the panic left it.
func guarded(ctx context.Context, p Processor, e schemas.Event) (events []schemas.Event, err error) {
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			events, err = nil, Permanent(fmt.Errorf("panic: %v\n%s", v, stack[:min(len(stack), maxStack)]))
		}
	}()
	return p.Process(ctx, e)
}

// dead encodes a dead letter of a record at once, because the record's memory is the reader's.
func (r *run) dead(reason string, record schemas.Record) []schemas.Record {
	encoded, err := schemas.Encode(schemas.DeadLetter(r.stage.Name, reason, record))
	if err != nil {
		// Only headers or reasons of absurd size get here: the origin alone then says where the record is.
		bare := schemas.Record{Topic: record.Topic, Partition: record.Partition, Offset: record.Offset, Time: record.Time}
		encoded, err = schemas.Encode(schemas.DeadLetter(r.stage.Name, fmt.Sprintf("%.500s (its bytes cannot be kept: %.500v)", reason, err), bare))
		if err != nil {
			panic(fmt.Sprintf("a dead letter without content cannot be encoded: %v", err))
		}
	}
	return []schemas.Record{encoded}
}

// progress is the commit after the records before next were processed.
func (r *run) progress(next int64) schemas.Commit {
	c := schemas.Commit{Offset: next}
	n := note{Next: max(next, r.liveFrom)}
	if w, ok := r.processor.(Watermarked); ok {
		if offset, open := w.LowWatermark(); open {
			c.Offset = min(offset, next)
		}
	}
	if noted, ok := r.processor.(Noted); ok {
		n.State = noted.Note()
	}
	text, err := json.Marshal(n)
	if err != nil {
		panic(fmt.Sprintf("stage %s: its note is no JSON: %v", r.stage.Name, err))
	}
	c.Note = string(text)
	return c
}

// sleep waits; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
