package onnx

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/nextstate-rl/nextstate/trainer"
)

// order is what the parent asks of the child; one at a time. Gob carries it: large arrays go as bytes, because gob spells out each float32 otherwise.
type order struct {
	// Adapter are the numbers of A and B of every layer.
	Adapter   []byte
	Sequences []trainer.Sequence
	// Gradient asks for the gradient with the coefficients Coef; otherwise log-probs are asked for.
	Gradient bool
	Coef     [][][]float64
}

// answer is what the child says to an order. The first one, without an order, tells that the engine is ready.
type answer struct {
	Ready    *ready
	Logprobs [][][]float32
	Entropy  [][]float32
	Gradient []byte // as Adapter
	// Failed is the error's text; empty for success.
	Failed string
}

// ready describes the engine.
type ready struct {
	Layers     []trainer.Layer
	Vocabulary int
}

// flatten gives an adapter's numbers, layer by layer A and B, as little-endian bytes.
func flatten(a *trainer.Adapter) []byte {
	n := 0
	for i := range a.A {
		n += len(a.A[i]) + len(a.B[i])
	}
	out := make([]byte, 0, 4*n)
	for i := range a.A {
		for _, side := range [][]float32{a.A[i], a.B[i]} {
			for _, v := range side {
				out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
			}
		}
	}
	return out
}

// unflatten is the inverse, into an adapter of that shape.
func unflatten(from []byte, a *trainer.Adapter) error {
	n := 0
	for i := range a.A {
		n += 4 * (len(a.A[i]) + len(a.B[i]))
	}
	if len(from) != n {
		return fmt.Errorf("an adapter of %d bytes, not %d", len(from), n)
	}
	for i := range a.A {
		for _, side := range [][]float32{a.A[i], a.B[i]} {
			for j := range side {
				side[j] = math.Float32frombits(binary.LittleEndian.Uint32(from))
				from = from[4:]
			}
		}
	}
	return nil
}
