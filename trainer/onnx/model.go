package onnx

import (
	"fmt"
	"math"
	"slices"

	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/graph"
)

// linears are the linear layers of a block that carry an adapter, by their names in Hugging Face's models and in GGUF.
var linears = []struct{ peft, gguf string }{
	{"self_attn.q_proj", "attn_q"},
	{"self_attn.k_proj", "attn_k"},
	{"self_attn.v_proj", "attn_v"},
	{"self_attn.o_proj", "attn_output"},
	{"mlp.gate_proj", "ffn_gate"},
	{"mlp.up_proj", "ffn_up"},
	{"mlp.down_proj", "ffn_down"},
}

// layersOf lists the linear layers of a model, block by block.
func layersOf(m *gguf.Llama) []trainer.Layer {
	query, key := m.Heads*m.HeadSize, m.KVHeads*m.HeadSize
	var list []trainer.Layer
	for block := range m.Blocks {
		for _, l := range linears {
			layer := trainer.Layer{PEFT: fmt.Sprintf("model.layers.%d.%s", block, l.peft), GGUF: fmt.Sprintf("blk.%d.%s", block, l.gguf), In: m.Hidden, Out: m.FFN}
			switch l.gguf {
			case "attn_q":
				layer.Out, layer.Heads = query, m.Heads
			case "attn_k":
				layer.Out, layer.Heads = key, m.KVHeads
			case "attn_v":
				layer.Out = key
			case "attn_output":
				layer.In, layer.Out = query, m.Hidden
			case "ffn_down":
				layer.In, layer.Out = m.FFN, m.Hidden
			}
			list = append(list, layer)
		}
	}
	return list
}

// Inputs and outputs of the graph. N tokens, R positions whose next token is scored, K tokens scored at each, G query heads a key head.
const (
	inIDs    = "ids"    // [N]
	inCos    = "cos"    // [1, N, D/2]
	inSin    = "sin"    // [1, N, D/2]
	inMask   = "mask"   // [1, G*N, N]: 0, or a large negative number where a token must not look
	inRows   = "rows"   // [R]: which of the N
	inTokens = "tokens" // [R, K]
	inScale  = "scale"  // [R, 1]: 1 / temperature
	inCoef   = "coef"   // [R, K]: d loss / d log-prob (backward only)

	outLogprobs = "logprobs" // [R, K] nats
	outEntropy  = "entropy"  // [R, 1] nats (forward only)
)

// builder emits the graph of a model.
type builder struct {
	*graph.Graph
	m      *gguf.Llama
	rank   int
	scale  float32 // alpha / rank
	layers []trainer.Layer
	lora   map[string][2]*graph.Tensor // by the layer's name in GGUF
}

// weight is a frozen tensor: an initializer whose memory the session is given, so an input here.
func (b *builder) weight(name string, shape ...int) *graph.Tensor {
	return b.Initializer(name, shape...)
}

// forwardGraph gives the log-probs and the entropy.
func forwardGraph(m *gguf.Llama, rank int, scale float32) *graph.Graph {
	b := newBuilder(m, rank, scale)
	all, logprobs := b.head(b.trunk())
	b.Output(outLogprobs, logprobs)
	b.Output(outEntropy, b.Entropy(all))
	return b.Graph
}

// backwardGraph gives the log-probs again, and the gradient of every adapter: "d/" and the adapter's input name.
func backwardGraph(m *gguf.Llama, rank int, scale float32) *graph.Graph {
	b := newBuilder(m, rank, scale)
	hidden := b.trunk()
	all, logprobs := b.head(hidden)
	b.Output(outLogprobs, logprobs)
	coef := b.Input(inCoef, graph.Float32, -1, -1)
	b.Seed(hidden, b.LogprobGradient(all, b.output(), b.tokens(), coef, b.temperature()))
	b.Backward()
	for _, l := range b.layers {
		b.Output(gradient+inputA(l), b.Grad(b.lora[l.GGUF][0]))
		b.Output(gradient+inputB(l), b.Grad(b.lora[l.GGUF][1]))
	}
	return b.Graph
}

// gradient precedes the name of an adapter's input in the name of its gradient.
const gradient = "d/"

func inputA(l trainer.Layer) string { return l.GGUF + ".A" }
func inputB(l trainer.Layer) string { return l.GGUF + ".B" }

func newBuilder(m *gguf.Llama, rank int, scale float32) *builder {
	b := &builder{Graph: graph.New(), m: m, rank: rank, scale: scale, layers: layersOf(m), lora: map[string][2]*graph.Tensor{}}
	for _, l := range b.layers {
		b.lora[l.GGUF] = [2]*graph.Tensor{b.Param(inputA(l), rank, l.In), b.Param(inputB(l), l.Out, rank)}
	}
	return b
}

// linear is a layer of a block with its adapter.
func (b *builder) linear(x *graph.Tensor, block int, gguf string) *graph.Tensor {
	i := slices.IndexFunc(b.layers, func(l trainer.Layer) bool { return l.GGUF == fmt.Sprintf("blk.%d.%s", block, gguf) })
	l := b.layers[i]
	y := b.Linear(x, b.weight(l.GGUF+".weight", l.Out, l.In), 1)
	return b.LoRA(y, x, b.lora[l.GGUF][0], b.lora[l.GGUF][1], b.scale)
}

// trunk is everything but the head: [R, hidden] at the rows that are scored.
func (b *builder) trunk() *graph.Tensor {
	m := b.m
	half := m.HeadSize / 2
	ids := b.Input(inIDs, graph.Int64, -1)
	cos, sin := b.Input(inCos, graph.Float32, 1, -1, half), b.Input(inSin, graph.Float32, 1, -1, half)
	mask := b.Input(inMask, graph.Float32, 1, -1, -1)
	heads := func(x *graph.Tensor, n int) *graph.Tensor { // [N, n*D] -> [n, N, D]
		return b.Transpose(b.Reshape(x, -1, n, m.HeadSize), 1, 0, 2)
	}
	x := b.Rows(b.embedding(), ids)
	for block := range m.Blocks {
		norm := func(x *graph.Tensor, name string) *graph.Tensor {
			return b.RMSNorm(x, b.weight(fmt.Sprintf("blk.%d.%s.weight", block, name), m.Hidden), float32(m.Epsilon))
		}
		h := norm(x, "attn_norm")
		q := b.RoPE(heads(b.linear(h, block, "attn_q"), m.Heads), cos, sin)
		k := b.RoPE(heads(b.linear(h, block, "attn_k"), m.KVHeads), cos, sin)
		v := heads(b.linear(h, block, "attn_v"), m.KVHeads)
		q = b.Reshape(q, m.KVHeads, -1, m.HeadSize) // query heads that share a key head stand together: [KV, G*N, D]
		scores := b.MatMulT(q, k, float32(1/math.Sqrt(float64(m.HeadSize))))
		mixed := b.MatMul(b.Softmax(b.Add(scores, mask)), v)
		mixed = b.Reshape(b.Transpose(b.Reshape(mixed, m.Heads, -1, m.HeadSize), 1, 0, 2), -1, m.Heads*m.HeadSize)
		x = b.Add(x, b.linear(mixed, block, "attn_output"))
		h = norm(x, "ffn_norm")
		gated := b.SwiGLU(b.linear(h, block, "ffn_gate"), b.linear(h, block, "ffn_up"))
		x = b.Add(x, b.linear(gated, block, "ffn_down"))
	}
	// Only positions that are scored go through the head: its matrix is the largest.
	x = b.Rows(x, b.Input(inRows, graph.Int64, -1))
	return b.RMSNorm(x, b.weight("output_norm.weight", m.Hidden), float32(m.Epsilon))
}

// head gives the log-probs over the vocabulary [R, V] and at the wanted tokens [R, K].
func (b *builder) head(hidden *graph.Tensor) (all, wanted *graph.Tensor) {
	all = b.LogSoftmax(hidden, b.output(), b.temperature())
	return all, b.Pick(all, b.tokens())
}

func (b *builder) embedding() *graph.Tensor {
	return b.weight("token_embd.weight", b.m.Vocabulary, b.m.Hidden)
}

func (b *builder) output() *graph.Tensor {
	if b.m.TiedOutput {
		return b.embedding()
	}
	return b.weight("output.weight", b.m.Vocabulary, b.m.Hidden)
}

func (b *builder) tokens() *graph.Tensor      { return b.Once(inTokens, graph.Int64, -1, -1) }
func (b *builder) temperature() *graph.Tensor { return b.Once(inScale, graph.Float32, -1, 1) }
