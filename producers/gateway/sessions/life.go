package sessions

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// turnKey is a response id or a turn id of a tenant, turnRef the turn that it means.
type turnKey struct{ tenant, id string }

type turnRef struct{ session, turn string }

// remember lets feedback find a turn by its id and by the id of its response. Book.mu is held.
func (b *Book) remember(tenant, responseID string, ref turnRef) {
	b.turns.put(turnKey{tenant, ref.turn}, ref)
	if id := bareID(responseID); id != "" && id != ref.turn {
		b.turns.put(turnKey{tenant, id}, ref)
	}
}

// bareID leaves out what stands before a UUID: "chatcmpl-<turn id>" is the turn id.
func bareID(id string) string {
	if cut := len(id) - 36; cut > 0 && schemas.CheckID(id[cut:]) == nil {
		return id[cut:]
	}
	return id
}

// Feedback appends a judgement of the turn that answered with responseID (or that has it as its turn id). f stays the caller's.
func (b *Book) Feedback(ctx context.Context, tenant, responseID string, f *schemas.FeedbackGiven) error {
	b.mu.Lock()
	ref, ok := b.turns.get(turnKey{tenant, bareID(responseID)})
	b.mu.Unlock()
	if !ok {
		return fmt.Errorf("%.80q: %w", responseID, ErrUnknownTurn)
	}
	f = proto.CloneOf(f)
	f.TurnId = proto.String(ref.turn)
	now := time.Now()
	if err := b.append(ctx, event(tenant, ref.session, now, f)); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.sessions[sessionKey{tenant, ref.session}]; s != nil {
		b.touch(s, now)
	}
	return nil
}

// End appends that a session ended, and forgets it. A session that is not known is ended in the log all the same.
func (b *Book) End(ctx context.Context, tenant, session, reason string) error {
	if err := schemas.CheckSession(session); err != nil {
		return fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	if reason == "" {
		reason = "ended by the client"
	}
	ended := &schemas.SessionEnded{Reason: reason}
	s := b.find(tenant, session)
	if s == nil {
		return b.append(ctx, event(tenant, session, time.Now(), ended))
	}
	s.order.Lock()
	defer s.order.Unlock()
	if err := b.append(ctx, event(tenant, session, time.Now(), ended)); err != nil {
		return err
	}
	b.forget(s, "ended")
	return nil
}

// Forget says that somebody else ended a session in the log (POST /v1/events): what comes next is recorded as a session of its own.
func (b *Book) Forget(tenant, session string) {
	if s := b.find(tenant, session); s != nil {
		s.order.Lock()
		defer s.order.Unlock()
		b.forget(s, "ended")
	}
}

func (b *Book) find(tenant, session string) *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[sessionKey{tenant, session}]
}

func (b *Book) forget(s *session, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.gone {
		b.remove(s)
		b.metrics.forgotten.WithLabelValues(reason).Inc()
	}
}

// Run forgets idle sessions until ctx ends; then it returns nil. Sessions that are open then stay open in the log: the next gateway restores them.
func (b *Book) Run(ctx context.Context) error {
	tick := time.NewTicker(min(time.Minute, max(time.Millisecond, b.cfg.Idle/100)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := b.sweep(ctx); err != nil && ctx.Err() == nil {
			// The session is still known, so the next tick tries again.
			b.metrics.idleFails.Inc()
			b.logger.Warn("the end of idle sessions could not be recorded yet", "error", err)
		}
	}
}

// sweep ends the sessions that are idle now. The first error ends it: the others wait for the next tick.
func (b *Book) sweep(ctx context.Context) error {
	for _, s := range b.idle() {
		if err := b.endIdle(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (b *Book) idle() []*session {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts.expire(now)
	var list []*session
	for at := b.used.Back(); at != nil; at = at.Prev() {
		s := at.Value.(*session)
		if b.expired(s, now) {
			list = append(list, s)
		} else if s.work == nil {
			break // the others were used later
		}
	}
	return list
}

func (b *Book) endIdle(ctx context.Context, s *session) error {
	s.order.Lock()
	defer s.order.Unlock()
	now := time.Now()
	b.mu.Lock()
	expired := !s.gone && b.expired(s, now)
	recorded := slices.ContainsFunc(s.states, func(st *state) bool { return st.turn != "" })
	if expired && !(b.cfg.EndIdle && recorded) {
		b.remove(s)
		b.metrics.forgotten.WithLabelValues("idle").Inc()
	}
	b.mu.Unlock()
	if !expired || !(b.cfg.EndIdle && recorded) {
		return nil
	}
	if err := b.append(ctx, event(s.tenant, s.id, now, &schemas.SessionEnded{Reason: "idle"})); err != nil {
		return err
	}
	b.forget(s, "idle")
	return nil
}

// event is the envelope of what no request appends.
func event(tenant, session string, now time.Time, payload proto.Message) schemas.Event {
	return schemas.Event{
		ID: schemas.NewID(), Source: source, Tenant: tenant, Session: session, Time: now, LogTime: now.Truncate(time.Millisecond), Payload: payload,
	}
}
