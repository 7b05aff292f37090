package sessions

import (
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// place decides where a request belongs, and takes that place. busy is not nil when the request repeats one that is still in work: wait for it
// and ask again.
func (b *Book) place(c *conversation) (e *Exchange, busy <-chan struct{}) {
	r := c.r
	e = newExchange(b, c)
	if rule := b.rules.side(c); r.Kind == schemas.TurnKind_TURN_KIND_UNSPECIFIED && rule != "" {
		e.kind, e.sideRule = schemas.TurnKind_TURN_KIND_SIDE, rule
	}
	key := b.hash.join(b.hash.texts(r.Tenant, r.KeyID, r.User, r.Session), b.hash.bytes(r.Digest[:]))
	now := time.Now()

	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts.expire(now)
	before := b.attempts.find(key, &r.Identity)
	switch {
	case before != nil && !before.done:
		return nil, before.over
	case before != nil && before.reply != nil:
		b.metrics.placed.WithLabelValues("stored").Inc()
		e.stored, e.session, e.turns = before.reply, before.session, before.turns
		return e, nil
	case before != nil:
		e.retryOf = before.turns[0]
	}
	e.attempt = b.attempts.begin(key, r.IdempotencyKey)
	var how string
	switch {
	case e.kind == schemas.TurnKind_TURN_KIND_SIDE:
		how = b.placeSide(e, now)
	case before != nil && b.placeAgain(e, before):
		how = "retry"
	default:
		how = b.placeMain(e, now)
	}
	if e.line != nil {
		e.line.work = e
		e.session = e.line.id
	}
	b.metrics.placed.WithLabelValues(how).Inc()
	return e, nil
}

// placeSide: the session that the request names, or one of its own, which says what it seems to be about.
func (b *Book) placeSide(e *Exchange, now time.Time) string {
	r := e.c.r
	e.session = r.Session
	if r.Session == "" {
		e.session = schemas.NewID()
		if st, _ := b.deepest(e.c, b.inferredScope(r.Tenant, r.KeyID, r.User), now); st != nil {
			e.parent, e.parentTurn = st.session.id, st.turn
		}
	}
	return "side"
}

// placeAgain samples a request again whose answer nobody can have built on: its turn is still the session's newest.
func (b *Book) placeAgain(e *Exchange, before *attempt) bool {
	s := b.sessions[sessionKey{e.c.r.Tenant, before.session}]
	if s == nil || s.work != nil || before.after == nil || s.newest != before.after {
		return false
	}
	e.line, e.base, e.at = s, before.base, before.at
	return true
}

// placeMain finds the session by the longest known state, else by its name.
func (b *Book) placeMain(e *Exchange, now time.Time) string {
	c, r := e.c, e.c.r
	scope := b.inferredScope(r.Tenant, r.KeyID, r.User)
	var named *session
	if r.Session != "" {
		scope = b.explicitScope(r.Tenant, r.Session)
		named = b.sessions[sessionKey{r.Tenant, r.Session}]
		if named != nil && b.expired(named, now) {
			b.remove(named)
			b.metrics.forgotten.WithLabelValues("idle").Inc()
			named = nil
		}
		if named != nil {
			scope = named.scope
		}
	}
	st, at := b.deepest(c, scope, now)
	switch {
	case st != nil && st.mayGoOn(c):
		b.goOn(e, st, at, at)
		return "continued"
	case st != nil:
		b.leave(e, st.session, st.turn, now)
		return "branch"
	case named == nil:
		id := r.Session
		if id == "" {
			id = schemas.NewID()
		}
		e.line = b.open(r, id, now)
		e.line.first = c.end
		return "new"
	case named.work != nil || named.newest == nil:
		turn := ""
		if named.newest != nil {
			turn = named.newest.turn
		}
		b.leave(e, named, turn, now)
		return "branch"
	case named.first == c.end: // the first request again, and no retry: another answer is wanted
		b.leave(e, named, "", now)
		return "branch"
	default: // the client rewrote its history (a compaction): the name says that it is the same session
		next := c.n - 1
		if len(c.points) > 0 {
			next = c.points[len(c.points)-1].at
		}
		b.goOn(e, named.newest, -1, next)
		return "continued"
	}
}

// deepest finds the state with the longest conversation that the request begins with. Of several, the best to go on with.
func (b *Book) deepest(c *conversation, scope hash, now time.Time) (found *state, at int) {
	name := c.r.Session
	for i := len(c.points) - 1; i >= 0; i-- {
		best := -1
		for _, st := range b.states[b.hash.join(scope, c.points[i].chain)] {
			s := st.session
			if name != "" && s.id != name && s.root != name || b.expired(s, now) {
				continue
			}
			if fit := st.fit(c); fit > best || fit == 0 && best == 0 { // of those that only a branch can leave, the newest
				found, best = st, fit
			}
		}
		if found != nil {
			return found, c.points[i].at
		}
	}
	return nil, 0
}

// fit says how well a request that begins with the state's conversation goes on with its session: 0 not at all (it is a branch), 1 a branch's
// session, 2 a session that is none, 3 a session that began to go on with exactly this request.
func (st *state) fit(c *conversation) int {
	s := st.session
	switch {
	case !st.mayGoOn(c):
		return 0
	case s.observed && s.asked == c.end:
		return 3
	case s.root == s.id:
		return 2
	default:
		return 1
	}
}

// mayGoOn: the state is the end of its session's line, nobody works there, and the next state that it has, if any, is that of this request.
func (st *state) mayGoOn(c *conversation) bool {
	s := st.session
	return s.newest == st && s.work == nil && (!s.observed || s.asked == c.end)
}

// goOn lets a request go on with the session of st, its newest state. at is how many messages the state's conversation has, -1 when the request
// does not begin with it; the next state begins at message next.
func (b *Book) goOn(e *Exchange, st *state, at, next int) {
	s := st.session
	e.line, e.base, e.at = s, st, at
	if s.observed || st.turn == "" || next >= e.c.n {
		return
	}
	if s.asked != e.c.end {
		s.asked, s.observation = e.c.end, schemas.NewID()
	}
	e.next = next
}

// leave lets a request begin a branch that leaves s after turn.
func (b *Book) leave(e *Exchange, s *session, turn string, now time.Time) {
	e.line = branch(s, turn, e.turns[0], now)
	e.line.first = e.c.end
	e.line.work = e
	b.add(e.line)
}

// expired: pair may have ended the session by now, or soon will, so nothing goes on with it. A little earlier than pair, whose clock is the log's.
func (b *Book) expired(s *session, now time.Time) bool {
	return s.work == nil && now.Sub(s.last) >= b.cfg.Idle-b.cfg.Idle/20
}
