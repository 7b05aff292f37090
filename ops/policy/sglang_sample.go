package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// sglangChunk is one event of /generate, or its whole answer. Texts and lists hold everything until then, unless the server was started with
// incremental output: completion_tokens tells which.
type sglangChunk struct {
	Text      string   `json:"text"`
	OutputIDs []uint32 `json:"output_ids"`
	Meta      struct {
		FinishReason *struct {
			Type       string `json:"type"` // stop, length, abort
			Message    string `json:"message"`
			StatusCode int    `json:"status_code"`
			// Matched is the stop string or the id of the end token.
			Matched any `json:"matched"`
		} `json:"finish_reason"`
		PromptTokens     uint64            `json:"prompt_tokens"`
		CompletionTokens uint64            `json:"completion_tokens"`
		CachedTokens     *uint64           `json:"cached_tokens"`
		Output           []sglangLogprob   `json:"output_token_logprobs"`
		OutputTop        [][]sglangLogprob `json:"output_top_logprobs"`
		Input            []sglangLogprob   `json:"input_token_logprobs"`
		InputTop         [][]sglangLogprob `json:"input_top_logprobs"`
		InputIDs         [][]sglangLogprob `json:"input_token_ids_logprobs"`
	} `json:"meta_info"`
}

// sglangLogprob is [log-prob or null, id, text or null].
type sglangLogprob struct {
	logprob float32
	given   bool
	id      uint32
	text    *string
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *sglangLogprob) UnmarshalJSON(b []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	if len(parts) < 2 {
		return fmt.Errorf("a log-prob is %d values: %.80s", len(parts), b)
	}
	*l = sglangLogprob{}
	if !bytes.Equal(parts[0], []byte("null")) {
		if err := json.Unmarshal(parts[0], &l.logprob); err != nil {
			return err
		}
		if l.logprob > 1e-3 {
			return fmt.Errorf("a log-prob is %g", l.logprob)
		}
		l.given = true
	}
	if err := json.Unmarshal(parts[1], &l.id); err != nil {
		return err
	}
	if len(parts) > 2 {
		return json.Unmarshal(parts[2], &l.text)
	}
	return nil
}

// Sample implements gateway.Policy.
func (s *sglang) Sample(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
	v, err := beginVersion(ctx, s.remote, s.versions, r.Version)
	if err != nil {
		return nil, err
	}
	defer s.versions.end(v)
	parse, err := s.callsTools(r)
	if err != nil {
		return nil, err
	}
	tools := r.Tools
	if r.ToolChoice == "none" {
		tools = nil
	}
	ids, _, err := s.tokenize(ctx, s.versions.model, r.Messages, tools)
	if err != nil {
		return nil, err
	}
	sampling := s.cfg.inForce(r.Sampling)
	if err := s.room(len(ids), sampling); err != nil {
		return nil, err
	}
	body := s.generate(v, ids, s.params(r, sampling, parse))
	top := max(s.cfg.RecordTopK, r.TopLogprobs)
	body["stream"], body["top_logprobs_num"], body["return_text_in_logprobs"] = true, top, true
	in, err := s.stream(ctx, s.base+"/generate", body)
	if err != nil {
		missing(s.versions, v, err)
		return nil, err
	}
	defer in.close()
	// Its log-probs are taken before top_p and the like, so these filter nothing; greedy sampling does not divide by the temperature.
	means := s.scale
	if means == scaleSampling && sampling.GetTemperature() == 0 {
		means = scaleOne
	}
	d := newDraft(means, sampling, s.cfg, emit)
	d.showTop, d.prompt, d.model = r.TopLogprobs, ids, s.versions.model
	st := &sglangStream{sglang: s, draft: d, limit: sampling.GetMaxTokens(), stop: sampling.GetStop()}
	if parse {
		st.tools = r.Tools
	}
	return d.finished(ctx, readChunks(ctx, st.remote, in, st.draft, st.chunk), v, sampling)
}

// callsTools reports whether the response may call tools, and refuses what the native API cannot force.
func (s *sglang) callsTools(r *gateway.SampleRequest) (bool, error) {
	if len(r.Tools) == 0 || r.ToolChoice == "none" {
		return false, nil
	}
	switch {
	case s.toolParser == "":
		return false, &gateway.PolicyError{Status: http.StatusBadRequest, Param: "tools", Message: "the policy's server reads no tool calls: start SGLang with --tool-call-parser"}
	case r.ToolChoice != "" && r.ToolChoice != "auto":
		return false, &gateway.PolicyError{Status: http.StatusBadRequest, Param: "tool_choice", Message: "SGLang's native API cannot force a tool call: use tool_choice auto, or the engine openai"}
	}
	return true, nil
}

// room sets max_tokens, whose default there is 128, to what the context leaves.
func (s *sglang) room(prompt int, sampling *schemas.Sampling) error {
	if s.context == 0 {
		if sampling.MaxTokens == nil {
			return &gateway.PolicyError{Status: http.StatusBadRequest, Param: "max_tokens", Message: "the policy's server does not say how long its context is: set max_tokens"}
		}
		return nil
	}
	left := s.context - prompt - 1 // SGLang wants the sum below its context
	if left < 1 || int64(sampling.GetMaxTokens()) > int64(left) {
		return &gateway.PolicyError{
			Status: http.StatusBadRequest, Code: "context_length_exceeded", Param: "messages",
			Message: fmt.Sprintf("the policy's context has %d tokens; the conversation has %d and %d more are asked for: shorten it or ask for fewer", s.context, prompt, max(1, sampling.GetMaxTokens())),
		}
	}
	if sampling.MaxTokens == nil {
		sampling.MaxTokens = proto.Uint32(uint32(left))
	}
	return nil
}

// params are all said, so that nothing in the model's generation_config is in force unseen.
func (s *sglang) params(r *gateway.SampleRequest, sampling *schemas.Sampling, parse bool) map[string]any {
	if sampling.TopP == nil {
		sampling.TopP = proto.Float64(1)
	}
	p := map[string]any{
		"temperature": sampling.GetTemperature(), "top_p": sampling.GetTopP(), "min_p": sampling.GetMinP(), "top_k": -1, "repetition_penalty": 1,
		"max_new_tokens": sampling.GetMaxTokens(),
		// Parsers of tool calls need the special tokens around them.
		"skip_special_tokens": !parse,
	}
	if k := sampling.GetTopK(); k > 0 {
		p["top_k"] = k
	}
	if sampling.Seed != nil {
		p["sampling_seed"] = sampling.GetSeed()
	}
	if len(sampling.GetStop()) > 0 {
		p["stop"] = sampling.GetStop()
	}
	switch {
	case len(r.Schema) > 0:
		p["json_schema"] = string(r.Schema)
	case r.JSON:
		p["json_schema"] = `{"type":"object"}`
	}
	return p
}

// sglangStream assembles one response. One goroutine.
type sglangStream struct {
	*sglang
	draft *draft
	limit uint32
	stop  []string
	// tools may be called: then no text is given before the end, when the server has told text and calls apart.
	tools []*schemas.Tool

	whole string // all text until now
	given int    // bytes of it that were emitted
}

func (s *sglangStream) chunk(ctx context.Context, c *sglangChunk) error {
	d := s.draft
	d.usage = &schemas.Usage{InputTokens: &c.Meta.PromptTokens, OutputTokens: &c.Meta.CompletionTokens, CachedTokens: c.Meta.CachedTokens}
	whole, err := s.newTokens(c)
	if err != nil {
		return err
	}
	tokens, err := s.tokens(c)
	if err != nil {
		return err
	}
	if !whole {
		s.whole += c.Text
	} else {
		s.whole = c.Text
	}
	if len(s.whole) > maxResponseBytes {
		return s.broken(fmt.Sprintf("a response has more than %d bytes", maxResponseBytes), nil)
	}
	end := c.Meta.FinishReason
	var calls []*schemas.ToolCall
	if end != nil {
		if d.finish, err = s.finish(end.Type, end.Message, end.StatusCode); err != nil {
			return err
		}
		if stop, ok := end.Matched.(string); ok && !whole {
			// The beginning of the stop string may have come in an earlier event, its end never comes.
			s.whole = s.whole[:len(s.whole)-pending(s.whole, []string{stop})]
		}
		if s.tools != nil {
			if calls, err = s.parseCalls(ctx); err != nil {
				return err
			}
			if len(calls) > 0 {
				d.finish = schemas.FinishReason_FINISH_REASON_TOOL_CALLS
			}
		}
	}
	text, err := s.visible(end != nil)
	if err != nil {
		return err
	}
	if err := d.add(tokens, text, calls); err != nil {
		return err
	}
	if why := d.tooMany(s.limit); why != "" {
		return s.broken(why, nil)
	}
	return nil
}

// newTokens drops what came before from a chunk that holds everything, which it reports.
func (s *sglangStream) newTokens(c *sglangChunk) (whole bool, err error) {
	had, total := s.draft.tokens, int(c.Meta.CompletionTokens)
	switch n := len(c.OutputIDs); {
	case n == total && total >= had:
		whole, c.OutputIDs = true, c.OutputIDs[had:]
	case had+n == total:
	default:
		return false, s.broken(fmt.Sprintf("after %d tokens it sends %d ids and counts %d", had, n, total), nil)
	}
	// The log-probs may be cumulative where the ids are not.
	if len(c.Meta.Output) == total {
		c.Meta.Output = c.Meta.Output[had:]
	}
	if len(c.Meta.OutputTop) == total {
		c.Meta.OutputTop = c.Meta.OutputTop[had:]
	}
	return whole, nil
}

func (s *sglangStream) tokens(c *sglangChunk) ([]sampledToken, error) {
	logprobs, top := c.Meta.Output, c.Meta.OutputTop
	if len(logprobs) > 0 && len(logprobs) != len(c.OutputIDs) || len(top) > 0 && len(top) != len(c.OutputIDs) {
		return nil, s.broken(fmt.Sprintf("an event has %d token ids, %d log-probs and %d alternatives", len(c.OutputIDs), len(logprobs), len(top)), nil)
	}
	tokens := make([]sampledToken, len(c.OutputIDs))
	for i, id := range c.OutputIDs {
		t := &tokens[i]
		t.id, t.known = id, true
		if len(logprobs) == 0 {
			continue
		}
		if logprobs[i].id != id {
			return nil, s.broken(fmt.Sprintf("it names token %d with the log-prob of token %d", id, logprobs[i].id), nil)
		}
		t.logprob, t.given, t.bytes = logprobs[i].logprob, logprobs[i].given, logprobs[i].bytes()
		if len(top) == 0 {
			continue
		}
		for _, l := range top[i] {
			if l.given {
				t.top = append(t.top, gateway.TokenLogprob{ID: l.id, Bytes: l.bytes(), Logprob: l.logprob})
			}
		}
	}
	return tokens, nil
}

func (l sglangLogprob) bytes() []byte {
	if l.text == nil {
		return nil
	}
	return []byte(*l.text)
}

func (s *sglangStream) finish(kind, message string, status int) (schemas.FinishReason, error) {
	switch kind {
	case "stop":
		return schemas.FinishReason_FINISH_REASON_STOP, nil
	case "length":
		return schemas.FinishReason_FINISH_REASON_LENGTH, nil
	case "abort":
		return 0, s.refusal(or(status, http.StatusBadGateway), 0, or(message, "the request was aborted there"), "", "")
	}
	return 0, s.broken(fmt.Sprintf("the response ended with %.40q", kind), nil)
}

// visible is the text that can be given now. SGLang cuts a stop string off only when it is complete, so what may be its beginning waits.
func (s *sglangStream) visible(ended bool) (string, error) {
	upTo := len(s.whole)
	if cut := firstOf(s.whole, s.stop); cut >= 0 {
		upTo = cut
	} else if !ended {
		upTo = len(s.whole) - pending(s.whole, s.stop)
		if s.tools != nil {
			upTo = 0
		}
	}
	if upTo < s.given || len(s.draft.text.String()) != s.given || !strings.HasPrefix(s.whole, s.draft.text.String()) {
		return "", s.broken("it takes back text that it has sent", nil)
	}
	text := s.whole[s.given:upTo]
	s.given = upTo
	return text, nil
}

// firstOf is where the first of the stop strings begins; -1: nowhere.
func firstOf(text string, stop []string) int {
	first := -1
	for _, w := range stop {
		if at := strings.Index(text, w); w != "" && at >= 0 && (first < 0 || at < first) {
			first = at
		}
	}
	return first
}

// pending is the length of the longest end of text that begins a stop string.
func pending(text string, stop []string) int {
	longest := 0
	for _, w := range stop {
		for n := min(len(w)-1, len(text)); n > longest; n-- {
			if strings.HasSuffix(text, w[:n]) {
				longest = n
			}
		}
	}
	return longest
}

// parseCalls lets the server tell the tool calls in the text apart; s.whole becomes the rest.
func (s *sglangStream) parseCalls(ctx context.Context) ([]*schemas.ToolCall, error) {
	tools, err := wireTools(s.tools)
	if err != nil {
		return nil, err
	}
	var out struct {
		NormalText string `json:"normal_text"`
		Calls      []struct {
			Name       string `json:"name"`
			Parameters string `json:"parameters"`
		} `json:"calls"`
	}
	if cut := firstOf(s.whole, s.stop); cut >= 0 {
		s.whole = s.whole[:cut]
	}
	err = s.call(ctx, s.base+"/parse_function_call", map[string]any{"text": s.whole, "tools": tools, "tool_call_parser": s.toolParser}, &out)
	if err != nil {
		return nil, err
	}
	s.whole = out.NormalText
	calls := make([]*schemas.ToolCall, len(out.Calls))
	for i, c := range out.Calls {
		calls[i] = &schemas.ToolCall{Id: "call_" + schemas.NewID(), Name: c.Name, Arguments: c.Parameters}
	}
	return calls, nil
}
