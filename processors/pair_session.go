package processors

import (
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

type sessionKey struct{ tenant, session string }

// seen is what a session knows of an event id.
type seen uint8

const (
	unknownEvent seen = iota
	otherEvent
	sideTurn
	mainTurn
)

// session is one session between its first event and its end.
type session struct {
	key         sessionKey
	first, last int64 // offsets
	lastTime    int64 // log time in ms, the largest of its records
	// ids holds the events that had an effect, so that a repeated one has none. A refused event may come again.
	ids     map[uuid.UUID]seen
	order   []uuid.UUID // of ids, oldest first
	turns   uint32      // main turns so far
	open    *openTurn
	awaits  bool
	held    []*openTurn
	heldSum int // bytes
	// orphans are next states whose action did not come yet, in order of arrival.
	orphans []schemas.Event

	heapIndex  int
	queuedTime int64 // lastTime when the idle queue last looked
	prev, next *session
}

// openTurn is a turn whose next state is not complete, or that waits for the session's outcome.
type openTurn struct {
	id    string
	trace string
	turn  *schemas.TurnClosed
	bytes int
	count int // joined events
}

// fits reports whether the turn has room for one more event, and takes the room.
func (t *openTurn) fits(m proto.Message) bool {
	size := proto.Size(m) + 48 // its id and framing
	if t.bytes+size > maxTurnBytes || t.count >= maxTurnEvents {
		return false
	}
	t.bytes += size
	t.count++
	return true
}

func (s *session) saw(id uuid.UUID) bool { return s.ids[id] != unknownEvent }

func (s *session) remember(id uuid.UUID, kind seen) {
	s.ids[id] = kind
	s.order = append(s.order, id)
}

// forget keeps the memory of an endless session bounded.
func (s *session) forget(limit int) {
	for len(s.order) > limit {
		delete(s.ids, s.order[0])
		s.order = s.order[1:]
	}
}

// turn says what the session knows of a turn id that passed schemas.CheckID.
func (s *session) turn(id string) seen {
	u, err := uuid.Parse(id)
	if err != nil {
		return unknownEvent
	}
	return s.ids[u]
}

func (s *session) isTurn(id string) bool { return s.turn(id) >= sideTurn }

func (p *Pair) begin(key sessionKey, e schemas.Event) *session {
	s := &session{key: key, first: e.Position.Offset, lastTime: e.LogTime.UnixMilli(), ids: map[uuid.UUID]seen{}}
	p.sessions[key] = s
	p.opened.push(s)
	p.idle.add(s)
	return s
}

// finish ends a session: every turn leaves, nothing stays.
func (p *Pair) finish(s *session, reason schemas.CloseReason, endReason *string, out *output) {
	open := s.open
	if open != nil {
		open.turn.EndReason = endReason
		p.close(s, reason, out)
	}
	p.release(s, out)
	for _, o := range s.orphans {
		out.refuse("next state without its action: the session ended", o)
	}
	delete(p.sessions, s.key)
	p.opened.remove(s)
	p.idle.remove(s)
}

// close ends the open turn; it leaves now, or waits for the outcome.
func (p *Pair) close(s *session, reason schemas.CloseReason, out *output) {
	t := s.open
	s.open = nil
	t.turn.CloseReason = reason
	if !s.awaits {
		p.emit(s, t, out)
		return
	}
	s.held = append(s.held, t)
	s.heldSum += t.bytes
	if s.heldSum > p.cfg.MaxHeldBytes {
		p.cfg.Ignored("outcome awaited for too many bytes of turns")
		p.release(s, out)
	}
}

// release lets the held turns go, in their order.
func (p *Pair) release(s *session, out *output) {
	for _, t := range s.held {
		p.emit(s, t, out)
	}
	s.held, s.heldSum = nil, 0
}

// emit derives TurnClosed. Its times are those of the record that triggered it; session and trace are its own, because an idle session
// is closed by a record of another one.
func (p *Pair) emit(s *session, t *openTurn, out *output) {
	e := out.trigger.Derive(StagePair, PairVersion, t.turn, t.id, 0)
	if e.Tenant != s.key.tenant || e.Session != s.key.session {
		e.Tenant, e.Session, e.TraceParent = s.key.tenant, s.key.session, t.trace
	}
	out.events = append(out.events, e)
}

// sessionList is a doubly linked list: first offsets grow, so the front is the low watermark.
type sessionList struct{ head, tail *session }

func (l *sessionList) front() *session { return l.head }

func (l *sessionList) push(s *session) {
	s.prev = l.tail
	if l.tail != nil {
		l.tail.next = s
	} else {
		l.head = s
	}
	l.tail = s
}

func (l *sessionList) remove(s *session) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		l.tail = s.prev
	}
	s.prev, s.next = nil, nil
}
