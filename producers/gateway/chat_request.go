package gateway

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nextstate-rl/nextstate/schemas"
)

// chatRequest is the body of POST /v1/chat/completions.
type chatRequest struct {
	completion
	stream, includeUsage bool
	// logprobs: the answer holds the log-probs of its tokens.
	logprobs bool
	// legacy: functions came instead of tools, and calls are answered in that form.
	legacy bool
	limits Config
}

// chatField is one field of the body: what it means, or why it cannot be had.
type chatField struct {
	name string
	take func(r *chatRequest, raw json.RawMessage, at string) *fault
}

// chatFields are all fields that are known, in the order in which they are read: tools come before the choice among them. A null is absent.
var chatFields = []chatField{
	{"model", func(r *chatRequest, raw json.RawMessage, at string) (f *fault) { r.model, f = str(raw, at); return f }},
	{"messages", (*chatRequest).takeMessages},
	{"tools", (*chatRequest).takeTools},
	{"functions", (*chatRequest).takeFunctions},
	{"tool_choice", (*chatRequest).takeToolChoice},
	{"function_call", (*chatRequest).takeFunctionCall},
	{"parallel_tool_calls", func(r *chatRequest, raw json.RawMessage, at string) *fault {
		parallel, f := boolean(raw, at)
		r.oneCall = !parallel
		return f
	}},
	{"response_format", (*chatRequest).takeResponseFormat},
	{"n", func(r *chatRequest, raw json.RawMessage, at string) *fault {
		n, f := integer(raw, at, 1, int64(r.limits.MaxChoices))
		r.choices = int(n)
		return f
	}},
	{"temperature", func(r *chatRequest, raw json.RawMessage, at string) *fault {
		return takeNumber(&r.sampling.Temperature, raw, at, 0, 2)
	}},
	{"top_p", func(r *chatRequest, raw json.RawMessage, at string) *fault {
		return takeNumber(&r.sampling.TopP, raw, at, math.SmallestNonzeroFloat64, 1)
	}},
	{"min_p", func(r *chatRequest, raw json.RawMessage, at string) *fault {
		return takeNumber(&r.sampling.MinP, raw, at, 0, 1)
	}},
	{"top_k", func(r *chatRequest, raw json.RawMessage, at string) *fault {
		k, f := integer(raw, at, -1, math.MaxInt32)
		if f == nil && k > 0 { // 0 and -1: all tokens
			v := uint32(k) //nolint:gosec // within bounds
			r.sampling.TopK = &v
		}
		return f
	}},
	{"seed", func(r *chatRequest, raw json.RawMessage, at string) *fault {
		seed, f := integer(raw, at, math.MinInt64, math.MaxInt64)
		r.sampling.Seed = &seed
		return f
	}},
	{"max_tokens", func(r *chatRequest, raw json.RawMessage, at string) *fault {
		return takeCount(&r.sampling.MaxTokens, raw, at)
	}},
	{"max_completion_tokens", func(r *chatRequest, raw json.RawMessage, at string) *fault { // the newer name wins
		return takeCount(&r.sampling.MaxTokens, raw, at)
	}},
	{"stop", (*chatRequest).takeStop},
	{"logprobs", func(r *chatRequest, raw json.RawMessage, at string) (f *fault) {
		r.logprobs, f = boolean(raw, at)
		return f
	}},
	{"top_logprobs", (*chatRequest).takeTopLogprobs},
	{"stream", func(r *chatRequest, raw json.RawMessage, at string) (f *fault) {
		r.stream, f = boolean(raw, at)
		return f
	}},
	{"stream_options", (*chatRequest).takeStreamOptions},
	{"user", func(r *chatRequest, raw json.RawMessage, at string) (f *fault) { r.user, f = str(raw, at); return f }},
	{"metadata", (*chatRequest).takeMetadata},

	// These change the answer, and the policy cannot do what they ask for: only their default is accepted.
	{"presence_penalty", onlyNumber(0)},
	{"frequency_penalty", onlyNumber(0)},
	{"repetition_penalty", onlyNumber(1)},
	{"length_penalty", onlyNumber(1)},
	{"min_tokens", onlyNumber(0)},
	{"best_of", onlyNumber(1)},
	{"use_beam_search", only("false")},
	{"ignore_eos", only("false")},
	{"echo", only("false")},
	{"logit_bias", only("{}")},
	{"reasoning_effort", only(`"none"`, `"medium"`)},
	{"verbosity", only(`"medium"`)},
	{"modalities", only(`["text"]`)},
	{"audio", only()},
	{"web_search_options", only()},
	{"guided_json", only()},
	{"guided_regex", only()},
	{"guided_choice", only()},
	{"guided_grammar", only()},
	{"chat_template", only()},
	{"chat_template_kwargs", only("{}")},

	// These change nothing here.
	{"store", ignored},
	{"service_tier", ignored},
	{"prediction", ignored},
	{"safety_identifier", ignored},
	{"prompt_cache_key", ignored},
	{"prompt_cache_retention", ignored},
}

// decodeChat reads a body. limits are the gateway's.
func decodeChat(body []byte, limits Config) (*chatRequest, *fault) {
	if !utf8.Valid(body) {
		return nil, badRequest("", "the body is not valid UTF-8: send JSON in UTF-8")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		if err == nil || json.Valid(body) {
			return nil, badRequest("", "the body must be a JSON object with model and messages")
		}
		return nil, badRequest("", "the body is not valid JSON: %.200s", err)
	}
	r := &chatRequest{limits: limits, completion: completion{choices: 1, sampling: &schemas.Sampling{}, digest: sha256.Sum256(body)}}
	for _, field := range chatFields {
		raw, ok := fields[field.name]
		if !ok {
			continue
		}
		delete(fields, field.name)
		if absent(raw) {
			continue
		}
		if f := field.take(r, raw, field.name); f != nil {
			return nil, f
		}
	}
	if len(fields) > 0 {
		r.unknown = slices.Sorted(maps.Keys(fields))
		if limits.UnknownFields == UnknownRefuse {
			return nil, badRequest(r.unknown[0], "unknown field %.60q: remove it, or set unknown_fields to ignore", r.unknown[0])
		}
	}
	if f := r.check(); f != nil {
		return nil, f
	}
	return r, nil
}

// check holds what no field can know alone.
func (r *chatRequest) check() *fault {
	switch {
	case len(r.messages) == 0:
		return badRequest("messages", "messages is missing or empty: at least one message is needed")
	case r.topLogprobs > 0 && !r.logprobs:
		return badRequest("top_logprobs", "top_logprobs needs logprobs to be true")
	case r.includeUsage && !r.stream:
		return badRequest("stream_options", "stream_options is only allowed when stream is true")
	}
	return checkResults(r.messages)
}

// checkResults holds that each tool's result answers a call that was made before it.
func checkResults(messages []*schemas.Message) *fault {
	ids, names := map[string]struct{}{}, map[string]struct{}{}
	for i, m := range messages {
		for _, c := range m.GetToolCalls() {
			ids[c.GetId()], names[c.GetName()] = struct{}{}, struct{}{}
		}
		if m.GetRole() != schemas.Role_ROLE_TOOL {
			continue
		}
		if m.ToolCallId != nil {
			if _, made := ids[m.GetToolCallId()]; !made {
				at := fmt.Sprintf("messages[%d].tool_call_id", i)
				return badRequest(at, "%s: no message before has a tool call with the id %.60q: a tool's result must follow its call", at, m.GetToolCallId())
			}
			continue
		}
		if _, made := names[m.GetName()]; !made {
			at := fmt.Sprintf("messages[%d].name", i)
			return badRequest(at, "%s: no message before calls the function %.60q: a function's result must follow its call", at, m.GetName())
		}
	}
	return nil
}

func (r *chatRequest) takeMessages(raw json.RawMessage, at string) (f *fault) {
	if r.raw, f = items(raw, at, r.limits.MaxMessages); f != nil {
		return f
	}
	d := messageDecoder{attach: func(content []byte) { r.attachments = append(r.attachments, content) }}
	r.messages = make([]*schemas.Message, len(r.raw))
	for i, one := range r.raw {
		if r.messages[i], f = d.message(one, fmt.Sprintf("%s[%d]", at, i)); f != nil {
			return f
		}
	}
	return nil
}

func (r *chatRequest) takeResponseFormat(raw json.RawMessage, at string) *fault {
	var in struct {
		Type   json.RawMessage
		Schema json.RawMessage `json:"json_schema"`
	}
	if f := object(raw, at, &in); f != nil {
		return f
	}
	kind, f := str(in.Type, at+".type")
	if f != nil {
		return f
	}
	switch kind {
	case "text":
		return nil
	case "json_object":
		r.json = true
		return nil
	case "json_schema":
		var named struct{ Schema json.RawMessage }
		if f := object(in.Schema, at+".json_schema", &named); f != nil {
			return f
		}
		if !isObject(named.Schema) {
			return badRequest(at+".json_schema.schema", "%s.json_schema.schema must be a JSON Schema (an object), not %s", at, jsonKind(named.Schema))
		}
		r.schema = named.Schema
		return nil
	default:
		return badRequest(at+".type", "%s.type: %.40q is not one of text, json_object, json_schema", at, kind)
	}
}

// maxStops and maxStop bound the stop strings.
const (
	maxStops = 4
	maxStop  = 1024
)

func (r *chatRequest) takeStop(raw json.RawMessage, at string) *fault {
	list := []json.RawMessage{raw}
	if raw[0] != '"' {
		var f *fault
		if list, f = items(raw, at, maxStops); f != nil {
			return f
		}
	}
	for i, one := range list {
		if raw[0] != '"' {
			at = fmt.Sprintf("stop[%d]", i)
		}
		s, f := str(one, at)
		if f != nil {
			return f
		}
		if s == "" || len(s) > maxStop {
			return badRequest(at, "%s must have 1 to %d bytes", at, maxStop)
		}
		r.sampling.Stop = append(r.sampling.Stop, s)
	}
	return nil
}

// maxTopLogprobs is the API's bound.
const maxTopLogprobs = 20

func (r *chatRequest) takeTopLogprobs(raw json.RawMessage, at string) *fault {
	n, f := integer(raw, at, 0, maxTopLogprobs)
	r.topLogprobs = int(n)
	return f
}

func (r *chatRequest) takeStreamOptions(raw json.RawMessage, at string) *fault {
	var in struct {
		IncludeUsage json.RawMessage `json:"include_usage"`
	}
	f := object(raw, at, &in)
	if f == nil && !absent(in.IncludeUsage) {
		r.includeUsage, f = boolean(in.IncludeUsage, at+".include_usage")
	}
	return f
}

// takeMetadata finds the session that the caller names; the rest is the caller's own.
func (r *chatRequest) takeMetadata(raw json.RawMessage, at string) *fault {
	var in struct {
		Session json.RawMessage `json:"session_id"`
	}
	if f := object(raw, at, &in); f != nil {
		return f
	}
	session, f := optionalStr(in.Session, at+".session_id")
	if f != nil || session == nil {
		return f
	}
	if err := schemas.CheckSession(*session); err != nil {
		return badRequest(at+".session_id", "%s.session_id: %v", at, err)
	}
	r.session = *session
	return nil
}

func takeNumber(to **float64, raw json.RawMessage, at string, low, high float64) *fault {
	v, f := number(raw, at, low, high)
	*to = &v
	return f
}

func takeCount(to **uint32, raw json.RawMessage, at string) *fault {
	n, f := integer(raw, at, 1, math.MaxInt32)
	v := uint32(n) //nolint:gosec // within bounds
	*to = &v
	return f
}

// only refuses every value but the given ones.
func only(values ...string) func(*chatRequest, json.RawMessage, string) *fault {
	return func(_ *chatRequest, raw json.RawMessage, at string) *fault {
		if slices.Contains(values, compact(raw)) {
			return nil
		}
		if len(values) == 0 {
			return badRequest(at, "%s is not supported by this policy: leave it out", at)
		}
		return badRequest(at, "%s is not supported by this policy: leave it out, or send %s", at, strings.Join(values, " or "))
	}
}

// onlyNumber refuses every number but the given one, however it is written.
func onlyNumber(want float64) func(*chatRequest, json.RawMessage, string) *fault {
	return func(_ *chatRequest, raw json.RawMessage, at string) *fault {
		v, f := number(raw, at, -math.MaxFloat64, math.MaxFloat64)
		if f == nil && v != want {
			f = badRequest(at, "%s is not supported by this policy: leave it out, or send %g", at, want)
		}
		return f
	}
}

func ignored(*chatRequest, json.RawMessage, string) *fault { return nil }
