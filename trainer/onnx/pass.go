package onnx

import (
	"context"
	"slices"

	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// The blocks run one after the other in one session, and only what goes from block to block is kept: backward computes the inside of a block again. So the memory does
// not grow with the depth of the model but for N*hidden numbers a block, and the memory that a block works in stays in the processor's caches.

// pass computes the hidden states x[blocks+1][N*hidden] of a pack: what goes into each block, and what comes out of the last.
func (e *Engine) pass(ctx context.Context, p *packed, lora [][]ort.Tensor, x []float32) error {
	hidden, size := e.model.Hidden, p.tokens*e.model.Hidden
	for i, id := range p.ids {
		copy(x[i*hidden:(i+1)*hidden], e.embedding[int(id)*hidden:])
	}
	inputs := p.inputs(e.model)
	for b := range e.blocks {
		in := slices.Concat(inputs, e.blocks[b], lora[b], []ort.Tensor{ort.Float32(inX, x[b*size:(b+1)*size], p.tokens, hidden)})
		if err := e.forward.Run(ctx, in, []ort.Tensor{ort.Float32(outY, x[(b+1)*size:(b+2)*size], p.tokens, hidden)}); err != nil {
			return err
		}
	}
	return nil
}

// passBack fills in outs, the gradients of the adapters, from d, that of the last block's output, which it overwrites.
func (e *Engine) passBack(ctx context.Context, p *packed, lora [][]ort.Tensor, x, d []float32, outs [][]ort.Tensor) error {
	hidden, size := e.model.Hidden, p.tokens*e.model.Hidden
	next, inputs := make([]float32, size), p.inputs(e.model)
	for b := len(e.blocks) - 1; b >= 0; b-- {
		in := slices.Concat(inputs, e.blocks[b], lora[b], []ort.Tensor{
			ort.Float32(inX, x[b*size:(b+1)*size], p.tokens, hidden), ort.Float32(inDY, d, p.tokens, hidden),
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
func (e *Engine) chunks(p *packed, x []float32) (list []chunk) {
	hidden, last := e.model.Hidden, x[len(x)-p.tokens*e.model.Hidden:]
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

// score gives the log-probs [R*K] and the entropy [R] of a pack.
func (e *Engine) score(ctx context.Context, p *packed, x []float32) (logprobs, entropy []float32, err error) {
	logprobs, entropy = make([]float32, p.rows*p.wanted), make([]float32, p.rows)
	for _, c := range e.chunks(p, x) {
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
func (e *Engine) scoreBack(ctx context.Context, p *packed, x, coef []float32) ([]float32, error) {
	hidden := e.model.Hidden
	d := make([]float32, p.tokens*hidden)
	for _, c := range e.chunks(p, x) {
		n := c.to - c.from
		in := append(c.inputs, ort.Float32(inCoef, coef[c.from*p.wanted:c.to*p.wanted], n, p.wanted))
		lp, rows := make([]float32, n*p.wanted), make([]float32, n*hidden)
		if err := e.headBackward.Run(ctx, in, []ort.Tensor{ort.Float32(outLogprobs, lp, n, p.wanted), ort.Float32(outDX, rows, n, hidden)}); err != nil {
			return nil, err
		}
		for i, r := range p.rowIndex[c.from:c.to] {
			copy(d[r*hidden:(r+1)*hidden], rows[i*hidden:])
		}
	}
	return d, nil
}

