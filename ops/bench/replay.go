package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

const replayEvents = 1_000_000

// Replay measures how fast everything is derived again and compared byte for byte with what the stages derived. An event is an interaction;
// several derived events come of each. The records are where a running system has them: the newest in the log, all in ClickHouse. Baseline: a
// bare read of all of them out of ClickHouse, interactions and derived ones.
func Replay(ctx context.Context, e *Env) (results []Result, err error) {
	s, err := e.system(ctx, "replay", ops.NeedAll)
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, s.Close) }()
	input, err := e.derive(ctx, s, e.events(replayEvents))
	if err != nil {
		return nil, err
	}
	topics := []string{schemas.TopicInteractions, schemas.TopicTurns, schemas.TopicVerdicts, schemas.TopicHints, schemas.TopicSamples}
	var report ops.ReplayReport
	mine := *e
	mine.Runs = or(e.Runs, 2) // each takes long, and there is an uncounted one
	r, err := mine.compare(ctx, "replay", "events/s",
		func(ctx context.Context) (float64, error) {
			report, err = ops.Replay(ctx, s, ops.ReplayOptions{Source: "auto"})
			if err != nil {
				return 0, err
			}
			if !report.Equal() || report.Events != int64(input) {
				return 0, fmt.Errorf("the replay is not equal: %s", report.Line())
			}
			return float64(input) / report.Seconds, nil
		},
		func(ctx context.Context) (float64, error) {
			took, err := bareScan(ctx, s, topics)
			return float64(input) / took, err
		})
	if err != nil {
		return nil, err
	}
	result := r.higher("replay", "events/s", map[string]any{"events": input, "derived": report.Derived, "same": report.Same, "equal": true})
	result.Extra["seconds"], result.Extra["baseline_seconds"] = float64(input)/result.Value, float64(input)/result.Baseline
	return []Result{result}, nil
}

// derivation are the stages without door.
var derivation = []string{"pair", "evaluate", "direct", "assemble", "clickhouse"}

// derive appends events while the stages derive, and waits for the last sample.
func (e *Env) derive(ctx context.Context, s *ops.System, n int) (events int, err error) {
	start := time.Now()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running, stages := errgroup.WithContext(ctx)
	running.Go(func() error { return ops.RunStages(stages, s, derivation...) })
	err = func() error {
		if events, err = e.fill(stages, s.Log, n); err != nil {
			return err
		}
		for {
			lag, err := lagOf(stages, s.Log, derivation)
			if err != nil {
				return err
			}
			if lag == 0 {
				return nil
			}
			if !sleep(stages, 200*time.Millisecond) {
				return context.Cause(stages)
			}
		}
	}()
	stop()
	if stopped := running.Wait(); err == nil || errors.Is(err, context.Canceled) {
		err = stopped
	}
	e.note("%d events went through the stages in %.1f s", events, time.Since(start).Seconds())
	return events, err
}

// lagOf is how many records the named stages have not processed, all together. Each topic's writer is asked before its readers, so 0 means
// that nothing is left on the way.
func lagOf(ctx context.Context, log schemas.Log, names []string) (sum int64, err error) {
	lags, err := ops.Lags(ctx, log)
	for _, l := range lags {
		for _, n := range names {
			if l.Stage == n {
				sum += l.Lag
			}
		}
	}
	return sum, err
}

// bareScan reads the topics out of ClickHouse, the partitions side by side, as a replay of them does.
func bareScan(ctx context.Context, s *ops.System, topics []string) (seconds float64, err error) {
	history := sink.NewHistory(s.ClickHouse)
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for p := range max(1, s.Config.Kafka.Partitions) {
		g.Go(func() error {
			for _, topic := range topics {
				if err := history.Scan(ctx, topic, p, 0, math.MaxInt64, func(schemas.Record) error { return nil }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return time.Since(start).Seconds(), err
}

// sleep waits; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
