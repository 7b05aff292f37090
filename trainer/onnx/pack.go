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

// packed are the graphs' inputs for several sequences, one after the other. What a sequence has in common with the beginning of the one before it is there once: the
// turns of a conversation are computed together, and no token of it twice.
type packed struct {
	tokens, rows, wanted int // N, R, K
	ids                  []uint32
	before               []int // of each token the one before it in its sequences; -1: it is the first
	rowIndex             []int // which of the N are scored
	cos, sin, mask       []float32
	wantedIDs            []int64
	scale                []float32
}

// pack lays sequences out. A token sees the tokens before it in its own sequence, and its position counts from there.
func pack(m *gguf.Llama, sequences []trainer.Sequence) *packed {
	p := &packed{wanted: len(sequences[0].Wanted[0])}
	var path []int // of the sequence: the place in the pack of each of its tokens
	var places [][]int
	for i, s := range sequences {
		same := 0
		if i > 0 {
			same = common(sequences[i-1], s)
		}
		path = append(make([]int, 0, len(s.Tokens)), path[:same]...)
		for _, id := range s.Tokens[same : len(s.Tokens)-1] {
			p.add(m, id, path)
			path = append(path, len(p.ids)-1)
		}
		places = append(places, path)
		for r, row := range s.Wanted {
			p.rowIndex = append(p.rowIndex, path[s.Prompt-1+r])
			p.scale = append(p.scale, float32(1/s.Temperature))
			for _, id := range row {
				p.wantedIDs = append(p.wantedIDs, int64(id))
			}
		}
	}
	p.tokens, p.rows = len(p.ids), len(p.rowIndex)
	p.look(places, m.Heads/m.KVHeads)
	return p
}

// add appends a token that follows those of path.
func (p *packed) add(m *gguf.Llama, id uint32, path []int) {
	before := -1
	if len(path) > 0 {
		before = path[len(path)-1]
	}
	p.ids, p.before = append(p.ids, id), append(p.before, before)
	for j := range m.HeadSize / 2 {
		angle := float64(len(path)) * m.Frequencies[j]
		p.cos, p.sin = append(p.cos, float32(math.Cos(angle))), append(p.sin, float32(math.Sin(angle)))
	}
}

// look fills in the mask, the same for each head of a group.
func (p *packed) look(places [][]int, group int) {
	p.mask = make([]float32, group*p.tokens*p.tokens)
	for i := range p.mask {
		p.mask[i] = masked
	}
	done := 0 // tokens whose rows are there
	for _, path := range places {
		for i, at := range path {
			if at < done {
				continue // it belongs to the sequence before, too
			}
			row := p.mask[at*p.tokens : (at+1)*p.tokens]
			for _, seen := range path[:i+1] {
				row[seen] = 0
			}
		}
		done = max(done, path[len(path)-1]+1)
	}
	for g := 1; g < group; g++ {
		copy(p.mask[g*p.tokens*p.tokens:], p.mask[:p.tokens*p.tokens])
	}
}

// common is how many inputs of b are those of a: tokens from the first one on, but for the last, which is only predicted.
func common(a, b trainer.Sequence) int {
	return min(a.Alike(b), len(a.Tokens)-1, len(b.Tokens)-1)
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
