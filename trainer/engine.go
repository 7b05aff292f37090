package trainer

import "context"

// Sequence is one turn as an engine sees it.
type Sequence struct {
	// Tokens are the prompt and the response.
	Tokens []uint32
	// Prompt is the number of prompt tokens, at least 1: Tokens[Prompt:] are scored.
	Prompt int
	// Temperature of the log-probs, > 0.
	Temperature float64
	// Wanted are the tokens whose log-probs are wanted at each response position: [len(Tokens)-Prompt][K], K equal for all sequences of a call.
	Wanted [][]uint32
}

// Response is the number of scored positions.
func (a Sequence) Response() int { return len(a.Tokens) - a.Prompt }

// Alike is how many tokens a and b begin with that are the same.
func (a Sequence) Alike(b Sequence) int {
	n := min(len(a.Tokens), len(b.Tokens))
	for i := range n {
		if a.Tokens[i] != b.Tokens[i] {
			return i
		}
	}
	return n
}

// Engine computes with the base model and an adapter. The losses are the trainer's: an engine needs their derivatives by log-probs only. For one goroutine.
type Engine interface {
	// Layers are the linear layers that carry an adapter, in order.
	Layers() []Layer
	// Logprobs are the log-probs of the wanted tokens of each sequence [sequences][R][K], and the entropy at each position [sequences][R], in nats.
	Logprobs(ctx context.Context, a *Adapter, sequences []Sequence) (logprobs [][][]float32, entropy [][]float32, err error)
	// Gradient adds to grad the gradient of a loss whose derivatives by the log-probs of the wanted tokens are coef [sequences][R][K].
	Gradient(ctx context.Context, a *Adapter, sequences []Sequence, coef [][][]float64, grad *Adapter) error
}
