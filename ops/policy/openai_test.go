package policy_test

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/policy/policytest"
)

func openVLLM(t *testing.T, set func(*vllmServer)) policy.Engine {
	t.Helper()
	s, url := newVLLM(t)
	if set != nil {
		set(s)
	}
	e, err := policy.OpenOpenAIRemote(t.Context(), policy.RemoteConfig{URL: url, APIKey: s.key, RecordTopK: 4}, slog.New(slog.DiscardHandler), http.DefaultClient)
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
