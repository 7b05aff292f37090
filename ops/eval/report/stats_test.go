package report

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Goal: the interval holds the true mean about as often as it says. Method: many samples of 40 from a known distribution with a fixed seed; the percentile
// bootstrap is known to be a little short at such sizes, so 91 to 97 of 100 is right.
func TestBootstrapCoverage(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const trials = 400
	holds := 0
	for i := range uint64(trials) {
		values := make([]float64, 40)
		for j := range values {
			values[j] = 5 + 2*random.NormFloat64()
		}
		e := estimate(values, i)
		if *e.Low > e.Mean || *e.High < e.Mean {
			t.Fatalf("the mean %g is not within [%g, %g]", e.Mean, *e.Low, *e.High)
		}
		if *e.Low <= 5 && 5 <= *e.High {
			holds++
		}
	}
	if share := float64(holds) / trials; share < 0.91 || share > 0.97 {
		t.Errorf("the interval holds the mean in %.3f of the trials", share)
	}
}

// Goal: estimates are right at the edges and the same each time. Method: known values.
func TestEstimate(t *testing.T) {
	if e := estimate(nil, 1); e != nil {
		t.Errorf("of nothing: %+v", e)
	}
	if e := estimate([]float64{math.NaN(), math.Inf(1)}, 1); e != nil {
		t.Errorf("of nothing finite: %+v", e)
	}
	if e := estimate([]float64{4, math.NaN()}, 1); e.Mean != 4 || e.Low != nil || e.N != 1 {
		t.Errorf("of one: %+v", e)
	}
	if e := estimate([]float64{3, 3, 3}, 1); *e.Low != 3 || *e.High != 3 {
		t.Errorf("of equal ones: %+v", e)
	}
	a, b := estimate([]float64{1, 2, 6, 9}, 5), estimate([]float64{1, 2, 6, 9}, 5)
	if *a.Low != *b.Low || *a.High != *b.High || *a.Low >= 4.5 || *a.High <= 4.5 {
		t.Errorf("twice: [%g, %g] and [%g, %g]", *a.Low, *a.High, *b.Low, *b.High)
	}
}

// Goal: a difference is taken within seeds. Method: two arms that differ by 1 in every seed while the seeds differ by far more: unpaired, nothing would show.
func TestPaired(t *testing.T) {
	a, b := map[uint64]float64{}, map[uint64]float64{9: 4}
	for seed := range uint64(6) {
		a[seed], b[seed] = 100*float64(seed), 100*float64(seed)+1
	}
	d := paired(a, b, 3)
	if d.Mean != -1 || *d.Low != -1 || *d.High != -1 || d.N != 6 {
		t.Errorf("the difference is %+v", d)
	}
	if d := paired(map[uint64]float64{1: 2}, map[uint64]float64{2: 2}, 3); d != nil {
		t.Errorf("no seed in common: %+v", d)
	}
}

// Goal: Wilson's interval. Method: figures from the formula's source (Wilson 1927, as tabulated by Newcombe 1998), and the ends.
func TestWilson(t *testing.T) {
	for _, c := range []struct {
		k, n      uint64
		low, high float64
	}{{81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0, 0.1611}, {1, 29, 0.0061, 0.1718}, {20, 20, 0.8389, 1}} {
		low, high := wilson(c.k, c.n)
		if math.Abs(low-c.low) > 1e-4 || math.Abs(high-c.high) > 1e-4 {
			t.Errorf("%d of %d: [%.4f, %.4f], want [%.4f, %.4f]", c.k, c.n, low, high, c.low, c.high)
		}
	}
}

// Goal: smoothing weighs by replies and knows what is missing. Method: by hand.
func TestSmooth(t *testing.T) {
	got := smooth([]float64{2, 0, 3, 0, 0}, []float64{2, 2, 4, 0, 0}, 1)
	if want := []float64{0.5, 5.0 / 8, 0.5, 0.75}; !slices.Equal(got[:4], want) || !math.IsNaN(got[4]) {
		t.Errorf("%v, want %v and nothing", got, want)
	}
}

// Goal: the chain's distribution is what happens. Method: seeded simulations of three users with different rates.
func TestChanceAgainstSimulation(t *testing.T) {
	const limit, trials = 24, 40_000
	rates := []float64{0.3, 0.55, 0.9}
	random := rand.New(rand.NewPCG(3, 4))
	var exact [][]float64
	for _, p := range rates {
		exact = append(exact, alignments(p, limit))
	}
	counts := make([][]float64, len(rates)+1)
	for i := range counts {
		counts[i] = make([]float64, limit+1)
	}
	for range trials {
		last := 0
		for i, p := range rates {
			at := simulated(random, p, limit)
			counts[i][at]++
			if at == 0 || last < 0 {
				last = -1
			} else {
				last = max(last, at)
			}
		}
		counts[len(rates)][max(last, 0)]++
	}
	for i, at := range append(exact, largest(exact)) {
		for session := 1; session <= limit; session++ {
			got := counts[i][session] / trials
			if sigma := math.Sqrt(at[session]*(1-at[session])/trials) + 1e-5; math.Abs(got-at[session]) > 4.5*sigma {
				t.Errorf("chain %d, session %d: simulated %.4f, computed %.4f", i, session, got, at[session])
			}
		}
	}
}

// simulated is the session of the first of three satisfied in a row; 0: not within the limit.
func simulated(random *rand.Rand, p float64, limit int) int {
	have := 0
	for session := 1; session <= limit; session++ {
		if have++; random.Float64() >= p {
			have = 0
		}
		if have == inRow {
			return session - inRow + 1
		}
	}
	return 0
}

// Goal: expectations. Method: closed forms, the ends, and the chain with a limit so far off that it cuts nothing.
func TestExpectation(t *testing.T) {
	for _, p := range []float64{0.3, 0.5, 0.8, 1} {
		aligned, sessions := total(alignments(p, 5000))
		want, ok := uncapped(p)
		if !ok || math.Abs(aligned-1) > 1e-9 || math.Abs(sessions-want) > 1e-6 {
			t.Errorf("p %g: aligned %g, sessions %g, want 1 and %g", p, aligned, sessions, want)
		}
	}
	if _, ok := uncapped(0); ok {
		t.Error("what never happens has an expectation")
	}
	if aligned, sessions := total(alignments(0, 10)); aligned != 0 || sessions != 10 {
		t.Errorf("p 0: %g, %g", aligned, sessions)
	}
	if at := alignments(1, 2); !slices.Equal(at, []float64{0, 0, 0}) {
		t.Errorf("three in a row within two sessions: %v", at)
	}
	if l := luck([]baseRate{{"a", 1, 2}, {"b", 0, 0}}, 24); len(l) != 1 || *l[0].Rate != 0.5 {
		t.Errorf("a persona without a reply: %+v", l)
	}
}
