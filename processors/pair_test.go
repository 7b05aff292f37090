package processors

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	noAction  = "next state without its action: the session ended"
	noTurnYet = "next state without its action: the session has no main turn yet"
	noParent  = "the context's parent_turn_id is no turn of this session: send the parent first, or all messages (after an idle time too)"
)

// TestPair states the semantics of pair. Method: short scripts of one partition, and what pair makes of them, in order.
func TestPair(t *testing.T) {
	for name, c := range map[string]struct {
		script *script
		want   []string
	}{
		"a reply closes its turn":            {newScript().main("x", "a1").next("x", "n1", "a1", "thanks"), []string{"a1 NEXT_STATE n1"}},
		"a reply without a turn id does too": {newScript().main("x", "a1").next("x", "n1", "", "thanks"), []string{"a1 NEXT_STATE n1"}},
		"parts gather until the last": {
			newScript().main("x", "a1").part("x", "n1", "one").part("x", "n2", "two").next("x", "n3", "a1", "three"), []string{"a1 NEXT_STATE n1 n2 n3"},
		},
		"the next action closes":                     {newScript().main("x", "a1").part("x", "n1", "one").main("x", "a2"), []string{"a1 NEXT_ACTION n1"}},
		"an unanswered turn closes empty":            {newScript().main("x", "a1").main("x", "a2"), []string{"a1 NEXT_ACTION"}},
		"the end closes":                             {newScript().main("x", "a1").end("x", "e1"), []string{"a1 SESSION_ENDED e1"}},
		"sessions do not meet":                       {newScript().main("x", "a1").main("y", "a2").next("y", "n1", "", "k").next("x", "n2", "", "k"), []string{"a2 NEXT_STATE n1", "a1 NEXT_STATE n2"}},
		"feedback joins an open turn":                {newScript().main("x", "a1").feedback("x", "f1", 1).next("x", "n1", "", "k"), []string{"a1 NEXT_STATE f1 n1"}},
		"late feedback is history only":              {newScript().main("x", "a1").next("x", "n1", "", "k").feedback("x", "f1", 1), []string{"a1 NEXT_STATE n1"}},
		"feedback needs a turn":                      {newScript().feedback("x", "f1", 1), []string{"dead 0: feedback for a turn that is not known in this session"}},
		"side turns give nothing":                    {newScript().side("x", "s1").next("x", "n1", "s1", "k").end("x", "e1"), nil},
		"a side turn leaves the main turn open":      {newScript().main("x", "a1").side("x", "s1").next("x", "n1", "a1", "k"), []string{"a1 NEXT_STATE n1"}},
		"a side turn can be a parent":                {newScript().side("x", "s1").child("x", "a1", "s1").end("x", "e1"), []string{"a1 SESSION_ENDED e1"}},
		"a parent is known":                          {newScript().main("x", "a1").child("x", "a2", "a1").end("x", "e1"), []string{"a1 NEXT_ACTION", "a2 SESSION_ENDED e1"}},
		"a parent of another session is not":         {newScript().main("x", "a1").child("y", "a2", "a1").end("x", "e1"), []string{"dead 1: " + noParent, "a1 SESSION_ENDED e1"}},
		"a refused action ends the turn before":      {newScript().main("x", "a1").child("x", "a2", "b9").next("x", "n1", "", "k"), []string{"a1 NEXT_ACTION", "dead 1: " + noParent, "dead 2: turn already closed"}},
		"a refused action may come again":            {newScript().child("x", "a2", "a1").main("x", "a1").wait(0).end("x", "e1"), []string{"dead 0: " + noParent, "a1 SESSION_ENDED e1"}},
		"a next state waits for its action":          {newScript().next("x", "n1", "a1", "k").main("x", "a1"), []string{"a1 NEXT_STATE n1"}},
		"and dies without":                           {newScript().next("x", "n1", "a1", "k").end("x", "e1"), []string{"dead 0: " + noAction}},
		"a next state of nothing":                    {newScript().next("x", "n1", "", "k"), []string{"dead 0: " + noTurnYet}},
		"a second next state":                        {newScript().main("x", "a1").next("x", "n1", "a1", "k").next("x", "n2", "a1", "k"), []string{"a1 NEXT_STATE n1", "dead 2: turn already closed"}},
		"two early next states":                      {newScript().next("x", "n1", "a1", "k").next("x", "n2", "a1", "k").main("x", "a1"), []string{"a1 NEXT_STATE n1", "dead 1: turn already closed"}},
		"repeats have no effect":                     {newScript().main("x", "a1").again("a1").next("x", "n1", "", "k").again("n1").again("a1").end("x", "e1"), []string{"a1 NEXT_STATE n1"}},
		"repeats after the end have no effect":       {newScript().main("x", "a1").next("x", "n1", "a1", "k").end("x", "e1").again("n1").again("e1").again("a1"), []string{"a1 NEXT_STATE n1"}},
		"idle":                                       {newScript().main("x", "a1").part("x", "n1", "k").wait(31*time.Minute).main("y", "a2"), []string{"a1 IDLE n1"}},
		"idle, oldest first":                         {newScript().main("x", "a1").main("y", "a2").part("x", "n1", "k").wait(31*time.Minute).main("z", "a3"), []string{"a2 IDLE", "a1 IDLE n1"}},
		"not idle yet":                               {newScript().main("x", "a1").wait(29*time.Minute).main("y", "a2"), nil},
		"a late event starts anew":                   {newScript().main("x", "a1").wait(31*time.Minute).next("x", "n1", "", "k"), []string{"a1 IDLE", "dead 1: " + noTurnYet}},
		"an orphan dies when idle":                   {newScript().next("x", "n1", "a1", "k").wait(31*time.Minute).main("y", "a2"), []string{"dead 0: " + noAction}},
		"turns wait for their outcome":               {newScript().awaiting("x", "a1").next("x", "n1", "", "k").awaiting("x", "a2").outcome("x", "o1", 1).end("x", "e1"), []string{"a1 NEXT_STATE n1 o1 outcome 1", "a2 SESSION_ENDED o1 e1 outcome 1"}},
		"and leave without at the end":               {newScript().awaiting("x", "a1").next("x", "n1", "", "k").end("x", "e1"), []string{"a1 NEXT_STATE n1"}},
		"and leave without when idle":                {newScript().awaiting("x", "a1").next("x", "n1", "", "k").wait(31*time.Minute).main("y", "a2"), []string{"a1 NEXT_STATE n1"}},
		"an outcome of an open turn":                 {newScript().main("x", "a1").outcome("x", "o1", -1).next("x", "n1", "", "k"), []string{"a1 NEXT_STATE o1 n1 outcome -1"}},
		"an outcome without an open turn is history": {newScript().main("x", "a1").next("x", "n1", "", "k").outcome("x", "o1", -1), []string{"a1 NEXT_STATE n1"}},
		"held turns and the open one keep order":     {newScript().awaiting("x", "a1").awaiting("x", "a2").end("x", "e1"), []string{"a1 NEXT_ACTION", "a2 SESSION_ENDED e1"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, _ := pairAll(t, PairConfig{}, c.script.events)
			if got := brief(c.script, out); !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestPairEnvelope: a derived event keeps session, times and trace of what triggered it, and an idle session its own session and trace.
// Method: one turn closed by its reply, one by a record of another session.
func TestPairEnvelope(t *testing.T) {
	s := newScript().main("x", "a1").next("x", "n1", "", "k").main("y", "a2").wait(time.Hour).main("z", "a3")
	out, _ := pairAll(t, PairConfig{}, s.events)
	if len(out) != 2 {
		t.Fatalf("%d events, want 2", len(out))
	}
	if e, by := out[0], s.events[1]; e.Session != "x" || !e.LogTime.Equal(by.LogTime) || !e.Time.Equal(by.Time) || e.TraceParent != by.TraceParent || e.Source != "pair/1" {
		t.Errorf("closed by its reply: %+v", e)
	}
	if e, by, own := out[1], s.events[3], s.events[2]; e.Session != "y" || !e.LogTime.Equal(by.LogTime) || e.TraceParent != own.TraceParent {
		t.Errorf("closed when idle: %+v", e)
	}
	if want := schemas.DerivedID("pair", PairVersion, "TurnClosed", id("a1"), 0); out[0].ID != want {
		t.Errorf("id %s, want %s", out[0].ID, want)
	}
}

// TestPairDeadLetterBytes: a dead letter keeps what is needed to append the record again. Method: take a late orphan's dead letter apart
// and decode the record in it.
func TestPairDeadLetterBytes(t *testing.T) {
	s := newScript().next("x", "n1", "a1", "k").wait(time.Hour).main("y", "a2")
	out, _ := pairAll(t, PairConfig{}, s.events)
	if len(out) != 1 {
		t.Fatalf("%d events, want 1", len(out))
	}
	d := out[0].Payload.(*schemas.DeadLettered)
	r := schemas.Record{Topic: d.GetPosition().GetTopic(), Key: d.GetKey(), Value: d.GetValue()}
	for _, h := range d.GetHeaders() {
		r.Headers = append(r.Headers, schemas.Header{Key: h.GetKey(), Value: h.GetValue()})
	}
	e, err := schemas.Decode(r)
	if err != nil {
		t.Fatal(err)
	}
	if e.ID != id("n1") || !proto.Equal(e.Payload, s.events[0].Payload) {
		t.Errorf("the dead letter holds %+v", e)
	}
}

// TestPairBounds: nothing that a session sends grows without end, and no turn is lost for it. Method: one script beyond each bound.
func TestPairBounds(t *testing.T) {
	t.Run("large turn", func(t *testing.T) {
		big := strings.Repeat("x", 3<<20)
		s := newScript().main("x", "a1").part("x", "n1", big).part("x", "n2", big).part("x", "n3", big).end("x", "e1")
		out, _ := pairAll(t, PairConfig{}, s.events)
		got := brief(s, out)
		if want := []string{"dead 3: " + tooLarge, "a1 SESSION_ENDED n1 n2 e1"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		for _, e := range out {
			if _, err := schemas.Encode(e); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("large action", func(t *testing.T) {
		a := mainAction("a1")
		a.Response = textMessage(schemas.Role_ROLE_ASSISTANT, strings.Repeat("x", schemas.MaxEventBytes-1000))
		out, _ := pairAll(t, PairConfig{}, newScript().add("x", "a1", a).events)
		if len(out) != 1 || out[0].Kind() != "DeadLettered" {
			t.Fatalf("got %v", out)
		}
	})
	t.Run("orphans", func(t *testing.T) {
		s := newScript()
		for _, n := range []string{"n1", "n2", "n3"} {
			s.next("x", n, "a1", "k")
		}
		out, _ := pairAll(t, PairConfig{MaxOrphans: 2}, s.events)
		if got := brief(s, out); len(got) != 1 || !strings.Contains(got[0], "2 others of this session wait already") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("held", func(t *testing.T) {
		s := newScript().awaiting("x", "a1").awaiting("x", "a2").awaiting("x", "a3").outcome("x", "o1", 1)
		out, _ := pairAll(t, PairConfig{MaxHeldBytes: 1}, s.events)
		if got, want := brief(s, out), []string{"a1 NEXT_ACTION", "a2 NEXT_ACTION"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("ids", func(t *testing.T) {
		p := NewPair(PairConfig{MaxSessionEvents: 10, DedupRecords: 5})
		for i, e := range manyTurns(1, 100) {
			e.Position.Offset = int64(i)
			if _, err := p.Process(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		s := p.sessions[sessionKey{"acme", "s0"}]
		if len(s.ids) > 10 || len(p.recent.last) > 6 || cap(p.recent.ring) > 12 {
			t.Errorf("%d ids of the session, %d recent ids, ring of %d", len(s.ids), len(p.recent.last), cap(p.recent.ring))
		}
	})
}

// TestPairForgetsEndedSessions: memory depends on the open sessions only. Method: end 10,000 sessions, half of them by idling, and look at
// the state.
func TestPairForgetsEndedSessions(t *testing.T) {
	p := NewPair(PairConfig{DedupRecords: 10, Idle: time.Second})
	offset := int64(0)
	for i := range 10_000 {
		for _, e := range manyTurns(1, 1) {
			e.Session, e.ID = string(rune('a'+i%26))+e.Session, schemas.ContentID("end", string(rune(i)), e.ID)
			e.Position.Offset, e.LogTime = offset, epoch.Add(time.Duration(i)*100*time.Millisecond)
			if _, err := p.Process(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			offset++
		}
	}
	if n := len(p.sessions); n > 30 || len(p.idle.heap) != n {
		t.Errorf("%d sessions, %d in the idle queue", n, len(p.idle.heap))
	}
	low, _ := p.LowWatermark()
	if low < offset-100 {
		t.Errorf("low watermark %d of %d", low, offset)
	}
}

// manyTurns makes turns of several sessions in turn, each an action and its reply.
func manyTurns(sessions, turns int) []schemas.Event {
	s := newScript()
	for i := range turns {
		for j := range sessions {
			session := "s" + string(rune('0'+j%10)) + strings.Repeat("x", j/10)
			name := session + "-" + string(rune('A'+i%26)) + strings.Repeat("y", i/26)
			s.main(session, "a"+name).next(session, "n"+name, "a"+name, "Thanks, that works.")
		}
	}
	return s.events
}

// TestPairRebuild: whoever takes over at any offset derives the same from there on. Method: random scripts; at each offset, make a new
// processor from the note and the low watermark, replay, and compare everything that comes after.
func TestPairRebuild(t *testing.T) {
	cfg := PairConfig{DedupRecords: 7, Idle: 20 * time.Second}
	for seed := range uint64(60) {
		events := randomEvents(seed, 80)
		clean := NewPair(cfg)
		var marks []pairMark
		var outputs [][]byte
		for _, e := range events {
			outputs = append(outputs, process(t, clean, e))
			low, _ := clean.LowWatermark()
			marks = append(marks, pairMark{low, clean.Note()})
		}
		for at, m := range marks {
			p := NewPair(cfg)
			if err := p.Restore(m.note); err != nil {
				t.Fatal(err)
			}
			for i := int(m.low); i < len(events); i++ {
				got := process(t, p, events[i])
				if i > at && !bytes.Equal(got, outputs[i]) {
					t.Fatalf("seed %d, taken over after %d from %d: offset %d gives other events", seed, at, m.low, i)
				}
			}
		}
	}
}

type pairMark struct {
	low  int64
	note []byte
}

func process(t *testing.T, p *Pair, e schemas.Event) []byte {
	t.Helper()
	out, err := p.Process(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, o := range out {
		r, err := schemas.Encode(o)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(o.ID)
		b.Write(r.Key)
		b.Write(r.Value)
	}
	return b.Bytes()
}
