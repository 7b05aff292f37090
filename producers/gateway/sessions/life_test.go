package sessions_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// TestFeedback: feedback finds its turn by the response's id, whatever form the id has, before and after a restart; one that is unknown is an error that
// says so. Method: each form, another tenant's, and a turn of another producer.
func TestFeedback(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	e := w.begin(nil, user("hi"))
	a := action(assistant("Hello"))
	a.ResponseId = proto.String("gen-123")
	if err := e.Finish(t.Context(), 0, a, nil); err != nil {
		t.Fatal(err)
	}
	foreign := schemas.Event{
		ID: schemas.NewID(), Source: "client/go", Tenant: "acme", Session: "theirs",
		Payload: &schemas.ActionTaken{Kind: schemas.TurnKind_TURN_KIND_MAIN, Context: &schemas.Context{}, Response: assistant("x").message()},
	}
	record, err := schemas.Encode(foreign)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.log.Append(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	given := &schemas.FeedbackGiven{Score: proto.Float64(1)}
	ids := []string{"gen-123", e.TurnID(0), "chatcmpl-" + e.TurnID(0)}
	for range 2 {
		for _, id := range ids {
			if err := w.book.Feedback(t.Context(), "acme", id, given); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		if err := w.book.Feedback(t.Context(), "other", "gen-123", given); !errors.Is(err, sessions.ErrUnknownTurn) {
			t.Errorf("another tenant's response: %v", err)
		}
		w.reopen()
		ids = append(ids, foreign.ID)
	}
	if given.TurnId != nil {
		t.Error("the caller's message was changed")
	}
	n := 0
	for _, event := range w.events() {
		if f, ok := event.Payload.(*schemas.FeedbackGiven); ok {
			n++
			want, session := e.TurnID(0), e.Session()
			if event.Session == "theirs" {
				want, session = foreign.ID, "theirs"
			}
			expect(t, "turn", f.GetTurnId(), want)
			expect(t, "session", event.Session, session)
		}
	}
	expect(t, "events", n, 7)
}

// TestEnd: a session that was ended, here or by somebody else, is over: what follows is a new life that refers to nothing before. Method: end a named
// session between two turns, and while one is in work, and go on; pair must know every parent.
func TestEnd(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	mine := named("s")
	ctx := t.Context()
	end := func() {
		t.Helper()
		if err := w.book.End(ctx, "acme", "s", ""); err != nil {
			t.Fatal(err)
		}
	}
	one := w.turn(mine, "A", user("a"))
	inferred := w.turn(nil, "A", user("i"))
	if err := w.book.End(ctx, "acme", inferred.Session(), "done"); err != nil {
		t.Fatal(err)
	}
	fresh := w.turn(nil, "B", user("i"), assistant("A"), user("j"))
	if strings.HasPrefix(fresh.Session(), inferred.Session()) {
		t.Error("an ended session goes on")
	}
	end()
	two := w.turn(mine, "B", user("a"), assistant("A"), user("b"))
	inWork := w.begin(mine, user("a"), assistant("A"), user("b"), assistant("B"), user("c"))
	end()
	w.finish(inWork, assistant("C"))
	four := w.turn(mine, "D", user("a"), assistant("A"), user("b"), assistant("B"), user("c"), assistant("C"), user("d"))
	record, err := schemas.Encode(schemas.Event{ID: schemas.NewID(), Source: "client/go", Tenant: "acme", Session: "s", Payload: &schemas.SessionEnded{Reason: "solved"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.log.Append(ctx, record); err != nil {
		t.Fatal(err)
	}
	w.book.Forget("acme", "s")
	five := w.turn(mine, "E", user("a"), assistant("A"), user("b"), assistant("B"), user("c"), assistant("C"), user("d"), assistant("D"), user("e"))
	if err := w.book.End(ctx, "acme", "never seen", "x"); err != nil {
		t.Error(err)
	}
	if err := w.book.End(ctx, "acme", "", "x"); !errors.Is(err, sessions.ErrBadRequest) {
		t.Errorf("an empty session: %v", err)
	}
	actions, closed := w.actions(), w.closed()
	for i, e := range []*sessions.Exchange{one, two, inWork, four, five} {
		expect(t, "session", e.Session(), "s")
		if isDelta := actions[e.TurnID(0)].GetContext().ParentTurnId != nil; isDelta != (i == 3) {
			t.Errorf("turn %d: delta is %v", i, isDelta)
		}
	}
	expect(t, "how the first turn closed", closed[one.TurnID(0)].GetEndReason(), "ended by the client")
	expect(t, "next state", observed(closed[two.TurnID(0)].GetNextState()), "u:c")
	expect(t, "next state", observed(closed[inWork.TurnID(0)].GetNextState()), "u:d")
	expect(t, "how the fourth turn closed", closed[four.TurnID(0)].GetEndReason(), "solved")
}

// TestEndInWork: a request that is in work when its session ends is recorded whole, and never between the turns of the session's next life. Method: end the
// session before the next state is appended, while sampling, and begin it again under its name before the old answer comes.
func TestEndInWork(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	mine := named("s")
	end := func() {
		t.Helper()
		if err := w.book.End(t.Context(), "acme", "s", "stop"); err != nil {
			t.Fatal(err)
		}
	}
	w.turn(nil, "x", user("b")) // known, so that Begin decodes it only after it found the session
	one := w.turn(mine, "A", user("a"))
	two := w.begin(func(r *sessions.Request) {
		r.Session = "s"
		parse := r.Parse
		r.Parse = func(raw json.RawMessage) (*schemas.Message, error) {
			if one != nil && string(raw) == `{"role":"user","content":"b"}` {
				one = nil
				end()
			}
			return parse(raw)
		}
	}, user("a"), assistant("A"), user("b"))
	if one != nil {
		t.Fatal("the session was not ended inside of Begin")
	}
	w.finish(two, assistant("B"))

	three := w.begin(mine, user("a"), assistant("A"), user("b"), assistant("B"), user("c"))
	end()
	w.abort(three, assistant("C, half"))
	again := w.begin(func(r *sessions.Request) { r.Session, r.Retry = "s", true }, user("a"), assistant("A"), user("b"), assistant("B"), user("c"))
	w.finish(again, assistant("C"))
	expect(t, "retry_of", w.actions()[again.TurnID(0)].GetAttributes()["retry_of"], three.TurnID(0))
	expect(t, "context of the retry", w.actions()[again.TurnID(0)].GetContext().ParentTurnId == nil, true)

	old := w.begin(mine, user("a"), assistant("A"), user("b"), assistant("B"), user("c"), assistant("C"), user("d"))
	end()
	fresh := w.turn(mine, "F", user("new"))
	w.finish(old, assistant("D"))
	fresh2 := w.turn(mine, "G", user("new"), assistant("F"), user("newer"))
	expect(t, "session of the next life", fresh2.Session(), "s")
	expect(t, "parent of the late answer", w.actions()[old.TurnID(0)].GetParentSession(), "s")
	closed := w.closed()
	expect(t, "next state in the next life", observed(closed[fresh.TurnID(0)].GetNextState()), "u:newer")
}

// TestIdle: a silent session ends once and is forgotten, one in work is not, and what comes late is a session of its own for which pair has everything.
// Method: a synctest bubble in which Run sees half an hour pass; the first append of an end fails and is done again.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sessions.Config{EndIdle: true})
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error)
		go func() { stopped <- w.book.Run(ctx) }()
		one := w.turn(nil, "A", user("a"))
		mine := w.turn(named("s"), "A", user("s"))
		time.Sleep(20 * time.Minute)
		on := w.turn(nil, "B", user("a"), assistant("A"), user("b"))
		expect(t, "session after twenty minutes", on.Session(), one.Session())
		slow := w.begin(nil, user("slow"))
		fails := 0
		w.log.OnAppend(func([]schemas.Record) memlog.Fault {
			if fails++; fails == 1 {
				return memlog.Refused
			}
			return memlog.Applied
		})
		time.Sleep(25 * time.Minute)
		again := w.turn(named("s"), "B", user("s"), assistant("A"), user("t"))
		expect(t, "session", again.Session(), "s")
		time.Sleep(25 * time.Minute)
		w.finish(slow, assistant("done"))
		late := w.turn(nil, "C", user("a"), assistant("A"), user("b"), assistant("B"), user("c"))
		if late.Session() == one.Session() {
			t.Error("a session goes on after its end")
		}
		after := w.turn(nil, "more", user("slow"), assistant("done"), user("next"))
		expect(t, "session of the slow request", after.Session(), slow.Session())
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		ends := map[string]int{}
		for _, e := range w.events() {
			if end, ok := e.Payload.(*schemas.SessionEnded); ok {
				ends[e.Session]++
				expect(t, "reason", end.GetReason(), "idle")
			}
		}
		expect(t, "ends of the first session", ends[one.Session()], 1)
		expect(t, "ends of the named session", ends["s"], 1)
		expect(t, "ends in all", len(ends), 2)
		if closed := w.closed(); closed[mine.TurnID(0)].GetEndReason() != "idle" {
			t.Errorf("the turn closed by %v", closed[mine.TurnID(0)].GetCloseReason())
		}
		if fails < 3 {
			t.Error("no append failed")
		}
	})
}

// TestRestore: a gateway that was killed at any point knows its sessions again: they go on, next states are not repeated, twins stay two, and callers stay
// apart. Method: kill after a whole context, after deltas, between Begin and Finish, and after the end of a session.
func TestRestore(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	bob := func(r *sessions.Request) { r.User = "bob" }
	messages := []wire{system("s"), user("0")}
	first := w.turn(nil, "A", messages...)
	other := w.turn(bob, "A", messages...)
	gone := w.turn(named("gone"), "A", user("g"))
	if err := w.book.End(t.Context(), "acme", "gone", "done"); err != nil {
		t.Fatal(err)
	}
	var last *sessions.Exchange
	for i := range 5 {
		messages = append(messages, assistant("A"), user(fmt.Sprint(i)))
		if i%2 == 1 { // killed while sampling: the client asks again
			w.begin(nil, messages...)
			w.reopen()
		}
		last = w.turn(nil, "A", messages...)
		expect(t, "session", last.Session(), first.Session())
		w.reopen()
	}
	edit := w.turn(nil, "E", append(messages[:4:4], assistant("A"), user("edited"))...)
	w.reopen()
	afterEdit := w.turn(nil, "F", append(messages[:4:4], assistant("A"), user("edited"), assistant("E"), user("x"))...)
	bobs := w.turn(bob, "B", system("s"), user("0"), assistant("A"), user("mine"))
	anew := w.turn(named("gone"), "B", user("g"), assistant("A"), user("h"))
	actions, closed := w.actions(), w.closed()
	expect(t, "session of bob", bobs.Session(), other.Session())
	expect(t, "session after the edit", afterEdit.Session(), edit.Session())
	expect(t, "parent of the edit", actions[edit.TurnID(0)].GetParentSession(), first.Session())
	expect(t, "context after the end", text(actions[anew.TurnID(0)].GetContext().GetMessages()), "u:g a:A u:h")
	expect(t, "the last turn saw", text(resolve(t, actions, last.TurnID(0))), wireText(messages))
	expect(t, "next state", observed(closed[first.TurnID(0)].GetNextState()), "u:0")
	expect(t, "next state of bob", observed(closed[other.TurnID(0)].GetNextState()), "u:mine")
	expect(t, "how the ended session closed", closed[gone.TurnID(0)].GetEndReason(), "done")
}

// TestRestoreReachesBack: a session that was open for hours is known again, because no delta reaches further back than what Restore reads; one that was
// silent for long is not. Method: a synctest bubble, a turn every four minutes for two hours, then a restart.
func TestRestoreReachesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sessions.Config{})
		old := w.turn(nil, "O", user("old"))
		messages := []wire{user("0")}
		var last *sessions.Exchange
		for i := range 30 {
			last = w.turn(nil, "A", messages...)
			messages = append(messages, assistant("A"), user(fmt.Sprint(i)))
			time.Sleep(4 * time.Minute)
		}
		deltas := 0
		for _, a := range w.actions() {
			if a.GetContext().ParentTurnId != nil {
				deltas++
			}
		}
		expect(t, "deltas", deltas, 20)
		time.Sleep(20 * time.Minute)
		w.reopen()
		expect(t, "session", w.turn(nil, "A", messages...).Session(), last.Session())
		if again := w.turn(nil, "P", user("old"), assistant("O"), user("x")); again.Session() == old.Session() {
			t.Error("a session goes on that was silent for two hours")
		}
		w.closed()
	})
}

// TestRestoreBounded: Restore reads no more than its bound, and a delta whose parent it did not read makes the session known by its name. Method: a
// bound of one record.
func TestRestoreBounded(t *testing.T) {
	w := newWorld(t, sessions.Config{RestoreRecords: 1})
	w.turn(named("s"), "A", user("a"))
	two := w.turn(named("s"), "B", user("a"), assistant("A"), user("b"))
	w.reopen()
	three := w.turn(named("s"), "C", user("a"), assistant("A"), user("b"), assistant("B"), user("c"))
	expect(t, "session", three.Session(), "s")
	expect(t, "context", w.actions()[three.TurnID(0)].GetContext().GetParentTurnId(), "")
	expect(t, "next state", observed(w.closed()[two.TurnID(0)].GetNextState()), "u:c")
}

// TestBounds: the Book keeps no more than its bounds say: what was used last stays. Method: one session too many, one state too many, one answer too many.
func TestBounds(t *testing.T) {
	w := newWorld(t, sessions.Config{MaxSessions: 3, MaxStatesOfSession: 2, MaxAnswers: 1, AnswerBytes: 800})
	one := w.turn(nil, "A", user("1"))
	for _, text := range []string{"2", "3", "4"} {
		w.turn(nil, "A", user(text))
	}
	back := w.turn(nil, "B", user("1"), assistant("A"), user("x"))
	if back.Session() == one.Session() {
		t.Error("the oldest of four sessions is still known")
	}
	three := w.turn(nil, "B", user("4"), assistant("A"), user("b"))
	four := w.turn(nil, "C", user("4"), assistant("A"), user("b"), assistant("B"), user("c"))
	expect(t, "session", four.Session(), three.Session())
	if branch := w.turn(nil, "X", user("4"), assistant("A"), user("edited")); strings.HasPrefix(branch.Session(), three.Session()) {
		t.Error("a state beyond the bound is still known")
	}
	if e := w.begin(retry, user("4"), assistant("A"), user("edited")); e.Stored() == nil {
		t.Error("the newest answer is not kept")
	}
	if e := w.begin(retry, user("4"), assistant("A"), user("b"), assistant("B"), user("c")); e.Stored() != nil {
		t.Error("an answer beyond the bound is kept")
	} else {
		w.finish(e, assistant(strings.Repeat("long", 100)))
	}
	if e := w.begin(retry, user("4"), assistant("A"), user("b"), assistant("B"), user("c")); e.Stored() != nil {
		t.Error("an answer is kept that is larger than an eighth of the bound")
	}
}

// TestAnswerAge: an answer is kept for its time. Method: a synctest bubble.
func TestAnswerAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sessions.Config{})
		w.turn(nil, "A", user("a"))
		time.Sleep(9 * time.Minute)
		if e := w.begin(retry, user("a")); e.Stored() == nil {
			t.Error("the answer is gone after nine minutes")
		}
		time.Sleep(2 * time.Minute)
		if e := w.begin(retry, user("a")); e.Stored() != nil {
			t.Error("the answer is kept after eleven minutes")
		}
	})
}

// TestBadRequests: what cannot be placed or recorded is refused with its reason before anything is begun, and leaves no trace. Method: each kind.
func TestBadRequests(t *testing.T) {
	w := newWorld(t, sessions.Config{})
	huge := user(strings.Repeat("x", 8<<20))
	for name, c := range map[string]struct {
		change   func(*sessions.Request)
		messages []wire
		want     error
		says     string
	}{
		"no messages":    {nil, nil, sessions.ErrBadRequest, "send at least one"},
		"no role":        {nil, []wire{{Role: "clown", Content: "x"}}, sessions.ErrBadRequest, "messages[0]"},
		"session":        {named("a\nb"), []wire{user("x")}, sessions.ErrBadRequest, "control characters"},
		"too large":      {nil, []wire{huge}, sessions.ErrTooLarge, "shorten the history"},
		"tenant":         {func(r *sessions.Request) { r.Messages = []*schemas.Message{}; r.Parse = nil }, []wire{user("x")}, sessions.ErrBadRequest, "1 raw and 0 decoded"},
		"does not parse": {func(r *sessions.Request) { r.Raw[0] = []byte("{") }, []wire{user("x")}, nil, "messages[0]: unexpected end"},
	} {
		_, err := w.book.Begin(t.Context(), w.request(c.change, c.messages...))
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e := w.begin(nil, user("hi"))
	if err := e.Finish(t.Context(), 0, action(assistant(strings.Repeat("x", 9<<20))), nil); !errors.Is(err, sessions.ErrTooLarge) {
		t.Errorf("a response that is too large: %v", err)
	}
	e = w.begin(nil, user("nothing"))
	if err := e.Finish(t.Context(), 0, nil, nil); err == nil {
		t.Error("a turn without an action is taken")
	}
	expect(t, "events", len(w.events()), 0)

	stuck := w.begin(nil, user("slow"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.book.Begin(ctx, w.request(retry, user("slow"))); !errors.Is(err, context.Canceled) {
		t.Errorf("a retry whose client went away: %v", err)
	}
	stuck.Drop(0)
}

// TestConfig: settings that cannot work are refused with what to do. Method: one wrong setting at a time.
func TestConfig(t *testing.T) {
	for want, cfg := range map[string]sessions.Config{
		"":                        {},
		"at most half of idle":    {DeltaWithin: time.Hour},
		"must not be negative":    {Idle: -1},
		"must be positive":        {MaxTurns: -1},
		"is no rule of the table": {WithoutRules: []string{"nonsense"}},
		"missing closing":         {Rules: []sessions.Rule{{Name: "x", User: "("}}},
		"at least one of":         {Rules: []sessions.Rule{{Name: "x"}}},
		"must be in lower case":   {Rules: []sessions.Rule{{Name: "x", User: "x", Word: "X"}}},
		"at most 64":              {Rules: make([]sessions.Rule, 64)},
	} {
		for i := range cfg.Rules {
			if len(cfg.Rules) > 1 {
				cfg.Rules[i] = sessions.Rule{Name: "x", User: "x"}
			}
		}
		err := cfg.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestRules: each rule of the table knows a request of the kind that it is for, and ordinary requests that only sound like one stay main turns. Method: one
// line a rule, and a list of requests of people.
func TestRules(t *testing.T) {
	side := map[string][]wire{
		"open-webui task": {user("### Task:\nSuggest 3-5 relevant follow-up questions\n### Chat History:")},
		"title":           {user("a"), assistant("b"), user("Provide a concise, 5-word-or-less title for the conversation, using its same language")},
		"title system":    {system("You are a title generator. Output only the title."), user("hi")},
		"follow-ups":      {user("Suggest three short follow-up questions that I may ask.")},
		"tags":            {user("Generate 1-3 broad tags for the themes of the chat history")},
		"search query":    {system("Rephrase the follow up question to be a standalone question."), user("and Bern?")},
		"topic detection": {system("Analyze if this message indicates a new conversation topic."), user("fix it")},
		"coding title":    {user("Summarize this coding conversation in under 50 characters.")},
		"command prefix":  {system("Your task is to process Bash commands that an agent wants to run."), user("git log")},
		"suggestion mode": {user("[SUGGESTION MODE: what would the user type next?]")},
		"quota probe":     {user("quota")},
		"summary":         {user("x"), assistant("y"), user("Your task is to create a detailed summary of the conversation so far")},
		"summary system":  {system("You are a helpful assistant tasked with summarizing conversations."), user("x")},
		"running summary": {user("Progressively summarize the lines of conversation provided")},
		"memory":          {user("Pre-compaction memory flush. Store what lasts.")},
		"memory system":   {system("Extract durable memories from the conversation below."), user("x")},
		"heartbeat":       {user("Read HEARTBEAT.md if it exists. If nothing needs attention, reply HEARTBEAT_OK.")},
		"slug":            {user("Based on this conversation, generate a short 1-2 word filename slug")},
	}
	for _, rule := range sessions.DefaultRules() {
		messages, ok := side[rule.Name]
		if !ok {
			t.Errorf("rule %q has no example", rule.Name)
			continue
		}
		w := newWorld(t, sessions.Config{})
		one := func(r *sessions.Request) { r.MaxTokens = 1 }
		e := w.turn(one, "x", messages...)
		expect(t, "rule of "+wireText(messages), w.actions()[e.TurnID(0)].GetAttributes()["side_rule"], rule.Name)
		w.cfg.WithoutRules = []string{rule.Name}
		w.reopen()
		expect(t, "kind without rule "+rule.Name, w.turn(one, "x", messages...).Kind(), schemas.TurnKind_TURN_KIND_MAIN)
	}
	w := newWorld(t, sessions.Config{})
	for _, text := range []string{
		"What is a good title for my blog post about cats?", "Summarize this article in two sentences.", "Generate a function that tags images.",
		"Create a detailed summary of the French Revolution.", "My heartbeat is 90, is that fine?", "ping", "Write a title for this poem",
		"Suggest a follow-up exam for the patient", "Analyze if this message is spam", "How do I process bash commands in Go?", "extract the memory address",
	} {
		for _, messages := range [][]wire{{user(text)}, {system("You are a helpful assistant. You have a memory and write titles."), user(text)}} {
			expect(t, "kind of "+text, w.turn(nil, "x", messages...).Kind(), schemas.TurnKind_TURN_KIND_MAIN)
		}
	}
}
