package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-faster/jx"

	"github.com/nextstate-rl/nextstate/schemas"
)

// chatMessage is a message of the chat completions API, its values unread: each is decoded where its name is known for the error.
type chatMessage struct {
	Role             json.RawMessage `json:"role"`
	Content          json.RawMessage `json:"content"`
	Name             json.RawMessage `json:"name"`
	ToolCalls        json.RawMessage `json:"tool_calls"`
	ToolCallID       json.RawMessage `json:"tool_call_id"`
	FunctionCall     json.RawMessage `json:"function_call"`
	Refusal          json.RawMessage `json:"refusal"`
	ReasoningContent json.RawMessage `json:"reasoning_content"`
	Reasoning        json.RawMessage `json:"reasoning"`
}

// chatRoles maps the roles of the API. "function" is the legacy name of a tool's result.
var chatRoles = map[string]schemas.Role{
	"system": schemas.Role_ROLE_SYSTEM, "developer": schemas.Role_ROLE_DEVELOPER, "user": schemas.Role_ROLE_USER,
	"assistant": schemas.Role_ROLE_ASSISTANT, "tool": schemas.Role_ROLE_TOOL, "function": schemas.Role_ROLE_TOOL,
}

// messageDecoder reads messages; attach, when set, is given the bytes of every part that is not text.
type messageDecoder struct {
	attach func(content []byte)
}

// message reads one message. at is its place for errors, such as "messages[2]".
func (d messageDecoder) message(raw json.RawMessage, at string) (*schemas.Message, *fault) {
	if m := plainMessage(raw); m != nil {
		return m, nil
	}
	return d.fields(raw, at)
}

// fields reads a message of any form.
func (d messageDecoder) fields(raw json.RawMessage, at string) (*schemas.Message, *fault) {
	var in chatMessage
	if !isObject(raw) || json.Unmarshal(raw, &in) != nil {
		return nil, badRequest(at, "%s must be an object with role and content, not %s", at, jsonKind(raw))
	}
	role, f := str(in.Role, at+".role")
	if f != nil {
		return nil, f
	}
	kind, known := chatRoles[role]
	if !known {
		return nil, badRequest(at+".role", "%s.role: %.40q is not one of system, developer, user, assistant, tool, function", at, role)
	}
	m := &schemas.Message{Role: kind}
	if m.Name, f = optionalStr(in.Name, at+".name"); f != nil {
		return nil, f
	}
	if m.Parts, f = d.content(in.Content, at+".content"); f != nil {
		return nil, f
	}
	switch kind {
	case schemas.Role_ROLE_ASSISTANT:
		f = d.assistant(m, &in, at)
	case schemas.Role_ROLE_TOOL:
		f = toolResult(m, &in, role, at)
	default:
		if absent(in.Content) {
			f = badRequest(at+".content", "%s.content is missing: role %s needs a string or a list of parts", at, role)
		}
	}
	if f != nil {
		return nil, f
	}
	return m, nil
}

// plainMessage reads the messages that nearly all are, a role and a text, in one pass. Nil: another form, or a doubtful one, which is for the
// decoder that knows them all.
func plainMessage(raw json.RawMessage) *schemas.Message {
	if len(raw) == 0 || raw[0] != '{' || !utf8.Valid(raw) || bytes.Contains(raw, []byte(`\u`)) { // the two decoders differ about broken characters
		return nil
	}
	var role, text string
	d := jx.DecodeBytes(raw)
	err := d.ObjBytes(func(d *jx.Decoder, key []byte) (err error) {
		var into *string
		switch string(key) {
		case "role":
			into = &role
		case "content":
			into = &text
		}
		if into == nil || *into != "" || d.Next() != jx.String {
			return errNotPlain
		}
		*into, err = d.Str()
		return err
	})
	if err != nil || text == "" || d.Next() != jx.Invalid {
		return nil
	}
	kind, known := chatRoles[role]
	if !known || kind == schemas.Role_ROLE_TOOL {
		return nil
	}
	return &schemas.Message{Role: kind, Parts: textParts(text)}
}

var errNotPlain = errors.New("not a plain message")

// assistant reads what only the assistant's messages have.
func (d messageDecoder) assistant(m *schemas.Message, in *chatMessage, at string) *fault {
	refusal, f := optionalStr(in.Refusal, at+".refusal")
	if f != nil {
		return f
	}
	if refusal != nil {
		m.Parts = append(m.Parts, &schemas.Part{Content: &schemas.Part_Refusal{Refusal: *refusal}})
	}
	for _, field := range []struct { // the first that is there counts
		name string
		raw  json.RawMessage
	}{{".reasoning", in.Reasoning}, {".reasoning_content", in.ReasoningContent}} {
		said, f := optionalStr(field.raw, at+field.name)
		if f != nil {
			return f
		}
		if said != nil && m.Reasoning == nil {
			m.Reasoning = said
		}
	}
	if m.ToolCalls, f = toolCalls(in.ToolCalls, at+".tool_calls"); f != nil {
		return f
	}
	if !absent(in.FunctionCall) {
		call, f := functionCall(in.FunctionCall, at+".function_call")
		if f != nil {
			return f
		}
		m.ToolCalls = append(m.ToolCalls, call)
	}
	if absent(in.Content) && len(m.Parts) == 0 && len(m.ToolCalls) == 0 && m.Reasoning == nil {
		return badRequest(at+".content", "%s.content is missing: an assistant's message needs content, tool_calls or a refusal", at)
	}
	return nil
}

// toolResult reads what only the messages of tools have.
func toolResult(m *schemas.Message, in *chatMessage, role, at string) *fault {
	var f *fault
	if m.ToolCallId, f = optionalStr(in.ToolCallID, at+".tool_call_id"); f != nil {
		return f
	}
	if role == "function" && m.Name == nil {
		return badRequest(at+".name", "%s.name is missing: a function's result needs the name of the function", at)
	}
	if role == "tool" && m.ToolCallId == nil {
		return badRequest(at+".tool_call_id", "%s.tool_call_id is missing: a tool's result needs the id of the call that it answers", at)
	}
	if absent(in.Content) && role == "tool" {
		return badRequest(at+".content", "%s.content is missing: a tool's result needs a string or a list of parts", at)
	}
	return nil
}

// chatPart is one part of a content list.
type chatPart struct {
	Type       json.RawMessage `json:"type"`
	Text       json.RawMessage `json:"text"`
	Refusal    json.RawMessage `json:"refusal"`
	ImageURL   json.RawMessage `json:"image_url"`
	InputAudio json.RawMessage `json:"input_audio"`
	File       json.RawMessage `json:"file"`
}

// content reads a string, null, or a list of parts. Empty text makes no part.
func (d messageDecoder) content(raw json.RawMessage, at string) ([]*schemas.Part, *fault) {
	switch {
	case absent(raw):
		return nil, nil
	case raw[0] == '"':
		s, f := str(raw, at)
		return textParts(s), f
	case raw[0] != '[':
		return nil, badRequest(at, "%s must be a string or a list of parts, not %s", at, jsonKind(raw))
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, badRequest(at, "%s cannot be read: %v", at, err)
	}
	if len(list) == 0 {
		return nil, badRequest(at, "%s is an empty list: send a string, or at least one part", at)
	}
	var parts []*schemas.Part
	for i, one := range list {
		at := fmt.Sprintf("%s[%d]", at, i)
		if one[0] == '"' { // a bare string among the parts, as some agents send
			s, f := str(one, at)
			if f != nil {
				return nil, f
			}
			parts = append(parts, textParts(s)...)
			continue
		}
		var p chatPart
		if !isObject(one) || json.Unmarshal(one, &p) != nil {
			return nil, badRequest(at, "%s must be an object with a type, not %s", at, jsonKind(one))
		}
		made, f := d.part(&p, at)
		if f != nil {
			return nil, f
		}
		parts = append(parts, made...)
	}
	return parts, nil
}

func (d messageDecoder) part(p *chatPart, at string) ([]*schemas.Part, *fault) {
	kind, f := str(p.Type, at+".type")
	if f != nil {
		return nil, f
	}
	switch kind {
	case "text", "input_text", "output_text":
		s, f := str(p.Text, at+".text")
		return textParts(s), f
	case "refusal":
		s, f := str(p.Refusal, at+".refusal")
		return []*schemas.Part{{Content: &schemas.Part_Refusal{Refusal: s}}}, f
	case "image_url":
		var image struct {
			URL json.RawMessage `json:"url"`
		}
		url := p.ImageURL
		if isObject(url) && json.Unmarshal(url, &image) == nil {
			url = image.URL
		}
		s, f := str(url, at+".image_url.url")
		if f != nil {
			return nil, f
		}
		return d.reference(s, "image/*", at+".image_url.url")
	case "input_audio":
		var audio struct{ Data, Format json.RawMessage }
		if !isObject(p.InputAudio) || json.Unmarshal(p.InputAudio, &audio) != nil {
			return nil, badRequest(at+".input_audio", "%s.input_audio must be an object with data and format", at)
		}
		data, f := str(audio.Data, at+".input_audio.data")
		if f != nil {
			return nil, f
		}
		format, f := str(audio.Format, at+".input_audio.format")
		if f != nil {
			return nil, f
		}
		return d.base64(data, "audio/"+format, at+".input_audio.data")
	case "file":
		return d.file(p.File, at+".file")
	default:
		return nil, badRequest(at+".type", "%s.type: %.40q is not one of text, image_url, input_audio, file, refusal", at, kind)
	}
}

func (d messageDecoder) file(raw json.RawMessage, at string) ([]*schemas.Part, *fault) {
	var file struct {
		Data json.RawMessage `json:"file_data"`
		ID   json.RawMessage `json:"file_id"`
	}
	if !isObject(raw) || json.Unmarshal(raw, &file) != nil {
		return nil, badRequest(at, "%s must be an object with file_data or file_id", at)
	}
	if absent(file.Data) {
		id, f := str(file.ID, at+".file_id")
		if f != nil {
			return nil, f
		}
		return d.reference(id, "application/octet-stream", at+".file_id")
	}
	data, f := str(file.Data, at+".file_data")
	switch {
	case f != nil:
		return nil, f
	case strings.HasPrefix(data, "data:"):
		return d.reference(data, "application/octet-stream", at+".file_data")
	default:
		return d.base64(data, "application/octet-stream", at+".file_data")
	}
}

// maxReference bounds a URL or a file id that is recorded as it is.
const maxReference = 2048

// reference makes the part of a data URL, or of a URL or id that is kept and never fetched.
func (d messageDecoder) reference(url, media, at string) ([]*schemas.Part, *fault) {
	rest, inline := strings.CutPrefix(url, "data:")
	if !inline {
		if url == "" || len(url) > maxReference {
			return nil, badRequest(at, "%s must be a data URL, or a reference of 1 to %d bytes", at, maxReference)
		}
		return blobParts(&schemas.Blob{MediaType: media, Uri: &url}), nil
	}
	head, data, ok := strings.Cut(rest, ",")
	head, is64 := strings.CutSuffix(head, ";base64")
	if !ok || !is64 {
		return nil, badRequest(at, "%s is a data URL that is not base64: data:TYPE;base64,... is needed", at)
	}
	if head != "" && len(head) <= 128 {
		media = head
	}
	return d.base64(data, media, at)
}

func (d messageDecoder) base64(data, media, at string) ([]*schemas.Part, *fault) {
	content, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		content, err = base64.RawStdEncoding.DecodeString(data)
	}
	if err != nil {
		return nil, badRequest(at, "%s is not valid base64", at)
	}
	if d.attach != nil {
		d.attach(content)
	}
	sum, size := sha256.Sum256(content), uint64(len(content))
	return blobParts(&schemas.Blob{Sha256: sum[:], MediaType: media, SizeBytes: &size}), nil
}

// chatCall is a call in an assistant's message.
type chatCall struct {
	ID       json.RawMessage `json:"id"`
	Function json.RawMessage `json:"function"`
	Custom   json.RawMessage `json:"custom"`
}

func toolCalls(raw json.RawMessage, at string) ([]*schemas.ToolCall, *fault) {
	if absent(raw) {
		return nil, nil
	}
	var list []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
		return nil, badRequest(at, "%s must be a list of calls, not %s", at, jsonKind(raw))
	}
	calls := make([]*schemas.ToolCall, 0, len(list))
	for i, one := range list {
		at := fmt.Sprintf("%s[%d]", at, i)
		var c chatCall
		if !isObject(one) || json.Unmarshal(one, &c) != nil {
			return nil, badRequest(at, "%s must be an object with id, type and function, not %s", at, jsonKind(one))
		}
		id, f := str(c.ID, at+".id")
		if f != nil {
			return nil, f
		}
		var call *schemas.ToolCall
		if !absent(c.Custom) {
			call, f = customCall(c.Custom, at+".custom")
		} else {
			call, f = functionCall(c.Function, at+".function")
		}
		if f != nil {
			return nil, f
		}
		call.Id = id
		calls = append(calls, call)
	}
	return calls, nil
}

// functionCall reads a name and its arguments: JSON in a string, or, forgiving what some agents send, the JSON itself.
func functionCall(raw json.RawMessage, at string) (*schemas.ToolCall, *fault) {
	var in struct{ Name, Arguments json.RawMessage }
	if !isObject(raw) || json.Unmarshal(raw, &in) != nil {
		return nil, badRequest(at, "%s must be an object with name and arguments, not %s", at, jsonKind(raw))
	}
	name, f := str(in.Name, at+".name")
	if f != nil {
		return nil, f
	}
	call := &schemas.ToolCall{Name: name}
	switch {
	case absent(in.Arguments):
	case isObject(in.Arguments):
		call.Arguments = compact(in.Arguments)
	default:
		if call.Arguments, f = str(in.Arguments, at+".arguments"); f != nil {
			return nil, f
		}
	}
	return call, nil
}

func customCall(raw json.RawMessage, at string) (*schemas.ToolCall, *fault) {
	var in struct{ Name, Input json.RawMessage }
	if !isObject(raw) || json.Unmarshal(raw, &in) != nil {
		return nil, badRequest(at, "%s must be an object with name and input, not %s", at, jsonKind(raw))
	}
	name, f := str(in.Name, at+".name")
	if f != nil {
		return nil, f
	}
	input, f := str(in.Input, at+".input")
	return &schemas.ToolCall{Name: name, Arguments: input}, f
}

func textParts(s string) []*schemas.Part {
	if s == "" {
		return nil
	}
	return []*schemas.Part{{Content: &schemas.Part_Text{Text: s}}}
}

func blobParts(b *schemas.Blob) []*schemas.Part {
	return []*schemas.Part{{Content: &schemas.Part_Blob{Blob: b}}}
}
