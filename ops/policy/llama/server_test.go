package llama

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/producers/gateway"
)

func TestMain(m *testing.M) {
	MaybeChild()
	os.Exit(m.Run())
}

// tolerance between log-probs of the same tokens in batches of different shapes, in nats. The kernels differ by the number of tokens at once
// (Q4_1 weights against activations rounded to 8 bits): measured at most 0.2 on SmolLM2.
const tolerance = 0.3

// config is small, so that many servers fit a test machine.
func config(t testing.TB) Config {
	t.Helper()
	return Config{
		Library: assets.ForTest(t, assets.Llama), Model: filepath.Join(assets.ForTest(t, assets.SmolLM2), assets.SmolLM2File),
		Parallel: 8, Context: 512, Batch: 256, Queue: 16,
	}
}

func start(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// prompt is n ids, the same for the same seed.
func prompt(seed uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, 7))
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 300 + rng.Uint32N(40000)
	}
	return ids
}

// generate collects a whole response.
func generate(t testing.TB, s *Server, r *Request) ([]Token, Result) {
	t.Helper()
	tokens, result, err := collect(t.Context(), s, r)
	if err != nil {
		t.Fatal(err)
	}
	return tokens, result
}

func collect(ctx context.Context, s *Server, r *Request) ([]Token, Result, error) {
	var tokens []Token
	result, err := s.Generate(ctx, r, func(t Token) error {
		tokens = append(tokens, t)
		return nil
	})
	return tokens, result, err
}

func ids(tokens []Token) []uint32 {
	list := make([]uint32, len(tokens))
	for i, t := range tokens {
		list[i] = t.ID
	}
	return list
}

func status(err error) int {
	var p *gateway.PolicyError
	if errors.As(err, &p) {
		return p.Status
	}
	return 0
}

func seeded(n int64) *int64 { return &n }

// Goal: what is sampled and what is scored are the same numbers: log-probs at both temperatures, the likeliest tokens, and further ids. Method: greedy
// and at 0.7 with filters; score the response at both temperatures; compare within the tolerance.
func TestSampleEqualsScore(t *testing.T) {
	s := start(t, config(t))
	for _, temperature := range []float64{0, 0.7} {
		r := &Request{Prompt: prompt(1, 40), Temperature: temperature, TopP: 0.95, TopK: 50, Seed: seeded(0), MaxTokens: 24, RecordTopK: 4, TopLogprobs: 3}
		tokens, result := generate(t, s, r)
		if len(tokens) != 24 || result.Reason != ReasonLength || result.Version != Base {
			t.Fatalf("%d tokens, %+v", len(tokens), result)
		}
		at := make([][]uint32, len(tokens))
		for i, one := range tokens {
			at[i] = one.TopIDs
		}
		hot := temperature
		if hot == 0 {
			hot = 1
		}
		for _, want := range []struct {
			temperature float64
			of          func(Token) float32
		}{{1, func(t Token) float32 { return t.Logprob }}, {hot, func(t Token) float32 { return t.LogprobSampled }}} {
			scored, err := s.Score(t.Context(), &ScoreRequest{Prompt: r.Prompt, Response: ids(tokens), Temperature: want.temperature, TopK: 4, At: at})
			if err != nil {
				t.Fatal(err)
			}
			worst := 0.0
			for i, one := range tokens {
				worst = max(worst, math.Abs(float64(want.of(one)-scored.Logprobs[i])))
				if want.temperature == hot {
					for n := range at[i] {
						worst = max(worst, math.Abs(float64(one.TopLogprobs[n]-scored.At[i][n])))
					}
				}
				if len(one.TopIDs) != 4 || len(one.AltIDs) != 3 || one.TopIDs[0] != one.AltIDs[0] {
					t.Fatalf("likeliest %v, %v", one.TopIDs, one.AltIDs)
				}
				if temperature == 0 && one.ID != one.TopIDs[0] {
					t.Errorf("greedy took %d, not %d", one.ID, one.TopIDs[0])
				}
			}
			t.Logf("temperature %v, scored at %v: largest difference %.4f nats", temperature, want.temperature, worst)
			if worst > tolerance {
				t.Errorf("temperature %v, scored at %v: %.4f nats apart", temperature, want.temperature, worst)
			}
		}
	}
}

// Goal: bad requests are the caller's errors, in words, and change nothing. Method: one mistake at a time.
func TestRefuses(t *testing.T) {
	s := start(t, config(t))
	for what, r := range map[string]*Request{
		"no prompt": {}, "context": {Prompt: prompt(1, 512)}, "token": {Prompt: []uint32{1 << 30}}, "temperature": {Prompt: prompt(1, 3), Temperature: math.NaN()},
		"top_p": {Prompt: prompt(1, 3), TopP: 2}, "top": {Prompt: prompt(1, 3), RecordTopK: 1 << 20},
	} {
		if _, _, err := collect(t.Context(), s, r); status(err) != http.StatusBadRequest {
			t.Errorf("%s: %v", what, err)
		}
	}
	var p *gateway.PolicyError
	if _, _, err := collect(t.Context(), s, &Request{Prompt: prompt(1, 600)}); !errors.As(err, &p) || p.Code != "context_length_exceeded" {
		t.Errorf("a prompt beyond the context: %v", err)
	}
	if _, _, err := collect(t.Context(), s, &Request{Prompt: prompt(1, 3), Version: "v9"}); status(err) != http.StatusNotFound {
		t.Errorf("an unknown version: %v", err)
	}
	for what, r := range map[string]*ScoreRequest{
		"no response": {Prompt: prompt(1, 3), Temperature: 1}, "temperature": {Prompt: prompt(1, 3), Response: prompt(2, 3)},
		"at": {Prompt: prompt(1, 3), Response: prompt(2, 3), Temperature: 1, At: make([][]uint32, 2)},
	} {
		if _, err := s.Score(t.Context(), r); status(err) != http.StatusBadRequest {
			t.Errorf("score, %s: %v", what, err)
		}
	}
}
