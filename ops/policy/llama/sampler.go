package llama

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
)

// errNotFinite says that logits are NaN or infinite: no token can be drawn from them.
var errNotFinite = errors.New("the model gave no finite log-probs; its file or the adapter is damaged")

// rankMax bounds what read ranks for top_k: beyond it a sort is cheaper.
const rankMax = 256

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
		if scale != 1 {
			s.total += exps(s.exps[from:to], logits[from:to], s.max, 1)
		}
		s.sums[b] = exps(s.exps[from:to], logits[from:to], s.max, scale)
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
	if r.TopK > 0 && r.TopK <= len(s.top) {
		s.kept = append(s.kept[:0], s.top[:r.TopK]...)
	} else {
		s.gather(logits, s.depth(logits, r))
	}
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

// The bins of depth: how far logits are below the largest.
const (
	bins     = 1024
	binWidth = 1.0 / 32
)

// depth is how far below the largest logit the filters can reach: a histogram tells, so that no more than that has to be sorted.
func (s *sampler) depth(logits []float32, r *Request) float32 {
	if r.TopK <= 0 && (r.TopP <= 0 || r.TopP >= 1) {
		return float32(-math.Log(r.MinP))
	}
	var count [bins]int
	var mass [bins]float64
	for _, v := range logits {
		d := s.max - v
		if b := int(d * (1 / binWidth)); d >= 0 && b < bins {
			count[b]++
			mass[b] += float64(exp32(-d))
		}
	}
	tokens, sum := 0, 0.0
	for b := range bins {
		tokens += count[b]
		sum += mass[b]
		if r.TopK > 0 && tokens >= r.TopK || r.TopK <= 0 && sum >= r.TopP*s.total {
			return float32(b+2) * binWidth // one more, for rounding
		}
	}
	return float32(math.Inf(1))
}

// gather leaves in kept the tokens down to depth, likeliest first, equal ones by id.
func (s *sampler) gather(logits []float32, depth float32) {
	s.kept = s.kept[:0]
	for id, v := range logits {
		if v >= s.max-depth {
			s.kept = append(s.kept, candidate{uint32(id), v})
		}
	}
	slices.SortFunc(s.kept, func(a, b candidate) int {
		if c := cmp.Compare(b.logit, a.logit); c != 0 {
			return c
		}
		return cmp.Compare(a.id, b.id)
	})
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
