package policy_test

import (
	"log/slog"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/policy/policytest"
)

func openSGLang(t *testing.T, set func(*sglangServer)) policy.Engine {
	t.Helper()
	s, url := newSGLang(t)
	if set != nil {
		set(s)
	}
	e, err := policy.OpenSGLangRemote(t.Context(), policy.RemoteConfig{URL: url, RecordTopK: 4}, slog.New(slog.DiscardHandler), nil)
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
