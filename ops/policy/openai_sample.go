package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// vLLM's own default limit of alternatives (--max-logprobs).
const mostAlternatives = 20

// openAIChunk is one event of a chat completion, with vLLM's token ids.
type openAIChunk struct {
	Model          string         `json:"model"`
	PromptTokenIDs []uint32       `json:"prompt_token_ids"`
	Choices        []openAIChoice `json:"choices"`
	Usage          *struct {
		PromptTokens     uint64 `json:"prompt_tokens"`
		CompletionTokens uint64 `json:"completion_tokens"`
		Details          *struct {
			CachedTokens *uint64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

type openAIChoice struct {
	Index int `json:"index"`
	Delta struct {
		Content          string           `json:"content"`
		Refusal          string           `json:"refusal"`
		Reasoning        string           `json:"reasoning"`
		ReasoningContent string           `json:"reasoning_content"`
		ToolCalls        []openAICallPart `json:"tool_calls"`
	} `json:"delta"`
	Logprobs *struct {
		Content []openAILogprob `json:"content"`
	} `json:"logprobs"`
	FinishReason string   `json:"finish_reason"`
	TokenIDs     []uint32 `json:"token_ids"`
}

type openAICallPart struct {
	Index    *int   `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type openAILogprob struct {
	Token   string          `json:"token"`
	Logprob float64         `json:"logprob"`
	Bytes   []int           `json:"bytes"`
	Top     []openAILogprob `json:"top_logprobs"`
}

// Sample implements gateway.Policy.
func (o *openAI) Sample(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
	v, err := o.begin(ctx, r.Version)
	if err != nil {
		return nil, err
	}
	defer o.versions.end(v)
	sampling := o.cfg.inForce(r.Sampling)
	body, err := o.request(r, v, sampling)
	if err != nil {
		return nil, err
	}
	in, err := o.stream(ctx, o.base+"/chat/completions", body)
	if err != nil {
		missing(o.versions, v, err)
		return nil, err
	}
	defer in.close()
	means := o.scale
	if means == scaleSampling && filtered(sampling) {
		means = scaleUnknown // of the part of the vocabulary that was drawn from
	}
	d := newDraft(means, sampling, o.cfg, emit)
	d.showTop = r.TopLogprobs
	s := &openAIStream{openAI: o, draft: d, limit: sampling.GetMaxTokens()}
	return d.finished(ctx, readChunks(ctx, s.remote, in, s.draft, s.chunk), v, sampling)
}

// request is the body of a chat completion. To vLLM everything is said, so that nothing in its model's generation_config is in force unseen.
func (o *openAI) request(r *gateway.SampleRequest, v *version, sampling *schemas.Sampling) (map[string]any, error) {
	messages, err := wireMessages(r.Messages)
	if err != nil {
		return nil, err
	}
	body := map[string]any{"model": v.name, "messages": messages, "stream": true, "stream_options": map[string]bool{"include_usage": true}}
	if len(r.Tools) > 0 {
		tools, err := wireTools(r.Tools)
		if err != nil {
			return nil, err
		}
		body["tools"], body["tool_choice"] = tools, toolChoice(r.ToolChoice)
	}
	switch {
	case len(r.Schema) > 0:
		body["response_format"] = map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "response", "schema": json.RawMessage(r.Schema), "strict": true}}
	case r.JSON:
		body["response_format"] = map[string]string{"type": "json_object"}
	}
	if sampling.MaxTokens != nil {
		body["max_tokens"] = sampling.GetMaxTokens()
	}
	if sampling.Seed != nil {
		body["seed"] = sampling.GetSeed()
	}
	if len(sampling.GetStop()) > 0 {
		body["stop"] = sampling.GetStop()
	}
	if !o.vllm {
		// Only what was set: some models refuse every other value of these.
		if (r.Sampling == nil || r.Sampling.Temperature == nil) && o.cfg.Temperature == 0 {
			sampling.Temperature = nil
		} else {
			body["temperature"] = sampling.GetTemperature()
		}
		if sampling.TopP != nil {
			body["top_p"] = sampling.GetTopP()
		}
		return body, nil
	}
	if sampling.TopP == nil {
		sampling.TopP = proto.Float64(1)
	}
	body["temperature"], body["top_p"], body["min_p"] = sampling.GetTemperature(), sampling.GetTopP(), sampling.GetMinP()
	body["top_k"] = -1
	if k := sampling.GetTopK(); k > 0 {
		body["top_k"] = k
	}
	body["repetition_penalty"] = 1
	body["return_token_ids"], body["return_tokens_as_token_ids"] = true, true
	// One more than is needed: vLLM counts the sampled token as one of them, also when it is not among the likeliest.
	body["logprobs"], body["top_logprobs"] = true, min(max(o.cfg.RecordTopK, r.TopLogprobs)+1, mostAlternatives)
	return body, nil
}

// openAIStream assembles one completion. One goroutine.
type openAIStream struct {
	*openAI
	draft *draft
	limit uint32
	open  []openCall
	size  int // bytes of text, reasoning and calls
}

type openCall struct {
	index int
	call  *schemas.ToolCall
	done  bool
}

func (s *openAIStream) chunk(ctx context.Context, c *openAIChunk) error {
	d := s.draft
	d.model = or(c.Model, d.model)
	if len(c.PromptTokenIDs) > 0 {
		d.prompt = c.PromptTokenIDs
	}
	if u := c.Usage; u != nil {
		d.usage = &schemas.Usage{InputTokens: &u.PromptTokens, OutputTokens: &u.CompletionTokens}
		if u.Details != nil {
			d.usage.CachedTokens = u.Details.CachedTokens
		}
	}
	if len(c.Choices) == 0 {
		return nil
	}
	choice := &c.Choices[0]
	if len(c.Choices) > 1 || choice.Index != 0 {
		return s.broken("it sent several choices when one was asked for", nil)
	}
	if d.finish != schemas.FinishReason_FINISH_REASON_UNSPECIFIED {
		return nil // what follows the finish reason repeats it
	}
	if err := s.count(choice); err != nil {
		return err
	}
	tokens, err := s.tokens(ctx, choice)
	if err != nil {
		return err
	}
	d.reasoning.WriteString(or(choice.Delta.Reasoning, choice.Delta.ReasoningContent))
	calls, err := s.callParts(choice.Delta.ToolCalls)
	if err != nil {
		return err
	}
	if choice.FinishReason != "" {
		calls = append(calls, s.complete(len(s.open))...)
		if d.finish, err = s.finish(choice.FinishReason); err != nil {
			return err
		}
		if len(d.calls)+len(calls) > 0 && d.finish == schemas.FinishReason_FINISH_REASON_STOP {
			d.finish = schemas.FinishReason_FINISH_REASON_TOOL_CALLS // vLLM says stop for a tool that was named
		}
	}
	if err := d.add(tokens, choice.Delta.Content+choice.Delta.Refusal, calls); err != nil {
		return err
	}
	if why := d.tooMany(s.limit); why != "" {
		return s.broken(why, nil)
	}
	return nil
}

// count bounds what a response may hold.
func (s *openAIStream) count(c *openAIChoice) error {
	s.size += len(c.Delta.Content) + len(c.Delta.Refusal) + len(c.Delta.Reasoning) + len(c.Delta.ReasoningContent)
	for _, p := range c.Delta.ToolCalls {
		s.size += 64 + len(p.Function.Name) + len(p.Function.Arguments)
	}
	if s.size > maxResponseBytes {
		return s.broken(fmt.Sprintf("a response has more than %d bytes", maxResponseBytes), nil)
	}
	return nil
}

func (s *openAIStream) finish(reason string) (schemas.FinishReason, error) {
	switch reason {
	case "stop":
		return schemas.FinishReason_FINISH_REASON_STOP, nil
	case "length":
		return schemas.FinishReason_FINISH_REASON_LENGTH, nil
	case "tool_calls", "function_call":
		return schemas.FinishReason_FINISH_REASON_TOOL_CALLS, nil
	case "content_filter":
		return schemas.FinishReason_FINISH_REASON_CONTENT_FILTER, nil
	}
	return 0, s.broken(fmt.Sprintf("the completion ended with %.40q", reason), nil)
}

// tokens reads the ids and log-probs of a chunk.
func (s *openAIStream) tokens(ctx context.Context, c *openAIChoice) ([]sampledToken, error) {
	var content []openAILogprob
	if c.Logprobs != nil {
		content = c.Logprobs.Content
	}
	if !s.vllm {
		if len(content) == 0 && (c.Delta.Content != "" || len(c.Delta.ToolCalls) > 0) {
			return []sampledToken{{}}, nil // one token or a few: the server does not say
		}
		return make([]sampledToken, len(content)), nil
	}
	if len(content) > 0 && len(content) != len(c.TokenIDs) {
		return nil, s.broken(fmt.Sprintf("an event has %d token ids and %d log-probs", len(c.TokenIDs), len(content)), nil)
	}
	if len(c.TokenIDs) == 0 && c.Delta.Content != "" {
		return []sampledToken{{}}, nil
	}
	tokens := make([]sampledToken, len(c.TokenIDs))
	for i, id := range c.TokenIDs {
		t := &tokens[i]
		t.id, t.known = id, true
		if len(content) == 0 {
			continue
		}
		if named, ok := tokenID(content[i].Token); ok && named != id {
			return nil, s.broken(fmt.Sprintf("it names token %d with the log-prob of token %d", id, named), nil)
		}
		t.logprob, t.given = float32(content[i].Logprob), isLogprob(content[i].Logprob)
		t.bytes = toBytes(content[i].Bytes)
		for _, e := range content[i].Top {
			top, ok := tokenID(e.Token)
			if !ok || !isLogprob(e.Logprob) {
				continue
			}
			alternative := gateway.TokenLogprob{ID: top, Logprob: float32(e.Logprob)}
			if s.draft.showTop > 0 {
				text, err := s.pieces.text(ctx, s.openAI, top)
				if err != nil {
					return nil, err
				}
				alternative.Bytes = text
			}
			t.top = append(t.top, alternative)
		}
	}
	return tokens, nil
}

// isLogprob: vLLM writes -9999 for a log-prob that it does not have.
func isLogprob(l float64) bool { return l <= 1e-3 && l > -9999 }

// tokenID reads vLLM's "token_id:123".
func tokenID(s string) (uint32, bool) {
	digits, ok := strings.CutPrefix(s, "token_id:")
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 32)
	return uint32(id), err == nil
}

func toBytes(ints []int) []byte {
	if ints == nil {
		return nil
	}
	b := make([]byte, len(ints))
	for i, n := range ints {
		b[i] = byte(n)
	}
	return b
}

// callParts appends the deltas of tool calls, and returns the calls that another one has followed: those are complete.
func (s *openAIStream) callParts(parts []openAICallPart) ([]*schemas.ToolCall, error) {
	var complete []*schemas.ToolCall
	for _, p := range parts {
		index := len(s.open) // a server without indices begins a call with an id
		switch {
		case p.Index != nil:
			index = *p.Index
		case p.ID == "" && len(s.open) > 0:
			index = s.open[len(s.open)-1].index
		}
		at := len(s.open) - 1
		for at >= 0 && s.open[at].index != index {
			at--
		}
		if at < 0 {
			complete = append(complete, s.complete(len(s.open))...)
			s.open = append(s.open, openCall{index: index, call: &schemas.ToolCall{}})
			at = len(s.open) - 1
		}
		if s.open[at].done {
			return nil, s.broken("it continues a tool call after the next one began", nil)
		}
		call := s.open[at].call
		call.Id, call.Name = or(call.Id, p.ID), call.Name+p.Function.Name
		call.Arguments += p.Function.Arguments
	}
	return complete, nil
}

// complete marks the first n calls as complete, and returns those that were not.
func (s *openAIStream) complete(n int) []*schemas.ToolCall {
	var calls []*schemas.ToolCall
	for i := range s.open[:n] {
		if !s.open[i].done {
			s.open[i].done = true
			calls = append(calls, s.open[i].call)
		}
	}
	return calls
}

// pieceTexts remembers the texts of tokens that vLLM names by id only. Safe for concurrent use.
type pieceTexts struct {
	mu    sync.Mutex
	known map[uint32][]byte
}

// A vocabulary; beyond it nothing is remembered.
const mostPieceTexts = 1 << 18

func (p *pieceTexts) text(ctx context.Context, o *openAI, id uint32) ([]byte, error) {
	p.mu.Lock()
	text, ok := p.known[id]
	p.mu.Unlock()
	if ok {
		return text, nil
	}
	var out struct {
		Prompt string `json:"prompt"`
	}
	if err := o.call(ctx, o.root()+"/detokenize", map[string]any{"model": o.versions.model, "tokens": []uint32{id}}, &out); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[uint32][]byte{}
	}
	if len(p.known) < mostPieceTexts {
		p.known[id] = []byte(out.Prompt)
	}
	return []byte(out.Prompt), nil
}
