package onnx

import (
	"fmt"
	"math"

	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/graph"
)

// linears are the linear layers of a block that carry an adapter, by their names in Hugging Face's models and in GGUF.
var linears = []struct {
	peft, gguf string
	biased     bool // in models that are
}{
	{"self_attn.q_proj", "attn_q", true},
	{"self_attn.k_proj", "attn_k", true},
	{"self_attn.v_proj", "attn_v", true},
	{"self_attn.o_proj", "attn_output", false},
	{"mlp.gate_proj", "ffn_gate", false},
	{"mlp.up_proj", "ffn_up", false},
	{"mlp.down_proj", "ffn_down", false},
}

// layersOf lists the linear layers of a model, block by block.
func layersOf(m *gguf.Llama) []trainer.Layer {
	parts := map[string]gguf.Part{}
	for _, p := range m.Parts() {
		parts[p.Name] = p
	}
	architecture := m.Architecture
	if architecture == gguf.Architecture {
		architecture = ""
	}
	var list []trainer.Layer
	for block := range m.Blocks {
		for _, l := range linears {
			p := parts[inWeight(l.gguf)]
			list = append(list, trainer.Layer{
				PEFT: fmt.Sprintf("model.layers.%d.%s", block, l.peft), GGUF: fmt.Sprintf("blk.%d.%s", block, l.gguf),
				In: p.Shape[0], Out: p.Shape[1], Heads: p.Heads, Architecture: architecture,
			})
		}
	}
	return list
}

// Inputs and outputs of the graphs. N tokens, R rows whose next token is scored, K tokens scored at each, G query heads a key head.
const (
	inX    = "x"    // [N, hidden] into a block, [R, hidden] into the head
	inCos  = "cos"  // [1, N, D/2]
	inSin  = "sin"  // [1, N, D/2]
	inMask = "mask" // [1, G*N, N]: 0, or a large negative number where a token must not look
	inDY   = "dy"   // [N, hidden]: d loss / d y (backward only)
	mid    = "mid"  // [N, hidden] between attention and feed-forward: out of forward, into backward, as are the outputs of the linear layers in between

	inTokens = "tokens" // [R, K]
	inScale  = "scale"  // [R, 1]: 1 / temperature
	inCoef   = "coef"   // [R, K]: d loss / d log-prob (backward only)

	outY        = "y"        // [N, hidden] out of a block
	outDX       = "dx"       // as x: d loss / d x (backward only)
	outLogprobs = "logprobs" // [R, K] nats
	outEntropy  = "entropy"  // [R, 1] nats

	headNorm, headOutput = "output_norm.weight", "output.weight"

	gradient = "d/" // precedes the name of an adapter's input in the name of its gradient
)

// Inputs of a block that belong to one of its linear layers or norms, by the name in GGUF without the block.
func inWeight(name string) string { return name + ".weight" }
func inBias(name string) string   { return name + ".bias" }
func inputA(name string) string   { return name + ".A" }
func inputB(name string) string   { return name + ".B" }

// outLinear is the output of a linear layer.
func outLinear(name string) string { return name + ".y" }

// block emits the graph of a block. All blocks of a model have the same shape, so one graph serves them all: weights and adapters are inputs.
type block struct {
	*graph.Graph
	m      *gguf.Llama
	layers []trainer.Layer             // of one block
	scale  float32                     // alpha / rank
	lora   map[string][2]*graph.Tensor // A and B by the layer's name
	known  bool                        // what inside lists is an input (backward), not to be computed
}

// value is a tensor inside a block that forward hands to backward, so that no linear layer is computed twice.
type value struct {
	name  string
	width int // [N, width]
}

// inside lists them: outputs of linear layers, but for those of attn_output and ffn_down, whose sums with what goes around them are mid and the next block's x.
func inside(m *gguf.Llama) (list []value) {
	for i, l := range layersOf(m)[:len(linears)] {
		switch name := linears[i].gguf; name {
		case "attn_output":
			list = append(list, value{mid, l.Out})
		case "ffn_down":
		default:
			list = append(list, value{outLinear(name), l.Out})
		}
	}
	return list
}

// forwardBlock gives y and what is inside.
func forwardBlock(m *gguf.Llama, rank int, scale float32) *graph.Graph {
	b := newBlock(m, rank, scale)
	b.Output(outY, b.feedForward(b.attention(b.Param(inX, -1, m.Hidden))))
	return b.Graph
}

// backwardBlock gives the gradients by x and by the adapters, from what is inside.
func backwardBlock(m *gguf.Llama, rank int, scale float32) *graph.Graph {
	b := newBlock(m, rank, scale)
	b.known = true
	x := b.Param(inX, -1, m.Hidden)
	y := b.feedForward(b.attention(x))
	b.Seed(y, b.Input(inDY, graph.Float32, -1, m.Hidden))
	b.Backward()
	b.Output(outDX, b.Grad(x))
	for _, l := range linears {
		b.Output(gradient+inputA(l.gguf), b.Grad(b.lora[l.gguf][0]))
		b.Output(gradient+inputB(l.gguf), b.Grad(b.lora[l.gguf][1]))
	}
	return b.Graph
}

func newBlock(m *gguf.Llama, rank int, scale float32) *block {
	b := &block{Graph: graph.New(), m: m, scale: scale, layers: layersOf(m)[:len(linears)], lora: map[string][2]*graph.Tensor{}}
	for i, l := range b.layers {
		name := linears[i].gguf
		b.lora[name] = [2]*graph.Tensor{b.Param(inputA(name), rank, l.In), b.Param(inputB(name), l.Out, rank)}
	}
	return b
}

// linear is a layer with its adapter, and around, which may be nil, added (a bias, or what goes around the layer); it goes from forward to backward under that name, or not at all.
func (b *block) linear(x *graph.Tensor, i int, around *graph.Tensor, as string) *graph.Tensor {
	name, l := linears[i].gguf, b.layers[i]
	var known *graph.Tensor
	switch {
	case !b.known:
	case as == "":
		known = b.Phantom(-1, l.Out)
	default:
		known = b.Input(as, graph.Float32, -1, l.Out)
	}
	y := b.LoRA(around, x, b.Input(inWeight(name), graph.Float32, l.Out, l.In), b.lora[name][0], b.lora[name][1], b.scale, known)
	if !b.known && as != "" {
		b.Output(as, y)
	}
	return y
}

// handed is a layer, with its bias, whose output goes to backward.
func (b *block) handed(x *graph.Tensor, i int) *graph.Tensor {
	name := linears[i].gguf
	var bias *graph.Tensor
	if b.m.Biased && linears[i].biased {
		bias = b.Input(inBias(name), graph.Float32, b.layers[i].Out)
	}
	return b.linear(x, i, bias, outLinear(name))
}

// norm is over the last dimension of x.
func (b *block) norm(x *graph.Tensor, name string) *graph.Tensor {
	shape := x.Shape()
	return b.RMSNorm(x, b.Input(inWeight(name), graph.Float32, shape[len(shape)-1]), float32(b.m.Epsilon))
}

// headNorm is the norm of each head [n, N, D], in the models that have it.
func (b *block) headNorm(x *graph.Tensor, name string) *graph.Tensor {
	if !b.m.HeadNorms {
		return x
	}
	return b.norm(x, name)
}

// attention is x and what its tokens see of each other.
func (b *block) attention(x *graph.Tensor) *graph.Tensor {
	m := b.m
	half := m.HeadSize / 2
	cos, sin := b.Input(inCos, graph.Float32, 1, -1, half), b.Input(inSin, graph.Float32, 1, -1, half)
	mask := b.Input(inMask, graph.Float32, 1, -1, -1)
	heads := func(x *graph.Tensor, n int) *graph.Tensor { // [N, n*D] -> [n, N, D]
		return b.Transpose(b.Reshape(x, -1, n, m.HeadSize), 1, 0, 2)
	}
	h := b.norm(x, "attn_norm")
	q := b.RoPE(b.headNorm(heads(b.handed(h, 0), m.Heads), "attn_q_norm"), cos, sin)
	k := b.RoPE(b.headNorm(heads(b.handed(h, 1), m.KVHeads), "attn_k_norm"), cos, sin)
	v := heads(b.handed(h, 2), m.KVHeads)
	q = b.Reshape(q, m.KVHeads, -1, m.HeadSize) // query heads that share a key head stand together: [KV, G*N, D]
	scores := b.MatMulT(q, k, float32(1/math.Sqrt(float64(m.HeadSize))))
	mixed := b.MatMul(b.Softmax(b.Add(scores, mask)), v)
	mixed = b.Reshape(b.Transpose(b.Reshape(mixed, m.Heads, -1, m.HeadSize), 1, 0, 2), -1, m.Heads*m.HeadSize)
	return b.linear(mixed, 3, x, mid)
}

// feedForward is x and what the inner layers make of each token.
func (b *block) feedForward(x *graph.Tensor) *graph.Tensor {
	h := b.norm(x, "ffn_norm")
	return b.linear(b.SwiGLU(b.handed(h, 4), b.handed(h, 5)), 6, x, "")
}

// forwardHead gives the log-probs and the entropy of rows of the last block's output.
func forwardHead(m *gguf.Llama) *graph.Graph {
	g := graph.New()
	_, all, _, _ := head(g, m)
	g.Output(outEntropy, g.Entropy(all))
	return g
}

// backwardHead gives the log-probs again, and the gradient by x.
func backwardHead(m *gguf.Llama) *graph.Graph {
	g := graph.New()
	x, all, normed, output := head(g, m)
	coef := g.Input(inCoef, graph.Float32, -1, -1)
	g.Seed(normed, g.LogprobGradient(all, output, g.Once(inTokens, graph.Int64, -1, -1), coef, g.Once(inScale, graph.Float32, -1, 1)))
	g.Backward()
	g.Output(outDX, g.Grad(x))
	return g
}

// head gives the log-probs over the vocabulary [R, V]; those of the wanted tokens are an output.
func head(g *graph.Graph, m *gguf.Llama) (x, all, normed, output *graph.Tensor) {
	x = g.Param(inX, -1, m.Hidden)
	normed = g.RMSNorm(x, g.Input(headNorm, graph.Float32, m.Hidden), float32(m.Epsilon))
	output = g.Input(headOutput, graph.Float32, m.Vocabulary, m.Hidden)
	all = g.LogSoftmax(normed, output, g.Once(inScale, graph.Float32, -1, 1))
	g.Output(outLogprobs, g.Pick(all, g.Once(inTokens, graph.Int64, -1, -1)))
	return x, all, normed, output
}
