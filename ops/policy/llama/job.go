package llama

import (
	"math/rand/v2"

	"github.com/hybridgroup/yzma/pkg/llama"
)

// job is a command in the child: it waits, then has a slot. For the scheduler's goroutine, but for the sampling between two steps.
type job struct {
	id      uint64
	version *version
	slot    *slot
	// input is what has to be decoded: the prompt, then what was sampled of the response, or all of it but its last token where it is scored.
	input  []llama.Token
	prompt int // how much of input is prompt

	gen     *Request // or
	score   *ScoreRequest
	rng     *rand.Rand
	grammar *grammar
	end     map[uint32]bool
	scored  *Scored
	stopped Reason // set when the response has ended
	err     error  // of the last row
	token   Token  // of the last row
}

func newGeneration(id uint64, g *generation, v *version) *job {
	seed := rand.Uint64()
	if g.Seeded {
		seed = uint64(g.Seed)
	}
	j := &job{id: id, version: v, gen: &g.Request, prompt: len(g.Request.Prompt), rng: rand.New(rand.NewPCG(seed, 0)), end: map[uint32]bool{}}
	j.input = make([]llama.Token, 0, len(g.Request.Prompt)+max(g.Request.MaxTokens, 64))
	j.feed(g.Request.Prompt)
	for _, id := range g.Request.EndIDs {
		j.end[id] = true
	}
	return j
}

func newScoring(id uint64, r *ScoreRequest, v *version) *job {
	n := len(r.Response)
	j := &job{id: id, version: v, score: r, prompt: len(r.Prompt), scored: &Scored{Version: v.name, Logprobs: make([]float32, n)}}
	j.input = make([]llama.Token, 0, len(r.Prompt)+n)
	j.feed(r.Prompt)
	j.feed(r.Response[:n-1])
	if r.TopK > 0 {
		j.scored.TopIDs, j.scored.TopLogprobs = make([]uint32, n*r.TopK), make([]float32, n*r.TopK)
	}
	if r.At != nil {
		j.scored.At = make([][]float32, n)
		for i, ids := range r.At {
			j.scored.At[i] = make([]float32, len(ids))
		}
	}
	return j
}

func (j *job) feed(ids []uint32) {
	for _, id := range ids {
		j.input = append(j.input, llama.Token(id))
	}
}

func (j *job) session() string {
	if j.gen != nil {
		return j.gen.Session
	}
	return ""
}

// left is how many tokens have to be decoded before the next result.
func (j *job) left() int { return len(j.input) - len(j.slot.tokens) }

// decoding says that the job is past its prompt and waits for one token.
func (j *job) decoding() bool { return j.gen != nil && len(j.input) > j.prompt && j.left() == 1 }

// wants says whether the logits at a position of input are needed.
func (j *job) wants(position int) bool {
	if j.gen != nil {
		return position == len(j.input)-1
	}
	return position >= j.prompt-1
}

// sample takes the row after the last position of input and draws the next token into j.token.
func (j *job) sample(s *sampler, logits []float32) {
	r := j.gen
	ranked := max(r.RecordTopK, r.TopLogprobs)
	if r.TopK <= rankMax {
		ranked = max(ranked, r.TopK)
	}
	if j.err = s.read(logits, ranked, r.Temperature); j.err != nil {
		return
	}
	var id uint32
	if j.grammar != nil {
		if id, j.err = j.grammar.draw(s, logits, r, j.rng); j.err != nil {
			return
		}
	} else {
		id = s.draw(logits, r, j.rng)
	}
	j.token = s.token(id, logits[id], r)
}

// took appends the drawn token and decides whether it was the last. context is what a sequence holds.
func (j *job) took(context int) {
	id := j.token.ID
	j.input = append(j.input, llama.Token(id))
	switch {
	case j.end[id] || j.grammar != nil && j.grammar.ends(id):
		j.stopped = ReasonEnded
	case j.gen.MaxTokens > 0 && len(j.input)-j.prompt >= j.gen.MaxTokens:
		j.stopped = ReasonLength
	case len(j.input) >= context:
		j.stopped = ReasonContext
	}
}

// judge takes the row after a position of input and notes what was asked of the response's token there.
func (j *job) judge(s *sampler, logits []float32, position int) error {
	r, i := j.score, position-(j.prompt-1)
	if err := s.read(logits, r.TopK, r.Temperature); err != nil {
		return err
	}
	j.scored.Logprobs[i] = s.hot(logits[r.Response[i]])
	for n, c := range s.top[:r.TopK] {
		j.scored.TopIDs[i*r.TopK+n], j.scored.TopLogprobs[i*r.TopK+n] = c.id, s.hot(c.logit)
	}
	if r.At != nil {
		for n, id := range r.At[i] {
			j.scored.At[i][n] = s.hot(logits[id])
		}
	}
	return nil
}

// free gives back what the job holds of llama.cpp and of its version.
func (j *job) free() {
	if j.grammar != nil {
		j.grammar.free()
		j.grammar = nil
	}
	j.version.users--
	if j.slot != nil {
		j.slot.job = nil
		j.slot = nil
	}
}
