package llama

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Goal: exp32 is as near to e^x as its comment says. So are vectors of it. Method: steps over its whole range, against math.Exp.
func TestExp32(t *testing.T) {
	worst := 0.0
	for x := float32(0); x > expMin; x -= 1.7e-5 {
		want := math.Exp(float64(x))
		worst = max(worst, math.Abs(float64(exp32(x))-want)/want)
	}
	from, to := make([]float32, 1003), make([]float32, 1003)
	for i := range from {
		from[i] = 3 - float32(i)*0.08
	}
	sum, want := exps(to, from, 3, 1.25), 0.0
	for i, v := range from {
		one := math.Exp(float64((v - 3) * 1.25))
		want += one
		if one > 1e-37 {
			worst = max(worst, math.Abs(float64(to[i])-one)/one)
		}
	}
	t.Logf("largest relative error %.3g", worst)
	if math.Abs(sum-want) > 1e-6*want {
		t.Errorf("sum %v, want %v", sum, want)
	}
	if worst > 3e-7 {
		t.Errorf("relative error %.3g", worst)
	}
	if exp32(0) != 1 || exp32(float32(math.Inf(-1))) != 0 || exp32(-1000) != 0 {
		t.Error("edges")
	}
	if nan := exp32(float32(math.NaN())); nan == nan {
		t.Error("NaN became a number")
	}
}

// row is a plausible row of logits.
func logits(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 3))
	row := make([]float32, n)
	for i := range row {
		row[i] = float32(rng.NormFloat64()*3 + 5)
	}
	return row
}

// softmax in float64, the plain way: the reference.
func softmax(row []float32, temperature float64) []float64 {
	top := float64(slices.Max(row))
	p, sum := make([]float64, len(row)), 0.0
	for i, v := range row {
		p[i] = math.Exp((float64(v) - top) / temperature)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// Goal: log-probs at both temperatures and the likeliest tokens are those of a plain float64 softmax; equal logits come by id. Method: rows of lengths
// that leave remainders, with ties; every temperature that takes another way.
func TestRead(t *testing.T) {
	for _, n := range []int{1, 3, 1025, 49152} {
		for _, temperature := range []float64{0, 0.3, 1, 2} {
			row := logits(uint64(n), n)
			if n > 10 {
				row[7], row[n-1] = 40, 40
			}
			var s sampler
			if err := s.read(row, 5, temperature); err != nil {
				t.Fatal(err)
			}
			hot := temperature
			if hot == 0 {
				hot = 1
			}
			one, scaled := softmax(row, 1), softmax(row, hot)
			order := make([]int, n)
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, float64(row[b]-row[a]))) * b2i(row[a] != row[b]) })
			for i, c := range s.top {
				if int(c.id) != order[i] {
					t.Errorf("n %d: place %d is %d, want %d", n, i, c.id, order[i])
				}
			}
			for _, id := range []int{0, n / 2, n - 1} {
				if d := math.Abs(float64(s.logprob(row[id])) - math.Log(one[id])); d > 2e-5 {
					t.Errorf("n %d: log-prob of %d is %g off", n, id, d)
				}
				if d := math.Abs(float64(s.hot(row[id])) - math.Log(scaled[id])); d > 2e-5*max(1, 1/hot) {
					t.Errorf("n %d, temperature %v: log-prob of %d is %g off", n, temperature, id, d)
				}
			}
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Goal: draws follow the distribution, within what the filters leave. Method: 40000 draws over a row of 12 tokens, against frequencies computed the plain
// way in the order top_k, top_p, min_p, temperature; chi-squared far beyond chance fails (the seed is fixed, so it is no matter of luck).
func TestDraw(t *testing.T) {
	row := logits(5, 12)
	for name, r := range map[string]*Request{
		"all": {Temperature: 1}, "hot": {Temperature: 1.5}, "cold": {Temperature: 0.4}, "top_k": {Temperature: 0.8, TopK: 4},
		"top_p": {Temperature: 1.2, TopP: 0.9}, "min_p": {Temperature: 1, MinP: 0.1}, "together": {Temperature: 0.7, TopK: 6, TopP: 0.95, MinP: 0.02},
		"only one": {Temperature: 1, TopK: 1}, "tiny top_p": {Temperature: 2, TopP: 1e-6},
	} {
		t.Run(name, func(t *testing.T) {
			want := filtered(row, r)
			var s sampler
			rng := rand.New(rand.NewPCG(9, 9))
			const draws = 40000
			counts := make([]float64, len(row))
			for range draws {
				if err := s.read(row, 1, r.Temperature); err != nil {
					t.Fatal(err)
				}
				counts[s.draw(row, r, rng)]++
			}
			chi := 0.0
			for i, p := range want {
				switch {
				case p == 0 && counts[i] > 0:
					t.Errorf("token %d was drawn %v times and is filtered out", i, counts[i])
				case p > 0:
					chi += (counts[i] - p*draws) * (counts[i] - p*draws) / (p * draws)
				}
			}
			if chi > 40 { // 11 degrees of freedom: beyond 1 in 10000
				t.Errorf("chi-squared %.1f: %v, want %v", chi, counts, want)
			}
		})
	}
}

// filtered is the distribution after the filters, the plain way.
func filtered(row []float32, r *Request) []float64 {
	p := softmax(row, 1)
	order := make([]int, len(row))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return b2i(p[a] < p[b]) - b2i(p[a] > p[b]) })
	if r.TopK > 0 {
		order = order[:r.TopK]
	}
	whole := 0.0
	for _, i := range order {
		whole += p[i]
	}
	if r.TopP > 0 {
		mass := 0.0
		for n, i := range order {
			if mass += p[i]; mass >= r.TopP*whole {
				order = order[:n+1]
				break
			}
		}
	}
	out, sum := make([]float64, len(row)), 0.0
	for _, i := range order {
		if p[i] >= r.MinP*p[order[0]] {
			out[i] = math.Exp(math.Log(p[i]) / r.Temperature)
			sum += out[i]
		}
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// Goal: filters are the same whether the sampler looks at a part of the vocabulary or at all. Method: flat and peaked rows of the full length; the kept
// tokens against the plain way.
func TestFilterDepth(t *testing.T) {
	for name, scale := range map[string]float32{"flat": 0.01, "wide": 1, "peaked": 4} {
		row := logits(11, 49152)
		for i := range row {
			row[i] *= scale
		}
		for _, r := range []*Request{{Temperature: 1, TopP: 0.99}, {Temperature: 1, TopK: 5000, TopP: 0.5}, {Temperature: 1, MinP: 0.0001}} {
			var s sampler
			if err := s.read(row, 1, 1); err != nil {
				t.Fatal(err)
			}
			s.filter(row, r)
			want := 0
			for _, p := range filtered(row, r) {
				if p > 0 {
					want++
				}
			}
			if d := len(s.kept) - want; d < -2 || d > 2 { // float32 sums may move the edge by a token
				t.Errorf("%s %+v: %d tokens are left, want %d", name, r, len(s.kept), want)
			}
		}
	}
}

// Goal: a row that is no distribution is an error. Method: NaN, +Inf, all -Inf.
func TestNotFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, row := range [][]float32{{1, nan, 2}, {nan, nan}, {1, inf}, {-inf, -inf}} {
		var s sampler
		if err := s.read(row, 2, 0.5); !errors.Is(err, errNotFinite) {
			t.Errorf("%v: %v", row, err)
		}
	}
}

func BenchmarkSampler(b *testing.B) {
	row := logits(1, 49152)
	for _, c := range []struct {
		name string
		r    Request
	}{
		{"greedy", Request{RecordTopK: 4}},
		{"1.0", Request{Temperature: 1, RecordTopK: 4}},
		{"0.7", Request{Temperature: 0.7, RecordTopK: 4}},
		{"0.7_top_p_0.95", Request{Temperature: 0.7, TopP: 0.95, RecordTopK: 4}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var s sampler
			rng := rand.New(rand.NewPCG(1, 1))
			for b.Loop() {
				if err := s.read(row, 4, c.r.Temperature); err != nil {
					b.Fatal(err)
				}
				id := s.draw(row, &c.r, rng)
				_ = s.token(id, row[id], &c.r)
			}
		})
	}
}
