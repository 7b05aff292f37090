package onnx

import (
	"slices"

	"github.com/nextstate-rl/nextstate/trainer"
)

// kept are the hidden states of the packs of a Logprobs, for the Gradient after it.
type kept struct {
	adapter *trainer.Adapter
	packs   []keptPack
	buffers [][]float32 // of the packs, by their place, used again by the next call
}

type keptPack struct {
	ids    []uint32 // of its tokens
	before []int    // which follows which
	x      []float32
}

// begin forgets everything; what is kept from now on belongs to a.
func (k *kept) begin(a *trainer.Adapter) { k.adapter, k.packs = a.Clone(), nil }

// of reports whether what is kept belongs to such an adapter.
func (k *kept) of(a *trainer.Adapter) bool {
	return k.adapter != nil && slices.EqualFunc(k.adapter.A, a.A, slices.Equal) && slices.EqualFunc(k.adapter.B, a.B, slices.Equal)
}

// room is memory for the states of a pack.
type room struct {
	size int       // numbers
	keep bool      // x is kept
	x    []float32 // nil: a thread's own is used
}

// rooms has memory for the packs as long as all of it is at most limit bytes; the others use that of their thread.
func (e *Engine) rooms(runs []run, limit int) []room {
	list, k := make([]room, len(runs)), &e.kept
	bytes, kept := 0, 0
	for i, r := range runs {
		list[i].size = e.size(r.tokens)
		if bytes+4*list[i].size > limit {
			continue
		}
		if kept == len(k.buffers) {
			k.buffers = append(k.buffers, nil)
		}
		list[i].keep, list[i].x = true, sized(&k.buffers[kept], list[i].size)
		bytes, kept = bytes+4*list[i].size, kept+1
	}
	return list
}

// memory is that of the room, or the thread's own.
func (r room) memory(scratch *[]float32) []float32 {
	if r.keep {
		return r.x
	}
	return sized(scratch, r.size)
}

// sized makes a buffer large enough for n numbers.
func sized(buffer *[]float32, n int) []float32 {
	if cap(*buffer) < n {
		*buffer = make([]float32, n)
	}
	return (*buffer)[:n]
}

// add keeps the states of a pack, now that they are filled in.
func (k *kept) add(p *packed, x []float32) {
	k.packs = append(k.packs, keptPack{p.ids, p.before, x})
}

// find gives what is kept of the same pack.
func (k *kept) find(p *packed) ([]float32, bool) {
	for _, have := range k.packs {
		if slices.Equal(have.ids, p.ids) && slices.Equal(have.before, p.before) {
			return have.x, true
		}
	}
	return nil, false
}
