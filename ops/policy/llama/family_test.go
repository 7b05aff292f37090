package llama

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/gguf/gguftest"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// family are models of every shape that may be served and trained, by name.
func family() map[string]gguftest.Model {
	plain := gguftest.Model{Architecture: "llama", Blocks: 2, Hidden: 64, Heads: 4, KVHeads: 2, HeadSize: 16, FFN: 96, Vocabulary: 512, Context: 128, Seed: 7}
	list := map[string]gguftest.Model{"llama": plain}
	add := func(name string, change func(m *gguftest.Model)) {
		m := plain
		change(&m)
		list[name] = m
	}
	set := func(m *gguftest.Model, key string, value any) {
		m.Pairs = append(m.Pairs, gguf.Pair{Key: m.Architecture + key, Value: value})
	}
	add("llama untied, large theta", func(m *gguftest.Model) {
		m.Untied = true
		set(m, ".rope.freq_base", float32(5e5))
	})
	add("llama with biases, all heads alike", func(m *gguftest.Model) { m.Biased, m.KVHeads = true, 4 })
	add("llama with wide heads", func(m *gguftest.Model) { m.HeadSize = 32 })
	add("llama, linear scaling", func(m *gguftest.Model) {
		set(m, ".rope.scaling.type", "linear")
		set(m, ".rope.scaling.factor", float32(4))
	})
	add("llama, linear scaling by its older name", func(m *gguftest.Model) { set(m, ".rope.scale_linear", float32(2)) })
	add("llama, scaling off", func(m *gguftest.Model) {
		set(m, ".rope.scaling.type", "none")
		set(m, ".rope.scaling.factor", float32(4))
	})
	add("llama 3.1", func(m *gguftest.Model) { m.Factors = []float32{1, 1, 1, 1.5, 3, 8, 8, 8} })
	add("qwen2", func(m *gguftest.Model) { m.Architecture, m.Biased = "qwen2", true })
	add("qwen2 untied, without biases", func(m *gguftest.Model) { m.Architecture, m.Untied = "qwen2", true })
	add("qwen3", func(m *gguftest.Model) { m.Architecture, m.HeadNorms, m.HeadSize = "qwen3", true, 32 })
	return list
}

// exact bounds the difference of log-probs between llama.cpp and the training engine on the same float32 weights, in nats.
const exact = 1e-3

// Goal: what is trained is what is served, for every shape of model and with adapters. Method: tiny models with random weights in float32; both engines score the same
// random tokens (and llama.cpp's likeliest), without an adapter and with a random one that changes much, which goes to llama.cpp as the trainer publishes it.
func TestFamilyAsTrained(t *testing.T) {
	lib, err := ort.Load(filepath.Join(assets.ForTest(t, assets.ONNXRuntime), assets.ONNXRuntimeFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, model := range family() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "model.gguf")
			if err := model.WriteFile(path); err != nil {
				t.Fatal(err)
			}
			cfg := config(t)
			cfg.Model, cfg.Parallel, cfg.Context, cfg.Batch, cfg.Cache = path, 1, model.Context, 128, CacheF32
			s := start(t, cfg)
			file, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			e, err := onnx.Open(lib, file, onnx.Config{Rank: 4, Alpha: 8, Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			r := rand.New(rand.NewPCG(3, 4))
			zero, random := trainer.NewAdapter(e.Layers(), 4, 8), trainer.NewAdapter(e.Layers(), 4, 8)
			random.Initialise(1)
			for _, b := range random.B {
				for i := range b {
					b[i] = float32(r.NormFloat64() * 0.2)
				}
			}
			base := agree(t, s, Base, e, zero)
			adapter := filepath.Join(dir, "adapter.gguf")
			write(t, adapter, random)
			swapTo(t, s, "v1", adapter)
			if moved := apart(base, agree(t, s, "v1", e, random)); moved < 0.1 {
				t.Errorf("the adapter changes log-probs by %v only", moved)
			}
		})
	}
}

// agree scores random tokens with both engines and returns llama.cpp's log-probs.
func agree(t *testing.T, s *Server, version string, e *onnx.Engine, a *trainer.Adapter) []float32 {
	t.Helper()
	const prompt, response, k, temperature = 9, 40, 4, 0.7
	r := rand.New(rand.NewPCG(5, 6))
	var tokens []uint32
	for range prompt + response {
		tokens = append(tokens, r.Uint32N(uint32(s.Info().Vocabulary)))
	}
	scored, err := s.Score(t.Context(), &ScoreRequest{Version: version, Prompt: tokens[:prompt], Response: tokens[prompt:], Temperature: temperature, TopK: k})
	if err != nil {
		t.Fatal(err)
	}
	q := trainer.Sequence{Tokens: tokens, Prompt: prompt, Temperature: temperature}
	for i, id := range tokens[prompt:] {
		q.Wanted = append(q.Wanted, append([]uint32{id}, scored.TopIDs[i*k:(i+1)*k]...))
	}
	trained, _, err := e.Logprobs(t.Context(), a, []trainer.Sequence{q})
	if err != nil {
		t.Fatal(err)
	}
	worst, where := 0.0, ""
	for i, row := range trained[0] {
		for j, got := range row {
			want := scored.Logprobs[i]
			if j > 0 {
				want = scored.TopLogprobs[i*k+j-1]
			}
			if d := math.Abs(float64(got - want)); !(d <= worst) {
				worst, where = d, fmt.Sprintf("position %d, token %d: %v trained, %v served", i, q.Wanted[i][j], got, want)
			}
		}
	}
	t.Logf("version %s: largest difference %.2g nats", version, worst)
	if !(worst < exact) {
		t.Errorf("version %s: %s", version, where)
	}
	return scored.Logprobs
}

// write writes an adapter as the trainer publishes it.
func write(t *testing.T, path string, a *trainer.Adapter) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := a.WriteGGUF(f); err != nil {
		t.Fatal(err)
	}
}
