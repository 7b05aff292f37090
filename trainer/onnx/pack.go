package onnx

import (
	"fmt"
	"math"

	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// check refuses a sequence that the graph cannot take.
func check(s trainer.Sequence, m *gguf.Llama, wanted int) error {
	switch {
	case s.Prompt < 1 || s.Prompt >= len(s.Tokens):
		return fmt.Errorf("a sequence of %d tokens with a prompt of %d: both the prompt and the response need a token", len(s.Tokens), s.Prompt)
	case !(s.Temperature > 0) || math.IsInf(s.Temperature, 0): // a NaN is no temperature either
		return fmt.Errorf("temperature %v: it must be greater than 0", s.Temperature)
	case len(s.Wanted) != s.Response():
		return fmt.Errorf("tokens are wanted at %d positions of %d", len(s.Wanted), s.Response())
	}
	for _, id := range s.Tokens {
		if int(id) >= m.Vocabulary {
			return fmt.Errorf("token %d is not in the vocabulary of %d", id, m.Vocabulary)
		}
	}
	for _, row := range s.Wanted {
		if len(row) != wanted || wanted == 0 {
			return fmt.Errorf("%d tokens are wanted at a position and %d at another: pad them, with coefficient 0", len(row), wanted)
		}
		for _, id := range row {
			if int(id) >= m.Vocabulary {
				return fmt.Errorf("wanted token %d is not in the vocabulary of %d", id, m.Vocabulary)
			}
		}
	}
	return nil
}

// masked is added to scores of tokens that must not be seen: small enough that exp gives exactly zero.
const masked = -1e30

// packed are the graphs' inputs for several sequences, one after the other.
type packed struct {
	tokens, rows, wanted int // N, R, K
	ids                  []uint32
	rowIndex             []int // which of the N are scored
	cos, sin, mask       []float32
	wantedIDs            []int64
	scale                []float32
}

// pack lays sequences out. A token sees the tokens before it in its own sequence, and its position counts from there.
func pack(m *gguf.Llama, sequences []trainer.Sequence) *packed {
	p := &packed{wanted: len(sequences[0].Wanted[0])}
	for _, s := range sequences {
		p.tokens += len(s.Tokens) - 1
	}
	half, group := m.HeadSize/2, m.Heads/m.KVHeads
	p.mask = make([]float32, group*p.tokens*p.tokens)
	for i := range p.mask {
		p.mask[i] = masked
	}
	start := 0
	for _, s := range sequences {
		n := len(s.Tokens) - 1
		for i := range n {
			p.ids = append(p.ids, s.Tokens[i])
			for j := range half {
				angle := float64(i) * m.Frequencies[j]
				p.cos, p.sin = append(p.cos, float32(math.Cos(angle))), append(p.sin, float32(math.Sin(angle)))
			}
			for g := range group {
				row := p.mask[(g*p.tokens+start+i)*p.tokens:]
				clear(row[start : start+i+1])
			}
		}
		for r, row := range s.Wanted {
			p.rowIndex = append(p.rowIndex, start+s.Prompt-1+r)
			p.scale = append(p.scale, float32(1/s.Temperature))
			for _, id := range row {
				p.wantedIDs = append(p.wantedIDs, int64(id))
			}
		}
		start += n
	}
	p.rows = len(p.rowIndex)
	return p
}

// inputs are a block's inputs over the packed arrays, but x.
func (p *packed) inputs(m *gguf.Llama) []ort.Tensor {
	half, group := m.HeadSize/2, m.Heads/m.KVHeads
	return []ort.Tensor{
		ort.Float32(inCos, p.cos, 1, p.tokens, half), ort.Float32(inSin, p.sin, 1, p.tokens, half),
		ort.Float32(inMask, p.mask, 1, group*p.tokens, p.tokens),
	}
}

// split gives each sequence its rows of a packed result [R, K].
func split(values []float32, width int, sequences []trainer.Sequence) [][][]float32 {
	out := make([][][]float32, len(sequences))
	for i, s := range sequences {
		for range s.Response() {
			out[i] = append(out[i], values[:width:width])
			values = values[width:]
		}
	}
	return out
}
