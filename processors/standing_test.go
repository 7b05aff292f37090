package processors

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// TestSameSubject states when a newer hint replaces an older one. Method: pairs by hand, in both orders.
func TestSameSubject(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"Use short answers.", "Use short answers.", true},
		{"Use short answers.", "Use long answers.", true}, // a contradiction: the newest wins
		{"Explain it in two or three plain sentences. No numbered list, no bold.", "Please no lists or bold, just plain sentences.", true},
		{"Answer in French.", "Show every step of the solution.", false},
		{"Be brief.", "Use short answers.", false}, // meaning is not looked at
		{"Do it.", "Do that.", false},              // no content words on either side
		{"Ответь по-русски.", "Ответь по-русски, коротко.", true},
	} {
		if SameSubject(c.a, c.b) != c.want || SameSubject(c.b, c.a) != c.want {
			t.Errorf("%q and %q: same subject %t, want %t", c.a, c.b, SameSubject(c.a, c.b), c.want)
		}
	}
}

// stood is a HintStood with a name as its id.
func stood(name, user, hint string) schemas.Event {
	return schemas.Event{ID: id(name), Tenant: "acme", Session: StandingSession(user), LogTime: epoch, Payload: &schemas.HintStood{User: user, Hint: hint, TurnId: id("turn of " + name)}}
}

func gone(name, user string) schemas.Event {
	return schemas.Event{ID: id("no more " + name), Tenant: "acme", Session: StandingSession(user), Payload: &schemas.HintWithdrawn{User: user, HintId: id(name), Reason: "moved on"}}
}

// TestStanding states which hints are in force after a sequence of events. Method: sequences by hand, each also with every event twice, which changes nothing.
func TestStanding(t *testing.T) {
	french, steps, brief, units, german := "Answer in French.", "Show every step.", "Keep it short.", "Include units of measurement.", "Answer in German."
	for name, c := range map[string]struct {
		events []schemas.Event
		want   []string
	}{
		"nothing":                      {nil, nil},
		"newest first":                 {[]schemas.Event{stood("1", "ann", french), stood("2", "ann", steps)}, []string{steps, french}},
		"the newest of a subject":      {[]schemas.Event{stood("1", "ann", french), stood("2", "ann", steps), stood("3", "ann", german)}, []string{german, steps}},
		"said again":                   {[]schemas.Event{stood("1", "ann", french), stood("2", "ann", steps), stood("3", "ann", french)}, []string{french, steps}},
		"at most three":                {[]schemas.Event{stood("1", "ann", french), stood("2", "ann", steps), stood("3", "ann", brief), stood("4", "ann", units)}, []string{units, brief, steps}},
		"withdrawn":                    {[]schemas.Event{stood("1", "ann", french), stood("2", "ann", steps), gone("1", "ann")}, []string{steps}},
		"withdrawn before it came":     {[]schemas.Event{gone("1", "ann"), stood("1", "ann", french)}, nil},
		"withdrawn, then said again":   {[]schemas.Event{stood("1", "ann", french), gone("1", "ann"), stood("2", "ann", french)}, []string{french}},
		"what was replaced stays gone": {[]schemas.Event{stood("1", "ann", french), stood("2", "ann", german), gone("2", "ann")}, nil},
		"another user":                 {[]schemas.Event{stood("1", "bob", french), gone("1", "ann")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			once, twice := NewStanding(), NewStanding()
			for _, e := range c.events {
				once.Apply(e)
				twice.Apply(e)
				twice.Apply(e)
			}
			for _, e := range c.events { // a reader that starts over reads all of it again
				twice.Apply(e)
			}
			for _, s := range []*Standing{once, twice} {
				var got []string
				for _, h := range s.Hints("acme", "ann") {
					got = append(got, h.Hint)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("in force: %q, want %q", got, c.want)
				}
				if s.Hints("other", "ann") != nil {
					t.Error("another tenant's user has these hints")
				}
			}
		})
	}
}

// TestStand states which samples make a hint stand. Method: samples by hand; the event's content, and the same bytes when it is derived again.
func TestStand(t *testing.T) {
	sample := func(change func(*schemas.SampleAssembled)) *schemas.SampleAssembled {
		s := &schemas.SampleAssembled{
			TurnId: id("a1"), Kind: schemas.SampleKind_SAMPLE_KIND_COMBINED, Reward: -1, Hint: proto.String("Show every step."), User: proto.String("ann"),
		}
		change(s)
		return s
	}
	for name, c := range map[string]struct {
		payload proto.Message
		want    string
	}{
		"a hint": {sample(func(*schemas.SampleAssembled) {}), "Show every step."},
		"its own part": {sample(func(s *schemas.SampleAssembled) {
			*s.Hint += "\nAnswer in French."
			s.Standing = proto.String("Answer in French.")
		}), "Show every step."},
		"only what stood already": {sample(func(s *schemas.SampleAssembled) { s.Standing = s.Hint }), ""},
		"no hint":                 {sample(func(s *schemas.SampleAssembled) { s.Hint = nil }), ""},
		"no user":                 {sample(func(s *schemas.SampleAssembled) { s.User = nil }), ""},
		"a rehearsal":             {sample(func(s *schemas.SampleAssembled) { s.Kind = schemas.SampleKind_SAMPLE_KIND_REHEARSAL }), ""},
		"a skipped turn":          {&schemas.TurnSkipped{TurnId: id("a1"), Reason: "r"}, ""},
		"a strange name":          {sample(func(s *schemas.SampleAssembled) { s.User = proto.String(strings.Repeat("x", 600) + "\n") }), "Show every step."},
	} {
		t.Run(name, func(t *testing.T) {
			e := event(c.payload)
			out, err := Stand{}.Process(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				if len(out) != 0 {
					t.Errorf("it made %v", out)
				}
				return
			}
			if len(out) != 1 {
				t.Fatalf("%d events", len(out))
			}
			p, _ := out[0].Payload.(*schemas.HintStood)
			if p.GetHint() != c.want || p.GetTurnId() != id("a1") || out[0].ID != schemas.DerivedID("stand", "1", "HintStood", e.ID, 0) {
				t.Errorf("%s: %v", out[0].ID, p)
			}
			first, err := schemas.Encode(out[0])
			if err != nil {
				t.Fatal(err)
			}
			again, err := Stand{}.Process(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			if second, err := schemas.Encode(again[0]); err != nil || !bytes.Equal(first.Value, second.Value) || !bytes.Equal(first.Key, second.Key) {
				t.Errorf("derived again, the bytes differ (%v)", err)
			}
		})
	}
	if _, err := (Stand{}).Process(t.Context(), event(closed())); !IsPermanent(err) {
		t.Errorf("a TurnClosed gives %v, want a permanent error", err)
	}
}

// TestDirectStanding states the hint of a turn while hints stand. Method: finders and standing hints with fixed answers; the terminal event and the votes.
func TestDirectStanding(t *testing.T) {
	steps, french := "Show every step.", "Answer in French."
	standing := func(hints ...string) StandingVoter {
		var list []StandingHint
		for i, h := range hints {
			list = append(list, StandingHint{ID: fmt.Sprint("h", i), Hint: h})
		}
		return LiveStanding{Hints: func(_ context.Context, tenant, user string) ([]StandingHint, error) {
			if tenant != "acme" || user != "ann" {
				return nil, nil
			}
			return list, nil
		}}
	}
	anns := func(change func(*schemas.TurnClosed)) *schemas.TurnClosed {
		turn := taughtTurn()
		turn.Action.User = proto.String("ann")
		change(turn)
		return turn
	}
	same := func(*schemas.TurnClosed) {}
	never := finderFunc{"f", []*schemas.HintVoteCast{{Decision: proto.Int32(-1)}}}
	for name, c := range map[string]struct {
		turn   *schemas.TurnClosed
		finder Finder
		stands StandingVoter
		want   string // finder: hint | standing
		votes  int
	}{
		"a satisfied turn":          {anns(same), never, standing(steps, french), "standing: " + steps + "\n" + french + " | " + steps + "\n" + french, 2},
		"its own first":             {anns(same), finderFunc{"f", hinted("Mind the commas.")}, standing(steps), "f: Mind the commas.\n" + steps + " | " + steps, 2},
		"about the same subject":    {anns(same), finderFunc{"f", hinted("Show every single step.")}, standing(steps), "f: Show every single step. | ", 1},
		"another one of them":       {anns(same), finderFunc{"f", hinted("Show every single step.")}, standing(steps, french), "f: Show every single step.\n" + french + " | " + french, 2},
		"nothing stands":            {anns(same), never, standing(), "absent: no hint was accepted", 1},
		"another user":              {anns(func(c *schemas.TurnClosed) { c.Action.User = proto.String("bob") }), never, standing(steps), "absent: no hint was accepted", 1},
		"nobody":                    {anns(func(c *schemas.TurnClosed) { c.Action.User = nil }), never, standing(steps), "absent: no hint was accepted", 1},
		"a side turn":               {anns(func(c *schemas.TurnClosed) { c.Action.Kind = schemas.TurnKind_TURN_KIND_SIDE }), never, standing(steps), "absent: no hint was accepted", 1},
		"a turn that is no sample":  {anns(func(c *schemas.TurnClosed) { c.Action.UntrainableReason = proto.String("a demonstration") }), never, standing(steps), "absent: no hint was accepted", 1},
		"a turn without next state": {anns(func(c *schemas.TurnClosed) { c.NextState = nil }), never, standing(steps), "standing: " + steps + " | " + steps, 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewDirect(DirectConfig{Finders: []Finder{c.finder}, Standing: c.stands})
			out, err := d.Process(t.Context(), schemas.Event{ID: id("x"), Tenant: "acme", Session: "s", Position: schemas.Position{Offset: 7}, Payload: c.turn})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			switch p := out[len(out)-1].Payload.(type) {
			case *schemas.HintSelected:
				got = p.GetFinder() + ": " + p.GetHint() + " | " + p.GetStanding()
				if p.GetCandidates()[p.GetCandidateIndex()] != p.GetHint() {
					t.Errorf("the candidates are %q", p.GetCandidates())
				}
			case *schemas.HintAbsent:
				got = "absent: " + p.GetReason()
			}
			if got != c.want || len(out)-1 != c.votes {
				t.Errorf("got  %q with %d votes\nwant %q with %d", got, len(out)-1, c.want, c.votes)
			}
			ids := map[string]bool{}
			for _, e := range out {
				if ids[e.ID] {
					t.Errorf("%s: the id %s stands twice", e.Kind(), e.ID)
				}
				ids[e.ID] = true
			}
		})
	}
}

// TestStandingDerivesTheSame: a derivation that reads the standing votes from the record gives the bytes of the live one, and one of a log where nothing stands
// gives the bytes of one without standing hints. Method: two users over six sessions, with a fold of what stands kept beside the live derivation as the stages
// do; then the votes alone.
func TestStandingDerivesTheSame(t *testing.T) {
	s := newScript()
	say := func(session, name, user, reply string) {
		a := mainAction(name)
		if user != "" {
			a.User = &user
		}
		s.add(session, name, a).next(session, "reply to "+name, name, reply).end(session, "end of "+name)
	}
	say("s0", "a0", "ann", "No, show every step")
	say("s1", "a1", "bob", "Perfect, thanks!")
	say("s2", "a2", "ann", "Perfect, thanks!")
	say("s3", "a3", "ann", "No, answer in French")
	say("s4", "a4", "ann", "hm")
	say("s5", "a5", "", "Perfect, thanks!")

	standing, votes := NewStanding(), map[string][]*schemas.HintVoteCast{}
	var live []schemas.Event
	o := DeriveOptions{Direct: DirectConfig{Standing: LiveStanding{Hints: func(_ context.Context, tenant, user string) ([]StandingHint, error) {
		return standing.Hints(tenant, user), nil
	}}}}
	err := Derive(t.Context(), sequence(s.events), o, func(e schemas.Event) error {
		live = append(live, e)
		switch p := e.Payload.(type) {
		case *schemas.SampleAssembled:
			out, err := Stand{}.Process(t.Context(), e)
			for _, h := range out {
				standing.Apply(h)
			}
			return err
		case *schemas.HintVoteCast:
			if p.GetFinder() == StandingFinder {
				votes[p.GetTurnId()] = append(votes[p.GetTurnId()], proto.CloneOf(p))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if hints := standing.Hints("acme", "ann"); len(hints) != 2 || len(standing.Hints("acme", "bob")) != 0 {
		t.Fatalf("ann's hints: %v", hints)
	}
	taught := map[string]string{}
	for _, e := range live {
		if p, ok := e.Payload.(*schemas.SampleAssembled); ok {
			taught[p.GetTurnId()] = p.GetKind().String()[len("SAMPLE_KIND_"):] + " " + p.GetStanding()
		}
	}
	want := map[string]string{
		id("a0"): "COMBINED ", id("a1"): "EVALUATIVE ", id("a2"): "COMBINED Show every step.", id("a3"): "COMBINED Show every step.",
		id("a4"): "DIRECTIVE Answer in French.\nShow every step.", id("a5"): "EVALUATIVE ",
	}
	for turn, w := range want {
		if taught[turn] != w {
			t.Errorf("a turn's sample is %q, want %q", taught[turn], w)
		}
	}
	o.Direct.Standing = RecordedStanding{Lookup: func(_ context.Context, turn string) ([]*schemas.HintVoteCast, error) { return votes[turn], nil }}
	equalEvents(t, deriveAll(t, o, s.events), live)

	o.Direct.Standing = LiveStanding{Hints: func(context.Context, string, string) ([]StandingHint, error) { return nil, nil }}
	equalEvents(t, deriveAll(t, o, s.events), deriveAll(t, DeriveOptions{}, s.events))
}

// equalEvents compares what would be written, byte for byte.
func equalEvents(t *testing.T, got, want []schemas.Event) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d", len(got), len(want))
	}
	for i := range got {
		a, errA := schemas.Encode(got[i])
		b, errB := schemas.Encode(want[i])
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if got[i].ID != want[i].ID || !bytes.Equal(a.Value, b.Value) || !bytes.Equal(a.Key, b.Key) {
			t.Errorf("event %d: %s %v, want %s %v", i, got[i].Kind(), got[i].Payload, want[i].Kind(), want[i].Payload)
		}
	}
}
