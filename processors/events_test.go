package processors

import (
	"fmt"
	"iter"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// epoch is the log time of offset 0 in the tests.
var epoch = time.UnixMilli(1_800_000_000_000)

// script builds interactions of one partition by hand: names stand for event ids.
type script struct {
	events []schemas.Event
	now    time.Time
}

func newScript() *script { return &script{now: epoch} }

// id is the id of the event with that name.
func id(name string) string { return schemas.ContentID("test", name) }

func (s *script) add(session, name string, payload proto.Message) *script {
	s.events = append(s.events, schemas.Event{
		ID: id(name), Source: "test", Tenant: "acme", Session: session, Payload: payload, LogTime: s.now, Time: s.now,
		TraceParent: fmt.Sprintf("00-%032x-%016x-01", len(s.events)+1, len(s.events)+1),
		Position:    schemas.Position{Topic: schemas.TopicInteractions, Offset: int64(len(s.events))},
	})
	s.now = s.now.Add(time.Second)
	return s
}

func (s *script) wait(d time.Duration) *script {
	s.now = s.now.Add(d)
	return s
}

// again repeats an earlier event at the end.
func (s *script) again(name string) *script {
	for _, e := range s.events {
		if e.ID == id(name) {
			return s.add(e.Session, name, e.Payload)
		}
	}
	panic("no event " + name)
}

func (s *script) main(session, name string) *script { return s.add(session, name, mainAction(name)) }

func mainAction(name string) *schemas.ActionTaken {
	return &schemas.ActionTaken{
		Kind: schemas.TurnKind_TURN_KIND_MAIN, Model: "m", Context: &schemas.Context{Messages: []*schemas.Message{textMessage(schemas.Role_ROLE_USER, "Do "+name)}},
		Response: textMessage(schemas.Role_ROLE_ASSISTANT, "Did "+name),
	}
}

func (s *script) side(session, name string) *script {
	a := mainAction(name)
	a.Kind = schemas.TurnKind_TURN_KIND_SIDE
	return s.add(session, name, a)
}

func (s *script) awaiting(session, name string) *script {
	a := mainAction(name)
	a.AwaitsOutcome = true
	return s.add(session, name, a)
}

func (s *script) child(session, name, parent string) *script {
	a := mainAction(name)
	a.Context.ParentTurnId = proto.String(id(parent))
	return s.add(session, name, a)
}

func observed(text string) []*schemas.Observation {
	return []*schemas.Observation{{Kind: schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY, Message: textMessage(schemas.Role_ROLE_USER, text)}}
}

// next adds a next state; turn "" means the newest main turn.
func (s *script) next(session, name, turn, text string) *script {
	n := &schemas.NextStateObserved{Observations: observed(text)}
	if turn != "" {
		n.TurnId = proto.String(id(turn))
	}
	return s.add(session, name, n)
}

func (s *script) part(session, name, text string) *script {
	return s.add(session, name, &schemas.NextStateObserved{Observations: observed(text), MoreFollows: true})
}

func (s *script) feedback(session, name string, score float64) *script {
	return s.add(session, name, &schemas.FeedbackGiven{Score: &score})
}

func (s *script) outcome(session, name string, score float64) *script {
	return s.add(session, name, &schemas.OutcomeReported{Score: score, Checker: "test"})
}

func (s *script) end(session, name string) *script {
	return s.add(session, name, &schemas.SessionEnded{Reason: "done"})
}

// pairAll runs pair over the script, and fails the test on an error.
func pairAll(t testing.TB, cfg PairConfig, events []schemas.Event) (out []schemas.Event, p *Pair) {
	t.Helper()
	p = NewPair(cfg)
	for _, e := range events {
		got, err := p.Process(t.Context(), e)
		if err != nil {
			t.Fatalf("%s at %d: %v", e.Kind(), e.Position.Offset, err)
		}
		out = append(out, got...)
	}
	return out, p
}

// brief says of each derived event what the tests compare: the action's name, why it closed, what was joined; or why it was refused.
func brief(s *script, events []schemas.Event) []string {
	names := map[string]string{}
	for _, e := range s.events {
		for _, name := range []string{"a", "b", "c", "d", "n", "o", "e", "f", "s"} {
			for i := range 10 {
				n := fmt.Sprintf("%s%d", name, i)
				if e.ID == id(n) {
					names[e.ID] = n
				}
			}
		}
	}
	var out []string
	for _, e := range events {
		switch p := e.Payload.(type) {
		case *schemas.TurnClosed:
			text := fmt.Sprintf("%s %s", names[p.GetTurnId()], p.GetCloseReason().String()[len("CLOSE_REASON_"):])
			for _, source := range p.GetSourceIds() {
				text += " " + names[source]
			}
			if p.Outcome != nil {
				text += fmt.Sprintf(" outcome %g", p.GetOutcome().GetScore())
			}
			out = append(out, text)
		case *schemas.DeadLettered:
			out = append(out, fmt.Sprintf("dead %d: %s", p.GetPosition().GetOffset(), p.GetReason()))
		default:
			out = append(out, e.Kind())
		}
	}
	return out
}

func sequence(events []schemas.Event) iter.Seq2[schemas.Event, error] {
	return func(yield func(schemas.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// deriveAll runs all stages in memory over the script.
func deriveAll(t testing.TB, o DeriveOptions, events []schemas.Event) (out []schemas.Event) {
	t.Helper()
	err := Derive(t.Context(), sequence(events), o, func(e schemas.Event) error {
		out = append(out, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
