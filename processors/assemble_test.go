package processors

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

func event(payload proto.Message) schemas.Event {
	return schemas.Event{ID: id("x"), Source: "test", Tenant: "acme", Session: "x", Payload: payload}
}

// TestAssemble states the table of samples. Method: every combination of score and hint, and every reason to skip.
func TestAssemble(t *testing.T) {
	hint := &schemas.HintSelected{TurnId: id("a1"), Hint: "Show the steps.", TeacherAbsentReason: proto.String("no teacher is configured")}
	none := &schemas.HintAbsent{TurnId: id("a1"), Reason: "no finder could tell"}
	side, demo := closed(), closed()
	side.Action.Kind = schemas.TurnKind_TURN_KIND_SIDE
	demo.Action.UntrainableReason = proto.String("a demonstration")
	for name, c := range map[string]struct {
		turn  *schemas.TurnClosed
		score *int32
		hint  proto.Message
		want  string
	}{
		"combined":            {closed(), proto.Int32(-1), hint, "COMBINED reward -1 hint Show the steps. teacher no teacher is configured"},
		"directive":           {closed(), proto.Int32(0), hint, "DIRECTIVE reward 0 hint Show the steps. teacher no teacher is configured"},
		"directive, no score": {closed(), nil, hint, "DIRECTIVE reward 0 hint Show the steps. teacher no teacher is configured"},
		"evaluative":          {closed(), proto.Int32(1), none, "EVALUATIVE reward 1 hint  teacher no hint was accepted"},
		"neither":             {closed(), proto.Int32(0), none, "skipped: the score is 0 (why), and no hint (no finder could tell)"},
		"neither, no score":   {closed(), nil, none, "skipped: there is no score (why), and no hint (no finder could tell)"},
		"a side turn":         {side, proto.Int32(1), hint, "skipped: a side turn is never trained"},
		"an untrainable turn": {demo, proto.Int32(1), hint, "skipped: untrainable: a demonstration"},
	} {
		t.Run(name, func(t *testing.T) {
			step := 0.5
			got := Assemble(event(c.turn), event(&schemas.TurnJudged{TurnId: id("a1"), Score: c.score, Reason: "why", StepReward: &step}), event(c.hint))
			if _, err := schemas.Encode(got); err != nil {
				t.Error(err)
			}
			text := ""
			switch p := got.Payload.(type) {
			case *schemas.SampleAssembled:
				text = fmt.Sprintf("%s reward %g hint %s teacher %s", p.GetKind().String()[len("SAMPLE_KIND_"):], p.GetReward(), p.GetHint(), p.GetTeacherAbsentReason())
				if p.GetStepReward() != step || p.GetModel() != "m" || messageText(p.GetResponse()) != "Did a1" || p.Tokens != nil {
					t.Errorf("sample %v", p)
				}
			case *schemas.TurnSkipped:
				text = "skipped: " + p.GetReason()
			}
			if text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
		})
	}
}

// joinLog is a log with one partition whose verdicts and hints a test writes by hand.
type joinLog struct {
	*memlog.Log
	t *testing.T
}

func (l joinLog) verdict(offset uint64, reason string) {
	l.add(&schemas.TurnJudged{TurnId: id(fmt.Sprint(offset)), Score: proto.Int32(1), TurnOffset: offset, Reason: reason})
}

func (l joinLog) hint(offset uint64, text string) {
	l.add(&schemas.HintSelected{TurnId: id(fmt.Sprint(offset)), Hint: text, TurnOffset: offset})
}

func (l joinLog) add(payload proto.Message) {
	l.t.Helper()
	if err := l.Append(l.t.Context(), encode(l.t, []schemas.Event{event(payload)})...); err != nil {
		l.t.Fatal(err)
	}
}

// ask joins the turn at offset and returns its hint.
func (l joinLog) ask(j *Join, offset int64) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Second)
	defer cancel()
	e := event(closed())
	e.Position = schemas.Position{Topic: schemas.TopicTurns, Offset: offset}
	out, err := j.Process(ctx, e)
	if err != nil {
		l.t.Fatalf("offset %d: %v", offset, err)
	}
	return out[0].Payload.(*schemas.SampleAssembled).GetHint()
}

// TestJoin: the first terminal event of a turn counts, whatever is repeated, overtaken or foreign. Method: verdicts and hints in the orders
// that crashes, zombies and partly failed appends leave.
func TestJoin(t *testing.T) {
	l := joinLog{memlog.New(1), t}
	l.verdict(0, "first")
	l.verdict(2, "overtook 1") // an append of 1 and 2 failed half
	l.verdict(1, "")
	l.verdict(2, "again")
	l.verdict(0, "a zombie's")
	l.verdict(3, "")
	l.add(&schemas.VoteCast{TurnId: id("1"), Vote: proto.Int32(1)})
	for _, h := range []struct {
		offset uint64
		text   string
	}{{0, "zero"}, {0, "zero again"}, {2, "two early"}, {2, "two again"}, {1, "one"}, {1, "one again"}, {3, "three"}} {
		l.hint(h.offset, h.text)
	}
	if err := l.Append(t.Context(), schemas.Record{Topic: schemas.TopicHints, Key: schemas.Key("acme", "x"), Value: []byte("no event")}); err != nil {
		t.Fatal(err)
	}
	want := []string{"zero", "one", "two early", "three"}
	// From the start, and taken over after each turn with what the commit's note holds.
	j := NewJoin(l, 0)
	for o, w := range want {
		if got := l.ask(j, int64(o)); got != w {
			t.Errorf("offset %d: %s, want %s", o, got, w)
		}
		successor := NewJoin(l, 0)
		if err := successor.Restore(j.Note()); err != nil {
			t.Fatal(err)
		}
		for later := o + 1; later < len(want); later++ {
			if got := l.ask(successor, int64(later)); got != want[later] {
				t.Errorf("taken over after %d, offset %d: %s, want %s", o, later, got, want[later])
			}
		}
		if err := successor.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(j.verdicts.ahead)+len(j.hints.ahead) != 0 {
		t.Errorf("%d and %d events are kept for nothing", len(j.verdicts.ahead), len(j.hints.ahead))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestJoinWaits: a turn whose verdict is not there yet is waited for, and an ended ctx ends the wait. Method: ask first, write later.
func TestJoinWaits(t *testing.T) {
	l := joinLog{memlog.New(1), t}
	j := NewJoin(l, 0)
	defer func() { _ = j.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	e := event(closed())
	if _, err := j.Process(ctx, e); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	done := make(chan string, 1)
	go func() { done <- l.ask(j, 0) }()
	l.hint(0, "now it is there")
	l.verdict(0, "")
	if got := <-done; got != "now it is there" {
		t.Errorf("got %s", got)
	}
}

// TestJoinMissing: a terminal event that retention took does not stop the stage for ever. Method: as many later events as the join looks at.
func TestJoinMissing(t *testing.T) {
	l := joinLog{memlog.New(1), t}
	var later []schemas.Event
	for o := range uint64(aheadMax) {
		later = append(later, event(&schemas.TurnJudged{TurnId: id("later"), TurnOffset: o + 1}))
	}
	if err := l.Append(t.Context(), encode(t, later)...); err != nil {
		t.Fatal(err)
	}
	j := NewJoin(l, 0)
	defer func() { _ = j.Close() }()
	if _, err := j.Process(t.Context(), event(closed())); !IsPermanent(err) || !strings.Contains(err.Error(), "replay") {
		t.Errorf("got %v", err)
	}
}
