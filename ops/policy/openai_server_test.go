package policy_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// vllmServer speaks vLLM's OpenAI API over HTTP, with a bigram model behind it. It refuses fields that its API does not document.
type vllmServer struct {
	*bigram
	// processed: --logprobs-mode processed_logprobs instead of raw_logprobs.
	processed bool
	// perEvent tokens come in one event (--stream-interval). 0: one.
	perEvent int
	context  int
	key      string

	mu       sync.Mutex
	adapters []string
	paths    map[string]string
	active   atomic.Int64 // streams in work
	unloads  atomic.Int64
}

func newVLLM(t *testing.T) (*vllmServer, string) {
	t.Helper()
	s := &vllmServer{bigram: newBigram(), context: 4096, key: "sk-secret-key", paths: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("POST /v1/chat/completions", s.chatCompletions)
	mux.HandleFunc("POST /v1/completions", s.completions)
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("POST /detokenize", s.detokenize)
	mux.HandleFunc("POST /v1/load_lora_adapter", s.load)
	mux.HandleFunc("POST /v1/unload_lora_adapter", s.unload)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+s.key {
			fail(w, 401, "Incorrect API key provided: "+r.Header.Get("Authorization"))
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	return s, h.URL
}

func fail(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "type": "BadRequestError", "param": nil, "code": status}})
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// take decodes a request, and fails it when it has fields that are not documented.
func take(w http.ResponseWriter, r *http.Request, into any) bool {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		fail(w, 400, err.Error())
		return false
	}
	return true
}

func (s *vllmServer) models(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := []map[string]any{{"id": "bigram", "object": "model", "owned_by": "vllm", "root": "bigram", "parent": nil, "max_model_len": s.context}}
	for _, a := range s.adapters {
		data = append(data, map[string]any{"id": a, "object": "model", "owned_by": "vllm", "root": s.paths[a], "parent": "bigram"})
	}
	reply(w, map[string]any{"object": "list", "data": data})
}

// adapter is the path of the adapter that a model names; false, answered: there is none.
func (s *vllmServer) adapter(w http.ResponseWriter, model string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if model == "bigram" {
		return "", true
	}
	path, ok := s.paths[model]
	if !ok {
		fail(w, 404, fmt.Sprintf("The model `%s` does not exist.", model))
	}
	return path, ok
}

type chatRequest struct {
	Model          string            `json:"model"`
	Messages       []chatMessage     `json:"messages"`
	Tools          []json.RawMessage `json:"tools"`
	ToolChoice     any               `json:"tool_choice"`
	Stream         bool              `json:"stream"`
	StreamOptions  map[string]bool   `json:"stream_options"`
	Temperature    *float64          `json:"temperature"`
	TopP           *float64          `json:"top_p"`
	TopK           int               `json:"top_k"`
	MinP           float64           `json:"min_p"`
	Repetition     float64           `json:"repetition_penalty"`
	MaxTokens      int               `json:"max_tokens"`
	Seed           *uint64           `json:"seed"`
	Stop           []string          `json:"stop"`
	Logprobs       bool              `json:"logprobs"`
	TopLogprobs    int               `json:"top_logprobs"`
	ReturnTokenIDs bool              `json:"return_token_ids"`
	TokensAsIDs    bool              `json:"return_tokens_as_token_ids"`
	ResponseFormat map[string]any    `json:"response_format"`
}

func (s *vllmServer) chatCompletions(w http.ResponseWriter, r *http.Request) {
	var q chatRequest
	if !take(w, r, &q) {
		return
	}
	adapter, ok := s.adapter(w, q.Model)
	if !ok {
		return
	}
	s.mu.Lock()
	broken := strings.Contains(s.paths[q.Model], "broken")
	s.mu.Unlock()
	if broken {
		fail(w, 400, "Out of range float values are not JSON compliant")
		return
	}
	prompt := s.chat(q.Messages)
	if q.TopLogprobs > 20 {
		fail(w, 400, "Requested sample logprobs of 21, which is greater than max allowed: 20")
		return
	}
	if len(prompt)+max(1, q.MaxTokens) > s.context {
		fail(w, 400, fmt.Sprintf("This model's maximum context length is %d tokens. However, your request has %d input tokens.", s.context, len(prompt)))
		return
	}
	if q.MaxTokens == 0 {
		q.MaxTokens = s.context - len(prompt)
	}
	s.active.Add(1)
	defer s.active.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	st := &vllmStream{vllmServer: s, w: w, r: r, q: &q, adapter: adapter, ids: slices.Clone(prompt), prompt: len(prompt)}
	st.run()
}

// vllmStream is one streamed completion.
type vllmStream struct {
	*vllmServer
	w       http.ResponseWriter
	r       *http.Request
	q       *chatRequest
	adapter string
	ids     []uint32
	prompt  int
	text    string // of the response until now
	sent    int    // bytes of it
}

func (st *vllmStream) send(v map[string]any) {
	v["id"], v["object"], v["model"] = "chatcmpl-1", "chat.completion.chunk", st.q.Model
	b, _ := json.Marshal(v)
	fmt.Fprintf(st.w, "data: %s\n\n", b)
	st.w.(http.Flusher).Flush()
}

func (st *vllmStream) run() {
	q := st.q
	first := map[string]any{"choices": []any{map[string]any{"index": 0, "delta": map[string]any{"role": "assistant", "content": ""}, "logprobs": nil, "finish_reason": nil}}}
	if q.ReturnTokenIDs {
		first["prompt_token_ids"] = st.ids
	}
	st.send(first)
	seed := rand.Uint64()
	if q.Seed != nil {
		seed = *q.Seed
	}
	draw := sampler{temperature: *q.Temperature, topP: *q.TopP, topK: max(0, q.TopK), minP: q.MinP, random: rand.New(rand.NewPCG(seed, 1))}
	script := st.script(q.Messages)
	if len(q.Tools) == 0 || q.ToolChoice == "none" {
		script = nil
	}
	parser := callParser{}
	finish := any(nil)
	var ids []uint32
	var content []any
	for n := 0; finish == nil && st.r.Context().Err() == nil; n++ {
		id, processed := draw.draw(st.logits(st.adapter, st.ids[len(st.ids)-1]))
		if n < len(script) {
			id = script[n]
		}
		content = append(content, st.logprob(id, processed))
		st.ids, ids = append(st.ids, id), append(ids, id)
		st.text = st.decode(st.ids[st.prompt:])
		finish = st.ended(n+1, id)
		if len(ids) < max(1, st.perEvent) && finish == nil {
			continue
		}
		choice := map[string]any{"index": 0, "logprobs": map[string]any{"content": content}, "finish_reason": finish}
		if script != nil {
			choice["delta"] = parser.delta(st.text, finish != nil)
			if finish != nil && len(parser.started) > 0 {
				choice["finish_reason"] = "tool_calls"
			}
		} else {
			choice["delta"] = map[string]any{"content": st.visible(finish != nil)}
		}
		if q.ReturnTokenIDs {
			choice["token_ids"] = ids
		}
		st.send(map[string]any{"choices": []any{choice}})
		ids, content = nil, nil
	}
	if finish == nil {
		return
	}
	st.send(map[string]any{"choices": []any{}, "usage": map[string]any{
		"prompt_tokens": st.prompt, "completion_tokens": len(st.ids) - st.prompt, "total_tokens": len(st.ids), "prompt_tokens_details": map[string]any{"cached_tokens": 16},
	}})
	fmt.Fprint(st.w, "data: [DONE]\n\n")
}

// ended: a stop string cuts the text, and the tokens stay.
func (st *vllmStream) ended(n int, id uint32) any {
	for _, w := range st.q.Stop {
		if at := strings.Index(st.text, w); at >= 0 {
			st.text = st.text[:at]
			return "stop"
		}
	}
	switch {
	case id == bigramEnd:
		return "stop"
	case n == st.q.MaxTokens:
		return "length"
	}
	return nil
}

// visible holds back as many bytes as a stop string may still need.
func (st *vllmStream) visible(ended bool) string {
	upTo := len(st.text)
	if !ended {
		for _, w := range st.q.Stop {
			upTo = min(upTo, len(st.text)-len(w)+1)
		}
		for upTo > 0 && upTo < len(st.text) && st.text[upTo]&0xC0 == 0x80 {
			upTo--
		}
	}
	if upTo <= st.sent {
		return ""
	}
	text := st.text[st.sent:upTo]
	st.sent = upTo
	return text
}

func (st *vllmStream) logprob(id uint32, processed []float64) map[string]any {
	l := logSoftmax(st.logits(st.adapter, st.ids[len(st.ids)-1]), 1)
	if st.processed {
		l = processed
	}
	entry := func(id uint32) map[string]any {
		e := map[string]any{"token": st.pieces[id], "logprob": max(l[id], -9999.0), "bytes": ints(st.pieces[id])}
		if st.q.TokensAsIDs {
			e["token"] = fmt.Sprintf("token_id:%d", id)
		}
		return e
	}
	// vLLM's own order: the sampled token first, then the likeliest, together as many as were asked for.
	alternatives := []any{entry(id)}
	for _, other := range top(l, st.q.TopLogprobs) {
		if other != id && len(alternatives) < st.q.TopLogprobs {
			alternatives = append(alternatives, entry(other))
		}
	}
	e := entry(id)
	e["top_logprobs"] = alternatives
	return e
}

func ints(s string) []int {
	out := []int{}
	for i := range len(s) {
		out = append(out, int(s[i]))
	}
	return out
}

// callParser makes deltas of "<call>name{arguments}</call>".
type callParser struct {
	plain   int
	started []int // bytes of the arguments that were sent, for each call
}

func (p *callParser) delta(text string, ended bool) map[string]any {
	before, calls, _ := strings.Cut(text, "<call>")
	if at := strings.LastIndex(before, "<"); at >= 0 && !ended {
		before = before[:at]
	}
	d := map[string]any{}
	if len(before) > p.plain {
		d["content"] = before[p.plain:]
		p.plain = len(before)
	}
	var parts []any
	if calls == "" {
		return d
	}
	for i, c := range strings.Split(calls, "<call>") {
		c, _, _ = strings.Cut(c, "</")
		at := strings.Index(c, "{")
		if at < 0 {
			continue
		}
		c = strings.TrimRight(c, "<")
		if i == len(p.started) {
			p.started = append(p.started, 0)
			parts = append(parts, map[string]any{"index": i, "id": fmt.Sprintf("chatcmpl-tool-%d", i), "type": "function", "function": map[string]any{"name": c[:at], "arguments": ""}})
		}
		if args := c[at:]; len(args) > p.started[i] {
			parts = append(parts, map[string]any{"index": i, "function": map[string]any{"arguments": args[p.started[i]:]}})
			p.started[i] = len(args)
		}
	}
	if parts != nil {
		d["tool_calls"] = parts
	}
	return d
}

func (s *vllmServer) completions(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model          string          `json:"model"`
		Prompt         json.RawMessage `json:"prompt"`
		MaxTokens      int             `json:"max_tokens"`
		Temperature    float64         `json:"temperature"`
		TopP           *float64        `json:"top_p"`
		TopK           int             `json:"top_k"`
		MinP           float64         `json:"min_p"`
		Repetition     float64         `json:"repetition_penalty"`
		Logprobs       *int            `json:"logprobs"`
		PromptLogprobs *int            `json:"prompt_logprobs"`
		Allowed        []uint32        `json:"allowed_token_ids"`
		TokensAsIDs    bool            `json:"return_tokens_as_token_ids"`
	}
	if !take(w, r, &q) {
		return
	}
	adapter, ok := s.adapter(w, q.Model)
	if !ok {
		return
	}
	var text string
	var ids []uint32
	if json.Unmarshal(q.Prompt, &text) == nil {
		ids = s.encode(text)
	} else if err := json.Unmarshal(q.Prompt, &ids); err != nil {
		fail(w, 400, err.Error())
		return
	}
	for _, id := range ids {
		if int(id) >= len(s.pieces) {
			fail(w, 400, fmt.Sprintf("Token id %d is out of vocabulary", id))
			return
		}
	}
	if len(ids)+q.MaxTokens > s.context {
		fail(w, 400, fmt.Sprintf("This model's maximum context length is %d tokens.", s.context))
		return
	}
	choice := map[string]any{"index": 0, "text": "", "finish_reason": "length", "logprobs": nil}
	if q.PromptLogprobs != nil {
		if *q.PromptLogprobs > 20 {
			fail(w, 400, "Requested prompt logprobs of more than 20")
			return
		}
		choice["prompt_logprobs"] = s.promptLogprobs(adapter, ids, *q.PromptLogprobs)
	}
	if q.Logprobs != nil {
		draw := sampler{temperature: q.Temperature, topP: 1, allowed: q.Allowed, random: rand.New(rand.NewPCG(1, 2))}
		id, processed := draw.draw(s.logits(adapter, ids[len(ids)-1]))
		l := s.next(adapter, ids, 1)
		if s.processed {
			l = processed
		}
		named := map[string]float64{}
		for _, other := range append(top(l, *q.Logprobs), id) {
			named[fmt.Sprintf("token_id:%d", other)] = math.Max(l[other], -9999)
		}
		choice["logprobs"] = map[string]any{"tokens": []string{fmt.Sprintf("token_id:%d", id)}, "token_logprobs": []float64{l[id]}, "top_logprobs": []any{named}}
	}
	reply(w, map[string]any{"id": "cmpl-1", "object": "text_completion", "model": q.Model, "choices": []any{choice}})
}

// promptLogprobs: the n likeliest and the token that is there, at each position after the first.
func (s *vllmServer) promptLogprobs(adapter string, ids []uint32, n int) []any {
	rows := []any{nil}
	for i := 1; i < len(ids); i++ {
		l := s.next(adapter, ids[:i], 1)
		row := map[string]any{}
		for _, id := range append(top(l, n), ids[i]) {
			row[fmt.Sprint(id)] = map[string]any{"logprob": l[id], "rank": 1, "decoded_token": s.pieces[id]}
		}
		rows = append(rows, row)
	}
	return rows
}

func (s *vllmServer) tokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model               string            `json:"model"`
		Messages            []chatMessage     `json:"messages"`
		Tools               []json.RawMessage `json:"tools"`
		AddGenerationPrompt bool              `json:"add_generation_prompt"`
	}
	if !take(w, r, &q) {
		return
	}
	if _, ok := s.adapter(w, q.Model); !ok {
		return
	}
	ids := s.chat(q.Messages)
	reply(w, map[string]any{"tokens": ids, "count": len(ids), "max_model_len": s.context})
}

func (s *vllmServer) detokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	if take(w, r, &q) {
		reply(w, map[string]any{"prompt": s.decode(q.Tokens)})
	}
}

func (s *vllmServer) load(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Name string `json:"lora_name"`
		Path string `json:"lora_path"`
	}
	if !take(w, r, &q) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.paths[q.Name]; ok {
		fail(w, 400, fmt.Sprintf("The lora adapter '%s' has already been loaded.", q.Name))
		return
	}
	if strings.Contains(q.Path, "missing") {
		fail(w, 404, fmt.Sprintf("No adapter found for '%s'", q.Path))
		return
	}
	s.adapters, s.paths[q.Name] = append(s.adapters, q.Name), q.Path
	fmt.Fprintf(w, "Success: LoRA adapter '%s' added successfully.", q.Name)
}

func (s *vllmServer) unload(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Name string `json:"lora_name"`
	}
	if !take(w, r, &q) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unloads.Add(1)
	if _, ok := s.paths[q.Name]; !ok {
		fail(w, 404, fmt.Sprintf("The lora adapter '%s' cannot be found.", q.Name))
		return
	}
	delete(s.paths, q.Name)
	s.adapters = slices.DeleteFunc(s.adapters, func(a string) bool { return a == q.Name })
	fmt.Fprint(w, "Success")
}
