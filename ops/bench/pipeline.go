package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/producers/importers"
	"github.com/nextstate-rl/nextstate/schemas"
)

const pipelineEvents = 15_000

// Pipeline measures the whole way: a chat transcript imported, derived, and every event queryable in ClickHouse; and, one event at a time, how
// long after its append was acknowledged the event, its turn and its sample are queryable. Baseline: a second system beside it that only
// stores: the same import and the same events, the sink, and no derivation.
func Pipeline(ctx context.Context, e *Env) (results []Result, err error) {
	full, err := e.startPipeline(ctx, "pipeline", slices.DeleteFunc(ops.StageNames(), func(n string) bool { return n == "gateway" }))
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, full.close) }()
	bare, err := e.startPipeline(ctx, "bare", []string{"clickhouse"})
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, bare.close) }()

	var events int
	files := map[int]string{}
	round := func(p *pipeline) measure {
		return func(ctx context.Context) (rate float64, err error) {
			path, ok := files[p.round]
			if !ok {
				path = filepath.Join(e.Dir, fmt.Sprintf("round-%d.jsonl", p.round))
				if _, _, err := writeTranscript(path, e.Seed+uint64(p.round), e.events(pipelineEvents), 0); err != nil { //nolint:gosec // not negative
					return 0, err
				}
				files[p.round] = path
			}
			p.round++
			rate, events, err = p.imported(ctx, path)
			return rate, err
		}
	}
	r, err := e.compare(ctx, "pipeline", "events/s", round(full), round(bare))
	if err != nil {
		return nil, err
	}
	results = []Result{r.higher("pipeline", "events/s", map[string]any{"events": events})}

	var ours, theirs delays
	sessions := min(5, 1+e.events(pipelineEvents)/2000) // a tiny run has few probes
	for i := range max(1, e.runs()/2) {
		if err := full.probe(ctx, e.Seed, sessions, &ours); err != nil {
			return nil, err
		}
		if err := bare.probe(ctx, e.Seed, sessions, &theirs); err != nil {
			return nil, err
		}
		e.note("delays %d: p99 of events %.0f ms, of turns %.0f ms, of samples %.0f ms; baseline %.0f ms", i+1,
			percentile(ours.event, 99), percentile(ours.turn, 99), percentile(ours.sample, 99), percentile(theirs.event, 99))
	}
	for _, d := range []struct {
		name string
		ms   []float64
	}{{"event_delay", ours.event}, {"turn_delay", ours.turn}, {"sample_delay", ours.sample}} {
		for _, p := range []float64{50, 99} {
			results = append(results, lower(fmt.Sprintf("%s_p%.0f", d.name, p), "ms", percentile(d.ms, p), percentile(theirs.event, p),
				map[string]any{"probes": len(d.ms), "max": slices.Max(d.ms)}))
		}
	}
	return results, nil
}

// pipeline is a system with stages at work.
type pipeline struct {
	*ops.System
	stages  []string
	running *errgroup.Group
	stop    context.CancelFunc
	// ended ends when a stage has failed.
	ended context.Context //nolint:containedctx // the life of the stages, which every wait has to heed
	round int
	// turns is how many have to be derived by now.
	turns uint64
}

func (e *Env) startPipeline(ctx context.Context, folder string, stages []string) (*pipeline, error) {
	s, err := e.system(ctx, folder, ops.NeedAll)
	if err != nil {
		return nil, err
	}
	p := &pipeline{System: s, stages: stages}
	ctx, p.stop = context.WithCancel(ctx)
	p.running, p.ended = errgroup.WithContext(ctx)
	p.running.Go(func() error { return ops.RunStages(p.ended, s, stages...) })
	return p, nil
}

func (p *pipeline) close() error {
	p.stop()
	return errors.Join(p.running.Wait(), p.System.Close())
}

func (p *pipeline) derives() bool { return slices.Contains(p.stages, "assemble") }

// imported imports a file and waits until everything that comes of it can be queried. It returns imported events/s.
func (p *pipeline) imported(ctx context.Context, path string) (rate float64, events int, err error) {
	start := time.Now()
	options := importers.Options{Tenant: Tenant, Format: transcriptFormat, EndSessions: true}
	report, err := importers.Import(ctx, options, path, p.Log)
	if err != nil {
		return 0, 0, err
	}
	if report.Malformed+report.Unknown > 0 || report.Actions == 0 {
		return 0, 0, fmt.Errorf("import of %s: %d actions, %d malformed, %d unknown", path, report.Actions, report.Malformed, report.Unknown)
	}
	p.turns += uint64(report.Actions) //nolint:gosec // a count
	err = p.queryable(ctx)
	return float64(report.Events) / time.Since(start).Seconds(), report.Events, err
}

// queryable waits until every turn has become a sample or a skip, and every record of the log is a row.
func (p *pipeline) queryable(ctx context.Context) error {
	for {
		var rows, done uint64
		err := p.ClickHouse.QueryRow(ctx, `SELECT (SELECT count() FROM sample_assembled) + (SELECT count() FROM turn_skipped), count() FROM events`).
			Scan(&done, &rows)
		if err != nil {
			return err
		}
		if !p.derives() || done >= p.turns {
			records, err := total(ctx, p.Log, schemas.Topics()...)
			if err != nil {
				return err
			}
			if rows >= uint64(records) { //nolint:gosec // a count
				return nil
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-p.ended.Done():
			return fmt.Errorf("a stage has ended: %w", context.Cause(p.ended)) //nolint:contextcheck // the cause is that of the process, which has a context of its own
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
