package policy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// The messages of OpenAI's chat completions, as vLLM and SGLang take them, too.
type (
	wireMessage struct {
		Role       string     `json:"role"`
		Content    any        `json:"content"` // a string, []wirePart, or null
		Name       string     `json:"name,omitempty"`
		ToolCalls  []wireCall `json:"tool_calls,omitempty"`
		ToolCallID string     `json:"tool_call_id,omitempty"`
	}
	wirePart struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	wireCall struct {
		ID       string       `json:"id"`
		Type     string       `json:"type"`
		Function wireFunction `json:"function"`
	}
	wireFunction struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	wireTool struct {
		Type     string `json:"type"`
		Function struct {
			Name        string          `json:"name"`
			Description string          `json:"description,omitempty"`
			Parameters  json.RawMessage `json:"parameters,omitempty"`
		} `json:"function"`
	}
)

// wireMessages translates a conversation. Only text travels: a blob is refused.
func wireMessages(messages []*schemas.Message) ([]wireMessage, error) {
	out := make([]wireMessage, 0, len(messages))
	for i, m := range messages {
		role, ok := wireRole(m.GetRole())
		if !ok {
			return nil, badMessage(i, "it has no role")
		}
		w := wireMessage{Role: role, Name: m.GetName(), ToolCallID: m.GetToolCallId()}
		var parts []wirePart
		for _, p := range m.GetParts() {
			switch c := p.GetContent().(type) {
			case *schemas.Part_Text:
				parts = append(parts, wirePart{"text", c.Text})
			case *schemas.Part_Refusal:
				parts = append(parts, wirePart{"text", c.Refusal})
			default:
				return nil, badMessage(i, "it has content other than text, which this policy cannot read")
			}
		}
		switch {
		case len(parts) == 1:
			w.Content = parts[0].Text
		case len(parts) > 1:
			w.Content = parts
		case len(m.GetToolCalls()) == 0:
			w.Content = ""
		}
		for _, c := range m.GetToolCalls() {
			w.ToolCalls = append(w.ToolCalls, wireCall{c.GetId(), "function", wireFunction{c.GetName(), c.GetArguments()}})
		}
		out = append(out, w)
	}
	return out, nil
}

// wireRole: developer instructions are system instructions to the models that these servers have; few of their templates know the newer name.
func wireRole(r schemas.Role) (string, bool) {
	switch r {
	case schemas.Role_ROLE_SYSTEM, schemas.Role_ROLE_DEVELOPER:
		return "system", true
	case schemas.Role_ROLE_USER:
		return "user", true
	case schemas.Role_ROLE_ASSISTANT:
		return "assistant", true
	case schemas.Role_ROLE_TOOL:
		return "tool", true
	default:
		return "", false
	}
}

func badMessage(i int, why string) error {
	return &gateway.PolicyError{Status: http.StatusBadRequest, Param: fmt.Sprintf("messages[%d]", i), Message: fmt.Sprintf("message %d: %s", i, why)}
}

func wireTools(tools []*schemas.Tool) ([]wireTool, error) {
	out := make([]wireTool, len(tools))
	for i, t := range tools {
		out[i].Type = "function"
		out[i].Function.Name, out[i].Function.Description = t.GetName(), t.GetDescription()
		if p := t.GetParameters(); p != "" {
			if !json.Valid([]byte(p)) {
				return nil, &gateway.PolicyError{Status: http.StatusBadRequest, Param: fmt.Sprintf("tools[%d]", i), Message: fmt.Sprintf("the parameters of tool %.60q are not JSON", t.GetName())}
			}
			out[i].Function.Parameters = json.RawMessage(p)
		}
	}
	return out, nil
}

// toolChoice is the field tool_choice of a request.
func toolChoice(choice string) any {
	name, named := strings.CutPrefix(choice, gateway.ToolFunction)
	switch {
	case named:
		return map[string]any{"type": "function", "function": map[string]string{"name": name}}
	case choice == "":
		return "auto"
	}
	return choice
}

// textMessage is an assistant's message.
func textMessage(text, reasoning string, calls []*schemas.ToolCall) *schemas.Message {
	m := &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT, ToolCalls: calls}
	if text != "" {
		m.Parts = []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}
	}
	if reasoning != "" {
		m.Reasoning = &reasoning
	}
	return m
}
