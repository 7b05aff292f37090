package importers

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// thread writes one line of conversation to its session: it holds back what the world said after an action until the line's next action (or
// its end), because all of that together is one next state. A main turn stays open while side turns (a heartbeat, a memory flush) come and
// go: the user's next words answer it, not them. For the goroutine of its reader.
type thread struct {
	*Session
	main, side openTurn
	calls      map[string]openCall
}

// openTurn is an action whose next state is being collected.
type openTurn struct {
	turn     Turn
	record   string // of the turn
	obs      []*schemas.Observation
	at       time.Time // of the newest observation
	feedback []feedback
}

// openCall is a tool call without a result; n counts calls of one id, which some sources use twice.
type openCall struct {
	n    int
	side bool
	name string
}

// feedback is an explicit judgement of an open turn, held back until the turn is closed.
type feedback struct {
	record string
	at     time.Time
	text   string
}

func (e *Emitter) thread(id string) *thread {
	return &thread{Session: e.Session(id), calls: map[string]openCall{}}
}

// act closes the turns that an action ends, and appends the action.
func (t *thread) act(ctx context.Context, record string, at time.Time, a *schemas.ActionTaken) error {
	side := a.GetKind() == schemas.TurnKind_TURN_KIND_SIDE
	if err := t.closeTurn(ctx, &t.side); err != nil {
		return err
	}
	slot := &t.side
	if !side {
		if slot = &t.main; slot.turn.ID != "" {
			if err := t.closeTurn(ctx, slot); err != nil {
				return err
			}
		}
	}
	calls := a.GetResponse().GetToolCalls()
	turn, err := t.Action(ctx, record, at, a)
	if err != nil {
		return err
	}
	*slot = openTurn{turn: turn, record: record}
	for _, c := range calls {
		t.calls[c.GetId()] = openCall{n: t.calls[c.GetId()].n + 1, side: side, name: c.GetName()}
	}
	return nil
}

// observe adds what the world said to the open turn's next state. Before the first action there is nothing that it could answer.
func (t *thread) observe(at time.Time, o *schemas.Observation) {
	if t.main.turn.ID != "" {
		t.main.add(at, o)
	} else {
		t.side.add(at, o)
	}
}

// result adds a tool's result to the next state of the turn that called it: of the nearest earlier call with its id that has no result yet. A
// result without an id is taken at its place's word. One whose call is nowhere in the line answers an action that the file has lost, and no
// other: ok is false.
func (t *thread) result(at time.Time, o *schemas.Observation) (ok bool) {
	id := o.GetMessage().GetToolCallId()
	call, known := t.calls[id]
	switch {
	case id == "":
		t.observe(at, o)
		return true
	case !known:
		return false
	case call.n == 1:
		delete(t.calls, id)
	default:
		call.n--
		t.calls[id] = call
	}
	if call.name != "" && o.GetMessage().Name == nil {
		o.Message.Name = &call.name
	}
	if call.side {
		t.side.add(at, o)
	} else {
		t.main.add(at, o)
	}
	return true
}

func (o *openTurn) add(at time.Time, obs *schemas.Observation) {
	if o.turn.ID == "" {
		return
	}
	o.obs = append(o.obs, obs)
	if !at.IsZero() {
		o.at = at
	}
}

// closeTurn appends what was held back: feedback first, because a next state closes its turn.
func (t *thread) closeTurn(ctx context.Context, o *openTurn) error {
	for _, f := range o.feedback {
		err := t.Feedback(ctx, f.record, f.at, &schemas.FeedbackGiven{TurnId: &o.turn.ID, Text: &f.text})
		if err != nil {
			return err
		}
	}
	err := t.NextState(ctx, o.record, o.at, o.turn, o.obs...)
	*o = openTurn{}
	return err
}

// judge holds a person's judgement of the open main turn.
func (t *thread) judge(record string, at time.Time, words string) {
	if t.main.turn.ID != "" {
		t.main.feedback = append(t.main.feedback, feedback{record: record, at: at, text: words})
	}
}

// done closes the last turns: the file has no more of the line.
func (t *thread) done(ctx context.Context) error {
	if err := errors.Join(t.closeTurn(ctx, &t.side), t.closeTurn(ctx, &t.main)); err != nil {
		return err
	}
	return t.Done(ctx)
}

// place is where a record lies in its source, so that an index need not hold contents.
type place struct {
	offset int64
	size   int32
	line   int32
}

func placeOf(l Line) place {
	return place{offset: l.Offset, size: int32(len(l.Data)), line: int32(min(l.Number, 1<<31-1))} //nolint:gosec // a record is at most MaxRecord bytes
}

// load reads a record again. The bytes are the caller's.
func (s *Source) load(p place) ([]byte, error) {
	lead := int64(0)
	for {
		b := make([]byte, p.size)
		n, err := s.ReadAt(b, p.offset+lead)
		if n < len(b) && err != nil {
			return nil, err
		}
		blank := len(b) - len(bytes.TrimLeft(b, " \t\r\n\v\f\u0085\u00a0"))
		if blank == 0 {
			return b, nil
		}
		lead += int64(blank) // the index counts a line's bytes without the white space around it
	}
}
