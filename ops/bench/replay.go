package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/schemas"
)

const replayEvents = 1_000_000

// Replay measures how fast everything is derived again and compared byte for byte with what the stages derived. An event is an interaction;
// several derived events come of each. Baseline: kafka-go reads all the same records, interactions and derived ones, and does nothing.
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
			report, err = ops.Replay(ctx, s, ops.ReplayOptions{Source: "kafka"})
			if err != nil {
				return 0, err
			}
			if !report.Equal() || report.Events != int64(input) {
				return 0, fmt.Errorf("the replay is not equal: %s", report.Line())
			}
			return float64(input) / report.Seconds, nil
		},
		func(ctx context.Context) (float64, error) {
			took, err := bareRead(ctx, s, topics)
			return float64(input) / took, err
		})
	if err != nil {
		return nil, err
	}
	result := r.higher("replay", "events/s", map[string]any{"events": input, "derived": report.Derived, "same": report.Same, "equal": true})
	result.Extra["seconds"], result.Extra["baseline_seconds"] = float64(input)/result.Value, float64(input)/result.Baseline
	return []Result{result}, nil
}

// derivation are the stages without door and sink.
var derivation = []string{"pair", "evaluate", "direct", "assemble"}

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

// bareRead reads the topics to their ends, one goroutine for each partition, as a replay of that partition does.
func bareRead(ctx context.Context, s *ops.System, topics []string) (seconds float64, err error) {
	var g errgroup.Group
	start := time.Now()
	for p := range max(1, s.Config.Kafka.Partitions) {
		g.Go(func() error {
			for _, topic := range topics {
				bounds, err := s.Log.Bounds(ctx, topic)
				if err != nil {
					return err
				}
				if p >= len(bounds) || bounds[p].First == bounds[p].Next {
					continue
				}
				if err := bareReadTo(ctx, s.Endpoints().Brokers[0], topic, p, bounds[p].Next); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return time.Since(start).Seconds(), err
}

func bareReadTo(ctx context.Context, broker, topic string, partition int, end int64) (err error) {
	r := bareReader(broker, topic, partition)
	defer func() { err = closing(err, r.Close) }()
	for {
		m, err := r.ReadMessage(ctx)
		if err != nil || m.Offset+1 >= end {
			return err
		}
	}
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
