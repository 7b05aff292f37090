package policy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/policy/policytest"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

func openVLLM(t *testing.T, set func(*vllmServer)) policy.Engine {
	t.Helper()
	s, url := newVLLM(t)
	if set != nil {
		set(s)
	}
	e, err := policy.Open(t.Context(), policy.Config{Engine: "openai", URL: url, APIKey: s.key}, slog.New(slog.DiscardHandler), nil, http.DefaultClient)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The prompt that the bigram model is greedy with.
const storyPrompt = "Tell me a story of the sea"

// TestVLLM: the suite against vLLM's protocol, with raw and with processed log-probs, and with several tokens in one event.
func TestVLLM(t *testing.T) {
	f := policytest.Abilities{
		TokenIDs: true, Logprobs: []float64{0.7, 1, 1.5}, LogprobsSampled: []float64{1}, Scores: []float64{1}, Tolerance: 1e-4, Adapter: "/adapters/second", Prompt: storyPrompt,
	}
	t.Run("raw", func(t *testing.T) {
		policytest.Run(t, func(t *testing.T) policy.Engine { return openVLLM(t, nil) }, f)
	})
	t.Run("several tokens", func(t *testing.T) {
		policytest.Run(t, func(t *testing.T) policy.Engine { return openVLLM(t, func(s *vllmServer) { s.perEvent = 3 }) }, f)
	})
}

// sampleOnce samples once and collects the pieces.
func sampleOnce(t *testing.T, e policy.Engine, r *gateway.SampleRequest) (*gateway.Sampled, []gateway.Piece, error) {
	t.Helper()
	var pieces []gateway.Piece
	s, err := e.Sample(t.Context(), r, func(p gateway.Piece) error {
		pieces = append(pieces, p)
		return nil
	})
	return s, pieces, err
}

func request(text string, tokens uint32) *gateway.SampleRequest {
	return &gateway.SampleRequest{
		Messages: []*schemas.Message{policytest.Message(schemas.Role_ROLE_USER, text)},
		Sampling: &schemas.Sampling{MaxTokens: &tokens, Seed: proto.Int64(3)},
	}
}

func weatherTools() []*schemas.Tool {
	return []*schemas.Tool{{Name: "get_weather", Parameters: proto.String(`{"type":"object"}`)}, {Name: "get_time"}}
}

// checkCalls: two tool calls are assembled from their deltas, each is emitted once when it is complete, and their markers are not in the text.
func checkCalls(t *testing.T, s *gateway.Sampled, pieces []gateway.Piece, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var got, emitted, text []string
	for _, c := range s.Response.GetToolCalls() {
		if c.GetId() == "" {
			t.Error("a call has no id")
		}
		got = append(got, c.GetName()+c.GetArguments())
	}
	for _, p := range pieces {
		text = append(text, p.Text)
		for _, c := range p.ToolCalls {
			emitted = append(emitted, c.GetName()+c.GetArguments())
		}
	}
	want := []string{`get_weather{"city":"Oslo"}`, `get_time{"zone":"UTC"}`}
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(emitted, want) {
		t.Errorf("calls %v, emitted %v, want %v", got, emitted, want)
	}
	if s.FinishReason != schemas.FinishReason_FINISH_REASON_TOOL_CALLS || strings.Join(text, "") != "ok " || s.Response.GetParts()[0].GetText() != "ok " {
		t.Errorf("finish %v, text %q and %v", s.FinishReason, strings.Join(text, ""), s.Response.GetParts())
	}
	if n := len(s.Tokens.GetResponseIds()); n < 20 || s.Tokens.GetResponseIds()[n-1] != bigramEnd {
		t.Errorf("the tokens of calls and the end token are tokens, too: %d", n)
	}
}

// TestVLLMToolCalls: calls that are streamed as deltas.
func TestVLLMToolCalls(t *testing.T) {
	for _, perEvent := range []int{1, 4, 1000} {
		e := openVLLM(t, func(s *vllmServer) { s.perEvent = perEvent })
		r := request("CALL a tool", 200)
		r.Tools = weatherTools()
		s, pieces, err := sampleOnce(t, e, r)
		checkCalls(t, s, pieces, err)
	}
}

// TestVLLMProcessed: with --logprobs-mode processed_logprobs, which is measured at the start, log-probs are those of training, unless the tokens were
// drawn from a part of the vocabulary: then they are neither, and absent.
func TestVLLMProcessed(t *testing.T) {
	e := openVLLM(t, func(s *vllmServer) { s.processed = true })
	model := newBigram()
	for _, test := range []struct {
		name          string
		temperature   float64
		set           func(*schemas.Sampling)
		one, sampling bool
	}{
		{"temperature 0.7", 0.7, nil, false, true},
		{"temperature 1", 1, nil, true, true},
		{"top_p", 0.7, func(s *schemas.Sampling) { s.TopP = proto.Float64(0.9) }, false, false},
		{"top_k", 1, func(s *schemas.Sampling) { s.TopK = proto.Uint32(5) }, false, false},
		{"greedy", 0, nil, false, false},
	} {
		r := request(storyPrompt, 12)
		r.Sampling.Temperature = &test.temperature
		if test.set != nil {
			test.set(r.Sampling)
		}
		s, _, err := sampleOnce(t, e, r)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if (s.Tokens.GetLogprobs() != nil) != test.one || (s.Tokens.GetLogprobsSampled() != nil) != test.sampling || (s.Tokens.GetTopK() != nil) != test.sampling {
			t.Errorf("%s: logprobs %v, sampled %v, top-k %v", test.name, s.Tokens.GetLogprobs(), s.Tokens.GetLogprobsSampled(), s.Tokens.GetTopK())
		}
		for i, l := range s.Tokens.GetLogprobsSampled() {
			before := append(slices.Clone(s.Tokens.GetPromptIds()), s.Tokens.GetResponseIds()[:i]...)
			if want := model.next("", before, test.temperature)[s.Tokens.GetResponseIds()[i]]; math.Abs(float64(l)-want) > 1e-5 {
				t.Errorf("%s: token %d has %g, the model %g", test.name, i, l, want)
			}
		}
	}
	// Beyond the likeliest ids nothing can be asked for in this mode, and the error says what to change.
	_, err := e.Score(t.Context(), &policy.ScoreRequest{Prompt: []uint32{65}, Response: []uint32{66}, Temperature: 1, At: [][]uint32{{1}}})
	if wantStatus(err, 400) != "" || !strings.Contains(err.Error(), "raw_logprobs") {
		t.Errorf("At in processed mode: %v", err)
	}
}

// TestVLLMTopLogprobs: alternatives come with id, text and log-prob, the likeliest first, as many as were asked for.
func TestVLLMTopLogprobs(t *testing.T) {
	e := openVLLM(t, nil)
	model := newBigram()
	r := request(storyPrompt, 6)
	r.TopLogprobs, r.Sampling.Temperature = 7, proto.Float64(1.3)
	s, pieces, err := sampleOnce(t, e, r)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range pieces {
		l := model.next("", append(slices.Clone(s.Tokens.GetPromptIds()), s.Tokens.GetResponseIds()[:i]...), 1)
		want := top(l, 7)
		for j, alternative := range p.Top {
			if alternative.ID != want[j] || string(alternative.Bytes) != model.decode([]uint32{want[j]}) || math.Abs(float64(alternative.Logprob)-l[want[j]]) > 1e-5 {
				t.Errorf("token %d, alternative %d: %+v, want %d", i, j, alternative, want[j])
			}
		}
		if len(p.Top) != 7 || string(p.Token.Bytes) != model.pieces[p.Token.ID] {
			t.Errorf("token %d: %d alternatives, bytes %q", i, len(p.Top), p.Token.Bytes)
		}
	}
}

// TestVLLMCancel: the end of a request at the caller closes it at the server.
func TestVLLMCancel(t *testing.T) {
	var server *vllmServer
	e := openVLLM(t, func(s *vllmServer) { server = s })
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	_, err := e.Sample(ctx, request(storyPrompt, 4000), func(gateway.Piece) error {
		if n++; n == 5 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	for server.active.Load() > 0 { // else go test's own limit ends this
		runtime.Gosched()
	}
}

// TestVLLMVersions: adapters beyond the bound are unloaded, the longest unused first; those that the server has are found at the start and by name;
// one that the server lost is loaded again; and one that cannot be loaded or gives no numbers changes nothing.
func TestVLLMVersions(t *testing.T) {
	s, url := newVLLM(t)
	s.adapters, s.paths["early"] = []string{"early"}, "/adapters/early"
	e, err := policy.OpenOpenAIRemote(t.Context(), policy.RemoteConfig{URL: url, APIKey: s.key, Versions: 2}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"v1", "v2", "v3"} {
		if err := e.Swap(t.Context(), id, "/adapters/"+id); err != nil {
			t.Fatal(err)
		}
		if _, _, err := sampleOnce(t, e, request("hi", 3)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"v2", "v3"}; !slices.Equal(s.adapters, want) {
		t.Errorf("the server has %v, want %v", s.adapters, want)
	}
	if err := e.Swap(t.Context(), "v4", "/adapters/missing"); err == nil {
		t.Error("a missing adapter was loaded")
	}
	newest, _ := e.Versions(t.Context())
	if err := e.Swap(t.Context(), "v5", "/adapters/broken"); wantStatus(err, 400) != "" {
		t.Errorf("an adapter that gives no numbers: %v", err)
	}
	if after, _ := e.Versions(t.Context()); len(after) == 0 || after[0].ID != newest[0].ID || slices.ContainsFunc(after, func(v gateway.Version) bool { return v.ID == "v5" }) {
		t.Errorf("after a broken adapter: %v", after)
	}
	if got, _, err := sampleOnce(t, e, request("hi", 3)); err != nil || got.Version != "v3" {
		t.Errorf("after a failed swap: %v, %v", got, err)
	}
	s.mu.Lock()
	s.adapters, s.paths = []string{"other"}, map[string]string{"other": "/adapters/other"} // restarted, and another process loaded one
	s.mu.Unlock()
	if _, _, err := sampleOnce(t, e, request("hi", 3)); wantStatus(err, 404) != "" {
		t.Errorf("a version that the server lost: %v", err)
	}
	if err := e.Swap(t.Context(), "v3", "/adapters/v3"); err != nil {
		t.Fatal(err)
	}
	if got, _, err := sampleOnce(t, e, request("hi", 3)); err != nil || got.Version != "v3" {
		t.Errorf("loaded again: %v, %v", got, err)
	}
	r := request("hi", 3)
	r.Version = "other"
	if got, _, err := sampleOnce(t, e, r); err != nil || got.Version != "other" {
		t.Errorf("loaded by another process: %v, %v", got, err)
	}
}

// TestOpenAIPlain: a server that is not vLLM gets only OpenAI's fields, and what it does not give is absent.
func TestOpenAIPlain(t *testing.T) {
	var body map[string]any
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/models") {
			fmt.Fprint(w, `{"data":[{"id":"plain","object":"model","owned_by":"somebody"}]}`)
			return
		}
		_ = json.NewDecoder(r.Body).Decode(&body)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": keep-alive\n\n", "data: {\"model\":\"plain-2\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hel\"}}]}\r\n\r\n",
			"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")
	}))
	defer h.Close()
	e, err := policy.OpenOpenAIRemote(t.Context(), policy.RemoteConfig{URL: h.URL, RecordTopK: 4}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, pieces, err := sampleOnce(t, e, request("hi", 9))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"model": "plain", "messages": []any{map[string]any{"role": "user", "content": "hi"}}, "stream": true,
		"stream_options": map[string]any{"include_usage": true}, "max_tokens": 9.0, "seed": 3.0,
	}
	if !reflect.DeepEqual(body, want) {
		t.Errorf("body %v\nwant %v", body, want)
	}
	if s.Tokens != nil || s.Sampling.Temperature != nil || s.Model != "plain-2" || s.Usage.GetOutputTokens() != 2 || s.Response.GetParts()[0].GetText() != "Hello" || len(pieces) != 2 {
		t.Errorf("sampled %+v, %d pieces", s, len(pieces))
	}
	_, err = e.Score(t.Context(), &policy.ScoreRequest{Prompt: []uint32{1}, Response: []uint32{1}, Temperature: 1})
	if wantStatus(err, 400) != "" {
		t.Errorf("Score: %v", err)
	}
	if err := e.Swap(t.Context(), "v1", "/adapters/v1"); wantStatus(err, 400) != "" {
		t.Errorf("Swap: %v", err)
	}
}

// wantStatus is empty when err is a PolicyError of the status.
func wantStatus(err error, status int) string {
	var e *gateway.PolicyError
	if errors.As(err, &e) && e.Status == status && e.Message != "" {
		return ""
	}
	return fmt.Sprintf("%v, want status %d", err, status)
}
