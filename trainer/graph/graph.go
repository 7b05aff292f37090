package graph

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// Type is the type of a tensor's elements, with ONNX's number.
type Type int

// The types in use.
const (
	Float32 Type = 1
	Int64   Type = 7
)

// Tensor is a value in a graph.
type Tensor struct {
	name  string
	typ   Type
	shape []int // -1: not known
	// depends on a Param: a gradient flows through it
	depends bool
}

// Shape returns the tensor's shape; -1 is a size that is not known yet.
func (t *Tensor) Shape() []int { return t.shape }

// Graph is being built. For one goroutine. A mistake of the builder (shapes that do not fit) panics: it is a bug, never data.
type Graph struct {
	nodes, constants, inputs, outputs message

	names       int
	inputNames  []string
	outputNames []string
	cached      map[string]*Tensor // constants by content

	tape  []func()           // gradients to compute, in the order of the forward pass
	grads map[string]*Tensor // by tensor
}

// New returns an empty graph.
func New() *Graph { return &Graph{cached: map[string]*Tensor{}, grads: map[string]*Tensor{}} }

// Inputs and Outputs are the names in the order in which they were made.
func (g *Graph) Inputs() []string  { return g.inputNames }
func (g *Graph) Outputs() []string { return g.outputNames } //nolint:revive // the comment above is for both

// Input adds an input through which no gradient flows.
func (g *Graph) Input(name string, typ Type, shape ...int) *Tensor {
	g.inputs.bytes(11, valueInfo(name, typ, shape))
	g.inputNames = append(g.inputNames, name)
	return &Tensor{name: name, typ: typ, shape: shape}
}

// Once is Input for an input that several parts of a graph name.
func (g *Graph) Once(name string, typ Type, shape ...int) *Tensor {
	if t := g.cached["input "+name]; t != nil {
		return t
	}
	t := g.Input(name, typ, shape...)
	g.cached["input "+name] = t
	return t
}

// Param adds an input whose gradient is wanted.
func (g *Graph) Param(name string, shape ...int) *Tensor {
	t := g.Input(name, Float32, shape...)
	t.depends = true
	return t
}

// Phantom is a tensor that is not there: only its gradient is of interest.
func (g *Graph) Phantom(shape ...int) *Tensor {
	return &Tensor{name: g.fresh("t"), typ: Float32, shape: shape, depends: true}
}

// Output makes a tensor an output.
func (g *Graph) Output(name string, t *Tensor) {
	g.node("Identity", "", []*Tensor{t}, []string{name})
	g.outputs.bytes(12, valueInfo(name, t.typ, t.shape))
	g.outputNames = append(g.outputNames, name)
}

// Seed gives the gradient of a tensor from which Backward begins.
func (g *Graph) Seed(t, grad *Tensor) { g.grads[t.name] = grad }

// Backward adds the nodes of the gradients. Call it once, after Seed.
func (g *Graph) Backward() {
	for i := len(g.tape) - 1; i >= 0; i-- {
		g.tape[i]()
	}
	g.tape = nil
}

// Grad returns the gradient of a tensor after Backward.
func (g *Graph) Grad(t *Tensor) *Tensor {
	d := g.grads[t.name]
	if d == nil {
		panic("graph: nothing depends on " + t.name)
	}
	return d
}

// Floats adds a constant; equal ones are one.
func (g *Graph) Floats(values []float32, shape ...int) *Tensor {
	raw := make([]byte, 0, 4*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return g.constant(Float32, raw, shape)
}

// Float is a constant without dimensions.
func (g *Graph) Float(v float32) *Tensor { return g.Floats([]float32{v}) }

// ints is a constant vector, for shapes and axes.
func (g *Graph) ints(values ...int) *Tensor {
	raw := make([]byte, 0, 8*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(int64(v))) //nolint:gosec // two's complement is what the format wants
	}
	return g.constant(Int64, raw, []int{len(values)})
}

func (g *Graph) constant(typ Type, raw []byte, shape []int) *Tensor {
	key := fmt.Sprint(typ, shape, string(raw))
	if t := g.cached[key]; t != nil {
		return t
	}
	t := &Tensor{name: g.fresh("c"), typ: typ, shape: shape}
	g.constants.bytes(5, tensorProto(t.name, typ, shape, raw))
	g.cached[key] = t
	return t
}

func (g *Graph) fresh(prefix string) string {
	g.names++
	return prefix + strconv.Itoa(g.names)
}

// node adds a node to the model.
func (g *Graph) node(op, domain string, in []*Tensor, out []string, attrs ...attr) {
	var m message
	for _, t := range in {
		m.str(1, t.name)
	}
	for _, name := range out {
		m.str(2, name)
	}
	m.str(3, g.fresh("n"))
	m.str(4, op)
	for _, a := range attrs {
		m.bytes(5, a.encode())
	}
	if domain != "" {
		m.str(7, domain)
	}
	g.nodes.bytes(1, m)
}

// op adds a node with one output of the given shape.
func (g *Graph) op(op string, shape []int, in []*Tensor, attrs ...attr) *Tensor {
	return g.opIn("", op, shape, in, attrs...)
}

func (g *Graph) opIn(domain, op string, shape []int, in []*Tensor, attrs ...attr) *Tensor {
	out := &Tensor{name: g.fresh("t"), typ: in[0].typ, shape: shape}
	for _, t := range in {
		out.depends = out.depends || t.depends
	}
	g.node(op, domain, in, []string{out.name}, attrs...)
	return out
}

// accumulate adds d to the gradient of t.
func (g *Graph) accumulate(t, d *Tensor) {
	if !t.depends {
		return
	}
	if have := g.grads[t.name]; have != nil {
		d = g.op("Add", have.shape, []*Tensor{have, d})
	}
	g.grads[t.name] = d
}

// accumulateGemm adds alpha*a*b to the gradient of t, through Gemm's own third input: that costs no further pass over memory.
func (g *Graph) accumulateGemm(t, a, b *Tensor, transA, transB int, alpha float32) {
	if t.depends {
		g.grads[t.name] = g.gemm(a, b, transA, transB, alpha, g.grads[t.name])
	}
}

// later notes how the gradient of out flows on, unless nothing flows.
func (g *Graph) later(out *Tensor, flow func(d *Tensor)) {
	if !out.depends {
		return
	}
	g.tape = append(g.tape, func() {
		if d := g.grads[out.name]; d != nil {
			flow(d)
		}
	})
}

// broadcast is the shape of an element-wise operator's output.
func broadcast(a, b []int) []int {
	out := make([]int, max(len(a), len(b)))
	for i := 1; i <= len(out); i++ {
		x, y := 1, 1
		if i <= len(a) {
			x = a[len(a)-i]
		}
		if i <= len(b) {
			y = b[len(b)-i]
		}
		switch {
		case x == 1:
			out[len(out)-i] = y
		case y == 1 || x == y || y < 0:
			out[len(out)-i] = x
		case x < 0:
			out[len(out)-i] = y
		default:
			panic(fmt.Sprintf("graph: shapes %v and %v do not fit", a, b))
		}
	}
	return out
}
