package processors

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// quick paces a stage for tests: small batches, commits all the time.
func quick(t testing.TB) RunOptions {
	t.Helper()
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return RunOptions{
		BatchRecords: 5, CommitRecords: 3, CommitEvery: time.Millisecond,
		BackoffMin: 100 * time.Microsecond, BackoffMax: time.Millisecond, Metrics: m,
	}
}

// encode brings events into the form of the log.
func encode(t testing.TB, events []schemas.Event) []schemas.Record {
	t.Helper()
	var out []schemas.Record
	for _, e := range events {
		r, err := schemas.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// records returns what a partition holds now.
func records(t testing.TB, log schemas.Log, topic string, partition int) (out []schemas.Record) {
	t.Helper()
	bounds, err := log.Bounds(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if partition >= len(bounds) || bounds[partition].First == bounds[partition].Next {
		return nil
	}
	cursor, err := log.Open(t.Context(), topic, partition, bounds[partition].First)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cursor.Close() }()
	for int64(len(out)) < bounds[partition].Next-bounds[partition].First {
		got, err := cursor.Next(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, got...)
	}
	return out
}

// decoded is records, decoded.
func decoded(t testing.TB, log schemas.Log, topic string, partition int) (out []schemas.Event) {
	t.Helper()
	for _, r := range records(t, log, topic, partition) {
		e, err := schemas.Decode(r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// processed is the next offset that the stage will process in a partition, as its commit says.
func processed(t testing.TB, log schemas.Log, stage Stage, partition int) int64 {
	t.Helper()
	commits, err := log.Committed(t.Context(), GroupPrefix+stage.Name, stage.Topic)
	if err != nil {
		t.Fatal(err)
	}
	next, err := Next(commits[partition])
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// runUntil runs a stage until it processed n records of partition 0.
func runUntil(t *testing.T, stage Stage, log schemas.Log, o RunOptions, n int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, stage, log, o) }()
	for processed(t, log, stage, 0) < n {
		if ctx.Err() != nil {
			t.Fatalf("stage %s did not get to %d", stage.Name, n)
		}
		time.Sleep(200 * time.Microsecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// count reads a counter.
func count(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// processorFunc is a processor made of a function.
type processorFunc func(ctx context.Context, e schemas.Event) ([]schemas.Event, error)

func (f processorFunc) Process(ctx context.Context, e schemas.Event) ([]schemas.Event, error) {
	return f(ctx, e)
}

func stageOf(workers int, f processorFunc) Stage {
	return Stage{
		Name: StagePair, Topic: schemas.TopicInteractions, Workers: workers, Chunk: max(1, 5-workers),
		New: func(int) (Processor, error) { return f, nil },
	}
}

// answer derives one output from any event.
func skipped(e schemas.Event) []schemas.Event {
	return []schemas.Event{e.Derive("test", "1", &schemas.TurnSkipped{TurnId: e.ID, Reason: "test"}, e.ID, 0)}
}

// TestRunnerTakesEverything: no record stops a stage. Method: a partition with a good record, bytes that are no event, a record whose
// processing panics, one that fails for good and one that fails twice; sequentially and with workers.
func TestRunnerTakesEverything(t *testing.T) {
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			log := memlog.New(1)
			in := encode(t, newScript().main("x", "a1").main("x", "a2").main("x", "a3").main("x", "a4").main("x", "a5").events)
			in[1].Value = []byte{0xff, 0xff}
			if err := log.Append(t.Context(), in...); err != nil {
				t.Fatal(err)
			}
			var failures atomic.Int32
			stage := stageOf(workers, func(_ context.Context, e schemas.Event) ([]schemas.Event, error) {
				switch {
				case e.ID == id("a3"):
					panic("a bug")
				case e.ID == id("a4"):
					return nil, Permanent(errors.New("never"))
				case e.ID == id("a5") && failures.Add(1) <= 2:
					return nil, errors.New("not yet")
				}
				return skipped(e), nil
			})
			o := quick(t)
			runUntil(t, stage, log, o, 5)
			var good []string
			for _, e := range decoded(t, log, schemas.TopicSamples, 0) {
				good = append(good, e.Payload.(*schemas.TurnSkipped).GetTurnId())
			}
			if len(good) != 2 || good[0] != id("a1") || good[1] != id("a5") {
				t.Errorf("outputs %v", good)
			}
			dead := decoded(t, log, schemas.TopicDeadLetters, 0)
			if len(dead) != 3 {
				t.Fatalf("%d dead letters, want 3", len(dead))
			}
			for i, want := range []string{"cannot be decoded", "panic: a bug", "never"} {
				d := dead[i].Payload.(*schemas.DeadLettered)
				if !strings.Contains(d.GetReason(), want) || d.GetStage() != StagePair || d.GetPosition().GetOffset() != uint64(i+1) || string(d.GetValue()) != string(in[i+1].Value) {
					t.Errorf("dead letter %d: %s at %v", i, d.GetReason(), d.GetPosition())
				}
			}
			if n := count(t, o.Metrics.retries.WithLabelValues(StagePair, "process")); n != 2 {
				t.Errorf("%v retries, want 2", n)
			}
			if n := count(t, o.Metrics.deadLetters.WithLabelValues(StagePair)); n != 3 {
				t.Errorf("%v dead letters counted, want 3", n)
			}
		})
	}
}

// TestRunnerKeepsOrder: workers finish in any order, outputs come in the order of the input. Method: 200 events, each held up for a
// different time, with 8 workers.
func TestRunnerKeepsOrder(t *testing.T) {
	log := memlog.New(1)
	events := manyTurns(2, 50)
	if err := log.Append(t.Context(), encode(t, events)...); err != nil {
		t.Fatal(err)
	}
	stage := stageOf(8, func(_ context.Context, e schemas.Event) ([]schemas.Event, error) {
		time.Sleep(time.Duration(e.Position.Offset*7%5) * 100 * time.Microsecond)
		return skipped(e), nil
	})
	stage.Chunk = 1
	runUntil(t, stage, log, quick(t), int64(len(events)))
	seen, last := map[string]bool{}, -1
	for _, e := range decoded(t, log, schemas.TopicSamples, 0) {
		turn := e.Payload.(*schemas.TurnSkipped).GetTurnId()
		if seen[turn] {
			continue
		}
		seen[turn] = true
		last++
		if turn != events[last].ID {
			t.Fatalf("output %d is of another event", last)
		}
	}
	if len(seen) != len(events) {
		t.Errorf("%d outputs of %d", len(seen), len(events))
	}
}

// TestRunnerAppendsAgain: an append that fails is repeated until it succeeds, and nothing is committed before. Method: refuse and lose
// acknowledgements for the first appends.
func TestRunnerAppendsAgain(t *testing.T) {
	log := memlog.New(1)
	if err := log.Append(t.Context(), encode(t, manyTurns(1, 5))...); err != nil {
		t.Fatal(err)
	}
	calls := 0
	log.OnAppend(func([]schemas.Record) memlog.Fault {
		calls++
		switch {
		case calls < 4:
			return memlog.Refused
		case calls < 6:
			return memlog.AckLost
		}
		return memlog.Applied
	})
	runUntil(t, PairStage(PairConfig{}), log, quick(t), 10)
	ids := map[string]int{}
	for _, e := range decoded(t, log, schemas.TopicTurns, 0) {
		ids[e.ID]++
	}
	if len(ids) != 5 {
		t.Errorf("%d turns, want 5", len(ids))
	}
}

// TestRunnerTooLargeForTheLog: an output that the log will never take becomes a dead letter, and the rest goes on. Method: a log that
// refuses large records.
func TestRunnerTooLargeForTheLog(t *testing.T) {
	log := &narrowLog{Log: memlog.New(1), limit: 3000}
	a := mainAction("a1")
	a.Response = textMessage(schemas.Role_ROLE_ASSISTANT, strings.Repeat("x", 5000))
	if err := log.Log.Append(t.Context(), encode(t, newScript().add("x", "a1", a).next("x", "n1", "", "k").main("y", "a2").next("y", "n2", "", "k").events)...); err != nil {
		t.Fatal(err)
	}
	runUntil(t, PairStage(PairConfig{}), log, quick(t), 4)
	turns, dead := decoded(t, log, schemas.TopicTurns, 0), decoded(t, log, schemas.TopicDeadLetters, 0)
	if len(turns) != 1 || turns[0].Payload.(*schemas.TurnClosed).GetTurnId() != id("a2") || len(dead) != 1 {
		t.Errorf("%d turns, %d dead letters, want the turn of a2 and 1", len(turns), len(dead))
	}
}

// narrowLog refuses records of more than limit bytes, except dead letters.
type narrowLog struct {
	*memlog.Log
	limit int
}

func (l *narrowLog) Append(ctx context.Context, records ...schemas.Record) error {
	for _, r := range records {
		if len(r.Value) > l.limit && r.Topic != schemas.TopicDeadLetters {
			return schemas.ErrTooLarge
		}
	}
	return l.Log.Append(ctx, records...)
}

// TestRunnerAfterTruncation: a stage that was overtaken by retention counts what it lost and goes on. Method: commit in the middle, then
// drop more than was processed.
func TestRunnerAfterTruncation(t *testing.T) {
	log := memlog.New(1)
	events := manyTurns(1, 20)
	records := encode(t, events)
	if err := log.Append(t.Context(), records[:10]...); err != nil {
		t.Fatal(err)
	}
	cfg := PairConfig{DedupRecords: 2}
	runUntil(t, PairStage(cfg), log, quick(t), 10)
	if err := log.Append(t.Context(), records[10:]...); err != nil {
		t.Fatal(err)
	}
	if err := log.Truncate(schemas.TopicInteractions, 0, 14); err != nil {
		t.Fatal(err)
	}
	o := quick(t)
	runUntil(t, PairStage(cfg), log, o, 40)
	if n := count(t, o.Metrics.truncated.WithLabelValues(StagePair)); n != 4 {
		t.Errorf("%v records counted as lost, want 4", n)
	}
	turns := decoded(t, log, schemas.TopicTurns, 0)
	if got := turns[len(turns)-1].Payload.(*schemas.TurnClosed).GetTurnId(); len(turns) != 18 || got != events[38].ID {
		t.Errorf("%d turns, want 18", len(turns))
	}
}

// TestSpanLinks: a batch's span is linked to the traces of its events, and a broken traceparent only has no link. Method: one of each.
func TestSpanLinks(t *testing.T) {
	good := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	got := links([]string{good, "", "x", "00-zz-b7ad6b7169203331-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01"})
	if len(got) != 1 || got[0].SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || got[0].SpanContext.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("got %v", got)
	}
}
