package processors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

// RunOptions are what every stage gets from the process. Zero values have the defaults.
type RunOptions struct {
	// BatchRecords bounds the records read at once, and the outputs appended at once. Default 500.
	BatchRecords int
	// CommitRecords and CommitEvery pace the commits: after that many records, or that long after the first uncommitted one. Defaults
	// 5,000 and 500 ms. A crash repeats at most the work since the last commit, under the same ids.
	CommitRecords int
	CommitEvery   time.Duration
	// BackoffMin and BackoffMax bound the doubling pause between attempts. Defaults 100 ms and 15 s.
	BackoffMin, BackoffMax time.Duration

	Logger  *slog.Logger
	Metrics *Metrics
	// Tracer makes one span for each batch, linked to the traces of its events. Nil: no spans.
	Tracer trace.Tracer
}

// Validate reports a value out of range.
func (o RunOptions) Validate() error {
	if o.BatchRecords < 0 || o.CommitRecords < 0 || o.CommitEvery < 0 || o.BackoffMin < 0 || o.BackoffMax < 0 {
		return errors.New("stages: batch_records, commit_records, commit_every, backoff_min and backoff_max must not be negative; 0 means the default")
	}
	if o.Metrics == nil {
		return errors.New("stages: metrics are needed; make them with NewMetrics")
	}
	return nil
}

func (o RunOptions) withDefaults() RunOptions {
	o.BatchRecords = or(o.BatchRecords, 500)
	o.CommitRecords = or(o.CommitRecords, 5000)
	o.CommitEvery = or(o.CommitEvery, 500*time.Millisecond)
	o.BackoffMin = or(o.BackoffMin, 100*time.Millisecond)
	o.BackoffMax = max(or(o.BackoffMax, 15*time.Second), o.BackoffMin)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Tracer == nil {
		o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	return o
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Run runs one stage over the log until ctx ends: it joins the stage's group and handles each partition that it is given. Call it once a
// process and stage; more replicas are more processes. It returns nil when ctx ends, and an error when the options are wrong or the log
// gives up.
func Run(ctx context.Context, stage Stage, log schemas.Log, o RunOptions) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if stage.Workers < 1 || stage.Chunk < 1 {
		return fmt.Errorf("stage %s: workers and chunk must be at least 1", stage.Name)
	}
	o = o.withDefaults()
	o.Logger = o.Logger.With("stage", stage.Name)
	return log.Own(ctx, GroupPrefix+stage.Name, stage.Topic, func(ctx context.Context, claim schemas.Claim) error {
		r := &run{stage: stage, log: log, claim: claim, o: o, ctxLog: o.Logger.With("partition", claim.Partition())}
		err := r.run(ctx)
		if err != nil { // the log keeps it to itself, and has the next owner start over
			r.ctxLog.Warn("a partition was given up, it starts over from its last commit", "error", err)
		}
		return err
	})
}

// run is one claim of one partition: a reader that processes, and an emitter that appends and commits, joined by a bounded queue.
type run struct {
	stage  Stage
	log    schemas.Log
	claim  schemas.Claim
	o      RunOptions
	ctxLog *slog.Logger

	processor Processor
	cursor    schemas.Cursor
	// liveFrom is the first offset that is processed for good; those before it only rebuild state.
	liveFrom int64
}

// note is what a commit holds beside its offset.
type note struct {
	// Next is the next record to process; those between the commit's offset and it rebuild state, and their outputs are not written again.
	Next int64 `json:"next"`
	// State is the processor's own (Noted).
	State json.RawMessage `json:"state,omitempty"`
}

func (r *run) run(ctx context.Context) (err error) {
	if err := r.open(ctx); err != nil {
		return ended(ctx, err)
	}
	defer func() {
		err = errors.Join(err, r.cursor.Close())
		if c, ok := r.processor.(io.Closer); ok {
			err = errors.Join(err, c.Close())
		}
	}()
	group, inner := errgroup.WithContext(ctx)
	queue := make(chan pending, max(2, r.o.BatchRecords/r.stage.Chunk)) // so that an append can take what became ready meanwhile
	group.Go(func() error {
		defer close(queue)
		return r.read(inner, queue)
	})
	group.Go(func() error { return r.emit(inner, queue) })
	if err := group.Wait(); err != nil {
		return ended(ctx, fmt.Errorf("stage %s, partition %d: %w", r.stage.Name, r.claim.Partition(), err))
	}
	return nil
}

// ended turns an error into nil when the reason is that the claim ended.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // that is the point
	}
	return err
}

// open makes the processor, and the cursor at the committed low watermark.
func (r *run) open(ctx context.Context) error {
	processor, err := r.stage.New(r.claim.Partition())
	if err != nil {
		return err
	}
	r.processor = processor
	commit := r.claim.Committed()
	n := note{Next: commit.Offset}
	if commit.Note != "" {
		if err := json.Unmarshal([]byte(commit.Note), &n); err != nil {
			return fmt.Errorf("the note of the commit at offset %d is not ours (%.60q): reset the group %s%s: %w",
				commit.Offset, commit.Note, GroupPrefix, r.stage.Name, err)
		}
	}
	if noted, ok := processor.(Noted); ok && len(n.State) > 0 {
		if err := noted.Restore(n.State); err != nil {
			return fmt.Errorf("the state in the commit's note: %w", err)
		}
	}
	r.liveFrom = n.Next
	if commit.Offset >= 0 {
		r.cursor, err = r.log.Open(ctx, r.stage.Topic, r.claim.Partition(), commit.Offset)
		if err == nil || !errors.Is(err, schemas.ErrTruncated) {
			return err
		}
	}
	return r.openFirst(ctx, commit.Offset)
}

// openFirst goes on at the first retained record: nothing was committed yet, or retention was faster than the stage.
func (r *run) openFirst(ctx context.Context, committed int64) error {
	bounds, err := r.log.Bounds(ctx, r.stage.Topic)
	if err != nil {
		return err
	}
	if r.claim.Partition() >= len(bounds) {
		return fmt.Errorf("topic %s has %d partitions, partition %d was claimed", r.stage.Topic, len(bounds), r.claim.Partition())
	}
	first := bounds[r.claim.Partition()].First
	if lost := first - max(r.liveFrom, 0); committed >= 0 && lost > 0 {
		r.o.Metrics.truncated.WithLabelValues(r.stage.Name).Add(float64(lost))
		r.ctxLog.Error("records were dropped by retention before this stage read them; lengthen the retention, and replay from the history to fill the gap",
			"lost_records", lost, "committed_offset", committed, "first_retained_offset", first)
	}
	r.liveFrom = max(r.liveFrom, first)
	r.cursor, err = r.log.Open(ctx, r.stage.Topic, r.claim.Partition(), first)
	return err
}

// read hands on what was read, in chunks, until ctx ends. It is the only goroutine that calls a processor with state.
func (r *run) read(ctx context.Context, queue chan<- pending) error {
	var workers errgroup.Group
	workers.SetLimit(r.stage.Workers)
	defer func() { _ = workers.Wait() }() // workers return no error
	for {
		records, err := r.cursor.Next(ctx, r.o.BatchRecords)
		if err != nil {
			return err
		}
		for len(records) > 0 {
			chunk := records[:min(r.stage.Chunk, len(records))]
			records = records[len(chunk):]
			p := pending{done: make(chan handled, 1)}
			if r.stage.Workers == 1 {
				h, err := r.handle(ctx, chunk)
				if err != nil {
					return err
				}
				p.done <- h
			} else {
				chunk = cloneRecords(chunk) // the reader may use its memory again while the workers are busy
				workers.Go(func() error {
					h, err := r.handle(ctx, chunk)
					h.err = err
					p.done <- h
					return nil
				})
			}
			select {
			case queue <- p:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// pending is a chunk on its way; done gives its one result.
type pending struct{ done chan handled }

// handled is a chunk with its outputs, encoded.
type handled struct {
	outputs []schemas.Record
	traces  []string
	events  int
	dead    int
	next    int64
	commit  schemas.Commit
	err     error
}

func cloneRecords(records []schemas.Record) []schemas.Record {
	out := make([]schemas.Record, len(records))
	for i, r := range records {
		r.Key = append([]byte(nil), r.Key...)
		r.Value = append([]byte(nil), r.Value...)
		headers := make([]schemas.Header, len(r.Headers))
		for j, h := range r.Headers {
			headers[j] = schemas.Header{Key: h.Key, Value: append([]byte(nil), h.Value...)}
		}
		r.Headers = headers
		out[i] = r
	}
	return out
}

// Next reads from a stage's commit which record it processes next; -1 when it did not commit yet. The commit's own offset is lower: it is
// where the state is rebuilt from. Lag is the end of the partition minus Next.
func Next(c schemas.Commit) (int64, error) {
	n := note{Next: c.Offset}
	if c.Note != "" {
		if err := json.Unmarshal([]byte(c.Note), &n); err != nil {
			return 0, fmt.Errorf("the note of a commit at offset %d is not a stage's: %w", c.Offset, err)
		}
	}
	return n.Next, nil
}
