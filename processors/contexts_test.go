package processors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// conversations are turns of one partition whose contexts are known: each is recorded whole, or as what was added to a turn before.
type conversations struct {
	turns []schemas.Event
	whole map[string]*schemas.Context // by turn id
}

// randomConversations makes n turns of a few sessions that take turns, grow by user messages, tool results and tools, and start over.
func randomConversations(r *rand.Rand, n int) conversations {
	c := conversations{whole: map[string]*schemas.Context{}}
	type state struct {
		last  string
		whole *schemas.Context
		reply *schemas.Message
	}
	sessions := map[string]*state{}
	text := func(role schemas.Role) *schemas.Message {
		return textMessage(role, fmt.Sprintf("%s %d", role, r.IntN(1000)))
	}
	for i := range n {
		tenant, session := fmt.Sprintf("t%d", r.IntN(2)), fmt.Sprintf("s%d", r.IntN(3))
		s := sessions[tenant+session]
		var added []*schemas.Message
		for range 1 + r.IntN(3) {
			added = append(added, text([]schemas.Role{schemas.Role_ROLE_USER, schemas.Role_ROLE_TOOL}[r.IntN(2)]))
		}
		var tools []*schemas.Tool
		if r.IntN(3) == 0 {
			tools = []*schemas.Tool{{Name: fmt.Sprintf("tool%d", i)}}
		}
		recorded := &schemas.Context{Messages: added, Tools: tools}
		whole := proto.CloneOf(recorded)
		if s != nil && r.IntN(6) > 0 { // it goes on, else it starts over
			whole.Messages = append(append(append([]*schemas.Message{}, s.whole.GetMessages()...), s.reply), added...)
			if tools == nil {
				whole.Tools = s.whole.GetTools()
			}
			if r.IntN(4) > 0 {
				recorded.ParentTurnId = &s.last
			} else {
				recorded = whole
			}
		}
		turn := closed(observation(userReplyK, "hm"))
		turn.TurnId, turn.Action.Context, turn.Action.Response = id(fmt.Sprintf("turn %d", i)), recorded, text(schemas.Role_ROLE_ASSISTANT)
		c.whole[turn.TurnId] = whole
		sessions[tenant+session] = &state{turn.TurnId, whole, turn.Action.Response}
		c.turns = append(c.turns, schemas.Event{
			ID: id(fmt.Sprintf("closed %d", i)), Source: "pair/1", Tenant: tenant, Session: session, LogTime: epoch.Add(time.Duration(i) * time.Second), Payload: turn,
			Position: schemas.Position{Topic: schemas.TopicTurns, Offset: int64(i)},
		})
	}
	return c
}

// TestContextsResolve: the whole context of a turn is what the policy saw, however it was recorded. Method: random conversations in a log; each
// turn is resolved with a memory that holds all turns, with one that holds next to nothing, and by a new owner that begins in the middle;
// then compared with the conversation itself.
func TestContextsResolve(t *testing.T) {
	deltas := 0
	for seed := range uint64(10) {
		c := randomConversations(rand.New(rand.NewPCG(seed, 5)), 150) //nolint:gosec // reproducible on purpose
		log := memlog.New(1)
		if err := log.Append(t.Context(), encode(t, c.turns)...); err != nil {
			t.Fatal(err)
		}
		for name, run := range map[string]struct {
			cfg  ContextsConfig
			from int
		}{
			"all in memory":  {ContextsConfig{Turns: log}, 0},
			"a tiny memory":  {ContextsConfig{Turns: log, Bytes: 400}, 0},
			"a new owner":    {ContextsConfig{Turns: log}, 100},
			"nothing in log": {ContextsConfig{Turns: emptyReader{}}, 0},
		} {
			contexts := newContexts(run.cfg)
			for _, e := range c.turns[run.from:] {
				turn := e.Payload.(*schemas.TurnClosed)
				contexts.add(e, turn)
				got, err := contexts.resolve(t.Context(), e, turn)
				if err != nil {
					t.Fatalf("seed %d, %s, turn at %d: %v", seed, name, e.Position.Offset, err)
				}
				if want := c.whole[turn.GetTurnId()]; !proto.Equal(&schemas.Context{Messages: want.GetMessages(), Tools: want.GetTools()}, got) {
					t.Fatalf("seed %d, %s, turn at %d:\ngot  %v\nwant %v", seed, name, e.Position.Offset, got, want)
				}
				if turn.GetAction().GetContext().ParentTurnId != nil {
					deltas++
				}
			}
			if contexts.bytes > contexts.cfg.Bytes {
				t.Fatalf("%d bytes are remembered, %d are allowed", contexts.bytes, contexts.cfg.Bytes)
			}
		}
	}
	if deltas < 1000 {
		t.Errorf("only %d of the contexts name a parent", deltas)
	}
}

// emptyReader is a log that was truncated behind the turn at hand.
type emptyReader struct{}

func (emptyReader) Open(context.Context, string, int, int64) (schemas.Cursor, error) {
	return nil, schemas.ErrTruncated
}

func (emptyReader) Bounds(context.Context, string) ([]schemas.Bounds, error) {
	return []schemas.Bounds{{}}, nil
}

// brokenReader is a log that cannot be read now.
type brokenReader struct{ emptyReader }

func (brokenReader) Bounds(context.Context, string) ([]schemas.Bounds, error) { return nil, errDead }

// TestContextsNotFound states what happens when a parent cannot be had: a reason when it never can, an error when it may. Method: one turn with
// a parent, against logs that lack it.
func TestContextsNotFound(t *testing.T) {
	child := closed(observation(userReplyK, "hm"))
	child.Action.Context.ParentTurnId = proto.String(id("parent"))
	parent := closed(observation(userReplyK, "hm"))
	parent.TurnId = id("parent")
	filled := func(tenant string, payload *schemas.TurnClosed) schemas.Reader {
		log := memlog.New(1)
		for i := range 20 {
			e := schemas.Event{ID: id(fmt.Sprint("e", i)), Source: "pair/1", Tenant: tenant, Session: "x", Payload: closed()}
			if i == 0 {
				e.Payload = payload
			}
			if err := log.Append(t.Context(), encode(t, []schemas.Event{e})...); err != nil {
				t.Fatal(err)
			}
		}
		return log
	}
	circle := proto.CloneOf(parent)
	circle.Action.Context.ParentTurnId = proto.String(id("a1"))
	long := proto.CloneOf(parent)
	long.Action.Context.Messages[0] = textMessage(schemas.Role_ROLE_USER, strings.Repeat("long ", 1000))
	for name, c := range map[string]struct {
		cfg  ContextsConfig
		want string // in the reason; "" with found, "error" for an error that may pass
	}{
		"found":                      {ContextsConfig{Turns: filled("acme", parent)}, ""},
		"too far back":               {ContextsConfig{Turns: filled("acme", parent), Lookback: 19}, "is not among the turns before it"},
		"a session of another owner": {ContextsConfig{Turns: filled("other", parent)}, "is not among the turns before it"},
		"no longer retained":         {ContextsConfig{Turns: emptyReader{}}, "is not among the turns before it"},
		"no log to look in":          {ContextsConfig{}, "is not among the turns before it"},
		"a circle":                   {ContextsConfig{Turns: filled("acme", circle)}, "is its own ancestor"},
		"too large":                  {ContextsConfig{Turns: filled("acme", long), MaxBytes: 1000}, "has more than 1000 bytes"},
		"a log that is down":         {ContextsConfig{Turns: brokenReader{}}, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			e := schemas.Event{Tenant: "acme", Session: "x", Payload: child, Position: schemas.Position{Topic: schemas.TopicTurns, Offset: 20}}
			_, err := newContexts(c.cfg).resolve(t.Context(), e, child)
			var none *noTeacherError
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want == "error" && (!errors.Is(err, errDead) || errors.As(err, &none) || IsPermanent(err)):
				t.Errorf("got %v, want an error that is retried", err)
			case c.want != "" && c.want != "error" && (!errors.As(err, &none) || !strings.Contains(none.reason, c.want)):
				t.Errorf("got %v, want a reason with %q", err, c.want)
			}
		})
	}
}

// TestDirectPutsTheHintIntoTheWholeContext: the hint belongs to the last user message of the conversation, also when the action recorded only
// what was added to a turn before. Method: a question, a tool call, its result; the teacher of the second turn writes down what it is shown.
func TestDirectPutsTheHintIntoTheWholeContext(t *testing.T) {
	first, second := taughtTurn(), taughtTurn()
	first.TurnId = id("first")
	first.Action.Context.Tools = []*schemas.Tool{{Name: "bash"}}
	second.Action.Context = &schemas.Context{ParentTurnId: proto.String(id("first")), Messages: []*schemas.Message{textMessage(schemas.Role_ROLE_TOOL, "done")}}
	var shown []*schemas.Message
	var offered []*schemas.Tool
	show := teacherCalls(func(ctx context.Context, q TeacherQuery) ([]*schemas.TeacherScored, error) {
		whole, err := q.Context(ctx)
		if err != nil {
			return nil, err
		}
		shown, offered = AppendHint(whole.GetMessages(), q.Candidates[0]), whole.GetTools()
		return []*schemas.TeacherScored{teacherSharing(1)}, nil
	})
	d := NewDirect(DirectConfig{Finders: []Finder{finderFunc{"f", hinted("Show the steps.")}}, Teacher: show, Contexts: ContextsConfig{Turns: emptyReader{}}})
	processOne(t, d, first)
	processOne(t, d, second)
	want := []*schemas.Message{
		textMessage(schemas.Role_ROLE_USER, "Do a1\n\n[user's hint / instruction]\nShow the steps."), first.GetAction().GetResponse(), textMessage(schemas.Role_ROLE_TOOL, "done"),
	}
	if !proto.Equal(&schemas.Context{Messages: shown, Tools: offered}, &schemas.Context{Messages: want, Tools: first.GetAction().GetContext().GetTools()}) {
		t.Errorf("the teacher was shown %v with %v, want %v", shown, offered, want)
	}
}

type teacherCalls func(ctx context.Context, q TeacherQuery) ([]*schemas.TeacherScored, error)

func (f teacherCalls) Score(ctx context.Context, q TeacherQuery) ([]*schemas.TeacherScored, error) {
	return f(ctx, q)
}
