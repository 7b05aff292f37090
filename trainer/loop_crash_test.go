package trainer_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
)

// errKilled is what every effect of a process that is gone gives.
var errKilled = errors.New("killed")

// process is a trainer that is killed at one of its effects: before it happens, or after it happened and before the trainer knows.
type process struct {
	kill  context.CancelFunc
	left  atomic.Int64 // effects until it is killed; negative at the start: never
	after bool         // the last effect happens
	dead  atomic.Bool
	never bool
}

// effect runs f as an effect of the process.
func (p *process) effect(f func() error) error {
	if p.dead.Load() {
		return errKilled
	}
	last := !p.never && p.left.Add(-1) < 0
	if last && !p.after {
		p.die()
		return errKilled
	}
	err := f()
	if last {
		p.die()
		return errKilled
	}
	return err
}

func (p *process) die() {
	p.dead.Store(true)
	p.kill()
}

// mortalLog, mortalLedger and mortalBlobs are what a process has effects on.
type mortalLog struct {
	trainer.LoopDeps
	p *process
}

func (m mortalLog) Append(ctx context.Context, records ...schemas.Record) error {
	return m.p.effect(func() error { return m.Log.Append(ctx, records...) })
}

func (m mortalLog) Open(ctx context.Context, topic string, partition int, offset int64) (schemas.Cursor, error) {
	return m.Log.Open(ctx, topic, partition, offset)
}

func (m mortalLog) Bounds(ctx context.Context, topic string) ([]schemas.Bounds, error) {
	return m.Log.Bounds(ctx, topic)
}

type mortalLedger struct {
	trainer.Ledger
	p    *process
	done func() // called after each event that the log has
}

func (m mortalLedger) Claim(ctx context.Context) (s *trainer.State, err error) {
	err = m.p.effect(func() (err error) { s, err = m.Ledger.Claim(ctx); return err })
	return s, err
}

func (m mortalLedger) Begin(ctx context.Context, b trainer.Begun) error {
	return m.p.effect(func() error { return m.Ledger.Begin(ctx, b) })
}

func (m mortalLedger) Finish(ctx context.Context, f trainer.Finished) error {
	return m.p.effect(func() error { return m.Ledger.Finish(ctx, f) })
}

func (m mortalLedger) Delivered(ctx context.Context, id string) error {
	err := m.p.effect(func() error { return m.Ledger.Delivered(ctx, id) })
	m.done()
	return err
}

// Release is not for the dead.
func (m mortalLedger) Release(ctx context.Context) error {
	if m.p.dead.Load() {
		return nil
	}
	return m.Ledger.Release(ctx)
}

type mortalBlobs struct {
	*shelfBlobs
	p *process
}

func (m mortalBlobs) Put(ctx context.Context, data []byte) (sum [32]byte, err error) {
	err = m.p.effect(func() (err error) { sum, err = m.shelfBlobs.Put(ctx, data); return err })
	return sum, err
}

func (m mortalBlobs) Open(ctx context.Context, sum [32]byte) (io.ReadCloser, error) {
	return m.shelfBlobs.Open(ctx, sum)
}

// life runs one process until it is killed, or until want updates have their outcome and the log has their events.
func (r *rig) life(seed *rand.Rand, effects int64, want uint64) (finished bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	p := &process{kill: cancel, after: seed.IntN(2) == 0, never: effects < 0}
	p.left.Store(effects)
	deps := r.deps
	deps.Log = mortalLog{r.deps, p}
	deps.Blobs = mortalBlobs{r.blobs, p}
	var done atomic.Bool
	ledger := r.stored.open()
	deps.Ledger = mortalLedger{ledger, p, func() {
		if r.settled(want) {
			done.Store(true)
			cancel()
		}
	}}
	loop, err := trainer.NewLoop(r.cfg, deps)
	must(r.t, err)
	must(r.t, loop.Run(ctx))
	if !p.dead.Load() && !done.Load() {
		r.t.Fatal("the trainer did not get there in a minute")
	}
	r.stored.lose()
	_ = ledger.Release(r.t.Context()) // a process that is gone holds no connection of the pool
	return done.Load()
}

// settled reports whether so many updates are over.
func (r *rig) settled(want uint64) bool {
	n, versions := r.stored.outcomes()
	events := r.events(schemas.TopicPolicies)
	return n == want && len(distinct(versionsIn(events))) == versions && versions == int(want)-1 // one is skipped
}

func versionsIn(events []schemas.Event) (ids []string) {
	for _, e := range events {
		if e.Kind() == "PolicyPublished" {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

func distinct(ids []string) []string {
	slices.Sort(ids)
	return slices.Compact(ids)
}

// crashLog fills the log of a rig: samples for five minibatches of four and two more, a sample twice, one whose update is not finite, ones that are refused, and another tenant's.
func (r *rig) crashLog() {
	r.t.Helper()
	for n := range 22 {
		e := sampleEvent(n)
		switch n {
		case 6:
			sampleOf(e).Reward = 1e300
		case 9, 17:
			bad := sampleEvent(100 + n)
			sampleOf(bad).Sampling = nil
			r.add(bad)
		case 11:
			foreign := sampleEvent(100 + n)
			foreign.Tenant = "acme"
			r.add(foreign)
		case 13:
			r.add(sampleEvent(2)) // a former update has it
		}
		r.add(e)
	}
}

// outcome is everything that a run leaves: which samples each update took and from which parent, and the hashes of its weights.
func (r *rig) outcome() string {
	r.t.Helper()
	var out strings.Builder
	for _, e := range firsts(r.t, r.events(schemas.TopicPolicies)) {
		switch p := e.Payload.(type) {
		case *schemas.UpdateStarted:
			fmt.Fprintln(&out, e.ID, p.GetUpdate(), p.GetParentVersion(), p.GetSampleIds())
		case *schemas.PolicyPublished:
			fmt.Fprintf(&out, "%s %d %x %x %x\n", e.ID, p.GetUpdate(), p.GetPeftSha256(), p.GetGgufSha256(), p.GetCheckpointSha256())
		case *schemas.UpdateSkipped:
			fmt.Fprintln(&out, e.ID, p.GetUpdate(), p.GetReason())
		}
	}
	dead := map[string]bool{}
	for _, e := range r.events(schemas.TopicDeadLetters) {
		dead[e.ID] = true
	}
	fmt.Fprintln(&out, len(dead))
	return out.String()
}

// firsts are the events without the repeats, which must be the same records.
func firsts(t *testing.T, events []schemas.Event) (list []schemas.Event) {
	t.Helper()
	seen := map[string][32]byte{}
	for _, e := range events {
		record, err := schemas.Encode(e)
		must(t, err)
		sum := sha256.Sum256(record.Value)
		if before, ok := seen[e.ID]; !ok {
			list = append(list, e)
		} else if before != sum {
			t.Errorf("%s %s was repeated with other bytes", e.Kind(), e.ID)
		}
		seen[e.ID] = sum
	}
	return list
}

// TestLoopCrashes: a trainer that is killed anywhere leaves what one leaves that is never killed. Method: 200 seeded runs over the same log, and 10 more with
// the ledger in a real Postgres; in each the trainer is killed up to eight times, before or after a random effect (claim, begin, blob, finish, append, delivered), and started again. At the end
// every sample counts in one update, the numbers of the updates have no gap, and the hashes of all weights equal those of the run without kills.
func TestLoopCrashes(t *testing.T) {
	engine := tinyEngine(t)
	const updatesInAll = 5
	reference := newRig(t, engine, 1)
	reference.crashLog()
	reference.life(rand.New(rand.NewPCG(0, 0)), -1, updatesInAll)
	want := reference.outcome()
	if strings.Count(want, "\n") != 2*updatesInAll+1 || !strings.HasSuffix(want, "\n2\n") { // 5 begun, 4 published, 1 skipped, the dead letters
		t.Fatalf("the run without kills left\n%s", want)
	}
	kills := 0
	pool := database(t)
	const inMemory, inPostgres = 200, 10
	for seed := range uint64(inMemory + inPostgres) {
		random := rand.New(rand.NewPCG(seed, 9))
		r := newRig(t, engine, 1)
		if seed >= inMemory {
			r.stored = postgresLedgers(t, pool)
		}
		r.crashLog()
		finished := false
		for range 1 + random.IntN(8) {
			if finished = r.life(random, random.Int64N(14), updatesInAll); finished {
				break
			}
			kills++
		}
		if !finished {
			r.life(random, -1, updatesInAll)
		}
		if got := r.outcome(); got != want {
			t.Fatalf("seed %d left\n%s\nwant\n%s", seed, got, want)
		}
		count := map[string]int{}
		for i, u := range updates(firsts(t, r.events(schemas.TopicPolicies))) {
			if u.GetUpdate() != uint64(i+1) {
				t.Errorf("seed %d: update %d is number %d", seed, i+1, u.GetUpdate())
			}
			for _, id := range u.GetSampleIds() {
				count[id]++
			}
		}
		for id, n := range count {
			if n != 1 {
				t.Errorf("seed %d: sample %s counts %d times", seed, id, n)
			}
		}
		if len(count) != 4*updatesInAll {
			t.Errorf("seed %d: %d samples were trained", seed, len(count))
		}
	}
	if kills < 400 {
		t.Errorf("only %d kills: the simulation does not crash enough", kills)
	}
}

// TestLoopOtherEngine: an update that was begun on another engine is skipped and not computed to other bytes. Method: an engine that fails until the trainer
// is stopped within its first update; then a trainer whose engine has another name.
func TestLoopOtherEngine(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	r.cfg.Attempts = math.MaxInt
	r.deps.Engine = &failing{r.engine, math.MaxInt}
	r.samples(0, 8)
	r.run(schemas.TopicPolicies, func(events []schemas.Event) bool { return len(events) == 1 })
	r.cfg.EngineName, r.deps.Engine = "other", r.engine
	r.run(schemas.TopicPolicies, publishedCount(1))
	events := r.events(schemas.TopicPolicies)
	if got := strings.Join(kindsOf(events), " "); got != "UpdateStarted UpdateSkipped UpdateStarted PolicyPublished" {
		t.Fatalf("the log holds %s", got)
	}
	if s, _ := events[1].Payload.(*schemas.UpdateSkipped); !strings.Contains(s.GetReason(), `on the engine "onnx", and the trainer was started again with "other"`) {
		t.Errorf("the reason is %q", s.GetReason())
	}
}

// TestLoopTwo: two trainers of one tenant at once do not train a sample twice, also when the one that works loses its claim without knowing. Method: two loops
// on one ledger over a log of four partitions, while the claim is taken away again and again; at the end every sample counts once and the versions are a chain.
func TestLoopTwo(t *testing.T) {
	const samples = 40
	r := newRig(t, tinyEngine(t), 4)
	r.samples(0, samples)
	r.cfg.MaxStaleness = 100
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	for range 2 {
		deps := r.deps
		deps.Ledger, deps.Metrics, deps.Engine = trainer.NewLedgerMemory(r.shelf), loopMetrics(t), tinyEngine(t) // an engine each, as in two processes
		loop, err := trainer.NewLoop(r.cfg, deps)
		must(t, err)
		running.Go(func() {
			if err := loop.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	for len(distinct(versionsIn(r.events(schemas.TopicPolicies)))) < samples/4 && ctx.Err() == nil {
		r.shelf.Abandon()
		time.Sleep(3 * time.Millisecond)
	}
	cancel()
	running.Wait()
	count, parent := map[string]int{}, "base"
	started := map[string]*schemas.UpdateStarted{}
	for _, e := range firsts(t, r.events(schemas.TopicPolicies)) {
		switch p := e.Payload.(type) {
		case *schemas.UpdateStarted:
			started[e.ID] = p
			for _, id := range p.GetSampleIds() {
				count[id]++
			}
		case *schemas.PolicyPublished:
			if p.GetParentVersion() != parent || started[p.GetUpdateId()] == nil {
				t.Errorf("update %d starts from %s and not from %s", p.GetUpdate(), p.GetParentVersion(), parent)
			}
			parent = e.ID
		}
	}
	for n := range samples {
		if count[sampleID(n)] != 1 {
			t.Errorf("sample %d counts %d times", n, count[sampleID(n)])
		}
	}
	if len(count) != samples {
		t.Errorf("%d samples were trained", len(count))
	}
}

// forgetful is a ledger that cannot write down the end of an update for a while.
type forgetful struct {
	trainer.Ledger
	left int
}

func (f *forgetful) Finish(ctx context.Context, end trainer.Finished) error {
	if f.left > 0 {
		f.left--
		return errors.New("the database restarts")
	}
	return f.Ledger.Finish(ctx, end)
}

// counting counts the gradients that an engine computes.
type counting struct {
	trainer.Engine
	gradients int
}

func (c *counting) Gradient(ctx context.Context, a *trainer.Adapter, s []trainer.Sequence, coef [][][]float64, grad *trainer.Adapter) error {
	c.gradients++
	return c.Engine.Gradient(ctx, a, s, coef, grad)
}

// TestLoopKeepsResult: an update is not computed again because the ledger could not be written. Method: a ledger that fails at the end of an update three times;
// two updates take two gradients.
func TestLoopKeepsResult(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	engine := &counting{Engine: r.engine}
	r.deps.Engine, r.deps.Ledger = engine, &forgetful{r.deps.Ledger, 3}
	r.samples(0, 8)
	r.run(schemas.TopicPolicies, publishedCount(2))
	if engine.gradients != 2 {
		t.Errorf("%d gradients for two updates", engine.gradients)
	}
}
