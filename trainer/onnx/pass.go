package onnx

import (
	"context"
	"slices"

	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// The blocks run one after the other in one session, each in the same memory, which stays in the processor's caches. What backward needs of them is what goes from block
// to block and, not to compute linear layers twice, what is inside: states.

// states are what pass computes of a pack, all in one array.
type states struct {
	x [][]float32 // [blocks+1][N*hidden]: what goes into each block, and what comes out of the last
	// inside are each block's values of that name, in ort's form.
	inside [][]ort.Tensor
}

// size is how many numbers the states of n tokens are.
func (e *Engine) size(n int) int {
	perToken := (e.model.Blocks + 1) * e.model.Hidden
	for _, v := range inside(e.model) {
		perToken += e.model.Blocks * v.width
	}
	return n * perToken
}

// cut lays the states of n tokens out in memory of that size.
func (e *Engine) cut(memory []float32, n int) (s states) {
	next := func(size int) []float32 {
		part := memory[:size:size]
		memory = memory[size:]
		return part
	}
	for range e.model.Blocks + 1 {
		s.x = append(s.x, next(n*e.model.Hidden))
	}
	for range e.model.Blocks {
		var list []ort.Tensor
		for _, v := range inside(e.model) {
			list = append(list, ort.Float32(v.name, next(n*v.width), n, v.width))
		}
		s.inside = append(s.inside, list)
	}
	return s
}

// pass fills in the states of a pack.
func (e *Engine) pass(ctx context.Context, p *packed, lora [][]ort.Tensor, s states) error {
	hidden := e.model.Hidden
	for i, id := range p.ids {
		copy(s.x[0][i*hidden:(i+1)*hidden], e.embedding[int(id)*hidden:])
	}
	inputs := p.inputs(e.model)
	for b := range e.blocks {
		in := slices.Concat(inputs, e.blocks[b], lora[b], []ort.Tensor{ort.Float32(inX, s.x[b], p.tokens, hidden)})
		if err := e.forward.Run(ctx, in, append([]ort.Tensor{ort.Float32(outY, s.x[b+1], p.tokens, hidden)}, s.inside[b]...)); err != nil {
			return err
		}
	}
	return nil
}

// passBack fills in outs, the gradients of the adapters, from d, that of the last block's output, which it overwrites.
func (e *Engine) passBack(ctx context.Context, p *packed, lora [][]ort.Tensor, s states, d []float32, outs [][]ort.Tensor) error {
	hidden := e.model.Hidden
	next, inputs := make([]float32, len(d)), p.inputs(e.model)
	for b := len(e.blocks) - 1; b >= 0; b-- {
		in := slices.Concat(inputs, e.blocks[b], lora[b], s.inside[b], []ort.Tensor{
			ort.Float32(inX, s.x[b], p.tokens, hidden), ort.Float32(inDY, d, p.tokens, hidden),
		})
		if err := e.backward.Run(ctx, in, append([]ort.Tensor{ort.Float32(outDX, next, p.tokens, hidden)}, outs[b]...)); err != nil {
			return err
		}
		d, next = next, d
	}
	return nil
}

// chunk is a part of the scored rows.
type chunk struct {
	from, to int
	inputs   []ort.Tensor
}

// chunks cuts the scored rows of a pack, so that logits of headRows at most are there at once. Only these rows go through the head: its matrix is the largest.
func (e *Engine) chunks(p *packed, last []float32) (list []chunk) {
	hidden := e.model.Hidden
	for from := 0; from < p.rows; from += headRows {
		to := min(from+headRows, p.rows)
		n := to - from
		rows := make([]float32, 0, n*hidden)
		for _, r := range p.rowIndex[from:to] {
			rows = append(rows, last[r*hidden:(r+1)*hidden]...)
		}
		list = append(list, chunk{from, to, append([]ort.Tensor{
			ort.Float32(inX, rows, n, hidden), ort.Int64(inTokens, p.wantedIDs[from*p.wanted:to*p.wanted], n, p.wanted), ort.Float32(inScale, p.scale[from:to], n, 1),
		}, e.head...)})
	}
	return list
}

// score gives the log-probs [R*K] and the entropy [R] of a pack from the last block's output.
func (e *Engine) score(ctx context.Context, p *packed, last []float32) (logprobs, entropy []float32, err error) {
	logprobs, entropy = make([]float32, p.rows*p.wanted), make([]float32, p.rows)
	for _, c := range e.chunks(p, last) {
		n := c.to - c.from
		if err := e.headForward.Run(ctx, c.inputs, []ort.Tensor{
			ort.Float32(outLogprobs, logprobs[c.from*p.wanted:c.to*p.wanted], n, p.wanted), ort.Float32(outEntropy, entropy[c.from:c.to], n, 1),
		}); err != nil {
			return nil, nil, err
		}
	}
	return logprobs, entropy, nil
}

// scoreBack gives the gradient of the last block's output [N*hidden].
func (e *Engine) scoreBack(ctx context.Context, p *packed, last, coef []float32) ([]float32, error) {
	hidden := e.model.Hidden
	d := make([]float32, p.tokens*hidden)
	for _, c := range e.chunks(p, last) {
		n := c.to - c.from
		in := append(c.inputs, ort.Float32(inCoef, coef[c.from*p.wanted:c.to*p.wanted], n, p.wanted))
		lp, rows := make([]float32, n*p.wanted), make([]float32, n*hidden)
		if err := e.headBackward.Run(ctx, in, []ort.Tensor{ort.Float32(outLogprobs, lp, n, p.wanted), ort.Float32(outDX, rows, n, hidden)}); err != nil {
			return nil, err
		}
		for i, r := range p.rowIndex[c.from:c.to] {
			to, from := d[r*hidden:(r+1)*hidden], rows[i*hidden:(i+1)*hidden]
			for j, v := range from { // two sequences may score the same row
				to[j] += v
			}
		}
	}
	return d, nil
}
