package policy_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// sglangServer speaks SGLang's native API over HTTP, with a bigram model behind it. It refuses fields that its API does not document.
type sglangServer struct {
	*bigram
	// original: SGLANG_RETURN_ORIGINAL_LOGPROB; incremental: --incremental-streaming-output.
	original, incremental bool
	// perEvent tokens come in one event (--stream-interval). 0: one.
	perEvent int
	context  int
	parser   string

	mu    sync.Mutex
	paths map[string]string
	names []string

	active atomic.Int64 // streams in work
}

func newSGLang(t *testing.T) (*sglangServer, string) {
	t.Helper()
	s := &sglangServer{bigram: newBigram(), context: 4096, parser: "bigram", paths: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /get_server_info", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]any{"model_path": "bigram", "tool_call_parser": s.parser, "version": "0.5"})
	})
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("POST /generate", s.generate)
	mux.HandleFunc("POST /parse_function_call", s.parseCalls)
	mux.HandleFunc("POST /load_lora_adapter", s.load)
	mux.HandleFunc("POST /unload_lora_adapter", s.unload)
	h := httptest.NewServer(mux)
	t.Cleanup(h.Close)
	return s, h.URL
}

func (s *sglangServer) models(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := []map[string]any{{"id": "bigram", "object": "model", "owned_by": "sglang", "root": "bigram", "parent": nil, "max_model_len": s.context}}
	for _, n := range s.names {
		data = append(data, map[string]any{"id": n, "object": "model", "owned_by": "sglang", "root": s.paths[n], "parent": "bigram", "max_model_len": nil})
	}
	reply(w, map[string]any{"object": "list", "data": data})
}

func (s *sglangServer) tokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model               string            `json:"model"`
		Messages            []chatMessage     `json:"messages"`
		Tools               []json.RawMessage `json:"tools"`
		AddGenerationPrompt bool              `json:"add_generation_prompt"`
	}
	if !take(w, r, &q) {
		return
	}
	ids := s.chat(q.Messages)
	if s.script(q.Messages) != nil && len(q.Tools) > 0 {
		ids[0] = bigramEnd // how the model is told to say the script
	}
	reply(w, map[string]any{"tokens": ids, "count": len(ids), "max_model_len": 1e30})
}

type generateRequest struct {
	InputIDs []uint32 `json:"input_ids"`
	Params   struct {
		Temperature  float64  `json:"temperature"`
		TopP         float64  `json:"top_p"`
		TopK         int      `json:"top_k"`
		MinP         float64  `json:"min_p"`
		Repetition   float64  `json:"repetition_penalty"`
		MaxNewTokens int      `json:"max_new_tokens"`
		SkipSpecial  *bool    `json:"skip_special_tokens"`
		Seed         *uint64  `json:"sampling_seed"`
		Stop         []string `json:"stop"`
		JSONSchema   string   `json:"json_schema"`
	} `json:"sampling_params"`
	Stream          bool     `json:"stream"`
	ReturnLogprob   bool     `json:"return_logprob"`
	LogprobStartLen *int     `json:"logprob_start_len"`
	TopLogprobs     int      `json:"top_logprobs_num"`
	TokenIDsLogprob []uint32 `json:"token_ids_logprob"`
	TextInLogprobs  bool     `json:"return_text_in_logprobs"`
	LoraPath        string   `json:"lora_path"`
}

func (s *sglangServer) generate(w http.ResponseWriter, r *http.Request) {
	var q generateRequest
	if !take(w, r, &q) {
		return
	}
	adapter := ""
	if q.LoraPath != "" {
		s.mu.Lock()
		path, ok := s.paths[q.LoraPath]
		s.mu.Unlock()
		if !ok {
			fail(w, 400, fmt.Sprintf("The following requested LoRA adapters are not loaded: {'%s'}", q.LoraPath))
			return
		}
		adapter = path
	}
	for _, id := range q.InputIDs {
		if int(id) >= len(s.pieces) {
			fail(w, 400, fmt.Sprintf("The input_ids %d contains values greater than the vocab size", id))
			return
		}
	}
	if len(q.InputIDs)+q.Params.MaxNewTokens >= s.context {
		fail(w, 400, fmt.Sprintf("Requested token count exceeds the model's maximum context length of %d tokens.", s.context))
		return
	}
	g := &generation{sglangServer: s, w: w, r: r, q: &q, adapter: adapter, ids: slices.Clone(q.InputIDs), prompt: len(q.InputIDs)}
	if q.Stream {
		s.active.Add(1)
		defer s.active.Add(-1)
		w.Header().Set("Content-Type", "text/event-stream")
	}
	g.run()
}

// generation is one request of /generate.
type generation struct {
	*sglangServer
	w       http.ResponseWriter
	r       *http.Request
	q       *generateRequest
	adapter string
	ids     []uint32
	prompt  int
	text    string
	output  []any
	top     []any
	sent    int // tokens that were sent
	sentLen int // bytes of text that were sent
}

func (g *generation) run() {
	p := &g.q.Params
	seed := rand.Uint64()
	if p.Seed != nil {
		seed = *p.Seed
	}
	draw := sampler{temperature: p.Temperature, topP: p.TopP, topK: max(0, p.TopK), minP: p.MinP, random: rand.New(rand.NewPCG(seed, 2))}
	script := []uint32(nil)
	if len(g.q.InputIDs) > 0 && g.q.InputIDs[0] == bigramEnd {
		script = append(g.encode(`ok <call>get_weather{"city":"Oslo"}</call><call>get_time{"zone":"UTC"}</call>`), bigramEnd)
	}
	var finish any
	if p.MaxNewTokens == 0 {
		finish = map[string]any{"type": "length", "length": 0}
	}
	for n := 0; finish == nil && g.r.Context().Err() == nil; n++ {
		prev := g.ids[len(g.ids)-1]
		id, _ := draw.draw(g.logits(g.adapter, prev))
		if n < len(script) {
			id = script[n]
		}
		temperature := p.Temperature
		if g.original || temperature == 0 {
			temperature = 1
		}
		l := logSoftmax(g.logits(g.adapter, prev), temperature)
		g.output = append(g.output, g.entry(l, id))
		g.top = append(g.top, g.entries(l, top(l, g.q.TopLogprobs)))
		g.ids = append(g.ids, id)
		g.text = g.decode(g.ids[g.prompt:])
		finish = g.ended(n+1, id)
		if g.q.Stream && (finish != nil || (n+1)%max(1, g.perEvent) == 0) {
			b, _ := json.Marshal(g.chunk(finish))
			fmt.Fprintf(g.w, "data: %s\n\n", b)
			g.w.(http.Flusher).Flush()
		}
	}
	switch {
	case finish == nil:
	case g.q.Stream:
		fmt.Fprint(g.w, "data: [DONE]\n\n")
	default:
		reply(g.w, g.chunk(finish))
	}
}

func (g *generation) ended(n int, id uint32) any {
	for _, w := range g.q.Params.Stop {
		if at := strings.Index(g.text, w); at >= 0 {
			g.text = g.text[:at]
			return map[string]any{"type": "stop", "matched": w}
		}
	}
	switch {
	case id == bigramEnd:
		return map[string]any{"type": "stop", "matched": id}
	case n == g.q.Params.MaxNewTokens:
		return map[string]any{"type": "length", "length": n}
	}
	return nil
}

func (g *generation) entry(l []float64, id uint32) []any {
	text := any(nil)
	if g.q.TextInLogprobs {
		text = g.pieces[id]
	}
	return []any{l[id], id, text}
}

func (g *generation) entries(l []float64, ids []uint32) []any {
	out := []any{}
	for _, id := range ids {
		out = append(out, g.entry(l, id))
	}
	return out
}

// chunk holds everything until now, or what is new when the server is incremental. What was sent of a stop string is taken back by neither.
func (g *generation) chunk(finish any) map[string]any {
	n := len(g.ids) - g.prompt
	from, fromText := 0, 0
	if g.incremental && g.q.Stream {
		from, fromText = g.sent, min(g.sentLen, len(g.text))
	}
	meta := map[string]any{
		"id": "1", "finish_reason": finish, "prompt_tokens": g.prompt, "completion_tokens": n, "cached_tokens": 3, "weight_version": "default",
		"output_token_logprobs": g.output[from:], "output_top_logprobs": g.top[from:],
	}
	if g.q.LogprobStartLen != nil {
		g.input(meta)
	}
	g.sent, g.sentLen = n, len(g.text)
	return map[string]any{"text": g.text[fromText:], "output_ids": slices.Clone(g.ids[g.prompt+from:]), "meta_info": meta}
}

// input scores the prompt from logprob_start_len on: the first entry is null.
func (g *generation) input(meta map[string]any) {
	start := *g.q.LogprobStartLen
	input, likely, asked := []any{[]any{nil, g.ids[start], nil}}, []any{nil}, []any{nil}
	for i := start + 1; i < g.prompt; i++ {
		l := g.next(g.adapter, g.ids[:i], 1)
		input = append(input, g.entry(l, g.ids[i]))
		likely = append(likely, g.entries(l, top(l, g.q.TopLogprobs)))
		asked = append(asked, g.entries(l, g.q.TokenIDsLogprob))
	}
	meta["input_token_logprobs"] = input
	if g.q.TopLogprobs > 0 {
		meta["input_top_logprobs"] = likely
	}
	if g.q.TokenIDsLogprob != nil {
		meta["input_token_ids_logprobs"] = asked
	}
}

func (s *sglangServer) parseCalls(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Text   string            `json:"text"`
		Tools  []json.RawMessage `json:"tools"`
		Parser string            `json:"tool_call_parser"`
	}
	if !take(w, r, &q) {
		return
	}
	normal, rest, _ := strings.Cut(q.Text, "<call>")
	calls := []any{}
	for _, c := range strings.Split(rest, "<call>") {
		c = strings.TrimSuffix(c, "</call>")
		if at := strings.Index(c, "{"); at >= 0 {
			calls = append(calls, map[string]any{"tool_index": len(calls), "name": c[:at], "parameters": c[at:]})
		}
	}
	reply(w, map[string]any{"normal_text": normal, "calls": calls})
}

func (s *sglangServer) load(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Name string `json:"lora_name"`
		Path string `json:"lora_path"`
	}
	if !take(w, r, &q) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.paths[q.Name]; ok || strings.Contains(q.Path, "missing") {
		w.WriteHeader(400)
		_ = json.NewEncoder(w).Encode(map[string]any{"success": false, "error_message": "Failed to load LoRA adapter " + q.Name})
		return
	}
	s.names, s.paths[q.Name] = append(s.names, q.Name), q.Path
	reply(w, map[string]any{"success": true, "loaded_adapters": s.paths})
}

func (s *sglangServer) unload(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Name string `json:"lora_name"`
	}
	if !take(w, r, &q) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.paths, q.Name)
	s.names = slices.DeleteFunc(s.names, func(a string) bool { return a == q.Name })
	reply(w, map[string]any{"success": true})
}
