package policy_test

import (
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/policy/policytest"
)

func openSGLang(t *testing.T, set func(*sglangServer)) policy.Engine {
	t.Helper()
	s, url := newSGLang(t)
	if set != nil {
		set(s)
	}
	e, err := policy.Open(t.Context(), policy.Config{Engine: "sglang", URL: url + "/v1"}, slog.New(slog.DiscardHandler), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestSGLang: the suite against SGLang's native protocol, as it is by default (log-probs at the sampling temperature, events that hold everything),
// with original log-probs, and with incremental events of several tokens.
func TestSGLang(t *testing.T) {
	f := policytest.Abilities{
		TokenIDs: true, Logprobs: []float64{1}, LogprobsSampled: []float64{0.7, 1, 1.5}, Scores: []float64{1}, Tolerance: 1e-4, Adapter: "/adapters/second", Prompt: storyPrompt,
	}
	t.Run("default", func(t *testing.T) {
		policytest.Run(t, func(t *testing.T) policy.Engine { return openSGLang(t, nil) }, f)
	})
	t.Run("incremental", func(t *testing.T) {
		policytest.Run(t, func(t *testing.T) policy.Engine {
			return openSGLang(t, func(s *sglangServer) { s.incremental, s.perEvent = true, 3 })
		}, f)
	})
	t.Run("original", func(t *testing.T) {
		f.Logprobs, f.LogprobsSampled = f.LogprobsSampled, f.Logprobs
		policytest.Run(t, func(t *testing.T) policy.Engine { return openSGLang(t, func(s *sglangServer) { s.original = true }) }, f)
	})
}

// TestSGLangToolCalls: the server's parser tells text and calls apart; before the end no text is given, since it may be a call's.
func TestSGLangToolCalls(t *testing.T) {
	for _, incremental := range []bool{false, true} {
		e := openSGLang(t, func(s *sglangServer) { s.incremental = incremental })
		r := request("CALL a tool", 200)
		r.Tools = weatherTools()
		s, pieces, err := sampleOnce(t, e, r)
		checkCalls(t, s, pieces, err)
	}
}

// TestSGLangRefuses: what the native API cannot do is said with the remedy.
func TestSGLangRefuses(t *testing.T) {
	e := openSGLang(t, func(s *sglangServer) { s.parser = "" })
	r := request("hi", 4)
	r.Tools = weatherTools()
	if _, _, err := sampleOnce(t, e, r); wantStatus(err, 400) != "" || !strings.Contains(err.Error(), "--tool-call-parser") {
		t.Errorf("tools without a parser: %v", err)
	}
	e = openSGLang(t, nil)
	r.ToolChoice = "required"
	if _, _, err := sampleOnce(t, e, r); wantStatus(err, 400) != "" || !strings.Contains(err.Error(), "tool_choice") {
		t.Errorf("a forced call: %v", err)
	}
	if err := e.Swap(t.Context(), "v1", "/adapters/missing"); wantStatus(err, 400) != "" {
		t.Errorf("a missing adapter: %v", err)
	}
}

// TestRemoteTrainGreedy: by config greedy turns are trained, as if sampled at temperature 1.
func TestRemoteTrainGreedy(t *testing.T) {
	v, vllmURL := newVLLM(t)
	_, sglangURL := newSGLang(t)
	for engine, url := range map[string]string{"openai": vllmURL, "sglang": sglangURL} {
		e, err := policy.Open(t.Context(), policy.Config{Engine: engine, URL: url, APIKey: v.key, TrainGreedy: true}, slog.New(slog.DiscardHandler), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := request(storyPrompt, 6)
		r.Sampling.Temperature = proto.Float64(0)
		s, _, err := sampleOnce(t, e, r)
		if err != nil || s.Untrainable != "" || len(s.Tokens.GetLogprobs()) != 6 || !slices.Equal(s.Tokens.GetLogprobsSampled(), s.Tokens.GetLogprobs()) || s.Tokens.GetTopK().GetK() != 4 {
			t.Errorf("%s: %+v, %v", engine, s, err)
		}
	}
}

// TestSGLangGreedy: greedy sampling does not divide by the temperature, so its log-probs are at temperature 1 in either mode.
func TestSGLangGreedy(t *testing.T) {
	e, model := openSGLang(t, nil), newBigram()
	r := request(storyPrompt, 6)
	r.Sampling.Temperature = proto.Float64(0)
	s, _, err := sampleOnce(t, e, r)
	if err != nil || len(s.Tokens.GetLogprobs()) != 6 || s.Tokens.GetLogprobsSampled() != nil {
		t.Fatalf("%v, %v", s, err)
	}
	for i, l := range s.Tokens.GetLogprobs() {
		before := append(slices.Clone(s.Tokens.GetPromptIds()), s.Tokens.GetResponseIds()[:i]...)
		if want := model.next("", before, 1)[s.Tokens.GetResponseIds()[i]]; math.Abs(float64(l)-want) > 1e-5 {
			t.Errorf("token %d has %g, the model %g", i, l, want)
		}
	}
}
