package importers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// chatMessage is a message as OpenAI's chat API writes it; several formats use it with keys of their own.
type chatMessage struct {
	Role             string          `json:"role"`
	Name             string          `json:"name"`
	Content          json.RawMessage `json:"content"`
	ToolCalls        []chatCall      `json:"tool_calls"`
	ToolCallID       string          `json:"tool_call_id"`
	FunctionCall     *chatFunction   `json:"function_call"`
	Refusal          string          `json:"refusal"`
	Weight           *float64        `json:"weight"`
	ReasoningContent json.RawMessage `json:"reasoning_content"`
	Reasoning        json.RawMessage `json:"reasoning"`

	// SWE-agent
	IsDemo      bool     `json:"is_demo"`
	MessageType string   `json:"message_type"`
	Thought     string   `json:"thought"`
	ToolCallIDs []string `json:"tool_call_ids"`
	// mini-swe-agent
	Extra *miniExtra `json:"extra"`
}

type chatCall struct {
	Index    *int         `json:"index"`
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
	Custom   *struct {
		Name  string `json:"name"`
		Input string `json:"input"`
	} `json:"custom"`
}

type chatFunction struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

type chatPart struct {
	Type       string          `json:"type"`
	Text       string          `json:"text"`
	Refusal    string          `json:"refusal"`
	ImageURL   json.RawMessage `json:"image_url"`
	InputAudio *struct {
		Data   string `json:"data"`
		Format string `json:"format"`
	} `json:"input_audio"`
	File *struct {
		FileID   string `json:"file_id"`
		Filename string `json:"filename"`
		FileData string `json:"file_data"`
	} `json:"file"`
}

// chatTool is a tool definition: OpenAI's, with or without the wrapper.
type chatTool struct {
	Function *chatTool       `json:"function"`
	Name     string          `json:"name"`
	Desc     string          `json:"description"`
	Params   json.RawMessage `json:"parameters"`
}

// chatRole maps a role's name; ok is false for one that no chat API has.
func chatRole(name string) (role schemas.Role, ok bool) {
	switch name {
	case "system":
		return schemas.Role_ROLE_SYSTEM, true
	case "developer":
		return schemas.Role_ROLE_DEVELOPER, true
	case "user", "human":
		return schemas.Role_ROLE_USER, true
	case "assistant":
		return schemas.Role_ROLE_ASSISTANT, true
	case "tool", "function":
		return schemas.Role_ROLE_TOOL, true
	default:
		return schemas.Role_ROLE_UNSPECIFIED, false
	}
}

// chat turns a chat message into ours. An error means that the record is of the wrong shape.
func (e *Emitter) chat(ctx context.Context, m *chatMessage) (*schemas.Message, error) {
	role, ok := chatRole(m.Role)
	if !ok {
		return nil, fmt.Errorf("role %.40q is not known", m.Role)
	}
	parts, err := e.chatContent(ctx, m.Content)
	if err != nil {
		return nil, err
	}
	out := &schemas.Message{Role: role, Parts: parts, Name: optional(text(m.Name)), ToolCallId: optional(text(m.ToolCallID))}
	if m.Refusal != "" {
		out.Parts = append(out.Parts, &schemas.Part{Content: &schemas.Part_Refusal{Refusal: text(m.Refusal)}})
	}
	if out.ToolCallId == nil && len(m.ToolCallIDs) > 0 {
		out.ToolCallId = optional(text(m.ToolCallIDs[0]))
	}
	for _, raw := range []json.RawMessage{m.ReasoningContent, m.Reasoning} {
		if s, ok := jsonString(raw); ok && s != "" && out.Reasoning == nil {
			out.Reasoning = &s
		}
	}
	for _, c := range m.ToolCalls {
		out.ToolCalls = append(out.ToolCalls, c.call())
	}
	if f := m.FunctionCall; f != nil {
		out.ToolCalls = append(out.ToolCalls, &schemas.ToolCall{Name: text(f.Name), Arguments: arguments(f.Arguments)})
	}
	return out, nil
}

func (c chatCall) call() *schemas.ToolCall {
	if c.Custom != nil {
		return &schemas.ToolCall{Id: text(c.ID), Name: text(c.Custom.Name), Arguments: text(c.Custom.Input)}
	}
	return &schemas.ToolCall{Id: text(c.ID), Name: text(c.Function.Name), Arguments: arguments(c.Function.Arguments)}
}

// chatContent reads content: a string, null, or parts.
func (e *Emitter) chatContent(ctx context.Context, raw json.RawMessage) ([]*schemas.Part, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if s, ok := jsonString(raw); ok {
		if s == "" {
			return nil, nil
		}
		return []*schemas.Part{textPart(s)}, nil
	}
	var list []chatPart
	if err := decode(raw, &list); err != nil {
		return nil, fmt.Errorf("content is neither a string nor parts: %w", err)
	}
	var parts []*schemas.Part
	for _, p := range list {
		part, err := e.chatPart(ctx, p)
		if err != nil {
			return nil, err
		}
		if part != nil {
			parts = append(parts, part)
		}
	}
	return parts, nil
}

func (e *Emitter) chatPart(ctx context.Context, p chatPart) (*schemas.Part, error) {
	switch p.Type {
	case "text", "input_text", "output_text":
		if p.Text == "" {
			return nil, nil
		}
		return textPart(p.Text), nil
	case "refusal":
		return &schemas.Part{Content: &schemas.Part_Refusal{Refusal: text(p.Refusal)}}, nil
	case "image_url", "input_image":
		url, ok := jsonString(p.ImageURL)
		if !ok {
			var o struct {
				URL string `json:"url"`
			}
			if err := decode(p.ImageURL, &o); err != nil {
				return nil, fmt.Errorf("image_url: %w", err)
			}
			url = o.URL
		}
		return e.Reference(ctx, url, "")
	case "input_audio":
		if p.InputAudio == nil {
			return nil, structureError("input_audio is missing")
		}
		return e.Base64(ctx, p.InputAudio.Data, "audio/"+p.InputAudio.Format)
	case "file":
		if p.File == nil {
			return nil, structureError("file is missing")
		}
		if p.File.FileData != "" {
			return e.Reference(ctx, p.File.FileData, "application/octet-stream")
		}
		return blobPart(&schemas.Blob{MediaType: mediaTypeOf(p.File.Filename), Uri: optional(text(p.File.FileID))}), nil
	default:
		e.Unknown("part:" + p.Type)
		return nil, nil
	}
}

// chatTools reads tool definitions; what is none is left out.
func chatTools(raw json.RawMessage) []*schemas.Tool {
	var list []chatTool
	if decode(raw, &list) != nil {
		return nil
	}
	var tools []*schemas.Tool
	for _, t := range list {
		if t.Function != nil {
			t = *t.Function
		}
		if t.Name == "" {
			continue
		}
		tool := &schemas.Tool{Name: text(t.Name), Description: optional(text(t.Desc))}
		if len(t.Params) > 0 && string(t.Params) != "null" {
			tool.Parameters = optional(arguments(t.Params))
		}
		tools = append(tools, tool)
	}
	return tools
}

// arguments of a call: the text of a JSON string, else the JSON itself without white space.
func arguments(raw json.RawMessage) string {
	if s, ok := jsonString(raw); ok {
		return s
	}
	var b bytes.Buffer
	if len(raw) == 0 || string(raw) == "null" || json.Compact(&b, raw) != nil {
		return ""
	}
	return text(b.String())
}

// jsonString reads a value that may be a string.
func jsonString(raw json.RawMessage) (string, bool) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	var s string
	if decode(raw, &s) != nil {
		return "", false
	}
	return s, true
}

// messageText joins the text parts of a message.
func messageText(m *schemas.Message) string {
	var b strings.Builder
	for _, p := range m.GetParts() {
		b.WriteString(p.GetText())
	}
	return b.String()
}

// empty: the message says nothing at all.
func emptyMessage(m *schemas.Message) bool {
	return len(m.GetParts()) == 0 && len(m.GetToolCalls()) == 0 && m.GetReasoning() == ""
}

// observed makes the observation of a message of the world: a tool's result or a user's reply; nil for other roles, which are context only.
func observed(m *schemas.Message) *schemas.Observation {
	switch m.GetRole() {
	case schemas.Role_ROLE_TOOL:
		return &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, Message: m}
	case schemas.Role_ROLE_USER:
		return &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY, Message: m}
	default:
		return nil
	}
}
