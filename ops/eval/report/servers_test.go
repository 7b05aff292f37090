package report

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/assets"
	embedded "github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/embedded/postgres"
	"github.com/nextstate-rl/nextstate/ops/migrations"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
	"github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// history is the one real history that all tests of the package fill and ask, each with tenants of its own. The first test starts it.
var history struct {
	mu         sync.Mutex
	clickhouse string // HTTP address
	log        *memlog.Log
	stop       []func() error
}

// TestMain is the engine's child as well. It stops what the first test started.
func TestMain(m *testing.M) {
	embedded.MaybeChild()
	code := m.Run()
	for i := len(history.stop) - 1; i >= 0; i-- {
		if err := history.stop[i](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// filled appends the events to the log, waits until the sink has them in ClickHouse, and returns ClickHouse's HTTP address.
func filled(t *testing.T, events []schemas.Event) string {
	t.Helper()
	history.mu.Lock()
	defer history.mu.Unlock()
	if history.clickhouse == "" {
		start(t)
	}
	records := make([]schemas.Record, len(events))
	for i, e := range events {
		r, err := schemas.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		records[i] = r
	}
	if err := history.log.Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	for !caughtUp(t) {
		select {
		case <-t.Context().Done():
			t.Fatal("the test ended before the history had its events")
		case <-time.After(5 * time.Millisecond):
		}
	}
	return history.clickhouse
}

// start starts ClickHouse, the Postgres that the sink keeps its ranges in, and the sink.
func start(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "report-test-") // not t.TempDir: the servers outlive the test
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // Postgres runs as another user below it
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	ch, err := embedded.Start(ctx, embedded.Config{Dir: filepath.Join(dir, "clickhouse"), Lib: assets.ForTest(t, "clickhouse")}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	history.stop = append(history.stop, func() error { return os.RemoveAll(dir) }, ch.Close)
	pg, err := postgres.Start(ctx, postgres.Config{Dir: filepath.Join(dir, "postgres"), Bin: assets.ForTest(t, "postgres")}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	history.stop = append(history.stop, pg.Close)
	conn, err := clickhouse.Open(ch.DSN())
	if err != nil {
		t.Fatal(err)
	}
	history.stop = append(history.stop, conn.Close)
	pool, err := pgxpool.New(context.Background(), pg.DSN())
	if err != nil {
		t.Fatal(err)
	}
	history.stop = append(history.stop, func() error { pool.Close(); return nil })
	if err := migrations.ClickHouse(ctx, conn); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Postgres(ctx, pool); err != nil {
		t.Fatal(err)
	}
	history.log = memlog.New(1)
	cfg := clickhouse.DefaultConfig()
	cfg.Age = 20 * time.Millisecond
	sink, err := clickhouse.New(cfg, clickhouse.Stores{Log: history.log, ClickHouse: conn, Postgres: pool})
	if err != nil {
		t.Fatal(err)
	}
	running, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sink.Run(running) }()
	history.stop = append(history.stop, func() error { end(); return <-ended })
	history.clickhouse = ch.HTTP() + "/?database=" + embedded.Database
}

func caughtUp(t *testing.T) bool {
	t.Helper()
	for _, topic := range schemas.Topics() {
		bounds, err := history.log.Bounds(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		commits, err := history.log.Committed(t.Context(), clickhouse.DefaultConfig().Group(topic), topic)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range bounds {
			if b.Next > b.First && (i >= len(commits) || commits[i].Offset < b.Next) {
				return false
			}
		}
	}
	return true
}

// run is one run whose events a test writes down.
type run struct {
	tenant, arm string
	seed        uint64
	// The replies' versions, in the order of the updates that made them; the first is base.
	versions []string
	events   []schemas.Event
}

// begin says what the run is.
func begin(arm string, seed uint64, sessions uint32, personas ...string) *run {
	r := &run{tenant: fmt.Sprintf("eval-%s-%d", arm, seed), arm: arm, seed: seed, versions: []string{"base"}}
	r.add("started", &schemas.EvaluationStarted{
		Arm: arm, Seed: seed, Personas: personas, Sessions: sessions, Half: "tuning", Settings: `{"preset":"` + arm + `"}`, BaseModel: "tiny",
	})
	return r
}

// add appends an event whose id follows from its name.
func (r *run) add(name string, payload proto.Message) string {
	id := schemas.ContentID(r.tenant, name)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(len(r.events)) * time.Second)
	r.events = append(r.events, schemas.Event{ID: id, Source: "test/1", Tenant: r.tenant, Session: "run", Time: at, LogTime: at, Payload: payload})
	return id
}

// reply is a judged first reply of the newest version; what the persona and the guard say against it decides.
func (r *run) reply(persona string, phase schemas.ReplyPhase, index uint32, reply, complaint, guard string) {
	version := r.versions[len(r.versions)-1]
	if strings.HasSuffix(phase.String(), "CONTROL") {
		version = "base"
	}
	logprob := -0.5 - float64(index)/100
	r.add(fmt.Sprintf("reply %s %s %d", persona, phase, index), &schemas.ReplyEvaluated{
		Arm: r.arm, Seed: r.seed, Persona: persona, Phase: phase, SessionIndex: index, Problem: fmt.Sprintf("Problem %d of %s?", index, persona), Reply: reply,
		Tokens: 20 + index, PolicyVersion: version, Complaint: complaint, Guard: guard, Satisfied: complaint == "" && guard == "", BaseLogprob: &logprob, Seconds: 1,
	})
}

// update is one update from a sample with a hint of each of these users, and the version that came of it.
func (r *run) update(number uint64, metrics map[string]float64, users ...string) {
	ids := make([]string, 0, len(users))
	for _, user := range users {
		turn := schemas.ContentID(r.tenant, fmt.Sprintf("turn %d %s", number, user))
		ids = append(ids, r.add(fmt.Sprintf("sample %d %s", number, user), &schemas.SampleAssembled{
			TurnId: turn, Kind: schemas.SampleKind_SAMPLE_KIND_COMBINED, Reward: -1, Hint: proto.String("be plain"), User: proto.String("eval-" + user), Model: "tiny",
		}))
	}
	started := r.add(fmt.Sprintf("update %d", number), &schemas.UpdateStarted{
		Update: number, ParentVersion: r.versions[len(r.versions)-1], SampleIds: ids, Objective: "{}", Engine: "test",
	})
	if metrics == nil {
		r.add(fmt.Sprintf("skipped %d", number), &schemas.UpdateSkipped{Update: number, UpdateId: started, Reason: "the loss is not finite"})
		return
	}
	r.versions = append(r.versions, r.add(fmt.Sprintf("published %d", number), &schemas.PolicyPublished{
		Update: number, UpdateId: started, ParentVersion: r.versions[len(r.versions)-1], PeftSha256: make([]byte, 32), Metrics: metrics, BaseModel: "tiny",
	}))
}

// end says how the run ended.
func (r *run) end(outcome string, sessions, updates uint32, alignedAt map[string]uint32) {
	r.add("ended", &schemas.EvaluationEnded{
		Arm: r.arm, Seed: r.seed, Outcome: outcome, Sessions: sessions, AlignedAt: alignedAt, Updates: updates,
		Seconds: map[string]float64{"start": 2, "decode": 10 * float64(sessions), "training": 5, "other": 3, "total": 10 + 10*float64(sessions)},
	})
}
