package clickhouse_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
	"github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// sum adds up a counter over its labels.
func sum(t *testing.T, r *prometheus.Registry, name string) (total float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return total
}

// crashOnce runs a sink until it reaches a step, and ends it there.
func crashOnce(t *testing.T, log schemas.Log, s stores, at string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sink := newSink(t, quick(), log, s)
	sink.SetFault(func(step string) error {
		if step == at {
			cancel()
			return errCrash
		}
		return nil
	})
	if err := sink.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// Goal: records that retention took inside a recorded range are reported, counted, and stop nothing. Method: a sink dies after it recorded a
// range; the log drops its first half; the next sink must write the rest once, count the lost ones, and log an error.
func TestRetentionInsideRange(t *testing.T) {
	s, log := open(t), memlog.New(1)
	records := encode(t, sessionEvents("s0", 5))
	var interactions uint64
	for _, r := range records {
		if r.Topic == schemas.TopicInteractions {
			interactions++
		}
	}
	if err := log.Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	c := quick()
	c.Topics = []string{schemas.TopicInteractions}
	ctx, cancel := context.WithCancel(t.Context())
	sink := newSink(t, c, log, s)
	sink.SetFault(func(step string) error {
		if step == "after table action_taken" {
			cancel()
			return errCrash
		}
		return nil
	})
	if err := sink.Run(ctx); err != nil {
		t.Fatal(err)
	}
	const lost = 4
	if err := log.Truncate(schemas.TopicInteractions, 0, lost); err != nil {
		t.Fatal(err)
	}
	registry, logged := prometheus.NewRegistry(), &bytes.Buffer{}
	next, err := clickhouse.New(quick(), clickhouse.Stores{Log: log, ClickHouse: s.conn, Postgres: s.pool, Metrics: registry, Logger: slog.New(slog.NewTextHandler(logged, nil))})
	if err != nil {
		t.Fatal(err)
	}
	runUntil(t, next, log)
	if got := sum(t, registry, "sink_lost_records_total"); got != lost {
		t.Errorf("%v lost records counted, want %d", got, lost)
	}
	if !strings.Contains(logged.String(), "level=ERROR") {
		t.Errorf("no error was logged: %s", logged)
	}
	if got := one(t, s.conn, "SELECT count() FROM events WHERE topic = 'interactions'"); got != interactions-lost {
		t.Errorf("%d records, want %d", got, interactions-lost)
	}
	// The table that had its block before the crash keeps all of it.
	if got := one(t, s.conn, "SELECT count() FROM action_taken"); got != 5 {
		t.Errorf("%d actions, want 5", got)
	}
	// A gap behind the last range is counted as well.
	if err := log.Append(t.Context(), encode(t, sessionEvents("s1", 2))...); err != nil {
		t.Fatal(err)
	}
	if err := log.Truncate(schemas.TopicInteractions, 0, int64(interactions)+3); err != nil { //nolint:gosec // small
		t.Fatal(err)
	}
	registry = prometheus.NewRegistry()
	next, err = clickhouse.New(quick(), clickhouse.Stores{Log: log, ClickHouse: s.conn, Postgres: s.pool, Metrics: registry})
	if err != nil {
		t.Fatal(err)
	}
	runUntil(t, next, log)
	if got := sum(t, registry, "sink_lost_records_total"); got != 3 {
		t.Errorf("%v lost records counted, want 3", got)
	}
}

// Goal: a range is repeated exactly once however long ago it was, also when the window of tokens has forgotten it. Method: a sink dies between
// two tables, another before its commit; the tables' windows are emptied; the next sink must add nothing.
func TestRepeatOutsideTheWindow(t *testing.T) {
	s, log := open(t), memlog.New(1)
	r := rand.New(rand.NewPCG(9, 9)) //nolint:gosec // not for secrets
	l := newLoad(t, r, 2, 2)
	l.feed(t, r, log, 0)
	crashOnce(t, log, s, "after table turn_judged")
	crashOnce(t, log, s, "after table events")
	for _, table := range clickhouse.KindTables() {
		forget(t, s, table)
	}
	forget(t, s, "events")
	runUntil(t, newSink(t, quick(), log, s), log)
	l.check(t, s, log)
}

// forget empties a table's window of tokens.
func forget(t *testing.T, s stores, table string) {
	t.Helper()
	for _, n := range []string{"0", "10000"} {
		if err := s.conn.Exec(t.Context(), "ALTER TABLE "+table+" MODIFY SETTING non_replicated_deduplication_window = "+n); err != nil {
			t.Fatal(err)
		}
	}
}

// Goal: one record that ClickHouse refuses does not hold up the others. Method: an operator's constraint refuses one action; it must end as a
// dead letter with its raw record kept, and everything else must be there.
func TestRefusedRecord(t *testing.T) {
	s, log := open(t), memlog.New(1)
	if err := s.conn.Exec(t.Context(), "ALTER TABLE action_taken ADD CONSTRAINT short CHECK length(model) < 20"); err != nil {
		t.Fatal(err)
	}
	events := sessionEvents("s0", 3)
	a, ok := events[0].Payload.(*schemas.ActionTaken)
	if !ok {
		t.Fatalf("%T", events[0].Payload)
	}
	a.Model = strings.Repeat("m", 20)
	if err := log.Append(t.Context(), encode(t, events)...); err != nil {
		t.Fatal(err)
	}
	runUntil(t, newSink(t, quick(), log, s), log)
	if got := one(t, s.conn, "SELECT count() FROM action_taken"); got != 2 {
		t.Errorf("%d actions, want 2", got)
	}
	if got := one(t, s.conn, "SELECT count() FROM events WHERE topic != 'deadletters'"); got != uint64(len(events)) {
		t.Errorf("%d records, want %d", got, len(events))
	}
	if got := one(t, s.conn, "SELECT count() FROM dead_letters WHERE stage = 'sink' AND origin_topic = 'interactions' AND origin_offset = 0 AND reason LIKE '%short%'"); got != 1 {
		t.Errorf("%d dead letters, want 1", got)
	}
	if got := one(t, s.conn, "SELECT count() FROM system.tables WHERE database = currentDatabase() AND name LIKE 'probe%'"); got != 0 {
		t.Errorf("%d probe tables are left", got)
	}
}

// Goal: a log that is shorter than its history is refused in words, because offsets would be written twice. Method: a second, empty log under
// the same name.
func TestShorterLog(t *testing.T) {
	s, log := open(t), memlog.New(1)
	if err := log.Append(t.Context(), encode(t, sessionEvents("s0", 2))...); err != nil {
		t.Fatal(err)
	}
	runUntil(t, newSink(t, quick(), log, s), log)
	ctx, cancel := context.WithCancel(t.Context())
	lines := make(logLines, 100)
	sink, err := clickhouse.New(quick(), clickhouse.Stores{Log: memlog.New(1), ClickHouse: s.conn, Postgres: s.pool, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- sink.Run(ctx) }()
	if line := <-lines; !strings.Contains(line, "this is an older or another log") {
		t.Errorf("logged %s", line)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// logLines hands each line of a log over; it drops those that nobody waits for.
type logLines chan string

func (l logLines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default:
	}
	return len(b), nil
}

// Goal: an event is in ClickHouse soon after it was appended, also when it is alone. Method: one event is appended to a log that rests; the
// test ends when it can be queried, and hangs if a batch would wait for more.
func TestLoneEvent(t *testing.T) {
	s, log := open(t), memlog.New(1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	sink := newSink(t, clickhouse.DefaultConfig(), log, s)
	go func() { ended <- sink.Run(ctx) }()
	for i, e := range sessionEvents("s0", 1)[:3] {
		if err := log.Append(ctx, encode(t, []schemas.Event{e})...); err != nil {
			t.Fatal(err)
		}
		for one(t, s.conn, "SELECT count() FROM events") != uint64(i)+1 { //nolint:gosec // small
			time.Sleep(5 * time.Millisecond)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
