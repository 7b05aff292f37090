package importers

import (
	"container/list"
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Session is the writing end of one session. A reader opens one a conversation, tells it the messages that the policy sees (See) and what
// happened (Action, NextState, ...), in order, and says Done when the file has no more of it. For the goroutine of its Emitter.
type Session struct {
	// ID is the session in the events.
	ID string

	out     *Emitter
	alive   *list.Element // nil after Done
	counted bool
	ended   bool
	last    Turn
	tools   []*schemas.Tool

	pending      []*schemas.Message
	pendingBytes int
}

// Turn is an action that went out.
type Turn struct {
	// ID is the event id of the ActionTaken; "" when it was refused.
	ID   string
	Side bool
}

// Session opens a session. id is the source's own; it is counted with its first event. The caller keeps one Session an id and file.
func (e *Emitter) Session(id string) *Session {
	s := &Session{ID: SessionID(id), out: e}
	s.alive = e.live.PushBack(s)
	return s
}

// Continue opens a session that this file only goes on with: the next context is a delta on the turn last.
func (e *Emitter) Continue(id string, last Turn) *Session {
	s := e.Session(id)
	s.counted, s.last = true, last
	return s
}

// See adds messages to the context of the session's next action, behind those of its last action and that action's response. The messages
// become the session's.
func (s *Session) See(messages ...*schemas.Message) {
	for _, m := range messages {
		s.pending, s.pendingBytes = append(s.pending, m), s.pendingBytes+proto.Size(m)+64
	}
	if s.pendingBytes <= maxPendingBytes {
		return
	}
	s.out.Warn("line %d: over %d MiB of messages before one action: the first ones are left out of its context", s.out.line, maxPendingBytes>>20)
	for len(s.pending) > 1 && s.pendingBytes > maxPendingBytes/2 {
		s.pendingBytes -= proto.Size(s.pending[0]) + 64
		s.pending = s.pending[1:]
	}
}

// Offer sets the tools that the next actions are offered.
func (s *Session) Offer(tools []*schemas.Tool) { s.tools = tools }

// Restart makes the next action's context a full one, of what See adds from now on: the source began it anew (compaction).
func (s *Session) Restart() { s.last, s.pending, s.pendingBytes = Turn{}, nil, 0 }

// Last is the newest action, zero before the first.
func (s *Session) Last() Turn { return s.last }

// Action appends an action. record identifies it within the session: an id of the source, or its position. Context is filled from See:
// full on the first action (and after Restart), a delta after; a kind that is not set is main. The action becomes the session's.
func (s *Session) Action(ctx context.Context, record string, at time.Time, a *schemas.ActionTaken) (Turn, error) {
	if a.GetKind() == schemas.TurnKind_TURN_KIND_UNSPECIFIED {
		a.Kind = schemas.TurnKind_TURN_KIND_MAIN
	}
	a.Context = &schemas.Context{Messages: s.pending, ParentTurnId: optional(s.last.ID)}
	if s.last.ID == "" {
		a.Context.Tools = s.tools
	}
	s.note(a, record)
	id := s.id("ActionTaken", record)
	ok, err := s.emit(ctx, id, at, a)
	if err != nil || !ok {
		return Turn{}, err
	}
	s.pending, s.pendingBytes = nil, 0
	s.last = Turn{ID: id, Side: a.GetKind() == schemas.TurnKind_TURN_KIND_SIDE}
	if s.last.Side {
		s.out.report.SideTurns++
	} else {
		s.out.report.Actions++
	}
	return s.last, nil
}

// note keeps where the action came from.
func (s *Session) note(a *schemas.ActionTaken, record string) {
	if a.Attributes == nil {
		a.Attributes = map[string]string{}
	}
	a.Attributes["file"] = text(s.out.base)
	a.Attributes["record"] = text(clip(record, 512))
}

// NextState appends what the world answered to turn. Without observations, or for an action that was refused, it does nothing. The
// observations become the session's.
func (s *Session) NextState(ctx context.Context, record string, at time.Time, turn Turn, obs ...*schemas.Observation) error {
	if turn.ID == "" || len(obs) == 0 {
		return nil
	}
	ok, err := s.emit(ctx, s.id("NextStateObserved", record), at, &schemas.NextStateObserved{TurnId: &turn.ID, Observations: obs})
	if err != nil || !ok || turn.Side {
		return err
	}
	s.out.report.Answered++
	for _, o := range obs {
		s.out.report.NextStates[kindName(o.GetKind())]++
	}
	return nil
}

// Feedback appends an explicit judgement of a turn.
func (s *Session) Feedback(ctx context.Context, record string, at time.Time, f *schemas.FeedbackGiven) error {
	ok, err := s.emit(ctx, s.id("FeedbackGiven", record), at, f)
	if ok {
		s.out.report.Feedback++
	}
	return err
}

// Outcome appends a checker's score of the session.
func (s *Session) Outcome(ctx context.Context, record string, at time.Time, o *schemas.OutcomeReported) error {
	ok, err := s.emit(ctx, s.id("OutcomeReported", record), at, o)
	if ok {
		s.out.report.Outcomes++
	}
	return err
}

// End appends the session's end, with the reason that the source gives. A session ends once.
func (s *Session) End(ctx context.Context, at time.Time, reason string, obs ...*schemas.Observation) error {
	if s.ended || !s.counted {
		return nil
	}
	if reason = strings.TrimSpace(text(reason)); reason == "" {
		reason = "ended"
	}
	s.ended = true
	ok, err := s.emit(ctx, s.id("SessionEnded", reason), at, &schemas.SessionEnded{Reason: clip(reason, 500), Observations: obs})
	if ok {
		s.out.report.Ended++
	}
	return err
}

// Leave says that the file has no more of the session, and another file goes on with it.
func (s *Session) Leave() {
	if s.alive != nil {
		s.out.live.Remove(s.alive)
		s.alive = nil
	}
	s.pending, s.pendingBytes = nil, 0
}

// Done says that the file has no more of the session. Where the user chose that the files will not grow (Options.EndSessions), a session
// without an end is ended.
func (s *Session) Done(ctx context.Context) error {
	s.Leave()
	if !s.out.opts.EndSessions {
		return nil
	}
	return s.End(ctx, time.Time{}, "imported: the file has no more")
}

func (s *Session) id(kind, record string) string {
	return schemas.ContentID(s.out.format, s.ID, kind, record)
}

func (s *Session) emit(ctx context.Context, id string, at time.Time, payload proto.Message) (bool, error) {
	ok, err := s.out.event(ctx, s.ID, id, at, payload)
	if ok && !s.counted {
		s.counted = true
		s.out.report.Sessions++
	}
	return ok, err
}

// kindName is an observation kind as reports and docs write it: "tool_result".
func kindName(k schemas.ObservationKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "OBSERVATION_KIND_"))
}
