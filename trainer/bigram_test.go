package trainer_test

import (
	"context"
	"math/rand/v2"

	"github.com/nextstate-rl/nextstate/trainer"
)

// bigram is an engine in plain Go: the next token depends on the last one only, by a random table and one adapted layer. Its bytes are the same on every
// machine, so that tests can hold whole updates against numbers.
type bigram struct {
	table [][]float64 // [V][V] logits
	// passes counts the calls of Logprobs.
	passes int
}

func newBigram() *bigram {
	r := rand.New(rand.NewPCG(7, 8))
	e := &bigram{table: make([][]float64, tinyVocabulary)}
	for i := range e.table {
		for range tinyVocabulary {
			e.table[i] = append(e.table[i], r.NormFloat64())
		}
	}
	return e
}

func (e *bigram) Layers() []trainer.Layer {
	return []trainer.Layer{{PEFT: "model.layers.0.mlp.up_proj", GGUF: "blk.0.ffn_up", In: tinyVocabulary, Out: tinyVocabulary}}
}

// adapter is one as it is before the first update.
func (e *bigram) adapter() *trainer.Adapter {
	a := trainer.NewAdapter(e.Layers(), tinyRank, tinyAlpha)
	a.Initialise(5)
	return a
}

// logits after a token, divided by the temperature.
func (e *bigram) logits(a *trainer.Adapter, last uint32, temperature float64) []float64 {
	out := make([]float64, tinyVocabulary)
	for v := range out {
		out[v] = e.table[last][v]
		for r := range a.Rank {
			out[v] += a.Alpha / float64(a.Rank) * float64(a.B[0][v*a.Rank+r]) * float64(a.A[0][r*tinyVocabulary+int(last)])
		}
		out[v] /= temperature
	}
	return out
}

func (e *bigram) Logprobs(_ context.Context, a *trainer.Adapter, sequences []trainer.Sequence) (logprobs [][][]float32, entropy [][]float32, err error) {
	e.passes++
	for _, s := range sequences {
		var rows [][]float32
		var entropies []float32
		for i, wanted := range s.Wanted {
			logp, p := softmax(e.logits(a, s.Tokens[s.Prompt+i-1], s.Temperature), 1)
			row := make([]float32, len(wanted))
			for k, id := range wanted {
				row[k] = float32(logp[id])
			}
			h := 0.0
			for v := range p {
				h -= p[v] * logp[v]
			}
			rows, entropies = append(rows, row), append(entropies, float32(h))
		}
		logprobs, entropy = append(logprobs, rows), append(entropy, entropies)
	}
	return logprobs, entropy, nil
}

func (e *bigram) Gradient(_ context.Context, a *trainer.Adapter, sequences []trainer.Sequence, coef [][][]float64, grad *trainer.Adapter) error {
	scale := a.Alpha / float64(a.Rank)
	for n, s := range sequences {
		for i, wanted := range s.Wanted {
			last := int(s.Tokens[s.Prompt+i-1])
			_, p := softmax(e.logits(a, uint32(last), s.Temperature), 1)
			var grads []trainer.Gradient
			for k, id := range wanted {
				grads = append(grads, trainer.Gradient{ID: id, G: coef[n][i][k]})
			}
			byLogit := make([]float64, tinyVocabulary)
			trainer.LogitGradient(grads, p, s.Temperature, byLogit)
			for v, g := range byLogit {
				for r := range a.Rank {
					grad.B[0][v*a.Rank+r] += float32(scale * g * float64(a.A[0][r*tinyVocabulary+last]))
					grad.A[0][r*tinyVocabulary+last] += float32(scale * g * float64(a.B[0][v*a.Rank+r]))
				}
			}
		}
	}
	return nil
}
