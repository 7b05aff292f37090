package trainer_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/embedded/postgres"
	"github.com/nextstate-rl/nextstate/ops/migrations"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
)

// ledgers is one storage under test: open gives a further holder, lose takes the claim from whoever has it without telling, outcomes counts the updates that
// were begun and the versions.
type ledgers struct {
	open     func() trainer.Ledger
	lose     func()
	outcomes func() (updates uint64, versions int)
}

func memoryLedgers(shelf *trainer.Shelf) ledgers {
	return ledgers{func() trainer.Ledger { return trainer.NewLedgerMemory(shelf) }, shelf.Abandon, func() (uint64, int) {
		n, versions := shelf.Outcomes()
		return n, len(versions)
	}}
}

// TestLedger: every ledger keeps what the loop relies on. Method: one suite over the ledger in memory and the one in a real Postgres.
func TestLedger(t *testing.T) {
	pool := database(t)
	for name, make := range map[string]func(t *testing.T) ledgers{
		"memory":   func(*testing.T) ledgers { return memoryLedgers(trainer.NewShelf()) },
		"postgres": func(t *testing.T) ledgers { return postgresLedgers(t, pool) },
	} {
		t.Run(name, func(t *testing.T) {
			for test, run := range map[string]func(*testing.T, ledgers){
				"Lifecycle": ledgerLifecycle, "Refusals": ledgerRefusals, "Waiting": ledgerWaiting, "Fencing": ledgerFencing,
			} {
				t.Run(test, func(t *testing.T) { run(t, make(t)) })
			}
		})
	}
}

// database is a migrated Postgres.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	dir, err := os.MkdirTemp("", "ledger-test-") // not t.TempDir: Postgres runs as another user below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see above
		t.Fatal(err)
	}
	server, err := postgres.Start(t.Context(), postgres.Config{Dir: filepath.Join(dir, "data"), Bin: assets.ForTest(t, "postgres")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(t.Context(), server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := migrations.Postgres(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

func postgresLedgers(t *testing.T, pool *pgxpool.Pool) ledgers {
	t.Helper()
	for _, table := range []string{"trainer_outbox", "update_samples", "updates", "trainers"} {
		if _, err := pool.Exec(t.Context(), "DELETE FROM "+table); err != nil {
			t.Fatal(err)
		}
	}
	open := func() trainer.Ledger {
		l, err := trainer.NewLedgerPostgres(pool, "default")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Release(context.WithoutCancel(t.Context())) })
		return l
	}
	lose := func() { // the server ends the connection that holds the lock
		if _, err := pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"); err != nil {
			t.Fatal(err)
		}
	}
	return ledgers{open, lose, func() (updates uint64, versions int) {
		if err := pool.QueryRow(context.WithoutCancel(t.Context()), "SELECT count(*), count(version) FROM updates").Scan(&updates, &versions); err != nil {
			t.Error(err)
		}
		return updates, versions
	}}
}

// begun is update n with samples, and the low watermark low.
func begun(n uint64, parent string, low int64, samples ...int) trainer.Begun {
	p := &schemas.UpdateStarted{Update: n, ParentVersion: parent, Objective: "{}", Seed: 7, Engine: "onnx"}
	b := trainer.Begun{Low: []int64{low, 0}}
	for _, s := range samples {
		p.SampleIds = append(p.SampleIds, sampleID(s))
		b.Samples = append(b.Samples, trainer.Used{SampleID: sampleID(s), Partition: s % 2, Offset: int64(s)})
	}
	b.Event = event(schemas.ContentID("started", parent, string(rune('0'+n))), p)
	return b
}

func event(id string, payload proto.Message) schemas.Event {
	at := time.UnixMilli(1_700_000_000_123).UTC()
	return schemas.Event{ID: id, Source: "trainer/1", Tenant: "default", Session: "policy", Time: at, LogTime: at, Payload: payload}
}

func published(n uint64) trainer.Finished {
	sum := make([]byte, 32)
	sum[0] = byte(n)
	e := event(schemas.ContentID("published", string(rune('0'+n))), &schemas.PolicyPublished{
		Update: n, PeftSha256: sum, GgufSha256: sum, CheckpointSha256: sum, Metrics: map[string]float64{"loss": 0.5},
	})
	return trainer.Finished{Event: e}
}

func skipped(n uint64, reason string) trainer.Finished {
	return trainer.Finished{Event: event(schemas.ContentID("skipped", string(rune('0'+n))), &schemas.UpdateSkipped{Update: n, UpdateId: schemas.ContentID("started"), Reason: reason})}
}

func claim(t *testing.T, l trainer.Ledger) *trainer.State {
	t.Helper()
	s, err := l.Claim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sameEvents compares what goes to the log.
func sameEvents(t *testing.T, got []schemas.Event, want ...schemas.Event) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d events in the outbox, want %d", len(got), len(want))
	}
	for i := range want {
		a, err := schemas.Encode(got[i])
		must(t, err)
		b, err := schemas.Encode(want[i])
		must(t, err)
		if string(a.Value) != string(b.Value) || !slices.EqualFunc(a.Headers, b.Headers, func(x, y schemas.Header) bool { return x.Key == y.Key && string(x.Value) == string(y.Value) }) ||
			!a.Time.Equal(b.Time) {
			t.Errorf("event %d of the outbox is not the one that was put in", i)
		}
	}
}

// ledgerLifecycle: what one holder writes, the next finds, whatever the state in which the former one ended.
func ledgerLifecycle(t *testing.T, s ledgers) {
	a := s.open()
	if state := claim(t, a); state.Updates != 0 || state.Open != nil || len(state.Versions)+len(state.Outbox) != 0 {
		t.Fatalf("a new ledger holds %+v", state)
	}
	first := begun(1, "base", 12, 3, 1, 2)
	must(t, a.Begin(t.Context(), first))
	must(t, a.Release(t.Context()))

	b := s.open()
	state := claim(t, b)
	if state.Updates != 1 || state.Open == nil || !slices.Equal(state.Open.Samples, first.Samples) || !slices.Equal(state.Low, []int64{12, 0}) {
		t.Fatalf("after Begin the next holder finds %+v", state)
	}
	sameEvents(t, state.Outbox, first.Event)
	sameEvents(t, []schemas.Event{state.Open.Event}, first.Event)
	used, err := b.Used(t.Context(), []string{sampleID(1), sampleID(9)})
	must(t, err)
	if len(used) != 1 || !used[sampleID(1)] {
		t.Errorf("used are %v", used)
	}
	must(t, b.Delivered(t.Context(), first.Event.ID))
	must(t, b.Finish(t.Context(), published(1)))
	second := begun(2, published(1).Event.ID, 20, 4)
	must(t, b.Begin(t.Context(), second))
	must(t, b.Finish(t.Context(), skipped(2, "it died")))
	must(t, b.Release(t.Context()))

	state = claim(t, s.open())
	if state.Updates != 2 || state.Open != nil || len(state.Versions) != 1 || state.Versions[0].ID != published(1).Event.ID || state.Versions[0].Checkpoint[0] != 1 {
		t.Fatalf("at last the ledger holds %+v", state)
	}
	sameEvents(t, state.Outbox, published(1).Event, second.Event, skipped(2, "it died").Event)
}

// ledgerRefusals: what would count a sample twice, leave a gap, or end what is not open, is refused whole.
func ledgerRefusals(t *testing.T, s ledgers) {
	l := s.open()
	if err := l.Begin(t.Context(), begun(1, "base", 1, 1)); !errors.Is(err, trainer.ErrFenced) {
		t.Errorf("Begin without a claim: %v", err)
	}
	claim(t, l)
	refused := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	refused("a gap", l.Begin(t.Context(), begun(2, "base", 1, 1)))
	refused("no sample", l.Begin(t.Context(), begun(1, "base", 1)))
	refused("the same sample twice", l.Begin(t.Context(), begun(1, "base", 1, 5, 5)))
	other := begun(1, "base", 1, 1)
	other.Samples[0].SampleID = sampleID(2)
	refused("other samples than in the event", l.Begin(t.Context(), other))
	refused("the end of nothing", l.Finish(t.Context(), published(1)))
	must(t, l.Begin(t.Context(), begun(1, "base", 1, 1)))
	refused("a second open update", l.Begin(t.Context(), begun(2, "base", 2, 2)))
	refused("an end without event", l.Finish(t.Context(), trainer.Finished{}))
	refused("a skip without a reason", l.Finish(t.Context(), skipped(1, "")))
	refused("an event that ends nothing", l.Finish(t.Context(), trainer.Finished{Event: begun(1, "base", 1, 1).Event}))
	refused("the end of another update", l.Finish(t.Context(), published(2)))
	must(t, l.Finish(t.Context(), published(1)))
	refused("a second end", l.Finish(t.Context(), published(1)))
	refused("a used sample", l.Begin(t.Context(), begun(2, "base", 9, 7, 1)))
	used, err := l.Used(t.Context(), []string{sampleID(7), sampleID(5)})
	must(t, err)
	if len(used) != 0 {
		t.Errorf("an update that was refused used samples: %v", used)
	}
	must(t, l.Release(t.Context()))
	if state := claim(t, l); state.Updates != 1 || !slices.Equal(state.Low, []int64{1, 0}) {
		t.Errorf("refusals left %d updates, low %v", state.Updates, state.Low)
	}
}

// ledgerWaiting: while one trainer holds the ledger another waits, and gets it when the first lets go.
func ledgerWaiting(t *testing.T, s ledgers) {
	a, b := s.open(), s.open()
	claim(t, a)
	claim(t, a) // after an error the holder claims again, without waiting for itself
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() {
		_, err := b.Claim(ctx)
		waited <- err
	}()
	must(t, a.Begin(t.Context(), begun(1, "base", 1, 1)))
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Fatalf("a second claim ended with %v", err)
	}
	go func() {
		_, err := b.Claim(t.Context())
		waited <- err
	}()
	must(t, a.Finish(t.Context(), published(1)))
	must(t, a.Release(t.Context()))
	must(t, <-waited)
	must(t, b.Delivered(t.Context(), published(1).Event.ID))
}

// ledgerFencing: a holder that lost its claim without knowing it changes nothing any more.
func ledgerFencing(t *testing.T, s ledgers) {
	a, b := s.open(), s.open()
	claim(t, a)
	must(t, a.Begin(t.Context(), begun(1, "base", 1, 1)))
	s.lose()
	if state := claim(t, b); state.Open == nil {
		t.Fatal("the new holder does not find the open update")
	}
	for what, err := range map[string]error{
		"Finish": a.Finish(t.Context(), published(1)), "Delivered": a.Delivered(t.Context(), begun(1, "base", 1, 1).Event.ID), "Begin": a.Begin(t.Context(), begun(2, "base", 1, 2)),
	} {
		if !errors.Is(err, trainer.ErrFenced) {
			t.Errorf("%s of the former holder: %v", what, err)
		}
	}
	must(t, b.Finish(t.Context(), published(1)))
	must(t, b.Release(t.Context()))
	if state := claim(t, a); len(state.Versions) != 1 || len(state.Outbox) != 2 {
		t.Errorf("the former holder finds %d versions and %d events", len(state.Versions), len(state.Outbox))
	}
}
