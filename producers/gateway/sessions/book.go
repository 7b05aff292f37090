package sessions

import (
	"container/list"
	"fmt"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/schemas"
)

// source is the CloudEvents source of everything that a Book appends.
const source = "gateway"

// Book knows the open sessions. Safe for concurrent use.
type Book struct {
	cfg     Config
	journal schemas.Appender
	logger  *slog.Logger
	hash    hasher
	memo    *memo
	rules   ruleSet
	metrics metrics

	// mu guards everything below, and all fields of sessions and states. It is held for map work only: never while hashing, decoding,
	// appending or sampling.
	mu       sync.Mutex
	sessions map[sessionKey]*session
	used     *list.List // of *session, the one used last in front
	states   map[hash][]*state
	count    int // states that are held
	attempts attempts
	turns    recent[turnKey, turnRef]
}

type sessionKey struct{ tenant, id string }

// session is one line of turns: each turn goes on where the one before ended, and at most one request is in work at its end.
type session struct {
	tenant, id string
	// root is the session that this one is a branch of, at whatever depth; its own id when it is none.
	root string
	// scope is whose conversations it is among: an inferred session's is that of tenant, key and user, an explicit one's that of its root.
	scope hash
	// identity is recorded with each turn, so that Restore finds the scope again.
	identity map[string]string

	// order is held around an append and the decision that it depends on, so that the log has the events of a session in the order in which the
	// Book saw them. It is taken before Book.mu, never after.
	order sync.Mutex

	// parent and parentTurn go into the first recorded action of a branch; both empty from then on.
	parent, parentTurn string
	// gone: ended or forgotten. pair does not know its turns any more, so nothing may refer to them.
	gone bool
	// life counts how often the session was forgotten: a state of an earlier life is no parent in this one.
	life int
	// work is the request that is in work at the end of the line, or nil.
	work *Exchange
	// newest is the state after the last turn; nil before the first.
	newest *state
	// asked is the end of the conversation that went on from newest last; its next state has, or will have, the event id observation.
	asked       hash
	observation string
	observed    bool // appended
	// first is the end of the first conversation, before its response.
	first  hash
	last   time.Time
	states []*state // oldest first
	place  *list.Element
}

// state is a conversation up to a response: the place where a session can go on, or a branch begins.
type state struct {
	session *session
	// chain is that of the conversation, the response included; zero when it is not known (a restored delta whose parent was too old).
	chain hash
	// turn is the id of the turn, or "" when it could not be recorded.
	turn string
	// setup is that of the request; zero: not known, because the state was restored.
	setup hash
	// life is the session's when the turn was recorded.
	life int
	// wholeAt is when the last whole context before or at this turn was recorded.
	wholeAt time.Time
}

// twins bounds the states with the same conversation: as many callers as that may have said and heard the same, and be told apart later.
const twins = 64

// New makes a Book that appends to journal. The caller runs Run, and Restore before the first Begin.
func New(cfg Config, journal schemas.Appender, in Instruments) (*Book, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	rules, err := compileRules(cfg)
	if err != nil {
		return nil, err
	}
	b := &Book{
		cfg: cfg, journal: journal, logger: in.Logger, hash: newHasher(), memo: newMemo(cfg.MaxMemo), rules: rules,
		sessions: map[sessionKey]*session{}, used: list.New(), states: map[hash][]*state{},
		attempts: newAttempts(cfg), turns: newRecent[turnKey, turnRef](cfg.MaxTurns),
	}
	b.metrics, err = newMetrics(b, in.Registerer)
	return b, err
}

// Keys of attributes by which Restore finds the scope of a session.
const (
	attributeKey  = "gateway_key"  // inferred sessions: Identity.KeyID
	attributeRoot = "gateway_root" // branches: the root
)

func (b *Book) inferredScope(tenant, keyID, user string) hash {
	return b.hash.texts("inferred", tenant, keyID, user)
}

func (b *Book) explicitScope(tenant, root string) hash {
	return b.hash.texts("explicit", tenant, root)
}

// open adds a session of the request's caller that has no turns yet.
func (b *Book) open(r *Request, id string, now time.Time) *session {
	s := &session{tenant: r.Tenant, id: id, root: id, last: now}
	if r.Session != "" {
		s.scope = b.explicitScope(r.Tenant, id)
	} else {
		s.scope = b.inferredScope(r.Tenant, r.KeyID, r.User)
		s.identity = map[string]string{attributeKey: r.KeyID}
	}
	b.add(s)
	return s
}

// branch makes a session that leaves parent after turn; it is not added. unique is a turn id of the new session.
func branch(parent *session, turn, unique string, now time.Time) *session {
	s := &session{
		tenant: parent.tenant, id: branchID(parent.root, unique), root: parent.root, scope: parent.scope,
		parent: parent.id, parentTurn: turn, last: now, identity: map[string]string{attributeRoot: parent.root},
	}
	if key, ok := parent.identity[attributeKey]; ok {
		s.identity[attributeKey] = key
	}
	return s
}

// branchID names a branch: the root, '~' and the random end of a turn id, within the length that a session may have.
func branchID(root, turnID string) string {
	const most = 512 - 1 - 12
	for len(root) > most || !utf8.ValidString(root) {
		root = root[:min(len(root)-1, most)]
	}
	return root + "~" + turnID[len(turnID)-12:]
}

func (b *Book) add(s *session) {
	s.gone = false
	b.sessions[sessionKey{s.tenant, s.id}] = s
	s.place = b.used.PushFront(s)
	b.evict()
}

// touch says that an event of the session was appended at now.
func (b *Book) touch(s *session, now time.Time) {
	s.last = now
	if !s.gone {
		b.used.MoveToFront(s.place)
	}
}

// remove forgets a session with all its states.
func (b *Book) remove(s *session) {
	if s.gone {
		return
	}
	s.gone = true
	s.life++
	delete(b.sessions, sessionKey{s.tenant, s.id})
	b.used.Remove(s.place)
	for _, st := range s.states {
		b.dropState(st)
	}
	s.states, s.newest = nil, nil
}

// evict forgets the sessions that were silent longest while there are too many. Those in work stay.
func (b *Book) evict() {
	for at := b.used.Back(); at != nil && (len(b.sessions) > b.cfg.MaxSessions || b.count > b.cfg.MaxStates); {
		s := at.Value.(*session)
		at = at.Prev()
		if s.work == nil && at != nil { // the front is the one just used
			b.remove(s)
			b.metrics.forgotten.WithLabelValues("full").Inc()
		}
	}
}

// advance makes st the end of its session's line.
func (b *Book) advance(st *state) {
	s := st.session
	st.life = s.life
	s.newest, s.asked, s.observation, s.observed = st, hash{}, "", false
	s.states = append(s.states, st)
	b.count++
	if st.chain != (hash{}) {
		key := b.hash.join(s.scope, st.chain)
		same := b.states[key]
		if len(same) == twins {
			same = append(same[:0:0], same[1:]...)
		}
		b.states[key] = append(same, st)
	}
	for len(s.states) > b.cfg.MaxStatesOfSession {
		b.dropState(s.states[0])
		s.states = s.states[1:]
	}
	b.evict()
}

func (b *Book) dropState(st *state) {
	b.count--
	if st.chain == (hash{}) {
		return
	}
	key := b.hash.join(st.session.scope, st.chain)
	same := b.states[key]
	for i := range same {
		if same[i] == st {
			same = append(same[:i:i], same[i+1:]...)
			break
		}
	}
	if len(same) == 0 {
		delete(b.states, key)
	} else {
		b.states[key] = same
	}
}

type metrics struct {
	placed    *prometheus.CounterVec
	forgotten *prometheus.CounterVec
	idleFails prometheus.Counter
}

func newMetrics(b *Book, r prometheus.Registerer) (metrics, error) {
	m := metrics{
		placed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_turns_placed_total", Help: "Requests by where they belong: new, continued, branch, side, retry (sampled again), stored (answered from memory).",
		}, []string{"place"}),
		forgotten: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_sessions_forgotten_total", Help: "Sessions forgotten, by reason: idle, ended, full (the bounds were reached).",
		}, []string{"reason"}),
		idleFails: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gateway_idle_end_failures_total", Help: "Ends of idle sessions that the journal did not take; they are tried again.",
		}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gateway_sessions_open", Help: "Sessions that are known."}, func() float64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return float64(len(b.sessions))
	})
	for _, c := range []prometheus.Collector{m.placed, m.forgotten, m.idleFails, open} {
		if err := r.Register(c); err != nil {
			return metrics{}, fmt.Errorf("sessions: %w", err)
		}
	}
	return m, nil
}
