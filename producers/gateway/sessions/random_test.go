package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// TestRandomAgents: whatever agents do, in whatever order, every turn's context resolves to what its agent sent, every next state stands at the turn
// that it answers, once, lines stay lines, and pair has nothing to refuse. Method: for each seed, agents of one key that chat, use tools, edit, regenerate,
// abort, drop, retry, ask in parallel and end, in random order, some with the words of others; the gateway is killed at random, and appends are
// refused or done twice; then the log is held against what was sent.
func TestRandomAgents(t *testing.T) {
	const seeds = 150
	total := map[string]int{}
	for seed := range uint64(seeds) {
		s := newSimulation(t, seed)
		for range 120 {
			s.step()
		}
		s.check()
		for k, n := range s.did {
			total[k] += n
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d seeds: %v", seeds, total)
	for _, what := range []string{"kill", "edit", "regenerate", "abort", "drop", "retry", "stored", "parallel", "tool", "refused", "branch", "delta", "observed", "one session"} {
		if total[what] < seeds/10 {
			t.Errorf("%s happened %d times: the simulation simulates nothing", what, total[what])
		}
	}
}

type simulation struct {
	t      *testing.T
	w      *world
	r      *rand.Rand
	agents []*agent
	faulty bool
	did    map[string]int
	sent   map[string]string // turn id -> the messages of its request
	agent  map[string]*agent // by turn id
	begun  map[string]bool   // messages of every request, without the system's
}

// agent is one client: its own view of the conversation, and what it waits for.
type agent struct {
	name    string
	session string // named, or ""
	words   string // precedes what it says; empty: it says what others say
	steady  bool   // it only goes on
	history []wire
	flights []flight
	again   []wire // to be sent again with a mark
}

type flight struct {
	e        *sessions.Exchange
	messages []wire
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{
		t: t, w: newWorld(t, sessions.Config{}), r: rand.New(rand.NewPCG(seed, 7)), faulty: seed%3 == 0,
		did: map[string]int{}, sent: map[string]string{}, agent: map[string]*agent{}, begun: map[string]bool{},
	}
	for i := range 6 {
		a := &agent{name: fmt.Sprint("agent", i)}
		if i%2 == 0 {
			a.words = a.name + " "
		}
		if i >= 4 {
			a.session = fmt.Sprint("named-", i)
		}
		a.steady = i == 2 || i == 4
		if a.steady && i == 4 {
			a.words = a.name + " "
		}
		s.agents = append(s.agents, a)
	}
	return s
}

func (s *simulation) step() {
	a := s.agents[s.r.IntN(len(s.agents))]
	if s.faulty && s.r.IntN(3) == 0 {
		n := s.r.IntN(4)
		s.w.log.OnAppend(func([]schemas.Record) memlog.Fault {
			switch n--; n {
			case 1:
				return memlog.Refused
			case 0:
				return memlog.Duplicated
			default:
				return memlog.Applied
			}
		})
	}
	switch {
	case s.r.IntN(40) == 0:
		s.did["kill"]++
		s.w.log.OnAppend(nil)
		s.w.reopen()
		for _, a := range s.agents {
			if len(a.flights) > 0 && (a.steady || s.r.IntN(2) == 0) { // others may say something else next
				a.again = a.flights[0].messages
			}
			a.flights = nil
		}
	case len(a.flights) > 0 && (a.steady || s.r.IntN(3) > 0):
		s.land(a)
	case len(a.flights) > 0 && a.again == nil && len(a.history) > 0 && s.r.IntN(2) == 0:
		s.did["parallel"]++
		s.ask(a, append(slices.Clone(a.history), user(a.words+"aside")), nil)
	case len(a.flights) > 0:
	case a.again != nil:
		s.did["retry"]++
		messages := a.again
		a.again = nil
		s.ask(a, messages, retry)
	case !a.steady && s.r.IntN(30) == 0 && a.session != "":
		s.did["end"]++
		if err := s.w.book.End(s.t.Context(), "acme", a.session, "enough"); err != nil && !errors.Is(err, memlog.ErrInjected) {
			s.t.Error(err)
		}
	case !a.steady && s.r.IntN(6) == 0 && len(a.history) > 2:
		s.rewrite(a)
	default:
		s.ask(a, s.next(a), nil)
	}
}

// next is the agent's conversation with what it says next.
func (s *simulation) next(a *agent) []wire {
	messages := slices.Clone(a.history)
	if len(messages) == 0 {
		messages = []wire{system("You are kind."), user(a.words + "hi")}
		return messages
	}
	if s.r.IntN(10) == 0 {
		messages[0] = system(fmt.Sprint("It is ", s.r.IntN(3)))
	}
	last := messages[len(messages)-1]
	for _, c := range last.Calls {
		messages = append(messages, wire{Role: "tool", CallID: c.ID, Content: fmt.Sprint("result ", s.r.IntN(2))})
	}
	if last.Calls == nil {
		messages = append(messages, user(a.words+fmt.Sprint("say ", s.r.IntN(3))))
	}
	return messages
}

// rewrite edits what the agent said, or asks for another answer.
func (s *simulation) rewrite(a *agent) {
	var said []int
	for i, m := range a.history {
		if m.Role == "user" {
			said = append(said, i)
		}
	}
	at := said[s.r.IntN(len(said))]
	messages := slices.Clone(a.history[:at+1])
	if s.r.IntN(2) == 0 {
		s.did["regenerate"]++
	} else {
		s.did["edit"]++
		messages[at] = user(a.words + fmt.Sprint("edited ", s.r.IntN(3)))
	}
	s.ask(a, messages, nil)
}

func (s *simulation) ask(a *agent, messages []wire, change func(*sessions.Request)) {
	r := s.w.request(change, messages...)
	r.Session = a.session
	// A retry of what is in work waits, and what it waits for ends in a later step of this goroutine: so the client gives up at once.
	ctx, cancel := context.WithCancel(s.t.Context())
	if r.Retry {
		timer := time.AfterFunc(time.Millisecond, cancel)
		defer timer.Stop()
	}
	defer cancel()
	e, err := s.w.book.Begin(ctx, r)
	switch {
	case errors.Is(err, context.Canceled):
		s.did["waited"]++
		a.again = messages
	case errors.Is(err, memlog.ErrInjected):
		s.did["refused"]++
		a.again = messages
	case err != nil:
		s.t.Error(err)
	case e.Stored() != nil:
		s.did["stored"]++
		a.history = append(messages, assistant(string(e.Stored().Body)))
	default:
		s.begun[wireText(messages[1:])] = true
		s.sent[e.TurnID(0)], s.agent[e.TurnID(0)] = wireText(messages), a
		a.flights = append(a.flights, flight{e, messages})
	}
}

// land ends one of the agent's requests.
func (s *simulation) land(a *agent) {
	i := s.r.IntN(len(a.flights))
	f := a.flights[i]
	a.flights = slices.Delete(a.flights, i, i+1)
	answer := assistant(fmt.Sprint("answer ", s.r.IntN(2)))
	what := s.r.IntN(12)
	switch {
	case what == 0 && !a.steady:
		s.did["abort"]++
		part := action(assistant("ans"))
		part.FinishReason = schemas.FinishReason_FINISH_REASON_ABORTED
		if err := f.e.Finish(s.t.Context(), 0, part, nil); err != nil && !errors.Is(err, memlog.ErrInjected) {
			s.t.Error(err)
		}
		switch s.r.IntN(3) {
		case 0:
			a.again = f.messages
		case 1:
			a.history = append(f.messages, assistant("ans"))
		}
		return
	case what == 1:
		s.did["drop"]++
		f.e.Drop(0)
		a.again = f.messages
		return
	case what < 5:
		s.did["tool"]++
		answer = wire{Role: "assistant", Calls: []wireCall{{"c1", "get", `{"n":1}`}, {"c2", "put", `{}`}}}
	}
	var reply *sessions.Stored
	if answer.Calls == nil && s.r.IntN(2) == 0 {
		reply = &sessions.Stored{Body: []byte(answer.Content)}
	}
	err := f.e.Finish(s.t.Context(), 0, action(answer), reply)
	if err != nil && !errors.Is(err, memlog.ErrInjected) {
		s.t.Error(err)
	}
	a.history = append(f.messages, answer)
	if !a.steady && err == nil && s.r.IntN(12) == 0 { // the answer is lost on its way
		a.again = f.messages
	}
}

// check holds the log against what was sent.
func (s *simulation) check() {
	t := s.t
	s.w.log.OnAppend(nil)
	actions, closed := s.w.actions(), s.w.closed()
	lines := map[string][]string{} // session -> turns, in order
	next := map[string]*schemas.NextStateObserved{}
	seen := map[string]bool{}
	for _, e := range s.w.events() {
		if seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		switch p := e.Payload.(type) {
		case *schemas.ActionTaken:
			lines[e.Session] = append(lines[e.Session], e.ID)
			s.checkTurn(actions, e, p)
		case *schemas.NextStateObserved:
			s.did["observed"]++
			if next[p.GetTurnId()] != nil {
				t.Errorf("turn %s has two next states", p.GetTurnId())
			}
			next[p.GetTurnId()] = p
			if whole := after(t, actions, p.GetTurnId()) + " " + observed(p.GetObservations()); !s.begun[whole] && !strings.HasPrefix(e.Session, "named") {
				t.Errorf("nobody sent %q", whole)
			}
		}
	}
	for id, n := range next {
		if c := closed[id]; c == nil || observed(c.GetNextState()) != observed(n.GetObservations()) {
			t.Errorf("turn %s closed with %v, want %v", id, c.GetNextState(), n)
		}
	}
	sessionsOf := map[*agent]map[string]bool{}
	for session, turns := range lines {
		for i, id := range turns {
			a := s.agent[id]
			if sessionsOf[a] == nil {
				sessionsOf[a] = map[string]bool{}
			}
			sessionsOf[a][session] = true
			if first := s.agent[turns[0]]; a != first && (a.words != "" || first.words != "" || a.session != first.session) {
				t.Errorf("session %s has turns of %s and %s", session, first.name, a.name)
			}
			if i > 0 && !strings.HasPrefix(session, "named") {
				s.checkLine(actions, next, turns[i-1], id)
			}
		}
	}
	for a, of := range sessionsOf {
		if a.steady && !s.faulty {
			s.did["one session"]++
			if len(of) != 1 {
				t.Errorf("%s only went on, and has the sessions %v", a.name, slices.Collect(maps.Keys(of)))
			}
		}
	}
}

// after is the conversation up to the response of a turn, without the system message.
func after(t *testing.T, actions map[string]*schemas.ActionTaken, turn string) string {
	return text(append(slices.Clone(resolve(t, actions, turn)[1:]), actions[turn].GetResponse()))
}

func (s *simulation) checkTurn(actions map[string]*schemas.ActionTaken, e schemas.Event, a *schemas.ActionTaken) {
	if got := text(resolve(s.t, actions, e.ID)); got != s.sent[e.ID] {
		s.t.Errorf("turn %s resolves to %q, sent was %q", e.ID, got, s.sent[e.ID])
	}
	if a.GetContext().ParentTurnId != nil {
		s.did["delta"]++
	}
	if a.ParentSession != nil {
		s.did["branch"]++
		if !strings.Contains(e.Session, "~") || a.GetContext().ParentTurnId != nil {
			s.t.Errorf("session %s names a parent", e.Session)
		}
	}
}

// checkLine: a turn goes on where the one before ended, or samples the same request again; in the first case the one before has its next state.
func (s *simulation) checkLine(actions map[string]*schemas.ActionTaken, next map[string]*schemas.NextStateObserved, before, turn string) {
	if actions[turn].GetAttributes()["retry_of"] == before && s.sent[turn] == s.sent[before] {
		return
	}
	now := text(resolve(s.t, actions, turn)[1:])
	if s.faulty { // a retry in between whose turn was not recorded may have had another answer
		if request := text(resolve(s.t, actions, before)[1:]); !strings.HasPrefix(now, request+" ") {
			s.t.Errorf("%q does not go on from %q", now, request)
		}
		return
	}
	if !strings.HasPrefix(now, after(s.t, actions, before)+" ") {
		s.t.Errorf("%q does not go on where %q ended", now, after(s.t, actions, before))
	}
	if next[before] == nil {
		s.t.Errorf("turn %s has no next state", before)
	}
}

// TestConcurrentAgents: agents that ask at the same time, under one key and in one named session, keep their own sessions. Method: goroutines, half of which
// begin with the same words; run it with -race. At the end each line is whole and pair has nothing to refuse.
func TestConcurrentAgents(t *testing.T) {
	w := newWorld(t, sessions.Config{MaxMemo: 100})
	const agents, turns = 16, 20
	var group sync.WaitGroup
	for i := range agents {
		change := func(r *sessions.Request) {}
		if i%4 == 3 {
			change = named("all")
		}
		words := fmt.Sprint("agent ", i, ": ")
		if i%2 == 0 {
			words = ""
		}
		group.Go(func() {
			messages := []wire{user(words + "hi")}
			own := &world{t: t}
			for n := range turns {
				e, err := w.book.Begin(t.Context(), own.request(change, messages...))
				if err != nil {
					t.Error(err)
					return
				}
				answer := assistant("ok")
				if n == 0 {
					answer = assistant(fmt.Sprint("ok ", i/4))
				}
				a := action(answer)
				a.Attributes = map[string]string{"sent": wireText(messages)}
				if err := e.Finish(t.Context(), 0, a, &sessions.Stored{}); err != nil {
					t.Error(err)
				}
				if n%5 == 0 {
					if err := w.book.Feedback(t.Context(), "acme", e.TurnID(0), &schemas.FeedbackGiven{Score: proto.Float64(1)}); err != nil {
						t.Error(err)
					}
				}
				messages = append(messages, answer, user(fmt.Sprint(words, n)))
			}
		})
	}
	group.Wait()
	actions := w.actions()
	expect(t, "turns", len(actions), agents*turns)
	lines := map[string]int{}
	for _, e := range w.events() {
		if a, ok := e.Payload.(*schemas.ActionTaken); ok {
			if !strings.HasPrefix(e.Session, "all") {
				lines[e.Session]++
			}
			expect(t, "what turn "+e.ID+" saw", text(resolve(t, actions, e.ID)), a.GetAttributes()["sent"])
		}
	}
	expect(t, "sessions of the agents that name none", len(lines), agents*3/4)
	w.closed()
}
