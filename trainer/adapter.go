package trainer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Layer is a linear layer of the base model that carries an adapter.
type Layer struct {
	// PEFT is its name in Hugging Face's model, such as "model.layers.0.self_attn.q_proj"; GGUF in llama.cpp's, such as "blk.0.attn_q".
	PEFT, GGUF string
	In, Out    int
	// Heads > 0: the rows of B belong to rotated heads, which the model's GGUF orders in another way.
	Heads int
	// Architecture of the model in GGUF; empty: llama.
	Architecture string `json:",omitempty"`
}

// Adapter is a LoRA: y = W x + Alpha/Rank * B (A x) on each layer (Hu et al., equation 3).
type Adapter struct {
	Layers []Layer
	Rank   int
	Alpha  float64
	// A [layer][rank*in] and B [layer][out*rank], row-major. The rows of rotated heads are in the half-split order of Hugging Face's models.
	A, B [][]float32
}

// NewAdapter makes an adapter that is zero.
func NewAdapter(layers []Layer, rank int, alpha float64) *Adapter {
	a := &Adapter{Layers: layers, Rank: rank, Alpha: alpha}
	for _, l := range layers {
		a.A, a.B = append(a.A, make([]float32, rank*l.In)), append(a.B, make([]float32, l.Out*rank))
	}
	return a
}

// Initialise draws A as PEFT does (uniform within 1/sqrt(in)) and sets B to zero: the adapted model is then the base model. The same seed gives the
// same numbers everywhere.
func (a *Adapter) Initialise(seed uint64) {
	for i, l := range a.Layers {
		r := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // reproducible on purpose
		bound := 1 / math.Sqrt(float64(l.In))
		for j := range a.A[i] {
			a.A[i][j] = float32((2*r.Float64() - 1) * bound)
		}
		clear(a.B[i])
	}
}

// Zero makes an adapter of the same shape that is zero, for gradients and moments.
func (a *Adapter) Zero() *Adapter { return NewAdapter(a.Layers, a.Rank, a.Alpha) }

// Clone copies the adapter.
func (a *Adapter) Clone() *Adapter {
	c := *a
	c.A, c.B = make([][]float32, len(a.A)), make([][]float32, len(a.B))
	for i := range a.A {
		c.A[i], c.B[i] = slices.Clone(a.A[i]), slices.Clone(a.B[i])
	}
	return &c
}

// Fits reports why other cannot be used in a's place.
func (a *Adapter) Fits(other *Adapter) error {
	if a.Rank != other.Rank || a.Alpha != other.Alpha {
		return fmt.Errorf("the adapter has rank %d and alpha %g, not %d and %g", other.Rank, other.Alpha, a.Rank, a.Alpha)
	}
	if !slices.Equal(a.Layers, other.Layers) {
		return fmt.Errorf("the adapter is for other layers (%d of them) than the model's %d", len(other.Layers), len(a.Layers))
	}
	return nil
}

// each calls f for every parameter array, in a fixed order.
func (a *Adapter) each(f func(i int, x []float32)) {
	for i := range a.A {
		f(2*i, a.A[i])
		f(2*i+1, a.B[i])
	}
}

// Add adds another adapter of the same shape, element by element.
func (a *Adapter) Add(other *Adapter) {
	for i := range a.A {
		for j, v := range other.A[i] {
			a.A[i][j] += v
		}
		for j, v := range other.B[i] {
			a.B[i][j] += v
		}
	}
}

// Norm is the L2 norm over all parameters.
func (a *Adapter) Norm() float64 {
	sum := 0.0
	a.each(func(_ int, x []float32) {
		for _, v := range x {
			sum += float64(v) * float64(v)
		}
	})
	return math.Sqrt(sum)
}

// towards is the adapter at a part of the way to another.
func (a *Adapter) towards(other *Adapter, part float64) *Adapter {
	c := a.Clone()
	var goal [][]float32
	other.each(func(_ int, x []float32) { goal = append(goal, x) })
	c.each(func(i int, x []float32) {
		for j, v := range x {
			x[j] = float32(float64(v) + part*(float64(goal[i][j])-float64(v)))
		}
	})
	return c
}

// Scale multiplies all parameters.
func (a *Adapter) Scale(by float64) {
	a.each(func(_ int, x []float32) {
		for i := range x {
			x[i] = float32(float64(x[i]) * by)
		}
	})
}
