package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
)

const processEvents = 40_000

// Process measures the stage pair from the log to the log: records read, decoded and joined, turns encoded, appended, acknowledged and
// committed. Baseline: kafka-go reads the same records, partition by partition, and writes the same turns, ready encoded, to another topic.
func Process(ctx context.Context, e *Env) (results []Result, err error) {
	s, err := e.system(ctx, "process", ops.NeedLog)
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, s.Close) }()
	bare, err := e.bareTopics(ctx, s, schemas.TopicTurns)
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, bare.Close) }()
	input, err := e.fill(ctx, s.Log, e.events(processEvents))
	if err != nil {
		return nil, err
	}
	outputs, turns, err := pairOffline(ctx, s.Log)
	if err != nil {
		return nil, err
	}
	metrics, err := processors.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	round := 0
	r, err := e.compare(ctx, "pair", "events/s",
		func(ctx context.Context) (float64, error) {
			round++
			stage := processors.PairStage(s.Config.Pair)
			stage.Name = fmt.Sprintf("%s-%d", stage.Name, round) // a group of its own, which begins at the first record
			w := watch(s.Log, int64(turns), 0)
			took, err := w.while(ctx, func(ctx context.Context) error {
				return processors.Run(ctx, stage, w, processors.RunOptions{Logger: e.Logger, Metrics: metrics})
			})
			return float64(input) / took, err
		},
		func(ctx context.Context) (float64, error) {
			took, err := bareReadWrite(ctx, s.Endpoints().Brokers[0], outputs)
			return float64(input) / took, err
		})
	if err != nil {
		return nil, err
	}
	return []Result{r.higher("process", "events/s", map[string]any{
		"events": input, "turns_written": turns, "partitions": len(outputs),
	})}, nil
}

// bareSide is one partition of the baseline's work: how many records it reads, and what it writes for them.
type bareSide struct {
	read    int64
	written []kafka.Message
}

// pairOffline derives the turns of each partition without the log, to know what the stage will write.
func pairOffline(ctx context.Context, log schemas.Reader) (sides []bareSide, turns int, err error) {
	bounds, err := log.Bounds(ctx, schemas.TopicInteractions)
	if err != nil {
		return nil, 0, err
	}
	sides = make([]bareSide, len(bounds))
	pairs := make([]*processors.Pair, len(bounds))
	for i := range pairs {
		pairs[i] = processors.NewPair(processors.PairConfig{})
	}
	err = readAll(ctx, log, schemas.TopicInteractions, func(p int, r schemas.Record) error {
		event, err := schemas.Decode(r)
		if err != nil {
			return err
		}
		out, err := pairs[p].Process(ctx, event)
		if err != nil {
			return err
		}
		sides[p].read++
		for _, turn := range out {
			record, err := schemas.Encode(turn)
			if err != nil {
				return err
			}
			sides[p].written = append(sides[p].written, kafkaMessage(record))
			turns++
		}
		return nil
	})
	return sides, turns, err
}

// bareReadWrite reads every partition in a goroutine of its own and hands the outputs that belong to what it read to kafka-go's asynchronous
// writer, so that reading never waits for writing. It returns when everything is acknowledged.
func bareReadWrite(ctx context.Context, broker string, sides []bareSide) (seconds float64, err error) {
	var acknowledged, wanted atomic.Int64
	w := bareWriter(broker, barePrefix+schemas.TopicTurns)
	w.Async = true
	w.Completion = func(m []kafka.Message, err error) {
		if err == nil {
			acknowledged.Add(int64(len(m)))
		}
	}
	readers := make([]*kafka.Reader, len(sides))
	for p := range sides {
		readers[p] = bareReader(broker, schemas.TopicInteractions, p)
	}
	// A reader's Close waits for the fetch that it always has under way; that is not counted.
	defer func() {
		for _, r := range readers {
			err = closing(err, r.Close)
		}
	}()
	start := time.Now()
	var g errgroup.Group
	for p, side := range sides {
		wanted.Add(int64(len(side.written)))
		g.Go(func() error { return bareReadPartition(ctx, readers[p], side, w) })
	}
	err = closing(g.Wait(), w.Close)
	seconds = time.Since(start).Seconds()
	if err == nil && acknowledged.Load() != wanted.Load() {
		err = fmt.Errorf("the bare writer wrote %d of %d messages", acknowledged.Load(), wanted.Load())
	}
	return seconds, err
}

func bareReadPartition(ctx context.Context, r *kafka.Reader, side bareSide, w *kafka.Writer) error {
	written := 0
	for n := int64(1); n <= side.read; n++ {
		if _, err := r.ReadMessage(ctx); err != nil {
			return err
		}
		if n%500 != 0 && n != side.read {
			continue
		}
		due := int(int64(len(side.written)) * n / side.read)
		if err := w.WriteMessages(ctx, side.written[written:due]...); err != nil {
			return err
		}
		written = due
	}
	return nil
}
