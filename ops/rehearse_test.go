package ops_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// reciting is a policy engine of arithmetic: a reply is thirty words that follow from the conversation and the seed, or one word over and over when the version
// is spoilt.
type reciting struct {
	mu     sync.Mutex
	loaded []string         // newest first
	spoilt bool             // versions other than base repeat themselves
	sound  []string         // but not these
	fails  func(n int) bool // whether the n-th request fails; nil: none does
	seeds  []int64
}

func conversation(messages []*schemas.Message) string {
	var b strings.Builder
	for _, m := range messages {
		for _, p := range m.GetParts() {
			b.WriteString(p.GetText() + "\n")
		}
	}
	return b.String()
}

// idsOf makes token ids of a text's words.
func idsOf(text string) (ids []uint32) {
	for _, w := range strings.Fields(text) {
		h := fnv.New32a()
		_, _ = h.Write([]byte(w)) // never fails
		ids = append(ids, h.Sum32()%1000)
	}
	return ids
}

func (e *reciting) Sample(_ context.Context, r *gateway.SampleRequest, _ func(gateway.Piece) error) (*gateway.Sampled, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.seeds)
	e.seeds = append(e.seeds, r.Sampling.GetSeed())
	if e.fails != nil && e.fails(n) {
		return nil, errors.New("the engine is gone")
	}
	if r.Version != "base" && !slices.Contains(e.loaded, r.Version) {
		return nil, &gateway.PolicyError{Status: 404, Message: "no such version"}
	}
	sum := sha256.Sum256([]byte(fmt.Sprint(conversation(r.Messages), r.Sampling.GetSeed())))
	words := make([]string, 30)
	for i := range words {
		words[i] = fmt.Sprintf("w%d", sum[i%32])
	}
	copy(words[:3], strings.Fields(conversation(r.Messages[len(r.Messages)-1:]))) // the request is taken up
	if e.spoilt && r.Version != "base" && !slices.Contains(e.sound, r.Version) {
		for i := range words {
			words[i] = "so"
		}
	}
	text := strings.Join(words, " ")
	return &gateway.Sampled{
		Response: client.Assistant(text), Tokens: &schemas.Tokens{ResponseIds: idsOf(text)}, Version: r.Version, Model: "m", Sampling: r.Sampling,
	}, nil
}

func (e *reciting) Versions(context.Context) ([]gateway.Version, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []gateway.Version
	for _, v := range append(slices.Clone(e.loaded), "base") {
		list = append(list, gateway.Version{ID: v})
	}
	return list, nil
}

func (e *reciting) Score(_ context.Context, r *policy.ScoreRequest) (*policy.Scored, error) {
	s := &policy.Scored{Version: r.Version, Prompt: idsOf(conversation(r.Messages))}
	if r.TopK > 0 {
		s.TopK = &schemas.TopK{K: uint32(r.TopK)} //nolint:gosec // small
	}
	for _, id := range r.Response {
		s.Logprobs = append(s.Logprobs, -0.5)
		for k := range r.TopK {
			s.TopK.Ids = append(s.TopK.Ids, (id+uint32(k))%1000) //nolint:gosec // small
			s.TopK.Logprobs = append(s.TopK.Logprobs, -0.5-float32(k))
		}
	}
	return s, nil
}

func (e *reciting) Swap(context.Context, string, string) error { return nil }
func (e *reciting) Close() error                               { return nil }

func (e *reciting) load(version string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loaded = slices.Insert(e.loaded, 0, version)
}

// counting is a trainer that counts: each batch of rehearsal samples that it has not seen becomes a version.
type counting struct {
	*publisher
	engine *reciting
	batch  int
	seen   map[string]*schemas.SampleAssembled
	order  []string
	cursor []int64
}

// turn reads what is new in samples and publishes what is due.
func (c *counting) turn(ctx context.Context) {
	c.t.Helper()
	bounds, err := c.system.Log.Bounds(ctx, schemas.TopicSamples)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.cursor == nil {
		c.cursor = make([]int64, len(bounds))
	}
	for p, b := range bounds {
		for c.cursor[p] < b.Next {
			cursor, err := c.system.Log.Open(ctx, schemas.TopicSamples, p, c.cursor[p])
			if err != nil {
				c.t.Fatal(err)
			}
			records, err := cursor.Next(ctx, 100)
			if err != nil {
				c.t.Fatal(err)
			}
			for _, r := range records {
				c.take(r)
				c.cursor[p] = r.Offset + 1
			}
			_ = cursor.Close() // it was only read
		}
	}
	for len(c.order) >= c.batch {
		c.samples = c.order[:c.batch]
		c.order = c.order[c.batch:]
		sum := sha256.Sum256([]byte(c.samples[0]))
		c.engine.load(c.next())
		c.publishFiles(sum[:], sum[:])
	}
}

func (c *counting) take(r schemas.Record) {
	c.t.Helper()
	e, err := schemas.Decode(r)
	if err != nil {
		c.t.Fatal(err)
	}
	s, ok := e.Payload.(*schemas.SampleAssembled)
	if !ok || s.GetKind() != schemas.SampleKind_SAMPLE_KIND_REHEARSAL {
		return
	}
	if was := c.seen[e.ID]; was != nil {
		c.t.Errorf("sample %s is in the log twice", e.ID)
		return
	}
	c.seen[e.ID] = s
	c.order = append(c.order, e.ID)
}

// rehearsal is a row of rehearsal_ended.
type rehearsal struct {
	Reason, From, To string
	Before, After    float64
	Samples          uint64
}

func rehearsals(t *testing.T, s *ops.System) (list []rehearsal) {
	t.Helper()
	rows, err := s.ClickHouse.Query(t.Context(), "SELECT reason, from_version, to_version, guard_before, guard_after, length(sample_ids) FROM rehearsal_ended WHERE tenant = $1 ORDER BY record_time", s.Config.Tenant)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var r rehearsal
		if err := rows.Scan(&r.Reason, &r.From, &r.To, &r.Before, &r.After, &r.Samples); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

// rehearsing opens a system in which a user has asked for something, with everything for a rehearsal.
func rehearsing(t *testing.T, change func(*ops.Config)) (*ops.System, *reciting, *counting) {
	t.Helper()
	cfg := config(t)
	cfg.Direct.Standing, cfg.Train.Batch = true, 4
	cfg.Rehearse = ops.RehearseConfig{Updates: 3, Quiet: time.Millisecond}
	cfg.Rehearse.Prompts = filepath.Join(t.TempDir(), "prompts.jsonl")
	var prompts strings.Builder
	for i := range 12 {
		fmt.Fprintf(&prompts, `{"user": "ann", "messages": [{"role": "user", "content": "Question %d of ann"}]}`+"\n", i)
	}
	prompts.WriteString(`{"user": "cat", "messages": [{"role": "user", "content": "A question of cat"}]}` + "\n")
	if err := os.WriteFile(cfg.Rehearse.Prompts, []byte(prompts.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	change(&cfg)
	s := open(t, cfg)
	engine := &reciting{}
	s.Policy = engine
	session(t, s, "one", "ann", "What is 2+2?", "No, show every step")
	s.Config.Rehearse.On = true
	return s, engine, &counting{publisher: newPublisher(t, s), engine: engine, batch: 4, seen: map[string]*schemas.SampleAssembled{}}
}

// until runs the stages and the trainer until n rehearsals have ended.
func until(t *testing.T, s *ops.System, trainer *counting, n int) []rehearsal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := s.While(ctx, func(ctx context.Context) error {
		for len(rehearsals(t, s)) < n {
			trainer.turn(ctx)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
		return ops.WaitCaughtUp(ctx, s.Log, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	return rehearsals(t, s)
}

// TestRehearsal. Goal: when a hint stands, replies under it become samples without it, in the trainer's minibatches and the stated mix; once, and again only
// when other hints stand; a replay leaves them out and says so; the trace of a version names them. Method: the real system with an engine of arithmetic and a
// trainer that counts.
func TestRehearsal(t *testing.T) {
	s, _, trainer := rehearsing(t, func(*ops.Config) {})
	list := until(t, s, trainer, 1)
	if len(list) != 1 || list[0].Reason != "all 3 updates were made" || list[0].From != "base" || list[0].To != trainer.parent || list[0].Before != 1 || list[0].After != 1 || list[0].Samples != 12 {
		t.Fatalf("rehearsals: %+v", list)
	}
	anns, cats, neutral := 0, 0, 0
	for id, sample := range trainer.seen {
		prompt, response := sample.GetTokens().GetPromptIds(), sample.GetTokens().GetResponseIds()
		hinted := sample.GetTeacher().GetHint() != ""
		switch {
		case sample.GetTurnId() != id || sample.PolicyVersion != nil || len(response) != 30 || sample.GetSampling().GetTemperature() != 0.6:
			t.Errorf("sample %s: %v", id, sample)
		case sample.GetTeacher().GetTeacherVersion() != "base" || sample.GetTeacher().GetTopK().GetK() != 16 || len(sample.GetTeacher().GetLogprobs()) != 30:
			t.Errorf("the teacher of %s: %v", id, sample.GetTeacher())
		case hinted && (sample.GetUser() != "ann" || sample.GetHint() != "Show every step." || slices.Contains(prompt, idsOf("step.")[0])):
			t.Errorf("sample %s of %q holds the hint %q in its prompt, or has it not: %v", id, sample.GetUser(), sample.GetHint(), prompt)
		case hinted:
			anns++
		case slices.Equal(prompt, idsOf("A question of cat")):
			cats++
		default:
			neutral++
		}
	}
	if anns != 8 || cats+neutral != 4 || cats == 0 || neutral == 0 {
		t.Errorf("%d replies to ann's prompts, %d to cat's, %d to neutral ones; want 8 and 4, of both kinds", anns, cats, neutral)
	}

	report, err := ops.Replay(t.Context(), s, ops.ReplayOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Equal() || report.Rehearsals != 12 || !strings.Contains(report.Line(), "12 samples of rehearsals left out") {
		t.Errorf("replay: %s %+v", report.Line(), report.Differences)
	}
	policies, err := ops.ReadPolicies(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	v, _ := policies.Version(trainer.parent)
	trace, err := ops.TracePolicy(t.Context(), s, policies, v)
	if err != nil {
		t.Fatal(err)
	}
	if trace.Missing != 0 || len(trace.Updates) != 3 || trace.Updates[0].Samples[0].Kind != "rehearsal" || !strings.Contains(trace.Updates[0].Samples[0].Response, " w") {
		t.Errorf("trace: %+v", trace)
	}
	var turns, samples uint64
	if err := s.ClickHouse.QueryRow(t.Context(), "SELECT count(), (SELECT count() FROM sample_assembled) FROM turns").Scan(&turns, &samples); err != nil || turns != 1 || samples != 13 {
		t.Errorf("%d turns, %d samples (%v); want 1 and 13", turns, samples, err)
	}

	s.Config.Rehearse.On = false // or it begins at once, and is interrupted by the end of the session
	session(t, s, "two", "ann", "What is 3+3?", "No, answer in French")
	s.Config.Rehearse.On = true
	list = until(t, s, trainer, 2)
	if len(list) != 2 || list[1].From != list[0].To || list[1].Samples != 12 || len(trainer.seen) != 24 {
		t.Errorf("after another hint: %+v, %d samples", list, len(trainer.seen))
	}
	s.Config.Rehearse.On, s.Config.Rehearse.Times = false, 1
	session(t, s, "three", "ann", "What is 4+4?", "No, answer in French please")
	s.Config.Rehearse.On = true
	list = until(t, s, trainer, 3)
	if len(list) != 3 || !strings.HasPrefix(list[2].Reason, "left: each hint") || list[2].Samples != 0 || list[2].To != list[1].To || len(trainer.seen) != 24 {
		t.Errorf("after the same was said again: %+v, %d samples", list, len(trainer.seen))
	}
	standing, err := ops.ReadStanding(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	origins, err := ops.HintOrigins(t.Context(), s, standing.Hints("default", "ann"))
	if err != nil || len(origins) != 2 || origins[1].Rehearsed != 16 || origins[0].Rehearsed != 8 {
		t.Errorf("what the hints taught: %+v (%v)", origins, err)
	}
}

// TestRehearsalEnds. Goal: whatever ends a rehearsal, one RehearsalEnded says so, no sample is made twice, and a policy that the guard refuses is not served.
// Method: one system, with another hint before each end: versions that repeat themselves; an engine that fails in the middle; a process that is stopped there,
// and goes on; a trainer that never comes.
func TestRehearsalEnds(t *testing.T) {
	s, engine, trainer := rehearsing(t, func(c *ops.Config) { c.Rehearse.Updates = 1 })
	engine.spoilt = true
	list := until(t, s, trainer, 1)
	if len(list) != 1 || list[0].To != "base" || list[0].Before != 1 || list[0].After != 0 || !strings.Contains(list[0].Reason, "the last version that it let pass was put back") {
		t.Fatalf("the guard falls: %+v", list)
	}
	policies, err := ops.ReadPolicies(t.Context(), s)
	if err != nil || policies.Serve()[0] != "base" {
		t.Errorf("to be served is %v (%v)", policies.Serve(), err)
	}
	another := func(name, reply string) {
		s.Config.Rehearse.On = false
		session(t, s, name, "ann", "What is 5+5?", reply)
		s.Config.Rehearse.On = true
	}
	another("two", "No, answer in French")
	engine.spoilt, trainer.parent, s.Config.Rehearse.Updates = false, "base", 3
	asked := len(engine.seeds)
	engine.fails = func(n int) bool { return n == asked+10 } // in the second minibatch
	list = until(t, s, trainer, 3)
	if len(list) != 3 || !strings.HasPrefix(list[1].Reason, "interrupted after 4 samples") || list[2].Reason != "all 3 updates were made" || len(trainer.seen) != 4+16 {
		t.Fatalf("the engine fails: %+v, %d samples", list, len(trainer.seen))
	}

	another("three", "No, include the units of measurement")
	batch := trainer.batch
	trainer.batch = 1000
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.While(ctx, func(ctx context.Context) error { // until the first minibatch is there
		for len(trainer.seen) < 20+batch && ctx.Err() == nil {
			trainer.turn(ctx)
			time.Sleep(20 * time.Millisecond)
		}
		return ctx.Err()
	}); err != nil {
		t.Fatal(err)
	}
	if n := len(rehearsals(t, s)); n != 3 {
		t.Fatalf("%d rehearsals ended before the process did", n)
	}
	trainer.batch = batch
	list = until(t, s, trainer, 5)
	if len(list) != 5 || !strings.HasPrefix(list[3].Reason, "interrupted after 4 samples") || list[3].Samples != 4 || list[4].Reason != "all 3 updates were made" || list[4].From != list[3].To {
		t.Fatalf("interrupted: %+v", list)
	}
	var rows int
	if err := s.Postgres.QueryRow(t.Context(), "SELECT count(*) FROM rehearsals").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows are left (%v)", rows, err)
	}

	another("four", "No, end with a full stop")
	trainer.batch, s.Config.Rehearse.Seconds = 1000, 1
	list = until(t, s, trainer, 6)
	if len(list) != 6 || list[5].Reason != "after 0 of 3 updates the budget of 1 s was used up" || list[5].To != list[5].From || list[5].Samples != 4 {
		t.Errorf("the budget: %+v", list)
	}
}

// TestRehearsalLooks. Goal: the guard looks at a rehearsal on its way, what it refuses ends it, and the last version that it let pass is served. Method: versions that
// repeat themselves from the fifth on.
func TestRehearsalLooks(t *testing.T) {
	s, engine, trainer := rehearsing(t, func(c *ops.Config) { c.Rehearse.Updates = 12 })
	engine.spoilt = true
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var good string
	err := s.While(ctx, func(ctx context.Context) error {
		for len(rehearsals(t, s)) == 0 && ctx.Err() == nil {
			trainer.turn(ctx)
			engine.mu.Lock()
			if len(engine.loaded) <= 4 {
				engine.sound = slices.Clone(engine.loaded)
			}
			if len(engine.loaded) == 4 {
				good = engine.loaded[0]
			}
			engine.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
		}
		return ops.WaitCaughtUp(ctx, s.Log, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	list := rehearsals(t, s)
	if len(list) != 1 || list[0].To != good || list[0].After != 0 || !strings.HasPrefix(list[0].Reason, "after 8 of 12 updates; the guard fell from 1.00 to 0.00") {
		t.Fatalf("rehearsals: %+v; the fourth version is %s", list, good)
	}
}

// TestRehearseSettings: what cannot work is refused with its remedy. Method: settings and prompt files by hand.
func TestRehearseSettings(t *testing.T) {
	for _, c := range []ops.RehearseConfig{{Updates: -1}, {Temperature: -0.1}, {MinTokens: 65}, {Quiet: -1}} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "--rehearse") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := (ops.RehearseConfig{}).Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	s := &ops.System{Config: ops.Config{Rehearse: ops.RehearseConfig{On: true}}}
	if err := ops.RunStages(t.Context(), s, "rehearse"); err == nil || !strings.Contains(err.Error(), "--policy-engine llama") {
		t.Errorf("without a policy: %v", err)
	}
	for text, want := range map[string]string{
		`{"messages": []}`: "at least one is needed",
		`{"messages": [{"role": "assistant", "content": "x"}]}`:                              `must be of role "user"`,
		`{"messages": [{"role": "tool", "content": "x"}, {"role": "user", "content": "y"}]}`: `the role "tool" is not known`,
		`{"prompt": "x"}`: "unknown field",
		`{"messages": [{"role": "user", "content": "y"}]} {}`: "more than one",
	} {
		if _, err := ops.ParsePrompt([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
