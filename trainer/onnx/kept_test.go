package onnx_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

// TestKept: a gradient has the same bits whether what it needs was kept by log-probs before it or is computed again. Method: gradients after the log-probs of the same
// sequences, of the same with another adapter or in another order, of none, and with too little memory to keep all or any of it.
func TestKept(t *testing.T) {
	lib, file := library(t), tiny(t, false)
	r := rand.New(rand.NewPCG(5, 6))
	list, coef := sequences(r, 9, 12, 5, 7)
	swapped := []trainer.Sequence{list[1], list[0], list[3], list[2]}
	var a, other, want *trainer.Adapter
	for _, keep := range []int{0, 16 << 10, 1} {
		for name, before := range map[string]func(e *onnx.Engine) (*trainer.Adapter, []trainer.Sequence){
			"nothing":        func(*onnx.Engine) (*trainer.Adapter, []trainer.Sequence) { return nil, nil },
			"the same":       func(*onnx.Engine) (*trainer.Adapter, []trainer.Sequence) { return a, list },
			"other adapter":  func(*onnx.Engine) (*trainer.Adapter, []trainer.Sequence) { return other, list },
			"another order":  func(*onnx.Engine) (*trainer.Adapter, []trainer.Sequence) { return a, swapped },
			"some sequences": func(*onnx.Engine) (*trainer.Adapter, []trainer.Sequence) { return a, list[:2] },
		} {
			e, err := onnx.Open(lib, file, onnx.Config{Rank: 2, Alpha: 3, Threads: 1, PackTokens: 16, KeepBytes: keep})
			if err != nil {
				t.Fatal(err)
			}
			if a == nil {
				a, other = randomAdapter(e, 2, 3, r), randomAdapter(e, 2, 3, r)
			}
			for range 2 { // the second time, memory is used again
				if with, some := before(e); with != nil {
					if _, _, err := e.Logprobs(t.Context(), with, some); err != nil {
						t.Fatal(err)
					}
				}
				grad := a.Zero()
				if err := e.Gradient(t.Context(), a, list, coef, grad); err != nil {
					t.Fatal(err)
				}
				if want == nil {
					want = grad
				}
				if !reflect.DeepEqual(grad, want) {
					t.Errorf("after log-probs of %s, with %d bytes kept: other bits", name, keep)
				}
			}
			e.Close()
		}
	}
}

// TestThreads: log-probs, entropies and gradients have the same bits whatever the number of threads, also when some packs are kept and others are not. Method: the same
// calls with 1 to 4 threads, on packs of different sizes.
func TestThreads(t *testing.T) {
	lib, file := library(t), tiny(t, true)
	r := rand.New(rand.NewPCG(8, 9))
	list, coef := sequences(r, 9, 12, 5, 7, 20, 3, 11, 16, 4)
	var a, want *trainer.Adapter
	var logprobs, entropy any
	for threads := range 4 {
		e, err := onnx.Open(lib, file, onnx.Config{Rank: 2, Alpha: 3, Threads: threads + 1, PackTokens: 16, KeepBytes: 16 << 10})
		if err != nil {
			t.Fatal(err)
		}
		if a == nil {
			a = randomAdapter(e, 2, 3, r)
		}
		lp, h, err := e.Logprobs(t.Context(), a, list)
		if err != nil {
			t.Fatal(err)
		}
		grad := a.Zero()
		if err := e.Gradient(t.Context(), a, list, coef, grad); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			logprobs, entropy, want = lp, h, grad
		}
		if !reflect.DeepEqual([]any{lp, h, grad}, []any{logprobs, entropy, want}) {
			t.Errorf("%d threads give other bits than one", threads+1)
		}
		e.Close()
	}
}

// TestManyRows: a response of more rows than the head takes at once is the sum of its parts. Method: one long sequence, and the same cut in two: the first part ends in the
// middle, and the second has it all as its prompt but for its end. What comes later changes nothing before it.
func TestManyRows(t *testing.T) {
	e := open2(t)
	r := rand.New(rand.NewPCG(7, 8))
	a := randomAdapter(e, 2, 3, r)
	list, coef := sequences(r, 900)
	whole := list[0]
	const cut = 300 // rows of the first part
	first, second := whole, whole
	first.Tokens, first.Wanted = whole.Tokens[:whole.Prompt+cut], whole.Wanted[:cut]
	second.Prompt, second.Wanted = whole.Prompt+cut, whole.Wanted[cut:]
	one := ask(t, e, a, list, coef)
	two := ask(t, e, a, []trainer.Sequence{first, second}, [][][]float64{coef[0][:cut], coef[0][cut:]})
	for i, row := range slices.Concat(two.Logprobs[0], two.Logprobs[1]) {
		for k, v := range row {
			if d := math.Abs(float64(v - one.Logprobs[0][i][k])); !(d < 1e-4) {
				t.Fatalf("row %d: %v in one, %v in two", i, one.Logprobs[0][i][k], v)
			}
		}
	}
	norm := one.Gradient.Norm()
	two.Gradient.Scale(-1)
	two.Gradient.Add(one.Gradient)
	if d := two.Gradient.Norm(); !(d < 1e-4*norm) || norm == 0 {
		t.Errorf("the gradients differ by %v of %v", d, norm)
	}
}
