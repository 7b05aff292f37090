package sessions_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// world is a log, the Book over it, and what the test asked.
type world struct {
	t      *testing.T
	cfg    sessions.Config
	log    *memlog.Log
	book   *sessions.Book
	parsed int
}

func newWorld(t *testing.T, cfg sessions.Config) *world {
	w := &world{t: t, cfg: cfg, log: memlog.New(1)}
	w.reopen()
	return w
}

// reopen is what a restart after kill -9 does: a new Book that has nothing but the log.
func (w *world) reopen() {
	w.t.Helper()
	book, err := sessions.New(w.cfg, w.log, sessions.Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := book.Restore(w.t.Context(), w.log); err != nil {
		w.t.Fatal(err)
	}
	w.book = book
}

// wire is a message as these tests send it.
type wire struct {
	Role    string     `json:"role"`
	Content string     `json:"content,omitempty"`
	Calls   []wireCall `json:"tool_calls,omitempty"`
	CallID  string     `json:"tool_call_id,omitempty"`
}

type wireCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

var roles = map[string]schemas.Role{
	"system": schemas.Role_ROLE_SYSTEM, "developer": schemas.Role_ROLE_DEVELOPER, "user": schemas.Role_ROLE_USER,
	"assistant": schemas.Role_ROLE_ASSISTANT, "tool": schemas.Role_ROLE_TOOL,
}

func (m wire) message() *schemas.Message {
	p := &schemas.Message{Role: roles[m.Role]}
	if m.Content != "" {
		p.Parts = []*schemas.Part{{Content: &schemas.Part_Text{Text: m.Content}}}
	}
	for _, c := range m.Calls {
		p.ToolCalls = append(p.ToolCalls, &schemas.ToolCall{Id: c.ID, Name: c.Name, Arguments: c.Arguments})
	}
	if m.CallID != "" {
		p.ToolCallId = proto.String(m.CallID)
	}
	return p
}

func user(text string) wire      { return wire{Role: "user", Content: text} }
func assistant(text string) wire { return wire{Role: "assistant", Content: text} }
func system(text string) wire    { return wire{Role: "system", Content: text} }

// request makes a request of messages; change may be nil.
func (w *world) request(change func(*sessions.Request), messages ...wire) *sessions.Request {
	w.t.Helper()
	r := &sessions.Request{Identity: sessions.Identity{Tenant: "acme", KeyID: "k1"}}
	sum := sha256.New()
	for _, m := range messages {
		raw, err := json.Marshal(m)
		if err != nil {
			w.t.Fatal(err)
		}
		r.Raw = append(r.Raw, raw)
		sum.Write(raw)
	}
	sum.Sum(r.Digest[:0])
	r.Parse = func(raw json.RawMessage) (*schemas.Message, error) {
		w.parsed++
		var m wire
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, err
		}
		return m.message(), nil
	}
	if change != nil {
		change(r)
	}
	return r
}

func (w *world) begin(change func(*sessions.Request), messages ...wire) *sessions.Exchange {
	w.t.Helper()
	e, err := w.book.Begin(w.t.Context(), w.request(change, messages...))
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func action(m wire) *schemas.ActionTaken {
	return &schemas.ActionTaken{Response: m.message(), Model: "policy", FinishReason: schemas.FinishReason_FINISH_REASON_STOP}
}

// finish ends choice 0 with a response.
func (w *world) finish(e *sessions.Exchange, m wire) {
	w.t.Helper()
	if err := e.Finish(w.t.Context(), 0, action(m), &sessions.Stored{Body: []byte(m.Content)}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) abort(e *sessions.Exchange, m wire) {
	w.t.Helper()
	a := action(m)
	a.FinishReason = schemas.FinishReason_FINISH_REASON_ABORTED
	if err := e.Finish(w.t.Context(), 0, a, nil); err != nil {
		w.t.Fatal(err)
	}
}

// turn is a whole exchange.
func (w *world) turn(change func(*sessions.Request), answer string, messages ...wire) *sessions.Exchange {
	w.t.Helper()
	e := w.begin(change, messages...)
	w.finish(e, assistant(answer))
	return e
}

func named(session string) func(*sessions.Request) {
	return func(r *sessions.Request) { r.Session = session }
}

func retry(r *sessions.Request) { r.Retry = true }

// events decodes everything that was appended, in order.
func (w *world) events() []schemas.Event {
	w.t.Helper()
	bounds, err := w.log.Bounds(w.t.Context(), schemas.TopicInteractions)
	if err != nil {
		w.t.Fatal(err)
	}
	cursor, err := w.log.Open(w.t.Context(), schemas.TopicInteractions, 0, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer cursor.Close()
	var events []schemas.Event
	for int64(len(events)) < bounds[0].Next {
		records, err := cursor.Next(w.t.Context(), 1000)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, r := range records {
			e, err := schemas.Decode(r)
			if err != nil {
				w.t.Fatal(err)
			}
			events = append(events, e)
		}
	}
	return events
}

// actions are the recorded turns by id.
func (w *world) actions() map[string]*schemas.ActionTaken {
	found := map[string]*schemas.ActionTaken{}
	for _, e := range w.events() {
		if a, ok := e.Payload.(*schemas.ActionTaken); ok {
			found[e.ID] = a
		}
	}
	return found
}

// closed runs the real processors over the log and returns each turn that they close; a dead letter fails the test.
func (w *world) closed() map[string]*schemas.TurnClosed {
	w.t.Helper()
	turns := map[string]*schemas.TurnClosed{}
	err := processors.Derive(context.Background(), func(yield func(schemas.Event, error) bool) {
		for _, e := range w.events() {
			if !yield(e, nil) {
				return
			}
		}
	}, processors.DeriveOptions{}, func(e schemas.Event) error {
		switch p := e.Payload.(type) {
		case *schemas.TurnClosed:
			turns[p.GetTurnId()] = p
		case *schemas.DeadLettered:
			w.t.Errorf("dead letter: %s", p.GetReason())
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return turns
}

// resolve returns the whole conversation that a turn saw, by following its parents.
func resolve(t *testing.T, actions map[string]*schemas.ActionTaken, turn string) []*schemas.Message {
	t.Helper()
	a := actions[turn]
	if a == nil {
		t.Fatalf("turn %s is not recorded", turn)
	}
	parent := a.GetContext().GetParentTurnId()
	if parent == "" {
		return a.GetContext().GetMessages()
	}
	whole := append([]*schemas.Message{}, resolve(t, actions, parent)...)
	whole = append(whole, actions[parent].GetResponse())
	return append(whole, a.GetContext().GetMessages()...)
}

// text writes messages on one line, for comparisons: role initial, colon, text or calls.
func text(messages []*schemas.Message) string {
	var words []string
	for _, m := range messages {
		s := strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "ROLE_")[:1]) + ":"
		for _, p := range m.GetParts() {
			s += strings.TrimSpace(p.GetText())
		}
		for _, c := range m.GetToolCalls() {
			s += fmt.Sprintf("%s(%s)", c.GetName(), c.GetArguments())
		}
		words = append(words, s)
	}
	return strings.Join(words, " ")
}

func wireText(messages []wire) string {
	var list []*schemas.Message
	for _, m := range messages {
		list = append(list, m.message())
	}
	return text(list)
}

func observed(list []*schemas.Observation) string {
	var messages []*schemas.Message
	for _, o := range list {
		messages = append(messages, o.GetMessage())
	}
	return text(messages)
}

// expect compares what the test names.
func expect[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}
