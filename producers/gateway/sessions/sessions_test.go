package sessions_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// TestChat: a plain chat is one session, its turns are deltas, and each next state is what followed the answer. Method: three turns as a chat
// client sends them, with a system prompt and an answer whose space the client trims; then the events and what pair makes of them.
func TestChat(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	one := w.turn(nil, " Hello!\n", system("s"), user("hi"))
	two := w.turn(nil, "4", system("s"), user("hi"), assistant("Hello!"), user("2+2?"))
	three := w.turn(nil, "Bye", system("s"), user("hi"), assistant("Hello!"), user("2+2?"), assistant("4"), user("thanks"))
	expect(t, "session", two.Session(), one.Session())
	expect(t, "session", three.Session(), one.Session())
	actions := w.actions()
	expect(t, "parent of the second turn", actions[two.TurnID(0)].GetContext().GetParentTurnId(), one.TurnID(0))
	expect(t, "what the third turn holds", text(actions[three.TurnID(0)].GetContext().GetMessages()), "u:thanks")
	expect(t, "what the third turn saw", text(resolve(t, actions, three.TurnID(0))), "s:s u:hi a:Hello! u:2+2? a:4 u:thanks")
	closed := w.closed()
	expect(t, "closed turns", len(closed), 2)
	expect(t, "next state", observed(closed[one.TurnID(0)].GetNextState()), "u:2+2?")
	expect(t, "next state", observed(closed[two.TurnID(0)].GetNextState()), "u:thanks")
	expect(t, "kind of observation", closed[two.TurnID(0)].GetNextState()[0].GetKind(), schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY)
	expect(t, "decoded messages: each once", w.parsed, 6)
}

// TestToolLoop: the results of all calls are one next state, although the client renames the calls and writes their arguments in another way.
// Method: an answer with two calls, sent back with other ids, key order and space.
func TestToolLoop(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	one := w.begin(nil, user("weather?"))
	w.finish(one, wire{Role: "assistant", Calls: []wireCall{{"a", "get", `{"city": "Bern", "n": 1.0}`}, {"b", "get", `{}`}}})
	two := w.turn(nil, "Sunny", user("weather?"),
		wire{Role: "assistant", Calls: []wireCall{{"x", "get", `{"n":1.0,"city":"Bern"}`}, {"y", "get", `{ }`}}},
		wire{Role: "tool", CallID: "x", Content: "sun"}, wire{Role: "tool", CallID: "y", Content: "rain"})
	expect(t, "session", two.Session(), one.Session())
	next := w.closed()[one.TurnID(0)].GetNextState()
	expect(t, "next state", observed(next), "t:sun t:rain")
	expect(t, "kind of observation", next[1].GetKind(), schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT)

	other := w.turn(nil, "Sunny", user("weather?"), wire{Role: "assistant", Calls: []wireCall{{"x", "get", `{"city":"Basel"}`}, {"y", "get", `{}`}}}, user("and?"))
	if other.Session() == one.Session() {
		t.Error("another call with other arguments continues the session")
	}
}

// TestThinking: a client that drops the model's thoughts, given in the text or apart, goes on with the same session. Method: both forms.
func TestThinking(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	one := w.turn(nil, "<think>greet</think>\nHello", user("hi"))
	two := w.begin(nil, user("hi"), assistant("Hello"), user("more"))
	a := action(assistant("Yes"))
	a.Response.Reasoning = proto.String("agree")
	if err := two.Finish(t.Context(), 0, a, nil); err != nil {
		t.Fatal(err)
	}
	three := w.turn(nil, "ok", user("hi"), assistant("Hello"), user("more"), assistant("Yes"), user("end"))
	expect(t, "session", two.Session(), one.Session())
	expect(t, "session", three.Session(), one.Session())
}

// TestBranches: an edit, a regenerate and a parallel request are sessions of their own that name where they left; the session that they left stays
// as it is. Method: one session of two turns, then each kind of departure, then the session goes on.
func TestBranches(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	history := []wire{user("a"), assistant("A"), user("b")}
	one := w.turn(nil, "A", user("a"))
	two := w.turn(nil, "B", history...)
	edit := w.turn(nil, "C", user("a"), assistant("A"), user("c"))
	again := w.turn(nil, "B2", history...)
	rest := append(history[:3:3], assistant("B"))
	left, right := w.begin(nil, append(rest, user("l"))...), w.begin(nil, append(rest, user("r"))...)
	w.finish(right, assistant("R"))
	w.finish(left, assistant("L"))
	actions := w.actions()
	for name, e := range map[string]*sessions.Exchange{"edit": edit, "regenerate": again, "parallel": right} {
		a := actions[e.TurnID(0)]
		if !strings.HasPrefix(e.Session(), one.Session()+"~") {
			t.Errorf("%s: session %s is no branch of %s", name, e.Session(), one.Session())
		}
		expect(t, name+": parent session", a.GetParentSession(), one.Session())
		parent := one
		if name == "parallel" {
			parent = two
		}
		expect(t, name+": parent turn", a.GetParentTurnId(), parent.TurnID(0))
		expect(t, name+": delta", a.GetContext().GetParentTurnId(), "")
	}
	expect(t, "session of the first parallel request", left.Session(), one.Session())
	expect(t, "saw", text(resolve(t, actions, left.TurnID(0))), "u:a a:A u:b a:B u:l")

	after := w.turn(nil, "C2", user("a"), assistant("A"), user("c"), assistant("C"), user("d"))
	expect(t, "session of the turn after the edit", after.Session(), edit.Session())
	expect(t, "its parent is named once", w.actions()[after.TurnID(0)].GetParentSession(), "")
	closed := w.closed()
	expect(t, "next state of the edited turn", observed(closed[one.TurnID(0)].GetNextState()), "u:b")
	expect(t, "next state after the edit", observed(closed[edit.TurnID(0)].GetNextState()), "u:d")
	expect(t, "next state of the second turn", observed(closed[two.TurnID(0)].GetNextState()), "u:l")
}

// TestTwins: two callers that said and heard the same are two sessions, and stay two when they go on, whoever goes first. Method: the same first
// turn twice, then two different second turns, then the same second turn twice under another key and user.
func TestTwins(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	one, two := w.turn(nil, "Hello", user("hi")), w.turn(nil, "Hello", user("hi"))
	if one.Session() == two.Session() {
		t.Fatal("two conversations share a session")
	}
	x := w.turn(nil, "X!", user("hi"), assistant("Hello"), user("x"))
	y := w.turn(nil, "Y!", user("hi"), assistant("Hello"), user("y"))
	got := map[string]bool{x.Session(): true, y.Session(): true}
	if !got[one.Session()] || !got[two.Session()] {
		t.Errorf("the sessions %s and %s do not go on with both of %s and %s", x.Session(), y.Session(), one.Session(), two.Session())
	}
	z := w.turn(nil, "Z!", user("hi"), assistant("Hello"), user("z"))
	if got[z.Session()] {
		t.Error("a third caller shares a session")
	}
	for name, change := range map[string]func(*sessions.Request){
		"key":    func(r *sessions.Request) { r.KeyID = "k2" },
		"user":   func(r *sessions.Request) { r.User = "u" },
		"tenant": func(r *sessions.Request) { r.Tenant = "other" },
	} {
		e := w.turn(change, "X!!", user("hi"), assistant("Hello"), user("x"), assistant("X!"), user("more"))
		if e.Session() == x.Session() || strings.Contains(e.Session(), "~") {
			t.Errorf("another %s reaches session %s", name, e.Session())
		}
	}
}

// TestRetry: a request that is sent again is the same turn. Method: each way in which the first attempt can end.
func TestRetry(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	history := []wire{user("a"), assistant("A"), user("b")}
	one := w.turn(nil, "A", user("a"))

	dropped := w.begin(nil, history...)
	dropped.Drop(0)
	aborted := w.begin(nil, history...)
	expect(t, "session after a drop", aborted.Session(), one.Session())
	w.abort(aborted, assistant("B, half"))
	two := w.begin(retry, history...)
	expect(t, "session after an abort", two.Session(), one.Session())
	waiting := make(chan *sessions.Exchange)
	go func() {
		e, err := w.book.Begin(t.Context(), w.request(retry, history...))
		if err != nil {
			t.Error(err)
		}
		waiting <- e
	}()
	w.finish(two, assistant("B"))
	stored := <-waiting
	if stored.Stored() == nil || string(stored.Stored().Body) != "B" {
		t.Fatalf("the retry gets %v, not the stored answer", stored.Stored())
	}
	expect(t, "turn of the retry", stored.TurnID(0), two.TurnID(0))
	expect(t, "session of the retry", stored.Session(), one.Session())
	if err := stored.Finish(t.Context(), 0, action(assistant("B")), nil); err == nil {
		t.Error("a stored answer can be recorded again")
	}
	expect(t, "retry_of", w.actions()[two.TurnID(0)].GetAttributes()["retry_of"], aborted.TurnID(0))
	expect(t, "delta of the retry", w.actions()[two.TurnID(0)].GetContext().GetParentTurnId(), one.TurnID(0))

	three := w.turn(nil, "C", append(history[:3:3], assistant("B"), user("c"))...)
	expect(t, "session", three.Session(), one.Session())
	closed := w.closed()
	expect(t, "next state", observed(closed[one.TurnID(0)].GetNextState()), "u:b")
	expect(t, "next state of the aborted turn", len(closed[aborted.TurnID(0)].GetNextState()), 0)
	if w.actions()[aborted.TurnID(0)].GetUntrainableReason() == "" {
		t.Error("an interrupted response has no reason not to be trained")
	}
	expect(t, "next state", observed(closed[two.TurnID(0)].GetNextState()), "u:c")
	expect(t, "turns in the log", len(w.actions()), 4)
}

// TestDropThenEdit: a next state that was appended for a request of which nothing was sampled stays that of its turn; other words are a branch. Method: drop a
// request, send other words, then the dropped request again.
func TestDropThenEdit(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	one := w.turn(nil, "A", user("a"))
	w.begin(nil, user("a"), assistant("A"), user("b")).Drop(0)
	edit := w.turn(nil, "C", user("a"), assistant("A"), user("c"))
	two := w.turn(nil, "B", user("a"), assistant("A"), user("b"))
	expect(t, "parent of the edit", w.actions()[edit.TurnID(0)].GetParentSession(), one.Session())
	expect(t, "session", two.Session(), one.Session())
	expect(t, "next state", observed(w.closed()[one.TurnID(0)].GetNextState()), "u:b")

	w.begin(named("s"), user("first")).Drop(0)
	expect(t, "session whose first request was dropped", w.turn(named("s"), "A", user("first")).Session(), "s")
}

// TestIdempotencyKey: the key alone makes a retry, another key makes another turn. Method: one request under two keys, and each again.
func TestIdempotencyKey(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	key := func(k string) func(*sessions.Request) {
		return func(r *sessions.Request) { r.IdempotencyKey, r.Retry = k, true }
	}
	one := w.turn(key("1"), "A", user("a"))
	two := w.begin(key("2"), user("a"))
	if two.Stored() != nil || two.Session() == one.Session() {
		t.Error("another key gets the answer of the first")
	}
	w.finish(two, assistant("B"))
	for k, want := range map[string]string{"1": "A", "2": "B"} {
		e := w.begin(key(k), user("a"))
		if e.Stored() == nil || string(e.Stored().Body) != want {
			t.Errorf("key %s gets %v, want %s", k, e.Stored(), want)
		}
	}
}

// TestAbortedGoesOn: a client that keeps the half of an answer that it got goes on with the session. Method: abort, then a request with the half.
func TestAbortedGoesOn(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	one := w.begin(nil, user("tell"))
	w.abort(one, assistant("Once upon"))
	two := w.turn(nil, "Shorter", user("tell"), assistant("Once upon"), user("too long"))
	expect(t, "session", two.Session(), one.Session())
	expect(t, "next state", observed(w.closed()[one.TurnID(0)].GetNextState()), "u:too long")
}

// TestNamedSession: a named session stays one through a compaction, a gap and a regenerate of its first turn. Method: a session by name whose client
// rewrites its history; the same name in another tenant is another session.
func TestNamedSession(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	mine := named("build-7")
	one := w.turn(mine, "A", user("a"))
	two := w.turn(mine, "B", user("a"), assistant("A"), user("b"))
	compacted := w.turn(mine, "C", system("summary of a and b"), user("a and b, in short"), assistant("B"), user("c"))
	bare := w.turn(mine, "D", user("what was said so far"), user("d"))
	expect(t, "session", compacted.Session(), "build-7")
	expect(t, "session", bare.Session(), "build-7")
	on := w.turn(mine, "E", user("what was said so far"), user("d"), assistant("D"), user("e"))
	expect(t, "session", on.Session(), "build-7")
	regenerated := w.turn(mine, "A2", user("a"))
	expect(t, "parent of the regenerated turn", w.actions()[regenerated.TurnID(0)].GetParentSession(), "build-7")
	other := w.turn(func(r *sessions.Request) { r.Session, r.Tenant = "build-7", "other" }, "A", user("a"))
	expect(t, "another tenant's session", other.Session(), "build-7")

	actions, closed := w.actions(), w.closed()
	expect(t, "next state", observed(closed[one.TurnID(0)].GetNextState()), "u:b")
	expect(t, "next state before the compaction", observed(closed[two.TurnID(0)].GetNextState()), "u:c")
	expect(t, "next state without history", observed(closed[compacted.TurnID(0)].GetNextState()), "u:d")
	expect(t, "context after the compaction", actions[compacted.TurnID(0)].GetContext().GetParentTurnId(), "")
	expect(t, "context after that", actions[on.TurnID(0)].GetContext().GetParentTurnId(), bare.TurnID(0))

	// An inferred session can be named by the id that its reply gave, and a branch of a named session is found by either name.
	inferred := w.turn(nil, "Hello", user("hi"))
	byID := w.turn(named(inferred.Session()), "Bye", user("hi"), assistant("Hello"), user("x"))
	expect(t, "session by its id", byID.Session(), inferred.Session())
	x, y := w.turn(nil, "Same", user("same")), w.turn(nil, "Same", user("same"))
	for _, twin := range []*sessions.Exchange{y, x} {
		e := w.turn(named(twin.Session()), "Bye", user("same"), assistant("Same"), user("z"))
		expect(t, "session of a twin by its id", e.Session(), twin.Session())
	}
	branchOn := w.turn(mine, "A3", user("a"), assistant("A2"), user("more"))
	expect(t, "session of the branch", branchOn.Session(), regenerated.Session())
}

// TestParallelNamed: parallel requests of one named session never share a line, and none gets the other's next state. Method: a sub-agent asks while the
// main request is in work, and goes on later.
func TestParallelNamed(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	mine := named("s")
	one := w.turn(mine, "A", user("a"))
	outer := w.begin(mine, user("a"), assistant("A"), user("b"))
	inner := w.turn(mine, "sub", user("search"))
	inner2 := w.turn(mine, "sub2", user("search"), assistant("sub"), user("deeper"))
	w.finish(outer, assistant("B"))
	expect(t, "session of the main request", outer.Session(), "s")
	expect(t, "parent of the sub-agent", w.actions()[inner.TurnID(0)].GetParentSession(), "s")
	expect(t, "session of the sub-agent's second turn", inner2.Session(), inner.Session())
	closed := w.closed()
	expect(t, "next state", observed(closed[one.TurnID(0)].GetNextState()), "u:b")
	expect(t, "next state", observed(closed[inner.TurnID(0)].GetNextState()), "u:deeper")
}

// TestWholeContexts: a changed system prompt, changed tools and an old last whole context make the next context whole, and the session goes on.
// Method: one change a turn, the clock of a synctest bubble.
func TestWholeContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sessions.Config{})
		messages := []wire{system("12:00"), user("0")}
		first := w.turn(nil, "a0", messages...)
		step := func(what string, change func(*sessions.Request), whole string) {
			t.Helper()
			n := len(messages)
			messages = append(messages[:n:n], assistant("a"+messages[n-1].Content), user(messages[n-1].Content+"+"))
			e := w.turn(change, "a"+messages[n+1].Content, messages...)
			expect(t, what+": session", e.Session(), first.Session())
			got := "delta"
			if w.actions()[e.TurnID(0)].GetContext().ParentTurnId == nil {
				got = "whole"
			}
			expect(t, what, got, whole)
			expect(t, what+": saw", text(resolve(t, w.actions(), e.TurnID(0))), wireText(messages))
		}
		tools := func(r *sessions.Request) { r.ToolsDigest[0] = 1; r.Tools = []*schemas.Tool{{Name: "get"}} }
		step("the same", nil, "delta")
		messages[0] = system("12:01")
		step("another system prompt", nil, "whole")
		step("the same", nil, "delta")
		step("tools", tools, "whole")
		step("the same tools", tools, "delta")
		time.Sleep(9 * time.Minute)
		step("after nine minutes", tools, "delta")
		time.Sleep(2 * time.Minute)
		step("after eleven minutes", tools, "whole")
		expect(t, "closed turns", len(w.closed()), 7)
	})
}

// TestSideTurns: what agents ask for themselves is recorded apart and leaves the conversation alone. Method: the title of a chat between two turns of it,
// by rule and by header, with and without a named session; and words that only sound like it.
func TestSideTurns(t *testing.T) {
	w := newWorld(t, sessions.Config{Rules: []sessions.Rule{{Name: "mine", System: "^I am a cron job", MaxTokens: 100}}})
	one := w.turn(nil, "A", user("a"))
	title := w.turn(nil, "Greetings", user("### Task:\nGenerate a concise title.\n### Chat History:\nUSER: a"))
	follow := w.turn(func(r *sessions.Request) { r.Kind = schemas.TurnKind_TURN_KIND_SIDE }, "And?", user("a"), assistant("A"), user("guess"))
	cron := w.turn(func(r *sessions.Request) { r.MaxTokens, r.Session = 100, "s" }, "ok", system("I am a cron job"), user("go"))
	main := w.turn(func(r *sessions.Request) { r.Kind = schemas.TurnKind_TURN_KIND_MAIN }, "T", user("### Task:\nGenerate a title"))
	long := w.turn(func(r *sessions.Request) { r.MaxTokens = 101 }, "ok", system("I am a cron job"), user("go"))
	two := w.turn(nil, "B", user("a"), assistant("A"), user("b"))
	for name, e := range map[string]*sessions.Exchange{"title": title, "follow-up": follow, "cron": cron} {
		expect(t, name+": kind", e.Kind(), schemas.TurnKind_TURN_KIND_SIDE)
		expect(t, name+": recorded kind", w.actions()[e.TurnID(0)].GetKind(), schemas.TurnKind_TURN_KIND_SIDE)
	}
	expect(t, "rule", w.actions()[title.TurnID(0)].GetAttributes()["side_rule"], "open-webui task")
	expect(t, "what the follow-up is about", w.actions()[follow.TurnID(0)].GetParentTurnId(), one.TurnID(0))
	expect(t, "session of the cron job", cron.Session(), "s")
	expect(t, "kind by header", main.Kind(), schemas.TurnKind_TURN_KIND_MAIN)
	expect(t, "kind above the bound", long.Kind(), schemas.TurnKind_TURN_KIND_MAIN)
	expect(t, "session", two.Session(), one.Session())
	if title.Session() == one.Session() || follow.Session() == one.Session() {
		t.Error("a side turn joined the conversation")
	}
	expect(t, "next state", observed(w.closed()[one.TurnID(0)].GetNextState()), "u:b")
}

// TestChoices: of several choices the first is the session's, the others are branches, and the client goes on with any. Method: three choices, one of them
// dropped; the client continues the second, another client the first.
func TestChoices(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	one := w.turn(nil, "A", user("a"))
	e := w.begin(func(r *sessions.Request) { r.Choices = 3 }, user("a"), assistant("A"), user("b"))
	for _, choice := range []int{1, 0} {
		if err := e.Finish(t.Context(), choice, action(assistant([]string{"B0", "B1"}[choice])), nil); err != nil {
			t.Fatal(err)
		}
	}
	e.Drop(2)
	if err := e.Finish(t.Context(), 1, action(assistant("x")), nil); err == nil {
		t.Error("a choice can be ended twice")
	}
	second := w.turn(nil, "C", user("a"), assistant("A"), user("b"), assistant("B1"), user("c"))
	first := w.turn(nil, "C", user("a"), assistant("A"), user("b"), assistant("B0"), user("c"))
	actions := w.actions()
	expect(t, "session of choice 0", e.Session(), one.Session())
	expect(t, "session after choice 0", first.Session(), one.Session())
	expect(t, "parent of choice 1", actions[e.TurnID(1)].GetParentSession(), one.Session())
	expect(t, "parent turn of choice 1", actions[e.TurnID(1)].GetParentTurnId(), one.TurnID(0))
	expect(t, "what follows choice 1", actions[second.TurnID(0)].GetContext().GetParentTurnId(), e.TurnID(1))
	closed := w.closed()
	expect(t, "next state of choice 1", observed(closed[e.TurnID(1)].GetNextState()), "u:c")
	expect(t, "next state of choice 0", observed(closed[e.TurnID(0)].GetNextState()), "u:c")
	if actions[e.TurnID(2)] != nil {
		t.Error("a dropped choice is recorded")
	}
}

// TestJournalFails: what the journal does not take is not referred to, and the session goes on. Method: the append of a turn fails, then that of a next
// state; the requests after them are recorded whole.
func TestJournalFails(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	fail := func() { w.log.OnAppend(func([]schemas.Record) memlog.Fault { return memlog.Refused }) }
	one := w.turn(nil, "A", user("a"))
	lost := w.begin(nil, user("a"), assistant("A"), user("b"))
	fail()
	if err := lost.Finish(t.Context(), 0, action(assistant("B")), nil); !errors.Is(err, memlog.ErrInjected) {
		t.Fatalf("the error of the journal is %v", err)
	}
	w.log.OnAppend(nil)
	three := w.turn(nil, "C", user("a"), assistant("A"), user("b"), assistant("B"), user("c"))
	fail()
	if _, err := w.book.Begin(t.Context(), w.request(nil, user("a"), assistant("A"), user("b"), assistant("B"), user("c"), assistant("C"), user("d"))); !errors.Is(err, memlog.ErrInjected) {
		t.Fatalf("the error of the journal is %v", err)
	}
	w.log.OnAppend(nil)
	// The client was served without a record meanwhile: what it heard is part of the next state.
	four := w.turn(nil, "E", user("a"), assistant("A"), user("b"), assistant("B"), user("c"), assistant("C"), user("d"), assistant("D"), user("e"))
	expect(t, "session", three.Session(), one.Session())
	expect(t, "session", four.Session(), one.Session())
	actions, closed := w.actions(), w.closed()
	expect(t, "context after the lost turn", text(actions[three.TurnID(0)].GetContext().GetMessages()), "u:a a:A u:b a:B u:c")
	expect(t, "next state", observed(closed[one.TurnID(0)].GetNextState()), "u:b")
	expect(t, "next state", observed(closed[three.TurnID(0)].GetNextState()), "u:d a:D u:e")
}
