package trainer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
	"github.com/nextstate-rl/nextstate/trainer"
)

// shelfBlobs is a blob store in memory.
type shelfBlobs struct {
	mu    sync.Mutex
	blobs map[[32]byte][]byte
	fail  func() error // asked before each Put; nil: never fails
}

func newBlobs() *shelfBlobs { return &shelfBlobs{blobs: map[[32]byte][]byte{}} }

func (b *shelfBlobs) Put(_ context.Context, data []byte) (sum [32]byte, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		if err := b.fail(); err != nil {
			return sum, err
		}
	}
	sum = sha256.Sum256(data)
	b.blobs[sum] = bytes.Clone(data)
	return sum, nil
}

func (b *shelfBlobs) Open(_ context.Context, sum [32]byte) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	data, ok := b.blobs[sum]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// rig is everything around a loop.
type rig struct {
	t      *testing.T
	cfg    trainer.LoopConfig
	deps   trainer.LoopDeps
	log    *memlog.Log
	shelf  *trainer.Shelf
	stored ledgers
	blobs  *shelfBlobs
	engine trainer.Engine
}

// newRig has a log of so many partitions, and minibatches of 4 that wait for ever.
func newRig(t *testing.T, engine trainer.Engine, partitions int) *rig {
	t.Helper()
	shelf := trainer.NewShelf()
	r := &rig{t: t, log: memlog.New(partitions), shelf: shelf, stored: memoryLedgers(shelf), blobs: newBlobs(), engine: engine}
	r.cfg = trainer.LoopConfig{
		Tenant: "default", Recipe: tinyRecipe(), EngineName: "onnx", Seed: 5, Batch: 4, Wait: time.Hour, BackoffMin: time.Millisecond, BackoffMax: time.Millisecond,
	}
	r.deps = trainer.LoopDeps{
		Log: r.log, Ledger: trainer.NewLedgerMemory(r.shelf), Blobs: r.blobs, Engine: engine, Vocabulary: tinyVocabulary, Logger: slog.New(slog.DiscardHandler),
		Metrics: loopMetrics(t),
	}
	return r
}

func loopMetrics(t *testing.T) *trainer.LoopMetrics {
	t.Helper()
	m, err := trainer.NewLoopMetrics(prometheus.NewRegistry())
	must(t, err)
	return m
}

// add appends events.
func (r *rig) add(events ...schemas.Event) {
	r.t.Helper()
	for _, e := range events {
		record, err := schemas.Encode(e)
		must(r.t, err)
		must(r.t, r.log.Append(r.t.Context(), record))
	}
}

// samples appends samples from to to-1.
func (r *rig) samples(from, to int) {
	for n := from; n < to; n++ {
		r.add(sampleEvent(n))
	}
}

// run runs the loop until done says so of the events in a topic.
func (r *rig) run(topic string, done func([]schemas.Event) bool) {
	r.t.Helper()
	loop, err := trainer.NewLoop(r.cfg, r.deps)
	must(r.t, err)
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(ctx) }()
	for !done(r.events(topic)) {
		select {
		case err := <-ended:
			r.t.Fatalf("the loop ended: %v", err)
		case <-ctx.Done():
			r.t.Fatalf("the loop did not get there; the log holds %v", kindsOf(r.events(topic)))
		case <-time.After(2 * time.Millisecond):
		}
	}
	cancel()
	must(r.t, <-ended)
}

// events reads a topic.
func (r *rig) events(topic string) []schemas.Event {
	r.t.Helper()
	return eventsOf(r.t, r.log, topic)
}

func eventsOf(t *testing.T, log *memlog.Log, topic string) (events []schemas.Event) {
	t.Helper()
	bounds, err := log.Bounds(t.Context(), topic)
	must(t, err)
	for p, b := range bounds {
		if b.First == b.Next {
			continue
		}
		cursor, err := log.Open(t.Context(), topic, p, b.First)
		must(t, err)
		for at := b.First; at < b.Next; {
			records, err := cursor.Next(t.Context(), 100)
			must(t, err)
			for _, record := range records {
				e, err := schemas.Decode(record)
				must(t, err)
				events = append(events, e)
			}
			at += int64(len(records))
		}
		must(t, cursor.Close())
	}
	return events
}

func kindsOf(events []schemas.Event) (kinds []string) {
	for _, e := range events {
		kinds = append(kinds, e.Kind())
	}
	return kinds
}

// versions are the PolicyPublished of a topic.
func versions(events []schemas.Event) (list []*schemas.PolicyPublished) {
	for _, e := range events {
		if p, ok := e.Payload.(*schemas.PolicyPublished); ok {
			list = append(list, p)
		}
	}
	return list
}

// updates are the UpdateStarted of a topic.
func updates(events []schemas.Event) (list []*schemas.UpdateStarted) {
	for _, e := range events {
		if u, ok := e.Payload.(*schemas.UpdateStarted); ok {
			list = append(list, u)
		}
	}
	return list
}

// published waits for n versions.
func publishedCount(n int) func([]schemas.Event) bool {
	return func(events []schemas.Event) bool { return len(versions(events)) >= n }
}

// deadReasons are the reasons in deadletters.
func (r *rig) deadReasons() (reasons []string) {
	for _, e := range r.events(schemas.TopicDeadLetters) {
		if d, ok := e.Payload.(*schemas.DeadLettered); ok {
			reasons = append(reasons, d.GetReason())
		}
	}
	return reasons
}

// TestLoop: samples become versions. Method: ten samples in the log and minibatches of four; two versions come, two samples wait. Both weights are in the
// blob store under the hashes that the event tells, read back as adapters that differ from their parent; ids, parents and metrics are as they should be.
func TestLoop(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	r.samples(0, 10)
	r.run(schemas.TopicPolicies, publishedCount(2))
	events := r.events(schemas.TopicPolicies)
	if got := strings.Join(kindsOf(events), " "); got != "UpdateStarted PolicyPublished UpdateStarted PolicyPublished" {
		t.Fatalf("the log holds %s", got)
	}
	parent := "base"
	for i, v := range versions(events) {
		started, event := updates(events)[i], events[2*i+1]
		if started.GetUpdate() != uint64(i+1) || v.GetUpdate() != uint64(i+1) || started.GetParentVersion() != parent || v.GetParentVersion() != parent || v.GetUpdateId() != events[2*i].ID {
			t.Errorf("update %d: %v, version %v", i+1, started, v)
		}
		want := []string{}
		for n := 4 * i; n < 4*i+4; n++ {
			want = append(want, sampleID(n))
		}
		if !slices.Equal(started.GetSampleIds(), want) {
			t.Errorf("update %d took %v", i+1, started.GetSampleIds())
		}
		if recipe, err := trainer.DecodeRecipe(started.GetObjective()); err != nil || recipe != r.cfg.Recipe {
			t.Errorf("the recipe of update %d is %+v, %v", i+1, recipe, err)
		}
		for _, name := range []string{"loss", "reward_mean", "grad_norm", "logprob_gap", "tokens", "staleness_mean", "staleness_max", "seconds"} {
			if m, ok := v.GetMetrics()[name]; !ok || math.IsNaN(m) {
				t.Errorf("update %d: metric %s is %v", i+1, name, m)
			}
		}
		if got := v.GetMetrics()["staleness_max"]; got != float64(i) {
			t.Errorf("update %d: staleness %v", i+1, got)
		}
		data, adapter := r.blobs.blobs[[32]byte(v.GetPeftSha256())], r.blobs.blobs[[32]byte(v.GetGgufSha256())]
		if a, err := trainer.ReadAdapter(bytes.NewReader(data), int64(len(data))); err != nil || a.Norm() == 0 || len(adapter) == 0 {
			t.Errorf("the weights of update %d: %v, %d bytes of GGUF", i+1, err, len(adapter))
		}
		parent = event.ID
	}
}

// TestLoopWait: an update takes what has come once the oldest sample has waited. Method: six samples, minibatches of four, a wait of 30 ms: four and two.
func TestLoopWait(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	r.cfg.Wait = 30 * time.Millisecond
	r.samples(0, 6)
	r.run(schemas.TopicPolicies, publishedCount(2))
	if u := updates(r.events(schemas.TopicPolicies)); len(u[0].GetSampleIds()) != 4 || len(u[1].GetSampleIds()) != 2 {
		t.Errorf("updates of %d and %d samples", len(u[0].GetSampleIds()), len(u[1].GetSampleIds()))
	}
}

// TestLoopCaps: no session and no user fills an update; what is over waits and is trained later. Method: samples of five sessions and three users, mostly
// of one; every update keeps the bounds, every sample is trained once.
func TestLoopCaps(t *testing.T) {
	for name, set := range map[string]func(*trainer.LoopConfig){
		"session": func(c *trainer.LoopConfig) { c.PerSession = 1 },
		"user":    func(c *trainer.LoopConfig) { c.PerUser = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tinyEngine(t), 1)
			r.cfg.Wait = 20 * time.Millisecond
			set(&r.cfg)
			var all []string
			owner := map[string]string{}
			for _, n := range []int{0, 15, 30, 1, 2, 3, 45, 4, 6, 60} { // session-0 and user-0 five times
				e := sampleEvent(n)
				r.add(e)
				all = append(all, e.ID)
				owner[e.ID] = e.Session
				if name == "user" {
					owner[e.ID] = sampleOf(e).GetUser()
				}
			}
			trained := func(events []schemas.Event) (ids []string) {
				for _, u := range updates(events) {
					ids = append(ids, u.GetSampleIds()...)
				}
				return ids
			}
			r.run(schemas.TopicPolicies, func(events []schemas.Event) bool {
				return len(trained(events)) >= len(all) && len(versions(events)) == len(updates(events))
			})
			events := r.events(schemas.TopicPolicies)
			got := trained(events)
			slices.Sort(got)
			slices.Sort(all)
			if !slices.Equal(got, all) {
				t.Errorf("trained %d samples of %d", len(got), len(all))
			}
			bound := max(r.cfg.PerSession, r.cfg.PerUser)
			for _, u := range updates(events) {
				counts := map[string]int{}
				for _, id := range u.GetSampleIds() {
					if counts[owner[id]]++; counts[owner[id]] > bound {
						t.Errorf("update %d has %d samples of %s", u.GetUpdate(), counts[owner[id]], owner[id])
					}
				}
			}
		})
	}
}

// TestLoopNotFinite: an update whose loss or gradient is not finite gives no version but an event that says why, and the next one starts from the same parent.
// Method: a reward that overflows float32 in the first minibatch.
func TestLoopNotFinite(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	e := sampleEvent(50)
	sampleOf(e).Reward = 1e300
	r.add(e)
	r.samples(0, 7)
	r.run(schemas.TopicPolicies, publishedCount(1))
	events := r.events(schemas.TopicPolicies)
	u := updates(events)
	if got := strings.Join(kindsOf(events), " "); got != "UpdateStarted UpdateSkipped UpdateStarted PolicyPublished" || u[1].GetUpdate() != 2 || u[1].GetParentVersion() != "base" || u[0].GetSampleIds()[0] != e.ID {
		t.Errorf("the log holds %s; %v", got, u)
	}
	s, _ := events[1].Payload.(*schemas.UpdateSkipped)
	if s.GetUpdate() != 1 || s.GetUpdateId() != events[0].ID || s.GetParentVersion() != "base" || !strings.Contains(s.GetReason(), "not finite") ||
		events[1].ID != schemas.DerivedID("trainer", "1", "UpdateSkipped", events[0].ID, 0) {
		t.Errorf("the skip is %s, %v", events[1].ID, s)
	}
}

// TestLoopRollback: after a rollback the next update starts from the version that was put back, also for a trainer that was started later. Method: two
// versions, a rollback to the first, a third update; then another trainer and a rollback to the base.
func TestLoopRollback(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	r.samples(0, 8)
	r.run(schemas.TopicPolicies, publishedCount(2))
	var first string
	for _, e := range r.events(schemas.TopicPolicies) {
		if e.Kind() == "PolicyPublished" && first == "" {
			first = e.ID
		}
	}
	back := func(id, to string) {
		r.add(schemas.Event{ID: schemas.ContentID(id), Source: "test", Tenant: "default", Session: "policy", Payload: &schemas.PolicyRolledBack{ToVersion: to, Reason: "test"}})
	}
	back("a", first)
	r.samples(8, 12)
	r.run(schemas.TopicPolicies, publishedCount(3))
	back("b", "nobody knows this")
	back("c", "base")
	r.samples(12, 16)
	r.run(schemas.TopicPolicies, publishedCount(4))
	u := updates(r.events(schemas.TopicPolicies))
	if u[2].GetParentVersion() != first || u[3].GetParentVersion() != "base" || u[3].GetUpdate() != 4 {
		t.Errorf("the parents are %s and %s, want %s and base", u[2].GetParentVersion(), u[3].GetParentVersion(), first)
	}
}

// TestLoopFullDisk: while the weights cannot be stored nothing is published, and once they can, the version comes. Method: a store that is full five times.
func TestLoopFullDisk(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	left := 5
	r.blobs.fail = func() error {
		if left == 0 {
			return nil
		}
		left--
		if n := len(versions(r.events(schemas.TopicPolicies))); n != 0 {
			t.Errorf("%d versions without weights", n)
		}
		return errors.New("no space left on device")
	}
	r.samples(0, 4)
	r.run(schemas.TopicPolicies, publishedCount(1))
	if left != 0 {
		t.Errorf("the store was asked %d times too few", left)
	}
}

// failing is an engine that cannot compute for a while.
type failing struct {
	trainer.Engine
	left int
}

func (f *failing) Logprobs(ctx context.Context, a *trainer.Adapter, s []trainer.Sequence) ([][][]float32, [][]float32, error) {
	if f.left > 0 {
		f.left--
		return nil, nil, errors.New("the process died, and said \x00\xff" + strings.Repeat("x", 10_000))
	}
	return f.Engine.Logprobs(ctx, a, s)
}

// TestLoopEngineFails: an engine that dies is tried again, and an update that ends it each time is skipped in the end. Method: an engine that fails twice,
// with last words that no text may hold, then one that fails as often as the loop tries.
func TestLoopEngineFails(t *testing.T) {
	for name, c := range map[string]struct {
		fails int
		kinds string
	}{"twice": {2, "UpdateStarted PolicyPublished"}, "always": {3, "UpdateStarted UpdateSkipped UpdateStarted PolicyPublished"}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tinyEngine(t), 1)
			r.cfg.Attempts = 3
			r.deps.Engine = &failing{r.engine, c.fails}
			r.samples(0, 8)
			want := len(strings.Fields(c.kinds))
			r.run(schemas.TopicPolicies, func(events []schemas.Event) bool { return len(events) >= want })
			if got := strings.Join(kindsOf(r.events(schemas.TopicPolicies))[:want], " "); got != c.kinds {
				t.Errorf("the log holds %s, want %s", got, c.kinds)
			}
		})
	}
}

// TestLoopSetup: settings that do not fit what was trained before are an error that says so, before a sample is used. Method: a rank that the newest version
// does not have.
func TestLoopSetup(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	r.samples(0, 8)
	r.run(schemas.TopicPolicies, publishedCount(2))
	r.samples(8, 12)
	r.cfg.Recipe.Rank = 3
	loop, err := trainer.NewLoop(r.cfg, r.deps)
	must(t, err)
	var setup *trainer.SetupError
	if err := loop.Run(t.Context()); !errors.As(err, &setup) || !strings.Contains(err.Error(), "rank") {
		t.Errorf("another rank: %v", err)
	}
	if n, _ := r.shelf.Outcomes(); n != 2 {
		t.Errorf("%d updates were begun", n)
	}
}

// TestLoopIdle: with the schedule "idle" nothing is trained while somebody is served. Method: Idle is false for its first ten calls.
func TestLoopIdle(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	var err error
	r.cfg.Schedule, err = trainer.ParseSchedule("idle")
	must(t, err)
	if _, err := trainer.NewLoop(r.cfg, r.deps); err == nil {
		t.Error("the schedule idle was accepted without an engine to watch")
	}
	calls := 0
	r.deps.Idle = func() bool {
		calls++
		if n, _ := r.shelf.Outcomes(); calls <= 3 && n != 0 {
			t.Errorf("an update was begun while somebody is served")
		}
		return calls > 3
	}
	r.samples(0, 4)
	r.run(schemas.TopicPolicies, publishedCount(1))
	if calls < 4 {
		t.Errorf("Idle was asked %d times", calls)
	}
}

// TestLoopCron: at the times of a CRON schedule everything that has come is trained, the rest of a minibatch too. Method: a schedule of every second, and six
// samples for minibatches of four.
func TestLoopCron(t *testing.T) {
	r := newRig(t, tinyEngine(t), 4)
	var err error
	r.cfg.Schedule, err = trainer.ParseSchedule("@every 1s")
	must(t, err)
	r.samples(0, 6)
	r.run(schemas.TopicPolicies, publishedCount(2))
	if u := updates(r.events(schemas.TopicPolicies)); len(u[0].GetSampleIds()) != 4 || len(u[1].GetSampleIds()) != 2 {
		t.Errorf("updates of %d and %d samples", len(u[0].GetSampleIds()), len(u[1].GetSampleIds()))
	}
}

// TestSchedule: what is neither a word nor a CRON expression is refused with the remedy.
func TestSchedule(t *testing.T) {
	for _, good := range []string{"", "always", "idle", "0 3 * * *", "@hourly"} {
		if _, err := trainer.ParseSchedule(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"sometimes", "61 * * * *", "* *"} {
		if _, err := trainer.ParseSchedule(bad); err == nil || !strings.Contains(err.Error(), "CRON expression such as") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
