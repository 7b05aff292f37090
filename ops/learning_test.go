package ops

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// taught writes the events of a training into a log in memory, for a follower of one tenant.
type taught struct {
	t   *testing.T
	log *memlog.Log
	*Learning
}

// follow starts a follower; the returned function ends it.
func follow(t *testing.T) (*taught, func()) {
	t.Helper()
	l := &taught{t, memlog.New(2), NewLearning("default")}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Follow(ctx, l.log) }()
	return l, func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("following ended with %v", err)
		}
	}
}

func (l *taught) add(tenant, session, name string, payload proto.Message) string {
	l.t.Helper()
	e := schemas.Event{ID: schemas.ContentID("demo", name), Source: "test/1", Tenant: tenant, Session: session, Payload: payload}
	r, err := schemas.Encode(e)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.log.Append(l.t.Context(), r); err != nil {
		l.t.Fatal(err)
	}
	return e.ID
}

func (l *taught) sample(tenant, session, name string) string {
	return l.add(tenant, session, name, &schemas.SampleAssembled{TurnId: schemas.ContentID("turn", name), Kind: schemas.SampleKind_SAMPLE_KIND_EVALUATIVE, Reward: -1})
}

func (l *taught) started(number uint64, samples ...string) string {
	return l.add("default", "policy", fmt.Sprint("u", number), &schemas.UpdateStarted{Update: number, ParentVersion: "base", SampleIds: samples, Objective: "{}", Engine: "onnx"})
}

func (l *taught) published(number uint64, update string) string {
	return l.add("default", "policy", fmt.Sprint("p", number), &schemas.PolicyPublished{
		Update: number, UpdateId: update, ParentVersion: "base", PeftSha256: make([]byte, 32), GgufSha256: make([]byte, 32), Metrics: map[string]float64{"loss": 0.5}, BaseModel: "m",
	})
}

// comes waits until something is known.
func (l *taught) comes(what string, holds func(Learned) bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeoutCause(l.t.Context(), 10*time.Second, errors.New("did not come"))
	defer cancel()
	if err := l.Until(ctx, holds); err != nil {
		l.t.Fatalf("%s: %v; known: %+v", what, err, l.Now())
	}
}

// TestLearning: the follower knows how many samples wait, which updates run, and what was published, each event once, in whatever order topics are read, of its
// own tenant only. Method: a log in memory gets the events of four turns and two updates, some of them twice, and those of another tenant; after each
// step the follower must come to know it.
func TestLearning(t *testing.T) {
	l, end := follow(t)
	l.sample("other", "a", "foreign")
	first := l.sample("default", "a", "a1")
	l.sample("default", "a", "a1") // the log may hold a record twice
	second := l.sample("default", "b", "b1")
	l.add("default", "a", "a2", &schemas.TurnSkipped{TurnId: schemas.ContentID("turn", "a2"), Reason: "no signal"})
	l.comes("turns", func(now Learned) bool {
		return now.Waiting == 2 && now.Running == 0 && now.Decided["a"] == 2 && now.Decided["b"] == 1
	})
	update := l.started(1, first)
	l.comes("a running update", func(now Learned) bool { return now.Waiting == 1 && now.Running == 1 })
	version := l.published(1, update)
	l.comes("a publication", func(now Learned) bool { return now.Waiting == 1 && now.Running == 0 && len(now.Published) == 1 })
	if u := l.Now().Published[0]; u.Version != version || u.Samples != 1 || u.Number != 1 || u.Metrics["loss"] != 0.5 {
		t.Errorf("published %+v", u)
	}
	l.add("default", "b", "dead", &schemas.DeadLettered{Stage: "train", Reason: fmt.Sprintf("sample %s is too old", second), Origin: &schemas.DeadLettered_Position{Position: &schemas.LogPosition{Topic: schemas.TopicSamples}}})
	l.comes("a refused sample", func(now Learned) bool { return now.Waiting == 0 })
	skipped := l.started(2, l.sample("default", "c", "c1"))
	l.comes("a second running update", func(now Learned) bool { return now.Running == 1 })
	l.add("default", "policy", "s2", &schemas.UpdateSkipped{Update: 2, UpdateId: skipped, ParentVersion: version, Reason: "the loss is not finite"})
	l.comes("a skipped update", func(now Learned) bool {
		return now.Running == 0 && now.Waiting == 0 && now.Skipped == 1 && len(now.Published) == 1
	})

	ended, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("the reason"))
	defer cancel()
	if err := l.Until(ended, func(Learned) bool { return false }); err == nil || err.Error() != "the reason" {
		t.Errorf("error %v", err)
	}
	end()
}

// TestPace: between sessions everything is waited for, and nothing that will not come. Method: a log in memory in which a session's turns, an update and its
// publication come one after the other, and a gateway that answers with the version only at its third question.
func TestPace(t *testing.T) {
	l, end := follow(t)
	defer end()
	asked, version := 0, schemas.ContentID("demo", "p1")
	var told []string
	p := &Pace{
		Learning: l.Learning, Batch: 2,
		Versions: func(context.Context) ([]string, error) {
			if asked++; asked < 3 {
				return []string{"base"}, nil
			}
			return []string{version, "base"}, nil
		},
		Published: func(u UpdateLearned) { told = append(told, fmt.Sprint("update ", u.Number)) },
		Adopted:   func(v string, _ time.Duration) { told = append(told, v) },
	}
	one, two := l.sample("default", "a", "a1"), l.sample("default", "a", "a2")
	if err := p.Decided(t.Context(), map[string]int{"a": 2}); err != nil {
		t.Fatal(err)
	}
	l.published(1, l.started(1, one, two))
	if _, err := p.Updated(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || told[0] != "update 1" || told[1] != version || asked != 3 {
		t.Errorf("told %q after %d questions", told, asked)
	}
	l.sample("default", "b", "b1") // one is too few
	if err := p.Decided(t.Context(), map[string]int{"a": 2, "b": 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Updated(t.Context()); err != nil || asked != 3 {
		t.Errorf("error %v after %d questions", err, asked)
	}
	stopped, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := p.Decided(stopped, map[string]int{"c": 1}); err == nil || err.Error() != "enough" {
		t.Errorf("error %v", err)
	}
	if w, err := (&Pace{Learning: l.Learning}).Updated(t.Context()); err != nil || w != (Waited{}) {
		t.Errorf("without training: %v %v", w, err)
	}
}
