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

// TestCommonBeginnings: sequences that begin alike, which are computed together, give what each gives alone. Method: conversations of several turns whose prompts are
// beginnings of later ones, with and without the replies in between, two branches of one, the same sequence twice and one that is a beginning of the other,
// in random order and at two temperatures; log-probs, entropies and gradients against those of one call a sequence.
func TestCommonBeginnings(t *testing.T) {
	lib, file := library(t), tiny(t, true)
	e, err := onnx.Open(lib, file, onnx.Config{Rank: 2, Alpha: 3, Threads: 2, PackTokens: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := rand.New(rand.NewPCG(10, 11))
	a := randomAdapter(e, 2, 3, r)
	for round := range 8 {
		long, _ := sequences(r, 30, 30)
		var list []trainer.Sequence
		for _, s := range []struct{ of, end, prompt, branch int }{{0, 30, 20, 0}, {0, 20, 12, 0}, {0, 12, 4, 0}, {0, 25, 22, 18}, {0, 12, 4, 0}, {1, 9, 3, 0}, {1, 30, 28, 0}, {0, 3, 1, 0}} {
			q := trainer.Sequence{Tokens: slices.Clone(long[s.of].Tokens[:s.end]), Prompt: s.prompt, Temperature: []float64{1, 0.6}[round%2]}
			if s.branch > 0 { // another way from here on
				q.Tokens[s.branch] = q.Tokens[s.branch]%7 + 1
			}
			for range q.Response() {
				q.Wanted = append(q.Wanted, []uint32{uint32(r.IntN(7)), uint32(7 + r.IntN(7))})
			}
			list = append(list, q)
		}
		if round < 4 {
			r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		} else {
			slices.SortFunc(list, func(a, b trainer.Sequence) int { return slices.Compare(a.Tokens, b.Tokens) })
		}
		coef := make([][][]float64, len(list))
		for i, q := range list {
			for range q.Response() {
				coef[i] = append(coef[i], []float64{r.NormFloat64(), r.NormFloat64()})
			}
		}
		together, sum := ask(t, e, a, list, coef), a.Zero()
		for i := range list {
			alone := ask(t, e, a, list[i:i+1], coef[i:i+1])
			sum.Add(alone.Gradient)
			for row := range alone.Logprobs[0] {
				for k, v := range append(slices.Clone(alone.Logprobs[0][row]), alone.Entropy[0][row]) {
					have := append(slices.Clone(together.Logprobs[i][row]), together.Entropy[i][row])[k]
					if d := math.Abs(float64(v - have)); !(d < 1e-4) {
						t.Fatalf("round %d, sequence %d, row %d: %v alone, %v together", round, i, row, v, have)
					}
				}
			}
		}
		norm := sum.Norm()
		sum.Scale(-1)
		sum.Add(together.Gradient)
		if d := sum.Norm(); !(d < 1e-4*norm) || norm == 0 {
			t.Errorf("round %d: the gradients differ by %v of %v", round, d, norm)
		}
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
