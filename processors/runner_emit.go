package processors

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	// maxLinks bounds the traces that one batch's span is linked to.
	maxLinks = 32
	// lastCommit bounds the commit that is tried when a claim ends.
	lastCommit = 3 * time.Second
	// keptOfTooLarge is how much of an output that the log refuses goes into its dead letter, in bytes.
	keptOfTooLarge = 1 << 20
)

// emit appends what was handled, in order, and commits after it. Only what is acknowledged is ever committed.
func (r *run) emit(ctx context.Context, queue <-chan pending) error {
	ticker := time.NewTicker(r.o.CommitEvery)
	defer ticker.Stop()
	progress := uncommitted{run: r}
	defer progress.last(ctx)
	e := emitter{run: r, queue: queue}
	for {
		select {
		case p, ok := <-queue:
			if !ok {
				return nil
			}
			e.carry = &p
			if err := e.append(ctx, &progress); err != nil {
				return err
			}
		case <-ticker.C:
			if err := progress.commit(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// emitter joins what is ready into one append.
type emitter struct {
	run   *run
	queue <-chan pending
	// carry was taken from the queue and waits for its result.
	carry *pending
}

// append writes chunks until none is ready: it waits for the result of the first one only.
func (e *emitter) append(ctx context.Context, progress *uncommitted) error {
	for e.carry != nil {
		select {
		case h := <-e.carry.done:
			e.carry = nil
			batch, err := e.gather(h)
			if err != nil {
				return err
			}
			if err := e.run.write(ctx, batch, progress); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// gather adds to h the chunks after it that are ready by now, up to one batch. The first one that is not ready stays in carry.
func (e *emitter) gather(h handled) (handled, error) {
	for h.err == nil && len(h.outputs) < e.run.o.BatchRecords {
		select {
		case p, ok := <-e.queue:
			if !ok {
				return h, nil
			}
			e.carry = &p
		default:
			return h, nil
		}
		select {
		case next := <-e.carry.done:
			e.carry = nil
			if next.err != nil {
				return h, next.err
			}
			h.outputs = append(h.outputs, next.outputs...)
			h.traces = append(h.traces, next.traces[:min(len(next.traces), maxLinks-min(maxLinks, len(h.traces)))]...)
			h.events += next.events
			h.dead += next.dead
			h.next, h.commit = next.next, next.commit
		default:
			return h, nil
		}
	}
	return h, h.err
}

// write appends one batch, then commits if it is time.
func (r *run) write(ctx context.Context, h handled, progress *uncommitted) (err error) {
	timer := prometheus.NewTimer(r.o.Metrics.batchSeconds.WithLabelValues(r.stage.Name))
	defer timer.ObserveDuration()
	ctx, span := r.o.Tracer.Start(ctx, "stage "+r.stage.Name, trace.WithLinks(links(h.traces)...), trace.WithAttributes(
		attribute.Int("partition", r.claim.Partition()), attribute.Int64("next_offset", h.next),
		attribute.Int("events", h.events), attribute.Int("outputs", len(h.outputs))))
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}()
	if err := r.append(ctx, h.outputs); err != nil {
		return err
	}
	m := r.o.Metrics
	m.events.WithLabelValues(r.stage.Name).Add(float64(h.events))
	m.outputs.WithLabelValues(r.stage.Name).Add(float64(len(h.outputs)))
	m.deadLetters.WithLabelValues(r.stage.Name).Add(float64(h.dead))
	if h.dead > 0 {
		r.ctxLog.Warn("records were dead-lettered; read them with: nextstate deadletters list", "dead_letters", h.dead, "next_offset", h.next)
	}
	progress.add(h)
	if progress.records >= r.o.CommitRecords {
		return progress.commit(ctx)
	}
	return nil
}

// append tries until the log acknowledges the records, or ctx ends. Later records wait, so that nothing overtakes.
func (r *run) append(ctx context.Context, records []schemas.Record) error {
	if len(records) == 0 {
		return nil
	}
	for pause := r.o.BackoffMin; ; pause = min(2*pause, r.o.BackoffMax) {
		err := r.log.Append(ctx, records...)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, schemas.ErrTooLarge) && len(records) > 1:
			for i := range records {
				if err := r.append(ctx, records[i:i+1]); err != nil {
					return err
				}
			}
			return nil
		case errors.Is(err, schemas.ErrTooLarge) && records[0].Topic != schemas.TopicDeadLetters:
			kept := records[0]
			kept.Value = kept.Value[:min(len(kept.Value), keptOfTooLarge)]
			records = r.dead("the log refuses this output, of which the first bytes are kept: "+err.Error(), kept)
			continue
		}
		r.o.Metrics.retries.WithLabelValues(r.stage.Name, "append").Inc()
		r.ctxLog.Warn("an append failed, it is tried again", "records", len(records), "pause", pause, "error", err)
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// links turns traceparents (version-trace-span-flags) into span links.
func links(traces []string) []trace.Link {
	out := make([]trace.Link, 0, len(traces))
	for _, parent := range traces {
		f := strings.Split(parent, "-")
		if len(f) < 4 {
			continue
		}
		traceID, badTrace := trace.TraceIDFromHex(f[1])
		spanID, badSpan := trace.SpanIDFromHex(f[2])
		if badTrace == nil && badSpan == nil {
			out = append(out, trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, Remote: true})})
		}
	}
	return out
}

// uncommitted is the progress since the last commit.
type uncommitted struct {
	run     *run
	records int
	commits schemas.Commit
	some    bool
}

func (u *uncommitted) add(h handled) {
	u.records += h.events
	u.commits, u.some = h.commit, true
}

// commit records the progress, if there is any, and tries again until it is recorded, ctx ends or the claim is lost.
func (u *uncommitted) commit(ctx context.Context) error {
	if !u.some {
		return nil
	}
	for pause := u.run.o.BackoffMin; ; pause = min(2*pause, u.run.o.BackoffMax) {
		err := u.run.claim.Commit(ctx, u.commits)
		switch {
		case err == nil:
			u.records, u.some = 0, false
			return nil
		case errors.Is(err, schemas.ErrFenced):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		u.run.o.Metrics.retries.WithLabelValues(u.run.stage.Name, "commit").Inc()
		u.run.ctxLog.Warn("a commit failed, it is tried again", "offset", u.commits.Offset, "pause", pause, "error", err)
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// last commits once more when the claim ends in good order, so that the next owner repeats less. A failure costs only that.
func (u *uncommitted) last(ctx context.Context) {
	if !u.some {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastCommit)
	defer cancel()
	if err := u.run.claim.Commit(ctx, u.commits); err != nil {
		u.run.ctxLog.Info("the last commit of a claim was not taken; its records are processed again under the same ids", "error", err)
	}
}
