package client

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Session is one conversation or episode. Safe for concurrent use, though events of concurrent calls have no order among them.
type Session struct {
	c    *Client
	id   string
	lane *lane

	mu   sync.Mutex
	last parent
	ends int // how often the session was ended through this handle
}

// parent is the last acknowledged main turn and the conversation up to its response.
type parent struct {
	turnID   string
	messages int // context and response
	digest   [sha256.Size]byte
	at       time.Time
	tools    bool // it was offered some
}

// Option changes the envelope of one event.
type Option func(*schemas.Event)

// ID sends the event under an id that the caller keeps: to send it again after an error, or to take over an id of its own (a UUID).
func ID(id string) Option { return func(e *schemas.Event) { e.ID = id } }

// At says when it happened. Default: now.
func At(t time.Time) Option { return func(e *schemas.Event) { e.Time = t } }

// TraceParent gives the event its W3C trace context.
func TraceParent(traceparent string) Option {
	return func(e *schemas.Event) { e.TraceParent = traceparent }
}

// Action records that the policy answered, and returns the turn's id once the log has it. Give the whole conversation in
// action.Context.Messages: the client shortens it to what was added since the session's last turn. A kind that is not set is
// TURN_KIND_MAIN. The id is returned with an error too, for sending again; action stays the caller's.
func (s *Session) Action(ctx context.Context, action *schemas.ActionTaken, opts ...Option) (turnID string, err error) {
	return s.await(ctx, action, opts)
}

// NextState records what the world answered to the session's newest main turn.
func (s *Session) NextState(ctx context.Context, observations []*schemas.Observation, opts ...Option) error {
	_, err := s.await(ctx, &schemas.NextStateObserved{Observations: observations}, opts)
	return err
}

// NextStateOf is NextState for a given turn, which may not have arrived yet.
func (s *Session) NextStateOf(ctx context.Context, turnID string, observations []*schemas.Observation, opts ...Option) error {
	_, err := s.await(ctx, &schemas.NextStateObserved{TurnId: &turnID, Observations: observations}, opts)
	return err
}

// Feedback records a person's explicit judgement of a turn.
func (s *Session) Feedback(ctx context.Context, feedback *schemas.FeedbackGiven, opts ...Option) error {
	_, err := s.await(ctx, feedback, opts)
	return err
}

// Outcome records a checker's score of the whole session.
func (s *Session) Outcome(ctx context.Context, outcome *schemas.OutcomeReported, opts ...Option) error {
	_, err := s.await(ctx, outcome, opts)
	return err
}

// End records that nothing more will come. observations are the world's last word, if there is one.
func (s *Session) End(ctx context.Context, reason string, observations []*schemas.Observation, opts ...Option) error {
	_, err := s.await(ctx, &schemas.SessionEnded{Reason: reason, Observations: observations}, opts)
	return err
}

func (s *Session) await(ctx context.Context, payload proto.Message, opts []Option) (string, error) {
	f, err := s.Send(ctx, payload, opts...)
	if err != nil {
		return f.ID(), err
	}
	return f.ID(), f.Wait(ctx)
}

// Send hands one event over without waiting for the acknowledgement; it waits only while the buffer is full. payload is one of
// ActionTaken, NextStateObserved, FeedbackGiven, OutcomeReported and SessionEnded, is encoded before Send returns, and stays the
// caller's. The future is never nil, but only that of a nil error will be done.
func (s *Session) Send(ctx context.Context, payload proto.Message, opts ...Option) (*Future, error) {
	now := time.Now()
	e := schemas.Event{
		Source: s.c.cfg.Source, Tenant: s.c.cfg.Tenant, Session: s.id, Time: now, Payload: payload,
	}
	for _, o := range opts {
		o(&e)
	}
	if e.ID == "" {
		e.ID = schemas.NewID()
	}
	var acked func()
	switch p := payload.(type) {
	case *schemas.ActionTaken:
		acked = s.shorten(&e, p, now)
	case *schemas.SessionEnded:
		s.forget()
	case *schemas.NextStateObserved, *schemas.FeedbackGiven, *schemas.OutcomeReported:
	default:
		return &Future{id: e.ID}, fmt.Errorf("%w: %T is not an event that producers write", ErrRefused, payload)
	}
	return s.c.send(ctx, s.lane, e, acked)
}

// forget makes the next action whole again: pair drops the turns of a session that ended. An action sent before the end may be
// acknowledged after this call; the count tells shorten's callback that its turn is of an earlier life and no parent any more.
func (s *Session) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = parent{}
	s.ends++
}

// shorten replaces a whole context by a reference to the last acknowledged turn when the messages continue it, and returns what to do
// when this turn is acknowledged, or nil. Only an acknowledged turn can be a parent: one that never reached the log would orphan its children.
func (s *Session) shorten(e *schemas.Event, action *schemas.ActionTaken, now time.Time) (acked func()) {
	if action == nil {
		return nil
	}
	short := shallow(action)
	e.Payload = short
	if short.GetKind() == schemas.TurnKind_TURN_KIND_UNSPECIFIED {
		short.Kind = schemas.TurnKind_TURN_KIND_MAIN
	}
	whole := short.GetContext()
	if s.c.cfg.DeltaWithin < 0 || whole == nil || whole.ParentTurnId != nil || short.GetKind() != schemas.TurnKind_TURN_KIND_MAIN {
		return nil
	}
	s.mu.Lock()
	last, ends := s.last, s.ends
	s.mu.Unlock()

	d := digester{hash: sha256.New()}
	messages := whole.GetMessages()
	for i, m := range messages {
		d.add(m)
		inherits := last.tools && len(whole.GetTools()) == 0 // a delta without tools would have the parent's
		if i+1 == last.messages && now.Sub(last.at) < s.c.cfg.DeltaWithin && d.sum() == last.digest && !inherits {
			short.Context = &schemas.Context{ParentTurnId: &last.turnID, Messages: messages[i+1:], Tools: whole.GetTools()}
		}
	}
	d.add(short.GetResponse())
	if d.err != nil { // Encode will refuse the event with the reason
		return nil
	}
	next := parent{turnID: e.ID, messages: len(messages) + 1, digest: d.sum(), at: now, tools: len(whole.GetTools()) > 0}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ends == ends {
			s.last = next
		}
	}
}

// shallow copies a message's fields, sharing what they point to.
func shallow(m *schemas.ActionTaken) *schemas.ActionTaken {
	c := new(schemas.ActionTaken)
	to := c.ProtoReflect()
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(f, v)
		return true
	})
	return c
}

// digester hashes a list of messages, each with its length, so that two lists with the same digest are the same list.
type digester struct {
	hash hash.Hash
	buf  []byte
	err  error
}

func (d *digester) add(m *schemas.Message) {
	var err error
	if d.buf, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(d.buf[:0], m); err != nil {
		d.err = err
	}
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(d.buf)))
	d.hash.Write(n[:])
	d.hash.Write(d.buf)
}

func (d *digester) sum() (sum [sha256.Size]byte) {
	d.hash.Sum(sum[:0])
	return sum
}
