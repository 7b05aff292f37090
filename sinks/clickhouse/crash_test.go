package clickhouse_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
	"github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// load is a log under test with what must come of it.
type load struct {
	records []schemas.Record
	// kinds counts each kind's different events; foreign counts records that cannot be decoded.
	kinds   map[string]uint64
	foreign uint64
}

// newLoad makes sessions, interleaved over all topics, with undecodable records among them.
func newLoad(t *testing.T, r *rand.Rand, sessions, turns int) load {
	t.Helper()
	l := load{kinds: map[string]uint64{}}
	var queues [][]schemas.Event
	for i := range sessions {
		queues = append(queues, sessionEvents(fmt.Sprintf("s%d", i), turns))
	}
	queues = append(queues, trainingEvents())
	for len(queues) > 0 {
		i := r.IntN(len(queues))
		e := queues[i][0]
		if queues[i] = queues[i][1:]; len(queues[i]) == 0 {
			queues = slices.Delete(queues, i, i+1)
		}
		l.kinds[e.Kind()]++
		l.records = append(l.records, encode(t, []schemas.Event{e})...)
		if r.IntN(50) == 0 {
			l.records = append(l.records, foreign(schemas.TopicInteractions, fmt.Sprintf("s%d", r.IntN(sessions)), r))
			l.foreign++
		}
	}
	l.kinds["DeadLettered"] += l.foreign
	return l
}

// feed appends the records in small groups; some groups twice, as a client does that lost an acknowledgement. Undecodable records have no id to
// know them by, so those are appended once.
func (l load) feed(t *testing.T, r *rand.Rand, log schemas.Log, pause time.Duration) {
	t.Helper()
	for group := range slices.Chunk(l.records, 20) {
		if err := log.Append(t.Context(), group...); err != nil {
			t.Error(err)
			return
		}
		if r.IntN(3) == 0 {
			again := slices.DeleteFunc(slices.Clone(group), func(r schemas.Record) bool { return r.Headers[0].Key == "x" })
			if err := log.Append(t.Context(), again...); err != nil {
				t.Error(err)
				return
			}
		}
		time.Sleep(pause)
	}
}

// check compares every table and view with what was fed.
func (l load) check(t *testing.T, s stores, log schemas.Log) {
	t.Helper()
	total := l.foreign
	for kind, table := range clickhouse.KindTables() {
		total += l.kinds[kind]
		if got := one(t, s.conn, "SELECT count() FROM "+table); got != l.kinds[kind] {
			t.Errorf("%s: %d rows, want %d", table, got, l.kinds[kind])
		}
		if got := one(t, s.conn, "SELECT uniqExact(event_id) FROM "+table); got != l.kinds[kind] {
			t.Errorf("%s: %d ids, want %d", table, got, l.kinds[kind])
		}
	}
	if got := one(t, s.conn, "SELECT count() FROM events"); got != total {
		t.Errorf("events: %d rows, want %d", got, total)
	}
	if got := one(t, s.conn, "SELECT count() FROM events WHERE kind = ''"); got != l.foreign {
		t.Errorf("events: %d undecodable rows, want %d", got, l.foreign)
	}
	if got := one(t, s.conn, "SELECT count() FROM turns"); got != l.kinds["TurnClosed"] {
		t.Errorf("view turns: %d rows, want %d", got, l.kinds["TurnClosed"])
	}
	if got := one(t, s.conn, "SELECT count() FROM turns WHERE response_text = '' OR score IS NULL OR (sample_kind IS NULL) = (skip_reason IS NULL)"); got != 0 {
		t.Errorf("view turns: %d rows are not joined with their action, verdict and sample", got)
	}
	rows, err := clickhouse.Audit(t.Context(), s.conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if !row.Exact() {
			t.Errorf("audit: %s has %d rows in %d places", row.Table, row.Rows, row.Places)
		}
	}
	compareHistory(t, log, s)
}

var errCrash = errors.New("crash")

// Goal: whatever step a sink dies at, everything is in every table exactly once. Method: two sinks share a log under load; at random steps a
// batch ends as if its process had died, or sleeps while its partition goes to the other sink (a zombie) and then goes on. Seeded.
func TestCrashesAtEveryStep(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any bits will do
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // not for secrets
	s, log := open(t), memlog.New(2)
	l := newLoad(t, r, 6, 6)
	var mu sync.Mutex
	steps := map[string]int{}
	fault := func(step string) error {
		mu.Lock()
		n := r.IntN(60)
		if n < 3 {
			steps[step]++
		}
		mu.Unlock()
		switch {
		case n < 2:
			return fmt.Errorf("%s: %w", step, errCrash)
		case n < 3:
			topic := schemas.Topics()[int(seed%7)]
			log.Fence(quick().Group(topic), topic)
			time.Sleep(30 * time.Millisecond)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		c := quick()
		c.Rows = 17
		sink := newSink(t, c, log, s)
		sink.SetFault(fault)
		wg.Go(func() {
			if err := sink.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	l.feed(t, rand.New(rand.NewPCG(seed, 2)), log, 2*time.Millisecond) //nolint:gosec // not for secrets
	for !caughtUp(t, log) {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	wg.Wait()
	// A fenced sink may have been past its last commit: one that does not crash makes the end certain.
	runUntil(t, newSink(t, quick(), log, s), log)
	t.Logf("steps that failed: %v", steps)
	if len(steps) == 0 {
		t.Error("nothing failed: the test has shown nothing")
	}
	l.check(t, s, log)
}

// elsewhere is a log whose consumer groups are others: a sink behind it does not hear of the sinks before it, as when a group lost a member that
// still lives.
type elsewhere struct{ schemas.Log }

func (e elsewhere) Own(ctx context.Context, group, topic string, own func(context.Context, schemas.Claim) error) error {
	return e.Log.Own(ctx, group+" elsewhere", topic, own)
}

func (e elsewhere) Committed(ctx context.Context, group, topic string) ([]schemas.Commit, error) {
	return e.Log.Committed(ctx, group+" elsewhere", topic)
}

// Goal: a former owner's block that is still on its way adds nothing. Method: a sink stops after its range is recorded; a second one, which the
// first does not hear of, repeats the range and goes on to the end; then the first wakes, sends its block and must be fenced at its next range.
func TestZombie(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5)) //nolint:gosec // not for secrets
	s, log := open(t), memlog.New(1)
	l := newLoad(t, r, 2, 3)
	asleep, wake := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	c := quick()
	c.Rows = 7
	lines := make(logLines, 1000)
	first, err := clickhouse.New(c, clickhouse.Stores{Log: log, ClickHouse: s.conn, Postgres: s.pool, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	first.SetFault(func(step string) error {
		if step == "after range" && once.CompareAndSwap(false, true) {
			close(asleep)
			<-wake
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- first.Run(ctx) }()
	l.feed(t, r, log, 0)
	<-asleep
	second := elsewhere{log}
	runUntil(t, newSink(t, c, second, s), second)
	close(wake)
	for line := range lines {
		if strings.Contains(line, schemas.ErrFenced.Error()) {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	runUntil(t, newSink(t, c, log, s), log)
	l.check(t, s, log)
}
