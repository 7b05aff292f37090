package chat

import (
	"fmt"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// turn is a message as templates know it. Its texts are marked.
type turn struct {
	role, content, reasoning, name, callID string
	calls                                  []call
}

type call struct {
	id, name string
	// arguments is what the model wrote, marked; value the same as JSON, or nil when it is none.
	arguments string
	value     func(orders map[uintptr][]string) any
}

func (t *turn) size() int {
	n := len(t.content) + len(t.reasoning) + len(t.name) + len(t.callID) + 64
	for _, c := range t.calls {
		n += len(c.arguments) + len(c.name) + len(c.id) + 64
	}
	return n
}

// variables is the message as the template sees it: what is absent is not there.
func (t *turn) variables(orders map[uintptr][]string, reasoning bool) map[string]any {
	v := map[string]any{"role": t.role, "content": t.content}
	for key, text := range map[string]string{"name": t.name, "tool_call_id": t.callID} {
		if text != "" {
			v[key] = text
		}
	}
	if reasoning && t.reasoning != "" {
		v["reasoning_content"] = t.reasoning
	}
	if len(t.calls) == 0 {
		return v
	}
	list := make([]any, len(t.calls))
	for i, c := range t.calls {
		var arguments any = c.arguments
		if c.value != nil {
			arguments = c.value(orders)
		}
		function := object(orders, "name", c.name, "arguments", arguments)
		list[i] = object(orders, "id", c.id, "type", "function", "function", function)
	}
	v["tool_calls"] = list
	return v
}

// textsOf is every text of a conversation that somebody wrote.
func textsOf(c *Conversation) (list []string) {
	for _, m := range c.Messages {
		list = append(list, m.GetReasoning(), m.GetName(), m.GetToolCallId())
		for _, p := range m.GetParts() {
			list = append(list, p.GetText(), p.GetRefusal())
		}
		for _, x := range m.GetToolCalls() {
			list = append(list, x.GetId(), x.GetName(), x.GetArguments())
		}
	}
	for _, x := range c.Tools {
		list = append(list, x.GetName(), x.GetDescription(), x.GetParameters())
	}
	return append(list, c.ToolChoice)
}

// turns converts the messages. The developer's messages are system messages.
func (m *marker) turns(c *Conversation) ([]turn, error) {
	if len(c.Messages) == 0 {
		return nil, refused("messages", "messages is empty; send at least one message")
	}
	turns := make([]turn, 0, len(c.Messages))
	for i, x := range c.Messages {
		by := world
		t := turn{}
		switch x.GetRole() {
		case schemas.Role_ROLE_SYSTEM, schemas.Role_ROLE_DEVELOPER:
			t.role = "system"
		case schemas.Role_ROLE_USER:
			t.role = "user"
		case schemas.Role_ROLE_ASSISTANT:
			t.role, by = "assistant", model
		case schemas.Role_ROLE_TOOL:
			t.role = "tool"
		default:
			return nil, refused(fmt.Sprintf("messages[%d].role", i), fmt.Sprintf("message %d has no role; give it system, developer, user, assistant or tool", i+1))
		}
		content, err := joined(i, x.GetParts())
		if err != nil {
			return nil, err
		}
		t.content, t.reasoning = m.text(content, by), m.text(x.GetReasoning(), by)
		t.name, t.callID = m.text(x.GetName(), world), m.text(x.GetToolCallId(), world)
		for _, y := range x.GetToolCalls() {
			t.calls = append(t.calls, m.call(y))
		}
		turns = append(turns, t)
	}
	return turns, nil
}

// joined is the text of a message's parts.
func joined(message int, parts []*schemas.Part) (string, error) {
	var b strings.Builder
	for i, p := range parts {
		if blob := p.GetBlob(); blob != nil {
			kind := blob.GetMediaType()
			if kind == "" {
				kind = "no text"
			}
			return "", refused(fmt.Sprintf("messages[%d].content[%d]", message, i),
				fmt.Sprintf("part %d of message %d is %s, and this model reads text only; leave it out, or use a model that can see it", i+1, message+1, kind))
		}
		b.WriteString(p.GetText())
		b.WriteString(p.GetRefusal())
	}
	return b.String(), nil
}

func (m *marker) call(x *schemas.ToolCall) call {
	c := call{id: m.text(x.GetId(), world), name: m.text(x.GetName(), model), arguments: m.text(x.GetArguments(), model)}
	mark := func(s string) string { return m.text(s, model) }
	if _, err := orderedJSON(x.GetArguments(), map[uintptr][]string{}, mark); err == nil {
		c.value = func(orders map[uintptr][]string) any {
			v, _ := orderedJSON(x.GetArguments(), orders, mark) // it was JSON a moment ago
			return v
		}
	}
	return c
}

// fit puts what the template cannot show in a way that it can.
func (t *Template) fit(turns []turn) []turn {
	turns = leading(turns)
	if !t.able.system && turns[0].role == "system" {
		turns = asUser(turns, 0)
	}
	if !t.able.lateSystem {
		for i := 1; i < len(turns); i++ {
			if turns[i].role == "system" {
				turns = asUser(turns, i)
			}
		}
	}
	if !t.able.consecutive {
		turns = alternating(turns)
	}
	return turns
}

// leading makes one system message of those at the beginning.
func leading(turns []turn) []turn {
	n := 0
	for n < len(turns) && turns[n].role == "system" {
		n++
	}
	if n < 2 {
		return turns
	}
	first := turns[0]
	for _, t := range turns[1:n] {
		first.content = paragraphs(first.content, t.content)
	}
	return append([]turn{first}, turns[n:]...)
}

// asUser puts a system message in front of the user message that follows, or makes it one.
func asUser(turns []turn, i int) []turn {
	turns[i].role = "user"
	if i+1 == len(turns) || turns[i+1].role != "user" {
		return turns
	}
	turns[i+1].content = paragraphs(turns[i].content, turns[i+1].content)
	return append(turns[:i], turns[i+1:]...)
}

// alternating joins neighbours of the same role.
func alternating(turns []turn) []turn {
	out := turns[:1]
	for _, t := range turns[1:] {
		last := &out[len(out)-1]
		if t.role != last.role || t.role != "user" && t.role != "assistant" || len(last.calls) > 0 || len(t.calls) > 0 {
			out = append(out, t)
			continue
		}
		last.content = paragraphs(last.content, t.content)
	}
	return out
}

// paragraphs joins two texts with a blank line, unless one is empty.
func paragraphs(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n\n" + b
}
