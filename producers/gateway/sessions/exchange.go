package sessions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Exchange is one request between Begin and its last Finish or Drop. Safe for concurrent use by the goroutines of its choices.
type Exchange struct {
	b        *Book
	c        *conversation
	kind     schemas.TurnKind
	sideRule string
	stored   *Stored
	attempt  *attempt
	retryOf  string
	session  string
	turns    []string // ids, one a choice

	// line is the session that choice 0 goes on with; nil for a side turn, which has parent and parentTurn instead.
	line               *session
	parent, parentTurn string
	// base is the state that the request goes on from, nil at the beginning of a session; at is how many messages its conversation has, -1 when
	// the request does not begin with it. next is the first message of base's next state, -1: there is none to record.
	base     *state
	at, next int

	mu          sync.Mutex
	ended       []bool
	left        int
	interrupted bool
	reply       *Stored
}

func newExchange(b *Book, c *conversation) *Exchange {
	n := max(1, c.r.Choices)
	e := &Exchange{b: b, c: c, kind: c.r.Kind, turns: make([]string, n), ended: make([]bool, n), left: n, at: -1, next: -1}
	if e.kind == schemas.TurnKind_TURN_KIND_UNSPECIFIED {
		e.kind = schemas.TurnKind_TURN_KIND_MAIN
	}
	for i := range e.turns {
		e.turns[i] = schemas.NewID()
	}
	return e
}

// Session is the session of choice 0.
func (e *Exchange) Session() string { return e.session }

// TurnID is the id that the turn of a choice will have.
func (e *Exchange) TurnID(choice int) string { return e.turns[choice] }

// Kind is main or side.
func (e *Exchange) Kind() schemas.TurnKind { return e.kind }

// Stored is the finished answer to the same request, or nil. If there is one, send it and nothing else: no Finish, no Drop.
func (e *Exchange) Stored() *Stored { return e.stored }

// start decodes what the event will need, so that a bad message is refused before anything is sampled, and appends the next state.
func (e *Exchange) start(ctx context.Context) error {
	from := 0
	e.b.mu.Lock()
	if e.line != nil && e.short(time.Now()) {
		from = e.at
	}
	e.b.mu.Unlock()
	messages, err := e.c.from(from)
	if err != nil {
		return err
	}
	if err := e.c.fits(messages); err != nil {
		return err
	}
	if e.next < 0 {
		return nil
	}
	return e.observe(ctx)
}

// observe appends the next state of the turn that the request goes on from.
func (e *Exchange) observe(ctx context.Context) error {
	messages, err := e.c.from(e.next)
	if err != nil {
		return err
	}
	next := &schemas.NextStateObserved{TurnId: proto.String(e.base.turn)}
	for _, m := range messages {
		next.Observations = append(next.Observations, &schemas.Observation{Kind: observationKind(m), Message: m})
	}
	s := e.line
	s.order.Lock()
	defer s.order.Unlock()
	now := time.Now()
	e.b.mu.Lock()
	gone, id := s.gone, s.observation
	e.b.mu.Unlock()
	if gone { // ended in the meantime: pair would not know the turn
		return nil
	}
	if err := e.b.append(ctx, e.event(id, s.id, now, next)); err != nil {
		return err
	}
	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	s.observed = true
	e.b.touch(s, now)
	return nil
}

func observationKind(m *schemas.Message) schemas.ObservationKind {
	switch m.GetRole() {
	case schemas.Role_ROLE_USER:
		return schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY
	case schemas.Role_ROLE_TOOL:
		return schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT
	default: // system notes, and assistant messages that the client wrote itself
		return schemas.ObservationKind_OBSERVATION_KIND_HARNESS
	}
}

// Finish appends the turn of one choice. action holds response, model, tokens, sampling and so on, and belongs to the Exchange from now on;
// Finish fills in kind, context, user, parents and attributes. A response with FINISH_REASON_ABORTED or FINISH_REASON_ERROR is recorded as far
// as it went. reply is the whole answer for a retry: give it with the choice that ends last, nil with the others, and nil when there is
// none. ctx bounds the append: give one that lives on when the client goes away. An error (the journal's, or ErrTooLarge, wrapped) means that
// the turn is not recorded, or not known to be; the session goes on all the same.
func (e *Exchange) Finish(ctx context.Context, choice int, action *schemas.ActionTaken, reply *Stored) error {
	if err := e.claim(choice); err != nil {
		return err
	}
	if action == nil {
		e.end(choice, nil, outcomeNothing, nil)
		return errors.New("sessions: Finish without an action: call Drop when nothing was sampled")
	}
	result := outcomeWhole
	if reason := action.GetFinishReason(); reason == schemas.FinishReason_FINISH_REASON_ABORTED || reason == schemas.FinishReason_FINISH_REASON_ERROR {
		result = outcomeInterrupted
		if action.UntrainableReason == nil {
			action.UntrainableReason = proto.String("the response was interrupted")
		}
	}
	var st *state
	var err error
	switch {
	case e.line == nil:
		err = e.finishSide(ctx, choice, action)
	case choice == 0:
		st, err = e.finishLine(ctx, action)
	default:
		err = e.finishBranch(ctx, choice, action)
	}
	e.end(choice, st, result, reply)
	return err
}

// Drop ends a choice of which nothing was sampled: there is no event, and the request may come again. A choice that was ended before stays so.
func (e *Exchange) Drop(choice int) {
	if e.claim(choice) != nil {
		return
	}
	if choice == 0 {
		e.release()
	}
	e.end(choice, nil, outcomeNothing, nil)
}

// abandon drops all choices.
func (e *Exchange) abandon() {
	for i := range e.turns {
		e.Drop(i)
	}
}

// release frees the end of the session's line.
func (e *Exchange) release() {
	s := e.line
	if s == nil {
		return
	}
	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	s.work = nil
	if s.newest == nil {
		e.b.remove(s)
	}
}

func (e *Exchange) claim(choice int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stored != nil || choice < 0 || choice >= len(e.ended) || e.ended[choice] {
		return fmt.Errorf("sessions: choice %d is over, or there is none: Finish or Drop each choice once", choice)
	}
	e.ended[choice] = true
	return nil
}

type outcome uint8

const (
	outcomeWhole outcome = iota
	outcomeInterrupted
	outcomeNothing
)

// end counts an ended choice; with the last one, retries may know.
func (e *Exchange) end(choice int, after *state, result outcome, reply *Stored) {
	e.mu.Lock()
	e.left--
	last := e.left == 0
	e.interrupted = e.interrupted || result != outcomeWhole
	if reply != nil {
		e.reply = reply
	}
	if e.interrupted {
		e.reply = nil
	}
	reply = e.reply
	e.mu.Unlock()
	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	a := e.attempt
	if choice == 0 {
		a.after, a.base, a.at = after, e.base, e.at
	}
	if last {
		a.session, a.turns, a.reply = e.session, e.turns, reply
		e.b.attempts.end(a, time.Now())
	}
}

// short says whether the turn can be recorded as what was added to base's conversation. Book.mu is held.
func (e *Exchange) short(now time.Time) bool {
	st, s := e.base, e.line
	return st != nil && e.at >= 0 && st.turn != "" && !s.gone && st.life == s.life &&
		st.setup == e.c.setup && now.Sub(st.wholeAt) < e.b.cfg.DeltaWithin
}

// finishLine appends the turn of choice 0 and makes it the end of its session's line.
func (e *Exchange) finishLine(ctx context.Context, action *schemas.ActionTaken) (*state, error) {
	s, b := e.line, e.b
	st := e.after(s, action)
	s.order.Lock()
	defer s.order.Unlock()
	now := time.Now()
	b.mu.Lock()
	short := e.short(now)
	switch {
	case !s.gone:
	case b.sessions[sessionKey{s.tenant, s.id}] == nil: // ended meanwhile: this is the first turn of its next life
		b.add(s)
	default: // and begun again by another request, between whose turns this one must not come
		s = branch(s, "", e.turns[0], now)
		s.first, st.session = e.c.end, s
		b.add(s)
	}
	parent, parentTurn := s.parent, s.parentTurn
	b.mu.Unlock()
	from := 0
	st.wholeAt = now
	if short {
		from, st.wholeAt = e.at, e.base.wholeAt
	}
	err := e.fill(action, from, parent, parentTurn, s.identity)
	if err == nil {
		err = b.append(ctx, e.event(e.turns[0], s.id, now, action))
	}
	if err == nil {
		st.turn = e.turns[0]
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	s.work = nil
	if st.turn != "" {
		s.parent, s.parentTurn = "", ""
		b.remember(e.c.r.Tenant, action.GetResponseId(), turnRef{s.id, st.turn})
	}
	b.touch(s, now)
	b.advance(st)
	return st, err
}

// finishBranch appends the turn of a further choice, which is the first turn of a branch.
func (e *Exchange) finishBranch(ctx context.Context, choice int, action *schemas.ActionTaken) error {
	b, now, turn := e.b, time.Now(), ""
	if e.base != nil {
		turn = e.base.turn
	}
	s := branch(e.line, turn, e.turns[choice], now)
	s.first = e.c.end
	st := e.after(s, action)
	st.wholeAt = now
	err := e.fill(action, 0, s.parent, s.parentTurn, s.identity)
	if err == nil {
		err = b.append(ctx, e.event(e.turns[choice], s.id, now, action))
	}
	if err == nil {
		st.turn, s.parent, s.parentTurn = e.turns[choice], "", ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if st.turn != "" {
		b.remember(e.c.r.Tenant, "", turnRef{s.id, st.turn})
	}
	b.add(s)
	b.advance(st)
	return err
}

func (e *Exchange) finishSide(ctx context.Context, choice int, action *schemas.ActionTaken) error {
	b, now := e.b, time.Now()
	if err := e.fill(action, 0, e.parent, e.parentTurn, nil); err != nil {
		return err
	}
	if err := b.append(ctx, e.event(e.turns[choice], e.session, now, action)); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	responseID := ""
	if choice == 0 {
		responseID = action.GetResponseId()
	}
	b.remember(e.c.r.Tenant, responseID, turnRef{e.session, e.turns[choice]})
	if s := b.sessions[sessionKey{e.c.r.Tenant, e.session}]; s != nil {
		b.touch(s, now)
	}
	return nil
}

// after is the state that a response makes in s.
func (e *Exchange) after(s *session, action *schemas.ActionTaken) *state {
	return &state{session: s, chain: e.b.hash.join(e.c.end, e.b.hash.message(action.GetResponse())), setup: e.c.setup}
}

// fill completes an action. from is the first message that its context holds: 0 for all, else those added to base's conversation.
func (e *Exchange) fill(action *schemas.ActionTaken, from int, parent, parentTurn string, identity map[string]string) error {
	messages, err := e.c.from(from)
	if err != nil {
		return err
	}
	r := e.c.r
	action.Kind = e.kind
	action.Context = &schemas.Context{Messages: messages, Tools: r.Tools}
	if from > 0 {
		action.Context.ParentTurnId = proto.String(e.base.turn)
	}
	action.User = nil
	if r.User != "" {
		action.User = proto.String(r.User)
	}
	if parent != "" {
		action.ParentSession = proto.String(parent)
	}
	if parentTurn != "" {
		action.ParentTurnId = proto.String(parentTurn)
	}
	set := func(key, value string) {
		if value == "" {
			return
		}
		if action.Attributes == nil {
			action.Attributes = map[string]string{}
		}
		action.Attributes[key] = value
	}
	for k, v := range r.Attributes {
		set(k, v)
	}
	set("retry_of", e.retryOf)
	set("side_rule", e.sideRule)
	if len(identity) > 0 {
		if action.Attributes == nil {
			action.Attributes = map[string]string{}
		}
		maps.Copy(action.Attributes, identity)
	}
	return nil
}

// event is the envelope of what this request appends. The record's time is now: if it waits in a spool, pair still sees when it was.
func (e *Exchange) event(id, session string, now time.Time, payload proto.Message) schemas.Event {
	return schemas.Event{
		ID: id, Source: source, Tenant: e.c.r.Tenant, Session: session, Time: now, LogTime: now.Truncate(time.Millisecond),
		TraceParent: e.c.r.TraceParent, Payload: payload,
	}
}

// append encodes one event and gives it to the journal.
func (b *Book) append(ctx context.Context, event schemas.Event) error {
	record, err := schemas.Encode(event)
	if errors.Is(err, schemas.ErrTooLarge) {
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	if err != nil {
		return err
	}
	return b.journal.Append(ctx, record)
}
