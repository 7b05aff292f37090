package onnx_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
	"github.com/nextstate-rl/nextstate/trainer/ort"
)

func library(t *testing.T) *ort.Library {
	t.Helper()
	l, err := ort.Load(filepath.Join(assets.ForTest(t, assets.ONNXRuntime), assets.ONNXRuntimeFile))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tiny is a model of the llama family with random weights: two blocks, three query heads a key head.
func tiny(t *testing.T, tied bool) *gguf.File {
	t.Helper()
	b := tinyBytes(t, tied)
	f, err := gguf.Read(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// tinyFile is the path of tiny.
func tinyFile(t *testing.T, tied bool) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := os.WriteFile(path, tinyBytes(t, tied), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func tinyBytes(t *testing.T, tied bool) []byte {
	t.Helper()
	const blocks, hidden, heads, kv, size, ffn, vocabulary = 2, 24, 6, 2, 4, 40, 53
	r := rand.New(rand.NewPCG(1, 2))
	var tensors []gguf.Source
	add := func(name string, std float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * std)
			if len(shape) == 1 {
				x[i]++
			}
		}
		tensors = append(tensors, gguf.Source{Name: name, Shape: shape, Chunks: gguf.Numbers(x)})
	}
	add("token_embd.weight", 1, hidden, vocabulary)
	if !tied {
		add("output.weight", 0.3, hidden, vocabulary)
	}
	add("output_norm.weight", 0.1, hidden)
	for _, b := range []string{"blk.0.", "blk.1."} {
		add(b+"attn_norm.weight", 0.1, hidden)
		add(b+"ffn_norm.weight", 0.1, hidden)
		add(b+"attn_q.weight", 0.3, hidden, heads*size)
		add(b+"attn_k.weight", 0.3, hidden, kv*size)
		add(b+"attn_v.weight", 0.3, hidden, kv*size)
		add(b+"attn_output.weight", 0.3, heads*size, hidden)
		add(b+"ffn_gate.weight", 0.3, hidden, ffn)
		add(b+"ffn_up.weight", 0.3, hidden, ffn)
		add(b+"ffn_down.weight", 0.3, ffn, hidden)
	}
	var out bytes.Buffer
	err := gguf.Write(&out, []gguf.Pair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "llama.block_count", Value: uint32(blocks)},
		{Key: "llama.embedding_length", Value: uint32(hidden)},
		{Key: "llama.attention.head_count", Value: uint32(heads)},
		{Key: "llama.attention.head_count_kv", Value: uint32(kv)},
		{Key: "llama.feed_forward_length", Value: uint32(ffn)},
		{Key: "llama.context_length", Value: uint32(64)},
	}, tensors)
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// open2 is the engine of tiny with rank 2.
func open2(t *testing.T) *onnx.Engine {
	t.Helper()
	e, err := onnx.Open(library(t), tiny(t, true), onnx.Config{Rank: 2, Alpha: 3, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func randomAdapter(e *onnx.Engine, rank int, alpha float64, r *rand.Rand) *trainer.Adapter {
	a := trainer.NewAdapter(e.Layers(), rank, alpha)
	for _, x := range slices.Concat(a.A, a.B) {
		for i := range x {
			x[i] = float32(r.NormFloat64() * 0.3)
		}
	}
	return a
}

// TestGradient shows that the graph's gradients are those of its own forward pass. Method: finite differences in every adapter of a tiny random model, tied
// and not, with sequences that are packed and with the same ones alone; the loss is a random linear function of the log-probs.
func TestGradient(t *testing.T) {
	lib := library(t)
	for _, tied := range []bool{true, false} {
		r := rand.New(rand.NewPCG(3, 4))
		e, err := onnx.Open(lib, tiny(t, tied), onnx.Config{Rank: 2, Alpha: 3, Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		a := randomAdapter(e, 2, 3, r)
		list, coef := sequences(r, 5, 9, 3)
		loss := func() (sum float64) {
			lp, _, err := e.Logprobs(t.Context(), a, list)
			if err != nil {
				t.Fatal(err)
			}
			for i := range lp {
				for j := range lp[i] {
					for k := range lp[i][j] {
						sum += coef[i][j][k] * float64(lp[i][j][k])
					}
				}
			}
			return sum
		}
		grad := a.Zero()
		if err := e.Gradient(t.Context(), a, list, coef, grad); err != nil {
			t.Fatal(err)
		}
		checked := 0
		for n, l := range a.Layers {
			for side, x := range [][]float32{a.A[n], a.B[n]} {
				g := [][]float32{grad.A[n], grad.B[n]}[side]
				for range 3 {
					i := r.IntN(len(x))
					const h = 3e-3
					was := x[i]
					x[i] = was + h
					up := loss()
					x[i] = was - h
					down := loss()
					x[i] = was
					numeric := (up - down) / (2 * h)
					if d := math.Abs(numeric - float64(g[i])); d > 1e-2*(math.Abs(numeric)+0.5) {
						t.Errorf("tied %v, %s side %d, entry %d: gradient %v, by differences %v", tied, l.GGUF, side, i, g[i], numeric)
					}
					checked++
				}
			}
		}
		if checked != 2*7*2*3 {
			t.Fatalf("%d entries were checked", checked)
		}
	}
}
