package onnx

import (
	"slices"

	"github.com/nextstate-rl/nextstate/trainer"
)

// kept are the hidden states of the packs of a Logprobs, for the Gradient after it.
type kept struct {
	adapter *trainer.Adapter
	packs   []keptPack
	bytes   int
	buffers [][]float32 // of the packs, by their place, used again by the next call
	scratch []float32   // of a pack that is not kept
}

type keptPack struct {
	ids []uint32  // of its tokens
	cos []float32 // of their positions: where one sequence ends and another begins
	x   []float32
}

// begin forgets everything; what is kept from now on belongs to a.
func (k *kept) begin(a *trainer.Adapter) { k.adapter, k.packs, k.bytes = a.Clone(), nil, 0 }

// of reports whether what is kept belongs to such an adapter.
func (k *kept) of(a *trainer.Adapter) bool {
	return k.adapter != nil && slices.EqualFunc(k.adapter.A, a.A, slices.Equal) && slices.EqualFunc(k.adapter.B, a.B, slices.Equal)
}

// room gives memory for n numbers: that of the next pack to be kept or, if there would be more than limit bytes in all then, that of one which is not.
func (k *kept) room(n, limit int) []float32 {
	to := &k.scratch
	if at := len(k.packs); k.bytes+4*n <= limit {
		if at == len(k.buffers) {
			k.buffers = append(k.buffers, nil)
		}
		to = &k.buffers[at]
	}
	if cap(*to) < n {
		*to = make([]float32, n)
	}
	return (*to)[:n]
}

// add keeps what room gave memory for, now that it is filled in.
func (k *kept) add(p *packed, x []float32, limit int) {
	if k.bytes+4*len(x) <= limit {
		k.packs, k.bytes = append(k.packs, keptPack{p.ids, p.cos, x}), k.bytes+4*len(x)
	}
}

// find gives what is kept of the same pack.
func (k *kept) find(p *packed) ([]float32, bool) {
	for _, have := range k.packs {
		if slices.Equal(have.ids, p.ids) && slices.Equal(have.cos, p.cos) {
			return have.x, true
		}
	}
	return nil, false
}
