package policy_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/gguf/gguftest"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// tinyQwen2 is the path of a Qwen2 with random weights, and with a vocabulary of single bytes and the special tokens of ChatML.
func tinyQwen2(t *testing.T) string {
	t.Helper()
	const normal, control = 1, 3
	var tokens []string
	var kinds []int32
	other := rune(256) // byte-level BPE writes bytes that cannot be seen as these letters
	for b := range rune(256) {
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			tokens = append(tokens, string(other))
			other++
		} else {
			tokens = append(tokens, string(b))
		}
		kinds = append(kinds, normal)
	}
	tokens, kinds = append(tokens, "th"), append(kinds, normal)
	end := len(tokens) + 1
	tokens, kinds = append(tokens, "<|im_start|>", "<|im_end|>"), append(kinds, control, control)
	m := gguftest.Model{
		Architecture: "qwen2", Blocks: 2, Hidden: 64, Heads: 4, KVHeads: 2, HeadSize: 16, FFN: 96, Vocabulary: len(tokens), Context: 256, Biased: true, Seed: 3,
		Pairs: []gguf.Pair{
			{Key: "tokenizer.ggml.model", Value: "gpt2"},
			{Key: "tokenizer.ggml.pre", Value: "qwen2"},
			{Key: "tokenizer.ggml.tokens", Value: tokens},
			{Key: "tokenizer.ggml.token_type", Value: kinds},
			{Key: "tokenizer.ggml.merges", Value: []string{"t h"}},
			{Key: "tokenizer.ggml.eos_token_id", Value: uint32(end)},
			{Key: "tokenizer.chat_template", Value: "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"},
		},
	}
	path := filepath.Join(t.TempDir(), "Tiny-Qwen2-F32.gguf")
	if err := m.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEmbeddedQwen2: a model of another architecture works by its path: it answers messages, and what it samples has the log-probs that the training engine gives the
// same tokens, with the base and with an adapter as the trainer publishes it. Method: a tiny model with random weights in float32.
func TestEmbeddedQwen2(t *testing.T) {
	path := tinyQwen2(t)
	e := embedded(t, func(c *policy.Config) {
		c.Model = path
		c.Llama = llama.Config{Parallel: 1, Context: 256, Batch: 256, Threads: 1, Cache: llama.CacheF32}
	})
	lib, err := ort.Load(filepath.Join(assets.ForTest(t, assets.ONNXRuntime), assets.ONNXRuntimeFile))
	if err != nil {
		t.Fatal(err)
	}
	file, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	engine, err := onnx.Open(lib, file, onnx.Config{Rank: 2, Alpha: 4, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	base, trained := trainer.NewAdapter(engine.Layers(), 2, 4), trainer.NewAdapter(engine.Layers(), 2, 4)
	trained.Initialise(1)
	r := rand.New(rand.NewPCG(1, 2))
	for _, b := range trained.B {
		for i := range b {
			b[i] = float32(r.NormFloat64() * 0.2)
		}
	}
	weights := filepath.Join(t.TempDir(), "adapter.gguf")
	f, err := os.Create(weights)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(trained.WriteGGUF(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		name string
		a    *trainer.Adapter
	}{{policy.Base, base}, {"v1", trained}} {
		if v.name != policy.Base {
			if err := e.Swap(t.Context(), v.name, weights); err != nil {
				t.Fatal(err)
			}
		}
		s := sample(t, e, &gateway.SampleRequest{
			Messages: askUser("What is 2 + 2, then?"),
			Sampling: &schemas.Sampling{Temperature: proto.Float64(0.7), MaxTokens: proto.Uint32(40), Seed: proto.Int64(5)},
		})
		q := trainer.Sequence{
			Tokens: append(append([]uint32{}, s.Tokens.GetPromptIds()...), s.Tokens.GetResponseIds()...), Prompt: len(s.Tokens.GetPromptIds()), Temperature: 0.7,
		}
		for _, id := range s.Tokens.GetResponseIds() {
			q.Wanted = append(q.Wanted, []uint32{id})
		}
		if len(q.Wanted) < 8 || s.Version != v.name || s.Untrainable != "" {
			t.Fatalf("version %s: %d tokens, untrainable %q", s.Version, len(q.Wanted), s.Untrainable)
		}
		got, _, err := engine.Logprobs(t.Context(), v.a, []trainer.Sequence{q})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range s.Tokens.GetLogprobsSampled() {
			if d := math.Abs(float64(got[0][i][0] - want)); !(d < 1e-3) {
				t.Errorf("version %s, token %d: %v trained, %v served", v.name, i, got[0][i][0], want)
			}
		}
	}
}
