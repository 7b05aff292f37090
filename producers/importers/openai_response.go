package importers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// openAIRequest is a request of the chat API.
type openAIRequest struct {
	Model               string          `json:"model"`
	Messages            json.RawMessage `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	Functions           json.RawMessage `json:"functions"`
	User                string          `json:"user"`
	Temperature         *float64        `json:"temperature"`
	TopP                *float64        `json:"top_p"`
	MaxTokens           *uint32         `json:"max_tokens"`
	MaxCompletionTokens *uint32         `json:"max_completion_tokens"`
	Seed                *int64          `json:"seed"`
	Stop                json.RawMessage `json:"stop"`

	openAISession
}

// sampling of the request; nil when it sets nothing.
func (r *openAIRequest) sampling() *schemas.Sampling {
	s := &schemas.Sampling{Temperature: r.Temperature, TopP: r.TopP, MaxTokens: r.MaxTokens, Seed: r.Seed}
	if r.MaxCompletionTokens != nil {
		s.MaxTokens = r.MaxCompletionTokens
	}
	if one, ok := jsonString(r.Stop); ok {
		s.Stop = []string{one}
	} else if !absent(r.Stop) {
		_ = decode(r.Stop, &s.Stop) // a stop of another shape is no part of what the policy said
	}
	if s.Temperature == nil && s.TopP == nil && s.MaxTokens == nil && s.Seed == nil && len(s.Stop) == 0 {
		return nil
	}
	return s
}

// openAIResponse is a chat.completion.
type openAIResponse struct {
	ID             string          `json:"id"`
	Created        json.Number     `json:"created"`
	Model          string          `json:"model"`
	Choices        []openAIChoice  `json:"choices"`
	Usage          *chatUsage      `json:"usage"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids"` // vendors
	Body           json.RawMessage `json:"body"`             // the batch API
	Error          json.RawMessage `json:"error"`
}

type openAIChoice struct {
	Index        int             `json:"index"`
	Message      *chatMessage    `json:"message"`
	Delta        *chatMessage    `json:"delta"`
	FinishReason string          `json:"finish_reason"`
	TokenIDs     json.RawMessage `json:"token_ids"` // vendors
	Logprobs     *struct {
		Content []openAILogprob `json:"content"`
	} `json:"logprobs"`
}

type openAILogprob struct {
	Token   string   `json:"token"`
	Logprob *float32 `json:"logprob"`
}

type chatUsage struct {
	Prompt     *uint64 `json:"prompt_tokens"`
	Completion *uint64 `json:"completion_tokens"`
	Details    *struct {
		Cached *uint64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (u *chatUsage) usage() *schemas.Usage {
	if u == nil || u.Prompt == nil && u.Completion == nil {
		return nil
	}
	out := &schemas.Usage{InputTokens: u.Prompt, OutputTokens: u.Completion}
	if u.Details != nil {
		out.CachedTokens = u.Details.Cached
	}
	return out
}

// finishReason maps OpenAI's names.
func finishReason(s string) schemas.FinishReason {
	switch s {
	case "stop":
		return schemas.FinishReason_FINISH_REASON_STOP
	case "length":
		return schemas.FinishReason_FINISH_REASON_LENGTH
	case "tool_calls", "function_call":
		return schemas.FinishReason_FINISH_REASON_TOOL_CALLS
	case "content_filter":
		return schemas.FinishReason_FINISH_REASON_CONTENT_FILTER
	default:
		return schemas.FinishReason_FINISH_REASON_UNSPECIFIED
	}
}

// response reads a response: an object, the batch API's wrapper, JSON in a string, or the list of a stream's chunks.
func readResponse(raw json.RawMessage) (*openAIResponse, error) {
	if s, ok := jsonString(raw); ok {
		raw = json.RawMessage(s)
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) > 0 && raw[0] == '[' {
		var chunks []openAIResponse
		if err := decode(raw, &chunks); err != nil {
			return nil, &shapeError{fmt.Errorf("response: %w", err)}
		}
		var s openAIStream
		for i := range chunks {
			s.add(&chunks[i])
		}
		return s.response(), nil
	}
	var r openAIResponse
	if err := decode(raw, &r); err != nil {
		return nil, &shapeError{fmt.Errorf("response: %w", err)}
	}
	if !absent(r.Body) {
		body := r.Body
		r = openAIResponse{}
		if err := decode(body, &r); err != nil {
			return nil, &shapeError{fmt.Errorf("response.body: %w", err)}
		}
	}
	return &r, nil
}

// tokensOf takes the ids and log-probs of a choice. Ids come only from vendor fields, or from tokens written as token_id:N; text is never
// tokenised again.
func (e *Emitter) tokensOf(r *openAIResponse, c *openAIChoice) *schemas.Tokens {
	var logprobs []openAILogprob
	if c.Logprobs != nil {
		logprobs = c.Logprobs.Content
	}
	ids, ok := numbers[uint32](c.TokenIDs)
	if absent(c.TokenIDs) {
		ids, ok = idsInTokens(logprobs)
	}
	if !ok || len(ids) == 0 {
		return nil
	}
	t := &schemas.Tokens{ResponseIds: ids}
	for _, l := range logprobs {
		if l.Logprob != nil {
			t.Logprobs = append(t.Logprobs, *l.Logprob)
		}
	}
	if len(logprobs) > 0 && len(t.Logprobs) != len(ids) {
		e.Warn("line %d: %d token ids and %d log-probs: both dropped", e.line, len(ids), len(t.Logprobs))
		return nil
	}
	if prompt, ok := numbers[uint32](r.PromptTokenIDs); ok {
		t.PromptIds = prompt
	}
	return t
}

// idsInTokens reads tokens that are written as token_id:N, as vLLM does when asked to.
func idsInTokens(list []openAILogprob) ([]uint32, bool) {
	var ids []uint32
	for _, l := range list {
		digits, ok := strings.CutPrefix(l.Token, "token_id:")
		if !ok {
			return nil, false
		}
		n, err := strconv.ParseUint(digits, 10, 32)
		if err != nil {
			return nil, false
		}
		ids = append(ids, uint32(n))
	}
	return ids, true
}

// openAIStream joins the chunks of one streamed response.
type openAIStream struct {
	r       openAIResponse
	choices map[int]*streamChoice
	order   []int
	bytes   int
}

type streamChoice struct {
	openAIChoice
	text, reasoning, refusal strings.Builder
	calls                    []chatCall
	args                     []*strings.Builder
	ids                      []json.RawMessage
}

// maxStreamCalls bounds the calls of one streamed choice: the index comes from the file.
const maxStreamCalls = 1000

func (s *openAIStream) add(c *openAIResponse) {
	if c.ID != "" {
		s.r.ID = c.ID
	}
	if c.Model != "" {
		s.r.Model = c.Model
	}
	if c.Created != "" {
		s.r.Created = c.Created
	}
	if c.Usage != nil {
		s.r.Usage = c.Usage // the last chunk has it, and no choices
	}
	if !absent(c.PromptTokenIDs) {
		s.r.PromptTokenIDs = c.PromptTokenIDs
	}
	for i := range c.Choices {
		s.choice(&c.Choices[i])
	}
}

func (s *openAIStream) choice(c *openAIChoice) {
	if s.choices == nil {
		s.choices = map[int]*streamChoice{}
	}
	to := s.choices[c.Index]
	if to == nil {
		if len(s.order) >= maxStreamCalls {
			return
		}
		to = &streamChoice{openAIChoice: openAIChoice{Index: c.Index}}
		s.choices[c.Index], s.order = to, append(s.order, c.Index)
	}
	if c.FinishReason != "" {
		to.FinishReason = c.FinishReason
	}
	if c.Logprobs != nil {
		if to.Logprobs == nil {
			to.Logprobs = c.Logprobs
		} else {
			to.Logprobs.Content = append(to.Logprobs.Content, c.Logprobs.Content...)
		}
	}
	if !absent(c.TokenIDs) {
		var ids []json.RawMessage
		if decode(c.TokenIDs, &ids) == nil {
			to.ids = append(to.ids, ids...)
		}
	}
	if d := c.Delta; d != nil {
		to.add(d)
	}
}

func (to *streamChoice) add(d *chatMessage) {
	if s, ok := jsonString(d.Content); ok {
		to.text.WriteString(s)
	}
	for _, raw := range []json.RawMessage{d.ReasoningContent, d.Reasoning} {
		if s, ok := jsonString(raw); ok {
			to.reasoning.WriteString(s)
			break
		}
	}
	to.refusal.WriteString(d.Refusal)
	for i, c := range d.ToolCalls {
		index := len(to.calls) + i
		if c.Index != nil {
			index = *c.Index
		}
		if index < 0 || index >= maxStreamCalls {
			continue
		}
		for len(to.calls) <= index {
			to.calls, to.args = append(to.calls, chatCall{}), append(to.args, &strings.Builder{})
		}
		at := &to.calls[index]
		if c.ID != "" {
			at.ID = c.ID
		}
		if c.Function.Name != "" {
			at.Function.Name = c.Function.Name
		}
		to.args[index].WriteString(arguments(c.Function.Arguments))
	}
}

func (s *openAIStream) response() *openAIResponse {
	r := s.r
	for _, index := range s.order {
		c := s.choices[index]
		m := &chatMessage{Role: "assistant", Refusal: c.refusal.String(), Content: quoted(c.text.String()), ReasoningContent: quoted(c.reasoning.String())}
		for i, call := range c.calls {
			call.Function.Arguments = quoted(c.args[i].String())
			m.ToolCalls = append(m.ToolCalls, call)
		}
		choice := c.openAIChoice
		choice.Message = m
		if len(c.ids) > 0 {
			choice.TokenIDs = append(append([]byte("["), bytes.Join(rawBytes(c.ids), []byte(","))...), ']')
		}
		r.Choices = append(r.Choices, choice)
	}
	return &r
}

// quoted writes a text as JSON; nil for an empty one.
func quoted(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	b, err := json.Marshal(s)
	if err != nil { // strings always marshal
		return nil
	}
	return b
}

func rawBytes(list []json.RawMessage) [][]byte {
	out := make([][]byte, len(list))
	for i, raw := range list {
		out[i] = raw
	}
	return out
}
