package processors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// PairVersion is part of the ids that pair derives; it changes with what pair derives.
const PairVersion = "1"

// PairConfig bounds what pair keeps. Zero values have the defaults. All replicas must have the same values: they decide what is derived.
type PairConfig struct {
	// Idle is how long a session may be silent, in log time, before it counts as ended. Default 30 minutes.
	Idle time.Duration
	// DedupRecords is how many records back in its partition a repeated event is recognised although its session ended. Default 8192.
	DedupRecords int
	// MaxOrphans bounds the next states of one session that wait for their action. Default 100.
	MaxOrphans int
	// MaxHeldBytes bounds the closed turns of one session that wait for its outcome; beyond, they go on without. Default 32 MiB.
	MaxHeldBytes int
	// MaxSessionEvents bounds the event ids that one open session remembers; the oldest are forgotten. Default 200,000.
	MaxSessionEvents int
	// Ignored, if set, counts events that have no effect, by reason.
	Ignored func(reason string)
}

// Validate reports a value out of range.
func (c PairConfig) Validate() error {
	if c.Idle < 0 || c.DedupRecords < 0 || c.MaxOrphans < 0 || c.MaxHeldBytes < 0 || c.MaxSessionEvents < 0 {
		return errors.New("pair: idle, dedup_records, max_orphans, max_held_bytes and max_session_events must not be negative; 0 means the default")
	}
	return nil
}

func (c PairConfig) withDefaults() PairConfig {
	c.Idle = or(c.Idle, 30*time.Minute)
	c.DedupRecords = or(c.DedupRecords, 8192)
	c.MaxOrphans = or(c.MaxOrphans, 100)
	c.MaxHeldBytes = or(c.MaxHeldBytes, 32<<20)
	c.MaxSessionEvents = or(c.MaxSessionEvents, 200_000)
	if c.Ignored == nil {
		c.Ignored = func(string) {}
	}
	return c
}

// maxTurnBytes bounds an action and its next state, so that TurnClosed fits into one record with its envelope.
const maxTurnBytes = schemas.MaxEventBytes - 64<<10

// maxTurnEvents bounds the events that one turn joins.
const maxTurnEvents = 10_000

// Pair joins actions and their next states. State: the sessions that did not end yet. For one partition and one goroutine.
//
// Whether a session is over depends only on its own records and the one at hand, so a session that is still open at some offset has all
// its records at or after the low watermark, and whatever else is read during a rebuild is over again by then.
type Pair struct {
	cfg      PairConfig
	sessions map[sessionKey]*session
	opened   sessionList // in order of their first offset
	idle     idleQueue
	recent   recentIDs
	next     int64
	// from is the first record that counts: those before it only fill recent.
	from int64
}

// NewPair makes a processor for one partition of interactions.
func NewPair(cfg PairConfig) *Pair {
	cfg = cfg.withDefaults()
	return &Pair{cfg: cfg, sessions: map[sessionKey]*session{}, recent: newRecentIDs(cfg.DedupRecords)}
}

// PairStage is pair's line in the table of stages.
func PairStage(cfg PairConfig) Stage {
	return Stage{
		Name: StagePair, Topic: schemas.TopicInteractions, Workers: 1, Chunk: 500,
		New: func(int) (Processor, error) { return NewPair(cfg), cfg.Validate() },
	}
}

// LowWatermark implements Watermarked: the first record of the oldest open session, and before it the ids of the records just before.
func (p *Pair) LowWatermark() (offset int64, open bool) {
	return max(0, p.needed()-int64(p.cfg.DedupRecords)), true
}

func (p *Pair) needed() int64 {
	if first := p.opened.front(); first != nil {
		return first.first
	}
	return max(p.next, p.from)
}

// pairNote is what pair keeps in a commit.
type pairNote struct {
	From int64 `json:"from"`
}

// Note implements Noted.
func (p *Pair) Note() json.RawMessage {
	return fmt.Appendf(nil, `{"from":%d}`, p.needed())
}

// Restore implements Noted.
func (p *Pair) Restore(text json.RawMessage) error {
	var n pairNote
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	p.from = n.From
	return nil
}

// Process implements Processor. It returns no errors: what it refuses is returned as a dead letter.
func (p *Pair) Process(_ context.Context, e schemas.Event) ([]schemas.Event, error) {
	id, err := uuid.Parse(e.ID)
	if err != nil {
		return nil, Permanent(err)
	}
	repeated := p.recent.add(id, e.Position.Offset)
	p.next = e.Position.Offset + 1
	if e.Position.Offset < p.from {
		return nil, nil
	}
	if repeated {
		// No effect at all, not even on idle sessions: the history keeps an event once, and must replay to the same.
		p.cfg.Ignored("duplicate")
		return nil, nil
	}
	out := output{trigger: e}
	p.expire(&out)
	key := sessionKey{e.Tenant, e.Session}
	s := p.sessions[key]
	if s != nil && s.saw(id) {
		p.cfg.Ignored("duplicate")
		return out.events, nil
	}
	if s == nil {
		s = p.begin(key, e)
	}
	s.last = e.Position.Offset
	s.lastTime = max(s.lastTime, e.LogTime.UnixMilli())
	p.take(s, id, &out)
	s.forget(p.cfg.MaxSessionEvents)
	return out.events, nil
}

// output collects what one record gives rise to.
type output struct {
	trigger schemas.Event
	events  []schemas.Event
}

func (o *output) refuse(reason string, e schemas.Event) {
	o.events = append(o.events, refuse(StagePair, reason, e))
}

// take lets a session take the event that triggers out.
func (p *Pair) take(s *session, id uuid.UUID, out *output) {
	switch payload := out.trigger.Payload.(type) {
	case *schemas.ActionTaken:
		p.action(s, id, payload, out)
	case *schemas.NextStateObserved:
		p.nextState(s, id, payload, out)
	case *schemas.FeedbackGiven:
		p.feedback(s, id, payload, out)
	case *schemas.OutcomeReported:
		s.remember(id, otherEvent)
		p.outcome(s, payload, out)
	case *schemas.SessionEnded:
		p.end(s, payload, out)
	}
}

func (p *Pair) action(s *session, id uuid.UUID, a *schemas.ActionTaken, out *output) {
	main := a.GetKind() == schemas.TurnKind_TURN_KIND_MAIN
	if main && s.open != nil {
		// A refused action closes it too: the next states to come are not answers to the turn before.
		p.close(s, schemas.CloseReason_CLOSE_REASON_NEXT_ACTION, out)
	}
	if parent := a.GetContext().GetParentTurnId(); parent != "" && !s.isTurn(parent) {
		out.refuse("the context's parent_turn_id is no turn of this session: send the parent first, or all messages (after an idle time too)", out.trigger)
		return
	}
	size := proto.Size(a)
	if size > maxTurnBytes {
		out.refuse(fmt.Sprintf("the action has %d bytes, at most %d can be joined with a next state: put large content into the blob store", size, maxTurnBytes), out.trigger)
		return
	}
	if a.GetAwaitsOutcome() {
		s.awaits = true
	}
	if !main {
		s.remember(id, sideTurn)
		p.adoptSide(s, out.trigger.ID)
		return
	}
	s.remember(id, mainTurn)
	s.open = &openTurn{
		id: out.trigger.ID, trace: out.trigger.TraceParent, bytes: size,
		turn: &schemas.TurnClosed{TurnId: out.trigger.ID, Action: a, TurnIndex: s.turns},
	}
	s.turns++
	p.adopt(s, out)
}

// adopt gives the newest turn the next states that came before it.
func (p *Pair) adopt(s *session, out *output) {
	turnID := s.open.id
	waiting := s.orphans
	s.orphans = nil
	for _, o := range waiting {
		switch {
		case o.Payload.(*schemas.NextStateObserved).GetTurnId() != turnID:
			s.orphans = append(s.orphans, o)
		case s.open == nil:
			out.refuse(alreadyClosed, o)
		default:
			p.observe(s, o, out)
		}
	}
}

// adoptSide drops the next states that came before a side turn: those after it have no effect either.
func (p *Pair) adoptSide(s *session, turnID string) {
	s.orphans = slices.DeleteFunc(s.orphans, func(o schemas.Event) bool {
		return o.Payload.(*schemas.NextStateObserved).GetTurnId() == turnID
	})
}

func (p *Pair) nextState(s *session, id uuid.UUID, n *schemas.NextStateObserved, out *output) {
	switch {
	case n.TurnId == nil && s.open == nil && s.turns == 0:
		out.refuse("next state without its action: the session has no main turn yet", out.trigger)
	case s.open != nil && (n.TurnId == nil || n.GetTurnId() == s.open.id):
		s.remember(id, otherEvent)
		p.observe(s, out.trigger, out)
	case n.TurnId == nil:
		out.refuse(alreadyClosed, out.trigger)
	default:
		switch s.turn(n.GetTurnId()) {
		case sideTurn:
			s.remember(id, otherEvent)
			p.cfg.Ignored("next state of a side turn")
		case mainTurn:
			out.refuse(alreadyClosed, out.trigger)
		default:
			if len(s.orphans) >= p.cfg.MaxOrphans {
				out.refuse(fmt.Sprintf("next state without its action: %d others of this session wait already", len(s.orphans)), out.trigger)
				return
			}
			s.remember(id, otherEvent)
			s.orphans = append(s.orphans, out.trigger)
		}
	}
}

// observe adds a next state to the open turn, and closes the turn unless more follows.
func (p *Pair) observe(s *session, e schemas.Event, out *output) {
	n := e.Payload.(*schemas.NextStateObserved)
	if s.open.fits(n) {
		s.open.turn.NextState = append(s.open.turn.NextState, n.GetObservations()...)
		s.open.turn.SourceIds = append(s.open.turn.SourceIds, e.ID)
	} else {
		out.refuse(tooLarge, e)
	}
	if !n.GetMoreFollows() {
		p.close(s, schemas.CloseReason_CLOSE_REASON_NEXT_STATE, out)
	}
}

// Reasons in dead letters.
const (
	alreadyClosed = "turn already closed"
	tooLarge      = "the turn becomes too large for one record: the turn goes on without this event; put large content into the blob store"
)

func (p *Pair) feedback(s *session, id uuid.UUID, f *schemas.FeedbackGiven, out *output) {
	newest := f.TurnId == nil && s.turns > 0
	switch {
	case s.open != nil && (newest || f.GetTurnId() == s.open.id):
		s.remember(id, otherEvent)
		if !s.open.fits(f) {
			out.refuse(tooLarge, out.trigger)
			return
		}
		s.open.turn.Feedback = append(s.open.turn.Feedback, f)
		s.open.turn.SourceIds = append(s.open.turn.SourceIds, out.trigger.ID)
	case newest || s.isTurn(f.GetTurnId()):
		s.remember(id, otherEvent)
		p.cfg.Ignored("feedback for a closed or side turn")
	default:
		out.refuse("feedback for a turn that is not known in this session", out.trigger)
	}
}

// outcome gives the verdict to every turn that waits for it, and lets them go.
func (p *Pair) outcome(s *session, o *schemas.OutcomeReported, out *output) {
	turns := s.held
	if s.open != nil {
		turns = append(turns[:len(turns):len(turns)], s.open)
	}
	if len(turns) == 0 {
		p.cfg.Ignored("outcome without an open turn")
	}
	fit := true
	for _, t := range turns {
		if !t.fits(o) {
			fit = false
			continue
		}
		t.turn.Outcome = o
		t.turn.SourceIds = append(t.turn.SourceIds, out.trigger.ID)
	}
	if !fit {
		out.refuse(tooLarge, out.trigger)
	}
	p.release(s, out)
	s.awaits = false
}

func (p *Pair) end(s *session, e *schemas.SessionEnded, out *output) {
	reason := e.GetReason()
	switch {
	case s.open == nil && len(e.GetObservations()) > 0 && s.turns > 0:
		out.refuse(alreadyClosed, out.trigger)
	case s.open != nil && s.open.fits(e):
		s.open.turn.NextState = append(s.open.turn.NextState, e.GetObservations()...)
		s.open.turn.SourceIds = append(s.open.turn.SourceIds, out.trigger.ID)
	case s.open != nil:
		out.refuse(tooLarge, out.trigger)
		reason = "ended by an event too large to join"
	}
	p.finish(s, schemas.CloseReason_CLOSE_REASON_SESSION_ENDED, &reason, out)
}

// expire ends every session that was silent for too long when the triggering record was written.
func (p *Pair) expire(out *output) {
	before := out.trigger.LogTime.UnixMilli() - p.cfg.Idle.Milliseconds()
	expired := p.idle.before(before)
	if len(expired) > 1 {
		slices.SortFunc(expired, func(a, b *session) int { return int(min(1, max(-1, a.last-b.last))) })
	}
	for _, s := range expired {
		p.finish(s, schemas.CloseReason_CLOSE_REASON_IDLE, nil, out)
	}
}
