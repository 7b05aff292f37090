package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// TestLearning: the follower knows how many samples wait, which updates run, and what was published, each event once, in whatever order topics are read.
// Method: a log in memory gets the events of three turns and one update, some of them twice; after each step the follower must come to know it.
func TestLearning(t *testing.T) {
	log := memlog.New(2)
	add := func(session, name string, payload proto.Message) string {
		t.Helper()
		e := schemas.Event{ID: schemas.ContentID("demo", name), Source: "test/1", Tenant: "default", Session: session, Payload: payload}
		r, err := schemas.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		if err := log.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		return e.ID
	}
	sample := func(session, name string) string {
		return add(session, name, &schemas.SampleAssembled{TurnId: schemas.ContentID("turn", name), Kind: schemas.SampleKind_SAMPLE_KIND_EVALUATIVE, Reward: -1})
	}
	ctx, stop := context.WithCancel(t.Context())
	l, done := newLearning(), make(chan error, 1)
	go func() { done <- l.follow(ctx, log) }()
	comes := func(what string, holds func(trained, map[string]int) bool) {
		t.Helper()
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("did not come"))
		defer cancel()
		if err := l.until(ctx, holds); err != nil {
			t.Fatalf("%s: %v; known: %+v", what, err, l.now())
		}
	}

	first := sample("a", "a1")
	sample("a", "a1") // the log may hold a record twice
	second := sample("b", "b1")
	add("a", "a2", &schemas.TurnSkipped{TurnId: schemas.ContentID("turn", "a2"), Reason: "no signal"})
	comes("turns", func(n trained, decided map[string]int) bool {
		return n.waiting == 2 && n.running == 0 && decided["a"] == 2 && decided["b"] == 1
	})
	update := add("policy", "u1", &schemas.UpdateStarted{Update: 1, ParentVersion: "base", SampleIds: []string{first}, Objective: "{}", Engine: "onnx"})
	comes("a running update", func(n trained, _ map[string]int) bool { return n.waiting == 1 && n.running == 1 })
	version := add("policy", "p1", &schemas.PolicyPublished{
		Update: 1, UpdateId: update, ParentVersion: "base", PeftSha256: make([]byte, 32), GgufSha256: make([]byte, 32), Metrics: map[string]float64{"loss": 0.5}, BaseModel: "m",
	})
	comes("a publication", func(n trained, _ map[string]int) bool {
		return n.waiting == 1 && n.running == 0 && len(n.published) == 1
	})
	if u := l.now().published[0]; u.version != version || u.samples != 1 || u.number != 1 || u.metrics["loss"] != 0.5 {
		t.Errorf("published %+v", u)
	}
	add("b", "dead", &schemas.DeadLettered{Stage: "train", Reason: fmt.Sprintf("sample %s is too old", second), Origin: &schemas.DeadLettered_Position{Position: &schemas.LogPosition{Topic: schemas.TopicSamples}}})
	comes("a refused sample", func(n trained, _ map[string]int) bool { return n.waiting == 0 })

	ended, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("the reason"))
	defer cancel()
	if err := l.until(ended, func(trained, map[string]int) bool { return false }); err == nil || err.Error() != "the reason" {
		t.Errorf("error %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("following ended with %v", err)
	}
}

// TestLiveConcludes: the demo says what happened, also when it proves little. Method: results as they may come, and the words that must or must not be said.
func TestLiveConcludes(t *testing.T) {
	good, bad := personas.Turn{}, personas.Turn{Judgement: personas.Judgement{Complaint: "bold"}}
	session := func(first, control personas.Turn) *personas.Session {
		return &personas.Session{Turns: []personas.Turn{first}, Control: &control}
	}
	for name, c := range map[string]struct {
		result    personas.Result
		says, not []string
	}{
		"aligned":      {personas.Result{Sessions: []*personas.Session{session(bad, bad), session(good, bad)}, AlignedAt: 2}, []string{"1 of 2", "0 of 2", "Aligned:", "up to session 2", "did not come to it"}, []string{"Not aligned"}},
		"not aligned":  {personas.Result{Sessions: []*personas.Session{session(bad, good)}}, []string{"0 of 1", "1 of 1", "Not aligned"}, []string{"Aligned:"}},
		"control also": {personas.Result{Sessions: []*personas.Session{session(good, good)}, AlignedAt: 1, ControlAt: 1}, []string{"Aligned:", "proves little"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			g := new(Globals)
			g.Bind(&out, &out)
			l := &live{g: g, learning: newLearning(), plan: personas.Plan{Persona: personas.All()[0]}}
			l.conclude(&c.result, time.Second)
			for _, want := range c.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is missing:\n%s", want, out.String())
				}
			}
			for _, unwanted := range c.not {
				if strings.Contains(out.String(), unwanted) {
					t.Errorf("%q is said:\n%s", unwanted, out.String())
				}
			}
		})
	}
}
