package llama

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// errNotFinite says that logits are NaN or infinite: no token can be drawn from them.
var errNotFinite = errors.New("the model gave no finite log-probs; its file or the adapter is damaged")

// block is how many exponentials are summed before the sum goes to float64, and how far a draw skips.
const block = 1024

// candidate is a token and its logit.
type candidate struct {
	id    uint32
	logit float32
}

// sampler turns a row of logits [vocabulary] into log-probs and a token. For one goroutine; it allocates only while its buffers grow.
type sampler struct {
	top   []candidate // the largest, largest first, equal ones by id
	exps  []float32   // [vocabulary] exp((logit-max)/T)
	sums  []float64   // of exps by block
	kept  []candidate
	max   float32
	total float64 // sum of exp(logit-max): log-probs at temperature 1
	heat  float64 // sum of exp((logit-max)/T)
	temp  float64 // T, 1 for greedy
}

// read takes a row in: its k largest logits, and the normalisers at temperature 1 and at t (0: greedy, which counts as 1).
func (s *sampler) read(logits []float32, k int, t float64) error {
	s.rank(logits, max(k, 1))
	s.max = s.top[0].logit
	if t == 0 {
		t = 1
	}
	s.temp = t
	if len(s.exps) != len(logits) {
		s.exps = make([]float32, len(logits))
		s.sums = make([]float64, (len(logits)+block-1)/block)
	}
	s.total, s.heat = 0, 0
	scale := float32(1 / t)
	for b := range s.sums {
		from, to := b*block, min((b+1)*block, len(logits))
		if scale == 1 {
			s.sums[b] = exps(s.exps[from:to], logits[from:to], s.max)
		} else {
			var one float64
			one, s.sums[b] = exps2(s.exps[from:to], logits[from:to], s.max, scale)
			s.total += one
		}
		s.heat += s.sums[b]
	}
	if scale == 1 {
		s.total = s.heat
	}
	if math.IsNaN(s.total) || math.IsInf(float64(s.max), 0) {
		return errNotFinite
	}
	return nil
}

// exps writes exp(x-top) and returns its sum: four sums, so that one addition need not wait for the last.
func exps(to, x []float32, top float32) float64 {
	var a, b, c, d float32
	to = to[:len(x)]
	for len(x) >= 4 && len(to) >= 4 {
		e0, e1, e2, e3 := exp32(x[0]-top), exp32(x[1]-top), exp32(x[2]-top), exp32(x[3]-top)
		to[0], to[1], to[2], to[3] = e0, e1, e2, e3
		a, b, c, d = a+e0, b+e1, c+e2, d+e3
		x, to = x[4:], to[4:]
	}
	for i, v := range x {
		to[i] = exp32(v - top)
		a += to[i]
	}
	return float64(a) + float64(b) + float64(c) + float64(d)
}

// exps2 writes exp((x-top)*scale) and returns the sums of exp(x-top) and of what it wrote.
func exps2(to, x []float32, top, scale float32) (one, scaled float64) {
	var a, b, c, d float32
	to = to[:len(x)]
	for len(x) >= 2 && len(to) >= 2 {
		v0, v1 := x[0]-top, x[1]-top
		e0, e1 := exp32(v0*scale), exp32(v1*scale)
		a, b = a+exp32(v0), b+exp32(v1)
		to[0], to[1] = e0, e1
		c, d = c+e0, d+e1
		x, to = x[2:], to[2:]
	}
	for i, v := range x {
		a += exp32(v - top)
		to[i] = exp32((v - top) * scale)
		c += to[i]
	}
	return float64(a) + float64(b), float64(c) + float64(d)
}

// rank keeps the k largest in top. The row is scanned by rising id and only a larger logit gets in, so equal ones stay in the order of ids.
func (s *sampler) rank(logits []float32, k int) {
	k = min(k, len(logits))
	s.top = s.top[:0]
	least := float32(math.Inf(-1))
	for id, v := range logits {
		if v > least || len(s.top) < k {
			if v != v {
				continue // the sums will tell
			}
			s.insert(candidate{uint32(id), v}, k)
			if len(s.top) == k {
				least = s.top[k-1].logit
			}
		}
	}
	if len(s.top) == 0 {
		s.top = append(s.top, candidate{0, float32(math.NaN())})
	}
}

func (s *sampler) insert(c candidate, k int) {
	if len(s.top) < k {
		s.top = append(s.top, c)
	} else {
		s.top[k-1] = c
	}
	for i := len(s.top) - 1; i > 0 && s.top[i-1].logit < c.logit; i-- {
		s.top[i], s.top[i-1] = s.top[i-1], s.top[i]
	}
}

// logprob at temperature 1, hot at the sampling temperature; nats.
func (s *sampler) logprob(logit float32) float32 {
	return float32(float64(logit-s.max) - math.Log(s.total))
}

func (s *sampler) hot(logit float32) float32 {
	return float32(float64(logit-s.max)/s.temp - math.Log(s.heat))
}

// draw samples from the row that was read. The filters are llama.cpp's default chain: top_k, then top_p and min_p on the distribution at
// temperature 1, then the draw at the sampling temperature among what is left. At temperature 0: the first of the largest.
func (s *sampler) draw(logits []float32, r *Request, rng *rand.Rand) uint32 {
	if r.Temperature == 0 {
		return s.top[0].id
	}
	if r.TopK <= 0 && (r.TopP <= 0 || r.TopP >= 1) && r.MinP <= 0 {
		return s.drawAll(rng.Float64() * s.heat)
	}
	s.filter(logits, r)
	var sum float64
	for _, c := range s.kept {
		sum += math.Exp(float64(c.logit-s.max) / s.temp)
	}
	u := rng.Float64() * sum
	for _, c := range s.kept {
		if u -= math.Exp(float64(c.logit-s.max) / s.temp); u < 0 {
			return c.id
		}
	}
	return s.kept[0].id // rounding
}

// drawAll finds the token at u of the cumulative sum over the whole vocabulary.
func (s *sampler) drawAll(u float64) uint32 {
	for b, sum := range s.sums {
		if u >= sum {
			u -= sum
			continue
		}
		for i := b * block; i < min((b+1)*block, len(s.exps)); i++ {
			if u -= float64(s.exps[i]); u < 0 {
				return uint32(i)
			}
		}
	}
	return s.top[0].id // rounding
}

// filter leaves in kept what top_k, top_p and min_p leave, likeliest first. It gathers and sorts only as much of the vocabulary as is needed.
func (s *sampler) filter(logits []float32, r *Request) {
	nucleus := r.TopP > 0 && r.TopP < 1
	for _, depth := range []float32{8, 16, float32(math.Inf(1))} {
		s.kept = s.kept[:0]
		var mass float64
		for id, v := range logits {
			if v >= s.max-depth {
				s.kept = append(s.kept, candidate{uint32(id), v})
				mass += float64(exp32(v - s.max))
			}
		}
		switch {
		case r.TopK > 0 && len(s.kept) >= r.TopK:
		case r.TopK <= 0 && nucleus && mass >= r.TopP*s.total:
		case r.MinP > 0 && float64(-depth) <= math.Log(r.MinP):
		default:
			continue
		}
		break
	}
	slices.SortFunc(s.kept, func(a, b candidate) int {
		switch {
		case a.logit > b.logit:
			return -1
		case a.logit < b.logit:
			return 1
		}
		return int(a.id) - int(b.id)
	})
	whole := s.total
	if r.TopK > 0 {
		s.kept = s.kept[:min(r.TopK, len(s.kept))]
		whole = 0
		for _, c := range s.kept {
			whole += math.Exp(float64(c.logit - s.max))
		}
	}
	if nucleus {
		var mass float64
		for i, c := range s.kept {
			if mass += math.Exp(float64(c.logit - s.max)); mass >= r.TopP*whole {
				s.kept = s.kept[:i+1]
				break
			}
		}
	}
	if r.MinP > 0 {
		least := float64(s.max) + math.Log(r.MinP)
		for i, c := range s.kept {
			if i > 0 && float64(c.logit) < least {
				s.kept = s.kept[:i]
				break
			}
		}
	}
}

// token describes id as drawn from the row that was read.
func (s *sampler) token(id uint32, logit float32, r *Request) Token {
	t := Token{ID: id, Logprob: s.logprob(logit), LogprobSampled: s.hot(logit)}
	if n := min(r.RecordTopK, len(s.top)); n > 0 {
		t.TopIDs, t.TopLogprobs = make([]uint32, n), make([]float32, n)
		for i, c := range s.top[:n] {
			t.TopIDs[i], t.TopLogprobs[i] = c.id, s.hot(c.logit)
		}
	}
	if n := min(r.TopLogprobs, len(s.top)); n > 0 {
		t.AltIDs, t.AltLogprobs = make([]uint32, n), make([]float32, n)
		for i, c := range s.top[:n] {
			t.AltIDs[i], t.AltLogprobs[i] = c.id, s.logprob(c.logit)
		}
	}
	return t
}
