package sessions

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Restore reads the tail of the interactions and knows again the sessions that were open. Called once, before the first Begin. It reads back as far
// as a session that is still open can have its last whole context, so that every delta finds its parent.
func (b *Book) Restore(ctx context.Context, log schemas.Reader) error {
	bounds, err := log.Bounds(ctx, schemas.TopicInteractions)
	if err != nil {
		return fmt.Errorf("restoring sessions: %w", err)
	}
	since := time.Now().Add(-b.cfg.Idle - b.cfg.DeltaWithin)
	for partition, limits := range bounds {
		if err := b.restorePartition(ctx, log, partition, limits, since); err != nil {
			return fmt.Errorf("restoring sessions from partition %d: %w", partition, err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// Partitions were read one after the other; the list is in the order of use.
	open := make([]*session, 0, len(b.sessions))
	for _, s := range b.sessions {
		open = append(open, s)
	}
	slices.SortFunc(open, func(x, y *session) int {
		return cmp.Or(x.last.Compare(y.last), cmp.Compare(x.tenant, y.tenant), cmp.Compare(x.id, y.id))
	})
	b.used = list.New()
	for _, s := range open {
		s.place = b.used.PushFront(s)
	}
	b.logger.Info("sessions restored", "sessions", len(b.sessions))
	return nil
}

func (b *Book) restorePartition(ctx context.Context, log schemas.Reader, partition int, limits schemas.Bounds, since time.Time) error {
	at := max(limits.First, limits.Next-b.cfg.RestoreRecords)
	for at < limits.Next {
		cursor, err := log.Open(ctx, schemas.TopicInteractions, partition, at)
		if errors.Is(err, schemas.ErrTruncated) { // the oldest records went in the meantime
			now, err := log.Bounds(ctx, schemas.TopicInteractions)
			if err != nil {
				return err
			}
			at = max(at+1, now[partition].First)
			continue
		}
		if err != nil {
			return err
		}
		at, err = b.restoreFrom(ctx, cursor, at, limits.Next, since)
		if err = errors.Join(err, cursor.Close()); err != nil && !errors.Is(err, schemas.ErrTruncated) {
			return err
		}
	}
	return nil
}

// restoreFrom reads up to next and returns how far it came.
func (b *Book) restoreFrom(ctx context.Context, cursor schemas.Cursor, at, next int64, since time.Time) (int64, error) {
	for at < next {
		records, err := cursor.Next(ctx, 500)
		if err != nil {
			return at, err
		}
		for _, r := range records {
			at = r.Offset + 1
			if r.Offset >= next || r.Time.Before(since) {
				continue
			}
			e, err := schemas.Decode(r)
			if err != nil {
				continue // pair dead-letters it; to us it is no event
			}
			b.mu.Lock()
			b.restore(e)
			b.mu.Unlock()
		}
	}
	return at, nil
}

// restore takes one event that was appended by an earlier Book or by somebody else.
func (b *Book) restore(e schemas.Event) {
	s := b.sessions[sessionKey{e.Tenant, e.Session}]
	if s != nil {
		b.touch(s, e.LogTime)
	}
	switch p := e.Payload.(type) {
	case *schemas.ActionTaken:
		b.remember(e.Tenant, p.GetResponseId(), turnRef{e.Session, e.ID})
		if e.Source == source && p.GetKind() == schemas.TurnKind_TURN_KIND_MAIN {
			b.restoreTurn(s, e, p)
		}
	case *schemas.NextStateObserved:
		if s != nil && s.newest != nil && s.newest.turn == p.GetTurnId() {
			s.asked, s.observation, s.observed = s.newest.chain, e.ID, true
			for _, o := range p.GetObservations() {
				s.asked = b.hash.join(s.asked, b.hash.message(o.GetMessage()))
			}
		}
	case *schemas.SessionEnded:
		if s != nil {
			b.remove(s)
		}
	}
}

func (b *Book) restoreTurn(s *session, e schemas.Event, a *schemas.ActionTaken) {
	if s == nil {
		s = b.restoredSession(e, a)
		b.add(s)
	}
	st := &state{session: s, turn: e.ID} // the tools, so the setup, are not known: the next turn will be recorded whole
	messages := a.GetContext().GetMessages()
	var end hash
	if parent := a.GetContext().GetParentTurnId(); parent != "" {
		before := s.stateOf(parent)
		if before == nil || before.chain == (hash{}) { // older than what is read: the session is known by its name only
			b.advance(st)
			return
		}
		end = before.chain
	} else {
		for len(messages) > 0 && (messages[0].GetRole() == schemas.Role_ROLE_SYSTEM || messages[0].GetRole() == schemas.Role_ROLE_DEVELOPER) {
			messages = messages[1:]
		}
	}
	for _, m := range messages {
		end = b.hash.join(end, b.hash.message(m))
	}
	if s.newest == nil {
		s.first = end
	}
	st.chain = b.hash.join(end, b.hash.message(a.GetResponse()))
	b.advance(st)
}

// restoredSession makes the session of an action from what fill recorded.
func (b *Book) restoredSession(e schemas.Event, a *schemas.ActionTaken) *session {
	s := &session{tenant: e.Tenant, id: e.Session, root: e.Session, last: e.LogTime}
	attributes := a.GetAttributes()
	root, isBranch := attributes[attributeRoot]
	key, inferred := attributes[attributeKey]
	if isBranch || inferred {
		s.identity = map[string]string{}
	}
	if isBranch {
		s.root, s.identity[attributeRoot] = root, root
	}
	if inferred {
		s.scope, s.identity[attributeKey] = b.inferredScope(e.Tenant, key, a.GetUser()), key
	} else {
		s.scope = b.explicitScope(e.Tenant, s.root)
	}
	return s
}

// stateOf finds the state that a turn made, the newest first, because that is the one that a delta names.
func (s *session) stateOf(turn string) *state {
	for _, st := range slices.Backward(s.states) {
		if st.turn == turn {
			return st
		}
	}
	return nil
}
