package llama

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// linear is a matrix of the model that a LoRA changes: blk.N.name, features in and out.
type linear struct {
	name    string
	in, out int
}

// smol are the linears of SmolLM2-135M.
func smol() []linear {
	return []linear{
		{"attn_q", 576, 576},
		{"attn_k", 576, 192},
		{"attn_v", 576, 192},
		{"attn_output", 576, 576},
		{"ffn_gate", 576, 1536},
		{"ffn_up", 576, 1536},
		{"ffn_down", 1536, 576},
	}
}

// writeLoRA writes an adapter of rank 8 for 30 layers with normal A and B, the same for the same seed, and returns its path.
func writeLoRA(t testing.TB, linears []linear, architecture string, seed uint64) string {
	t.Helper()
	return writeScaledLoRA(t, linears, architecture, seed, 0.05)
}

// writeScaledLoRA is writeLoRA with another standard deviation of A and B.
func writeScaledLoRA(t testing.TB, linears []linear, architecture string, seed uint64, scale float32) string {
	t.Helper()
	const rank, layers = 8, 30
	rng := rand.New(rand.NewPCG(seed, 0))
	var tensors []gguf.Source
	add := func(name string, shape ...int) {
		values := make([]float32, shape[0]*shape[1])
		for i := range values {
			values[i] = float32(rng.NormFloat64()) * scale
		}
		tensors = append(tensors, gguf.Source{Name: name, Shape: shape, Chunks: gguf.Numbers(values)})
	}
	for l := range layers {
		for _, m := range linears {
			add(fmt.Sprintf("blk.%d.%s.weight.lora_a", l, m.name), m.in, rank)
			add(fmt.Sprintf("blk.%d.%s.weight.lora_b", l, m.name), rank, m.out)
		}
	}
	path := filepath.Join(t.TempDir(), fmt.Sprintf("lora-%d.gguf", seed))
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = gguf.Write(f, []gguf.Pair{
		{Key: "general.architecture", Value: architecture},
		{Key: "general.type", Value: "adapter"},
		{Key: "adapter.type", Value: "lora"},
		{Key: "adapter.lora.alpha", Value: float32(16)},
	}, tensors)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// words is the model's own tokenizer.
func words(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	assets.ForTest(t, assets.SmolLM2)
	tok, err := english()
	if err != nil {
		t.Fatal(err)
	}
	return tok
}
