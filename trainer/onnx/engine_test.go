package onnx_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/gguf/gguftest"
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

// tiny is a small model with random weights.
func tiny(t *testing.T, tied bool) *gguf.File {
	t.Helper()
	m := gguftest.Tiny()
	m.Untied = !tied
	return opened(t, m)
}

func opened(t *testing.T, m gguftest.Model) *gguf.File {
	t.Helper()
	f, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// tinyFile is the path of gguftest.Tiny.
func tinyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := gguftest.Tiny().WriteFile(path); err != nil {
		t.Fatal(err)
	}
	return path
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

// TestGradient shows that the graph's gradients are those of its own forward pass. Method: finite differences in every adapter of tiny random models: tied and not,
// with biases, with norms of heads and scaled rotation; the sequences are packed, and the loss is a random linear function of the log-probs.
func TestGradient(t *testing.T) {
	lib := library(t)
	for name, change := range map[string]func(m *gguftest.Model){
		"tied":   func(*gguftest.Model) {},
		"untied": func(m *gguftest.Model) { m.Untied = true },
		"qwen2":  func(m *gguftest.Model) { m.Architecture, m.Biased = "qwen2", true },
		"qwen3":  func(m *gguftest.Model) { m.Architecture, m.HeadNorms, m.HeadSize = "qwen3", true, 6 },
		"scaled": func(m *gguftest.Model) { m.Factors = []float32{1, 8} },
	} {
		m := gguftest.Tiny()
		change(&m)
		r := rand.New(rand.NewPCG(3, 4))
		e, err := onnx.Open(lib, opened(t, m), onnx.Config{Rank: 2, Alpha: 3, Threads: 1})
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
						t.Errorf("%s, %s side %d, entry %d: gradient %v, by differences %v", name, l.GGUF, side, i, g[i], numeric)
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
