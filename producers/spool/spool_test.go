package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// open opens a spool that says what it says to the returned buffer.
func open(t testing.TB, cfg Config, to schemas.Appender) (*Spool, *logged) {
	t.Helper()
	said := &logged{}
	s, err := Open(cfg, to, Instruments{Logger: slog.New(slog.NewTextHandler(said, nil)), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, said
}

// logged keeps log lines. Safe for concurrent use.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// run runs the spool until the returned function is called, which waits for its end.
func run(t testing.TB, s *Spool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	running := new(errgroup.Group)
	running.Go(func() error { return s.Run(ctx) })
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := running.Wait(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// drainAll runs the spool until the log has everything.
func drainAll(t testing.TB, s *Spool) {
	t.Helper()
	stop := run(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Drained(ctx); err != nil || waiting(s) != 0 {
		t.Fatalf("%d records are not drained: %v", waiting(s), err)
	}
	stop()
}

func waiting(s *Spool) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records
}

// record is the n-th of a session.
func record(session string, n, size int) schemas.Record {
	return schemas.Record{
		Topic: schemas.TopicInteractions, Key: []byte("acme/" + session),
		Headers: []schemas.Header{{Key: "ce_id", Value: fmt.Appendf(nil, "%s-%06d", session, n)}},
		Value:   bytes.Repeat([]byte{byte(n)}, size),
	}
}

func id(r schemas.Record) string { return string(r.Headers[0].Value) }

// ids reads the whole log, with one partition, and returns the ids of a topic in order.
func ids(t testing.TB, log *memlog.Log, topic string) (all []string) {
	t.Helper()
	for _, r := range records(t, log, topic) {
		all = append(all, id(r))
	}
	return all
}

func records(t testing.TB, log *memlog.Log, topic string) (all []schemas.Record) {
	t.Helper()
	bounds, err := log.Bounds(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	c, err := log.Open(context.Background(), topic, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for int64(len(all)) < bounds[0].Next {
		some, err := c.Next(context.Background(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, some...)
	}
	return all
}

// checkSessions wants each session's records 0 to n-1, in order of first appearance.
func checkSessions(t testing.TB, got []string, sessions, n int) {
	t.Helper()
	next, seen := map[string]int{}, map[string]bool{}
	for _, id := range got {
		if seen[id] {
			continue
		}
		seen[id] = true
		session, number, _ := strings.Cut(id, "-")
		if want := fmt.Sprintf("%06d", next[session]); number != want {
			t.Fatalf("%s comes where %s-%s should", id, session, want)
		}
		next[session]++
	}
	if len(next) != sessions {
		t.Errorf("%d sessions, want %d", len(next), sessions)
	}
	for session, had := range next {
		if had != n {
			t.Errorf("%s has %d records, want %d", session, had, n)
		}
	}
}

// Goal: the log gets every record, exactly as it was, in the order of each caller, whatever the log does. Method: concurrent callers, small files and
// batches, a log that refuses, loses acknowledgements and takes records twice, by a fixed pattern.
func TestOrderUnderFaults(t *testing.T) {
	const sessions, n = 16, 200
	log := memlog.New(1)
	var calls atomic.Int64
	log.OnAppend(func([]schemas.Record) memlog.Fault {
		return []memlog.Fault{memlog.Applied, memlog.Refused, memlog.AckLost, memlog.Applied, memlog.Duplicated}[calls.Add(1)%5]
	})
	dir := t.TempDir()
	s, said := open(t, Config{Dir: dir, SegmentBytes: 16 << 10, BatchBytes: 4096, BatchRecords: 7, BackoffMax: time.Millisecond}, log)
	run(t, s)
	var callers errgroup.Group
	for c := range sessions {
		callers.Go(func() error {
			for i := 0; i < n; i += 2 {
				if err := s.Append(t.Context(), record(fmt.Sprint("s", c), i, 100), record(fmt.Sprint("s", c), i+1, 300)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := callers.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := s.Drained(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkSessions(t, ids(t, log, schemas.TopicInteractions), sessions, n)
	for _, r := range records(t, log, schemas.TopicInteractions) {
		session, number, _ := strings.Cut(id(r), "-")
		var i int
		fmt.Sscanf(number, "%d", &i)
		want := record(session, i, 100+200*(i%2))
		if !bytes.Equal(r.Key, want.Key) || !bytes.Equal(r.Value, want.Value) || r.Headers[0].Key != "ce_id" || r.Time.IsZero() {
			t.Fatalf("%s was changed: %+v", id(r), r)
		}
	}
	if text := said.String(); !strings.Contains(text, "does not take records") || !strings.Contains(text, "takes records again") {
		t.Errorf("the log went away and came back, and the spool said: %s", text)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.spool"))
	if err != nil || len(files) > 1 {
		t.Errorf("everything is drained, and there are %v (%v)", files, err)
	}
}

// Goal: what the log did not get is there for the next process, in order, and what it got is not sent again after an orderly end. Method: half of the
// records while the log refuses everything; an end within DrainTimeout; then a second life with a log that works, and a third that finds nothing.
func TestLives(t *testing.T) {
	log := memlog.New(1)
	log.OnAppend(func([]schemas.Record) memlog.Fault { return memlog.Refused })
	cfg := Config{Dir: t.TempDir(), SegmentBytes: 4096, DrainTimeout: 30 * time.Millisecond, BackoffMax: time.Millisecond}
	first, _ := open(t, cfg, log)
	stop := run(t, first)
	for i := range 50 {
		if err := first.Append(t.Context(), record("s", i, 200)); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.Append(t.Context(), record("s", 50, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	log.OnAppend(nil)
	second, said := open(t, cfg, log)
	if waiting(second) != 50 || !strings.Contains(said.String(), "records=50") {
		t.Errorf("%d records wait, want 50; it said %s", waiting(second), said)
	}
	for i := 50; i < 60; i++ {
		if err := second.Append(t.Context(), record("s", i, 200)); err != nil {
			t.Fatal(err)
		}
	}
	drainAll(t, second)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	third, _ := open(t, cfg, log)
	if waiting(third) != 0 {
		t.Errorf("%d records wait after everything was drained", waiting(third))
	}
	drainAll(t, third)
	if got := ids(t, log, schemas.TopicInteractions); len(got) != 60 {
		t.Errorf("%d records in the log, want 60 and none twice", len(got))
	} else {
		checkSessions(t, got, 1, 60)
	}
}

// Goal: a record keeps the time at which it was taken, also when it reaches the log much later, so that the idle time of a session is right. Method:
// append without a time, drain after an hour by a fake clock.
func TestTimeIsThatOfTheAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memlog.New(1)
		s, _ := open(t, Config{Dir: t.TempDir()}, log)
		at := time.Now().Truncate(time.Millisecond)
		if err := s.Append(t.Context(), record("s", 0, 1)); err != nil {
			t.Fatal(err)
		}
		given := record("s", 1, 1)
		given.Time = time.UnixMilli(1234567890123).UTC()
		if err := s.Append(t.Context(), given); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		drainAll(t, s)
		got := records(t, log, schemas.TopicInteractions)
		if !got[0].Time.Equal(at) || !got[1].Time.Equal(given.Time) {
			t.Errorf("times %v and %v, want %v and %v", got[0].Time, got[1].Time, at, given.Time)
		}
	})
}

// picky is a log that takes no record of more than most bytes.
type picky struct {
	*memlog.Log
	most int
}

func (p picky) Append(ctx context.Context, records ...schemas.Record) error {
	for _, r := range records {
		if len(r.Value) > p.most {
			return fmt.Errorf("picky: %w", schemas.ErrTooLarge)
		}
	}
	return p.Log.Append(ctx, records...)
}

// Goal: a record that the log refuses for good becomes a dead letter and stops nothing. Method: a log with a lower limit than ours, two records too large
// for it among others; and one whose dead letter is too large as well, whose file is kept.
func TestRefusedForGood(t *testing.T) {
	log := memlog.New(1)
	dir := t.TempDir()
	s, said := open(t, Config{Dir: dir}, picky{log, 3000})
	for i, size := range []int{10, 3500, 10, 3600, 10} {
		if err := s.Append(t.Context(), record("s", i, size)); err != nil {
			t.Fatal(err)
		}
	}
	s.to = deadOr{picky{log, 3000}, log}
	drainAll(t, s)
	if got := ids(t, log, schemas.TopicInteractions); len(got) != 3 {
		t.Errorf("the log has %v, want the three small ones", got)
	}
	dead := map[string]string{}
	for _, r := range records(t, log, schemas.TopicDeadLetters) {
		e, err := schemas.Decode(r)
		if err != nil {
			t.Fatal(err)
		}
		d, _ := e.Payload.(*schemas.DeadLettered)
		dead[e.ID] = d.GetStage()
		if e.Session != "s" || !strings.Contains(d.GetReason(), "too large") || len(d.GetValue()) < 3000 {
			t.Errorf("a dead letter of session %q: %s, %d bytes", e.Session, d.GetReason(), len(d.GetValue()))
		}
	}
	if len(dead) != 2 {
		t.Errorf("dead letters %v, want two with ids of their own", dead)
	}
	if !strings.Contains(said.String(), "becomes a dead letter") {
		t.Errorf("it said nothing of a dead letter: %s", said)
	}

	if err := s.Append(t.Context(), schemas.Record{Topic: schemas.TopicDeadLetters, Key: []byte("acme/s"), Value: make([]byte, 4000)}, record("t", 0, 10)); err != nil {
		t.Fatal(err)
	}
	s.to = picky{log, 3000}
	drainAll(t, s)
	kept, err := filepath.Glob(filepath.Join(dir, "*"+setAsideSuffix))
	if got := ids(t, log, schemas.TopicInteractions); err != nil || len(got) != 4 || len(kept) != 1 || !strings.Contains(said.String(), kept[0]) {
		t.Errorf("after a dead letter that is too large the log has %v, and %v is kept; it said %s", got, kept, said)
	}
}

// deadOr sends dead letters to a log without limits.
type deadOr struct {
	picky
	dead *memlog.Log
}

func (d deadOr) Append(ctx context.Context, records ...schemas.Record) error {
	if records[0].Topic == schemas.TopicDeadLetters {
		return d.dead.Append(ctx, records...)
	}
	return d.picky.Append(ctx, records...)
}

// Goal: a full spool says ErrFull, keeps what it has, and takes records again when the log has taken some. Method: fill a small one while nothing drains,
// then drain it, several times over.
func TestFull(t *testing.T) {
	log := memlog.New(1)
	s, _ := open(t, Config{Dir: t.TempDir(), SegmentBytes: 8 << 10, MaxBytes: 40 << 10}, log)
	taken := 0
	for round := range 3 {
		var err error
		for err == nil {
			if err = s.Append(t.Context(), record("s", taken, 500)); err == nil {
				taken++
			}
		}
		if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		if taken < 55*(round+1) {
			t.Fatalf("only %d records fit in round %d", taken, round)
		}
		s.mu.Lock()
		if s.bytes > s.cfg.MaxBytes {
			t.Errorf("%d bytes, more than %d", s.bytes, s.cfg.MaxBytes)
		}
		s.mu.Unlock()
		drainNow(t, s)
		if waiting(s) != 0 {
			t.Fatalf("%d records are left", waiting(s))
		}
	}
	checkSessions(t, ids(t, log, schemas.TopicInteractions), 1, taken)
}

// drainNow drains what is there, as Run does when its context has ended, and leaves the spool as it is.
func drainNow(t testing.TB, s *Spool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.drain(ctx); err != nil {
		t.Fatal(err)
	}
}

// Goal: what the log would refuse for ever does not get into the journal, and what cannot work is said at the start. Method: one of each.
func TestRefusals(t *testing.T) {
	cfg := Config{Dir: t.TempDir()}
	s, _ := open(t, cfg, memlog.New(1))
	if err := s.Append(t.Context(), record("s", 0, schemas.MaxRecordBytes)); !errors.Is(err, schemas.ErrTooLarge) {
		t.Errorf("a record that is too large: %v", err)
	}
	if err := s.Append(t.Context(), schemas.Record{Topic: "nowhere"}); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("an unknown topic: %v", err)
	}
	if err := s.Append(t.Context(), schemas.Record{Topic: schemas.TopicTurns, Time: time.Unix(-5, 0)}); err == nil || !strings.Contains(err.Error(), "1970") {
		t.Errorf("a time before 1970: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Append(ctx, record("s", 0, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	if waiting(s) != 0 {
		t.Errorf("%d records were taken", waiting(s))
	}
	in := Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()}
	if _, err := Open(cfg, memlog.New(1), in); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a folder that is in use: %v", err)
	}
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: filepath.Join(blocked, "spool")}, memlog.New(1), in); err == nil || !strings.Contains(err.Error(), "choose a folder") {
		t.Errorf("a folder that cannot be made: %v", err)
	}
	for _, c := range []Config{{}, {Dir: "x", Sync: "never"}, {Dir: "x", SegmentBytes: 1}, {Dir: "x", MaxBytes: 1 << 20}, {Dir: "x", BatchRecords: -1}, {Dir: "x", SyncEvery: -1}, {Dir: "x", BatchBytes: 1 << 40}} {
		if err := c.Validate(); err == nil {
			t.Errorf("%+v is valid", c)
		}
	}
}

// slow is a log that waits before it takes anything.
type slow struct {
	*memlog.Log
	free chan struct{}
}

func (l slow) Append(ctx context.Context, records ...schemas.Record) error {
	select {
	case <-l.free:
		return l.Log.Append(ctx, records...)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Goal: a log that hangs holds up neither Append nor, for longer than DrainTimeout, the end; the metrics show what waits. Method: such a log; look at the
// gauges; end; then a second life with a log that works.
func TestHangingLog(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), DrainTimeout: 20 * time.Millisecond}
	log := slow{memlog.New(1), make(chan struct{})}
	registry := prometheus.NewRegistry()
	s, err := Open(cfg, log, Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stop := run(t, s)
	for i := range 20 {
		if err := s.Append(t.Context(), record("s", i, 10)); err != nil {
			t.Fatal(err)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := s.Drained(soon); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "20 records") {
		t.Errorf("waiting for a log that hangs: %v", err)
	}
	got := gauges(t, registry)
	if got["spool_records"] != 20 || got["spool_bytes"] < 20*10 || got["spool_oldest_seconds"] <= 0 || got["spool_oldest_seconds"] > 60 || got["spool_append_seconds"] != 20 {
		t.Errorf("metrics %v", got)
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	close(log.free)
	again, _ := open(t, cfg, log)
	drainAll(t, again)
	checkSessions(t, ids(t, log.Log, schemas.TopicInteractions), 1, 20)
}

// gauges returns each metric's value, of histograms the count.
func gauges(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		values[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return values
}
