package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// crashStep is one record of a script; without an id it is no event.
type crashStep struct {
	record   schemas.Record
	id, kind string
}

// crashSession is the n-th session of a crash run: what agents send on good days and bad ones. Actions with all messages or with a parent,
// side turns, next states in one or several events, early, late or not at all, feedback, outcomes, ends or none; now and then a parent that
// nobody knows, an event again, and records that are no events. It is a function of seed and n.
func crashSession(seed uint64, n int) ([]crashStep, error) {
	w := &crashWriter{generator: generator{
		rand: rand.New(rand.NewPCG(seed, 1<<32|uint64(n))), session: fmt.Sprintf("crash-%x-%05d", seed, n), //nolint:gosec // reproducible on purpose
		at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(n) * time.Second),
	}}
	w.awaits = w.one(5)
	for range 8 + w.rand.IntN(13) {
		w.turn()
	}
	w.end()
	steps := make([]crashStep, 0, len(w.events)*5/4)
	for _, e := range w.events {
		r, err := schemas.Encode(e)
		if err != nil {
			return nil, err
		}
		steps = append(steps, crashStep{record: r, id: e.ID, kind: e.Kind()})
	}
	for range len(w.events) {
		if w.one(10) { // the same event again, somewhere later: at the very end, after the session's end, too
			i := w.rand.IntN(len(steps))
			steps = slices.Insert(steps, i+1+w.rand.IntN(len(steps)-i), steps[i])
		}
		if w.one(30) {
			steps = slices.Insert(steps, w.rand.IntN(len(steps)+1), crashStep{record: w.hostile(steps)})
		}
	}
	return steps, nil
}

// crashWriter writes one session.
type crashWriter struct {
	generator
	awaits bool
	// parent is the newest main turn.
	parent string
}

// one is true once in n times.
func (w *crashWriter) one(n int) bool { return w.rand.IntN(n) == 0 }

func (w *crashWriter) turn() {
	if w.one(12) {
		side := w.act(schemas.TurnKind_TURN_KIND_SIDE)
		if w.one(2) {
			w.observe(side, false)
		}
	}
	if w.one(25) {
		a := w.payload(schemas.TurnKind_TURN_KIND_MAIN)
		nobody := schemas.ContentID("crash", "nobody", w.session, fmt.Sprint(len(w.events)))
		a.Context.ParentTurnId = &nobody
		w.add(a)
	}
	if w.one(15) { // an answer overtakes its action
		w.observe(w.id(len(w.events)+1), false)
		w.parent = w.act(schemas.TurnKind_TURN_KIND_MAIN)
		return
	}
	w.parent = w.act(schemas.TurnKind_TURN_KIND_MAIN)
	if w.one(12) {
		w.feedback(w.parent)
	}
	switch {
	case w.one(8):
		w.observe(w.parent, true)
		w.observe(w.parent, false)
	case w.one(10): // the world does not answer
	default:
		w.observe(w.parent, false)
	}
	if w.one(12) {
		w.feedback(w.parent)
	}
	if w.one(40) {
		w.feedback(schemas.ContentID("crash", "no such turn", w.session, fmt.Sprint(len(w.events))))
	}
}

func (w *crashWriter) end() {
	if w.awaits && !w.one(3) || w.one(8) {
		success := w.one(2)
		w.add(&schemas.OutcomeReported{Score: float64(w.rand.IntN(5)-2) / 2, Success: &success, Checker: "tests"})
	}
	switch w.rand.IntN(4) {
	case 0: // left open
	case 1:
		w.add(&schemas.SessionEnded{Reason: "done", Observations: []*schemas.Observation{{
			Kind: schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY, Message: message(schemas.Role_ROLE_USER, w.reply()),
		}}})
	default:
		w.add(&schemas.SessionEnded{Reason: "done"})
	}
}

// id that the event at a place of the session has.
func (w *crashWriter) id(place int) string {
	return schemas.ContentID("bench", w.session, fmt.Sprint(place))
}

func (w *crashWriter) payload(kind schemas.TurnKind) *schemas.ActionTaken {
	a := &schemas.ActionTaken{
		Kind: kind, Model: "smollm2-135m", FinishReason: schemas.FinishReason_FINISH_REASON_STOP, AwaitsOutcome: w.awaits,
		Context:  &schemas.Context{Messages: []*schemas.Message{message(schemas.Role_ROLE_USER, w.prose(60))}},
		Response: message(schemas.Role_ROLE_ASSISTANT, w.prose(80)),
	}
	if w.one(3) {
		a.Context.Messages = append([]*schemas.Message{message(schemas.Role_ROLE_SYSTEM, "You are an agent.")}, a.GetContext().GetMessages()...)
		a.Context.Tools = []*schemas.Tool{{Name: words[w.rand.IntN(20)]}}
	}
	return a
}

func (w *crashWriter) act(kind schemas.TurnKind) string {
	a := w.payload(kind)
	if w.parent != "" && !w.one(3) {
		parent := w.parent
		a.Context.ParentTurnId = &parent
	}
	return w.add(a)
}

func (w *crashWriter) observe(turnID string, more bool) {
	o := &schemas.Observation{Message: message(schemas.Role_ROLE_TOOL, w.prose(60))}
	switch w.rand.IntN(4) {
	case 0, 1:
		o.Kind, o.Message = schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY, message(schemas.Role_ROLE_USER, w.reply())
	case 2:
		failed := w.one(3)
		o.Kind, o.IsError = schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, &failed
	default:
		code := int32(w.rand.IntN(2)) //nolint:gosec // 0 or 1
		o.Kind, o.ExitCode = schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT, &code
	}
	n := &schemas.NextStateObserved{TurnId: &turnID, Observations: []*schemas.Observation{o}, MoreFollows: more}
	if w.one(6) {
		n.TurnId = nil // the newest main turn, whichever that is
	}
	w.add(n)
}

func (w *crashWriter) reply() string { return replies[w.rand.IntN(len(replies))] + " " + w.prose(40) }

func (w *crashWriter) feedback(turnID string) {
	score := float64(w.rand.IntN(3) - 1)
	w.add(&schemas.FeedbackGiven{TurnId: &turnID, Score: &score})
}

// hostile is a record that no stage can take, in any topic.
func (w *crashWriter) hostile(steps []crashStep) schemas.Record {
	topics := schemas.Topics()
	topic := topics[w.rand.IntN(len(topics))]
	if w.one(2) {
		topic = schemas.TopicInteractions
	}
	like := steps[w.rand.IntN(len(steps))].record
	switch w.rand.IntN(5) {
	case 0: // bytes of something else
		return schemas.Record{Topic: topic, Key: []byte(w.session), Value: []byte(w.prose(30))}
	case 1: // a key that is no text, and no headers
		return schemas.Record{Topic: topic, Key: []byte{0xff, 0, byte(w.rand.IntN(256))}, Value: []byte{0x0a, 0xff}}
	case 2: // an event in a topic where it does not belong
		for topic == like.Topic {
			topic = topics[w.rand.IntN(len(topics))]
		}
		return schemas.Record{Topic: topic, Key: like.Key, Headers: like.Headers, Value: like.Value}
	case 3: // a value that was cut off, under the id of an event
		return schemas.Record{Topic: like.Topic, Key: like.Key, Headers: like.Headers, Value: append([]byte{0x0a, 0xff}, like.Value[:len(like.Value)/2]...)}
	default: // a version that nobody knows
		headers := slices.Clone(like.Headers)
		for i := range headers {
			if headers[i].Key == "ce_specversion" {
				headers[i].Value = []byte("9.9")
			}
		}
		return schemas.Record{Topic: topic, Key: like.Key, Headers: headers, Value: like.Value}
	}
}
