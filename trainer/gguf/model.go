package gguf

import (
	"fmt"
	"slices"
)

// Architecture is the only one that is served and trained.
const Architecture = "llama"

// Llama holds the sizes of a model of the llama architecture.
type Llama struct {
	// Name of the model as its maker gave it; may be empty.
	Name string
	// Blocks (layers), Hidden size, Heads for queries, KVHeads for keys and values, HeadSize (numbers a head), FFN (inner size of the feed-forward part).
	Blocks, Hidden, Heads, KVHeads, HeadSize, FFN int
	// Vocabulary in tokens, Context in tokens that it was trained for.
	Vocabulary, Context int
	// RopeBase is theta, RopeSize how many numbers of a head are rotated.
	RopeBase float64
	RopeSize int
	// Epsilon of RMSNorm.
	Epsilon float64
	// TiedOutput: the output matrix is the token embedding.
	TiedOutput bool
}

const sizeMax = 1 << 24

// Llama reads the sizes and checks that every tensor which they call for is there in its shape. Another architecture is an error that says what works.
func (f *File) Llama() (*Llama, error) {
	if kind, ok := f.String("general.type"); ok && kind != "model" {
		return nil, fmt.Errorf("the file holds a GGUF of the type %q, not a model; give the path of the model itself", kind)
	}
	arch, ok := f.String("general.architecture")
	if !ok {
		return nil, fmt.Errorf("the file does not say of which architecture the model is; give a GGUF of the architecture %q", Architecture)
	}
	if arch != Architecture {
		return nil, fmt.Errorf("the model is of the architecture %q, which cannot be served and trained here; the architecture %q can "+
			"(SmolLM2, Llama 2 and 3, TinyLlama, ...), others through an external engine", arch, Architecture)
	}
	if n, _ := f.Uint("llama.expert_count"); n > 0 {
		return nil, fmt.Errorf("the model is a mixture of %d experts, which cannot be trained here; give a dense model", n)
	}
	m, err := f.sizes()
	if err != nil {
		return nil, err
	}
	return m, f.complete(m)
}

func (f *File) sizes() (*Llama, error) {
	m := &Llama{RopeBase: 10000, Epsilon: 1e-5}
	m.Name, _ = f.String("general.name")
	for _, s := range []struct {
		key string
		to  *int
	}{
		{"llama.block_count", &m.Blocks},
		{"llama.embedding_length", &m.Hidden},
		{"llama.attention.head_count", &m.Heads},
		{"llama.feed_forward_length", &m.FFN},
		{"llama.context_length", &m.Context},
	} {
		n, ok := f.Uint(s.key)
		if !ok || n == 0 || n > sizeMax {
			return nil, fmt.Errorf("the metadata gives no usable %s (%v): the file is damaged or too unusual", s.key, f.Value(s.key))
		}
		*s.to = int(n)
	}
	or := func(key string, instead int) int {
		if n, ok := f.Uint(key); ok && n > 0 && n <= sizeMax {
			return int(n)
		}
		return instead
	}
	m.KVHeads = or("llama.attention.head_count_kv", m.Heads)
	if m.Hidden%m.Heads == 0 {
		m.HeadSize = m.Hidden / m.Heads
	}
	m.HeadSize = or("llama.attention.key_length", m.HeadSize)
	m.RopeSize = or("llama.rope.dimension_count", m.HeadSize)
	if v, ok := f.Float("llama.rope.freq_base"); ok {
		m.RopeBase = v
	}
	if v, ok := f.Float("llama.attention.layer_norm_rms_epsilon"); ok {
		m.Epsilon = v
	}
	if m.HeadSize == 0 || m.HeadSize%2 != 0 || m.RopeSize > m.HeadSize || m.Heads%m.KVHeads != 0 {
		return nil, fmt.Errorf("%d heads (%d for keys) of %d numbers do not go together: the file is damaged", m.Heads, m.KVHeads, m.HeadSize)
	}
	embedding := f.Tensor("token_embd.weight")
	if embedding == nil || len(embedding.Shape) != 2 {
		return nil, fmt.Errorf("the tensor token_embd.weight is missing: the file is no whole model; download it again")
	}
	m.Vocabulary = embedding.Shape[1]
	m.TiedOutput = f.Tensor("output.weight") == nil
	if tokens, ok := f.Strings("tokenizer.ggml.tokens"); ok && len(tokens) != m.Vocabulary {
		return nil, fmt.Errorf("the vocabulary has %d tokens and the embedding %d rows: the file is damaged", len(tokens), m.Vocabulary)
	}
	return m, nil
}

// complete checks the tensors.
func (f *File) complete(m *Llama) error {
	query, key := m.Heads*m.HeadSize, m.KVHeads*m.HeadSize
	want := func(name string, shape ...int) error {
		t := f.Tensor(name)
		if t == nil {
			return fmt.Errorf("the tensor %s is missing: the file is no whole model; download it again", name)
		}
		if !slices.Equal(t.Shape, shape) {
			return fmt.Errorf("the tensor %s has the shape %v, not %v: the file is damaged", name, t.Shape, shape)
		}
		return nil
	}
	list := []struct {
		name  string
		shape []int
	}{
		{"attn_norm", []int{m.Hidden}},
		{"attn_q", []int{m.Hidden, query}},
		{"attn_k", []int{m.Hidden, key}},
		{"attn_v", []int{m.Hidden, key}},
		{"attn_output", []int{query, m.Hidden}},
		{"ffn_norm", []int{m.Hidden}},
		{"ffn_gate", []int{m.Hidden, m.FFN}},
		{"ffn_up", []int{m.Hidden, m.FFN}},
		{"ffn_down", []int{m.FFN, m.Hidden}},
	}
	for i := range m.Blocks {
		for _, t := range list {
			if err := want(fmt.Sprintf("blk.%d.%s.weight", i, t.name), t.shape...); err != nil {
				return err
			}
		}
	}
	if err := want("token_embd.weight", m.Hidden, m.Vocabulary); err != nil {
		return err
	}
	if !m.TiedOutput {
		if err := want("output.weight", m.Hidden, m.Vocabulary); err != nil {
			return err
		}
	}
	return want("output_norm.weight", m.Hidden)
}

// Unpermute puts the rows of a q or k matrix ([heads*size][in], row-major) from GGUF's order, in which the two numbers of a rotated pair are
// neighbours, into the half-split order of PEFT and of the training graph, and returns the new matrix. Rows of a LoRA's B are ordered likewise.
func Unpermute(x []float32, heads, in int) []float32 {
	out := make([]float32, len(x))
	rows(len(x)/in, heads, func(gguf, split int) { copy(out[split*in:(split+1)*in], x[gguf*in:]) })
	return out
}

// Permute is the inverse of Unpermute.
func Permute(x []float32, heads, in int) []float32 {
	out := make([]float32, len(x))
	rows(len(x)/in, heads, func(gguf, split int) { copy(out[gguf*in:(gguf+1)*in], x[split*in:]) })
	return out
}

// rows calls f with each row's place in both orders.
func rows(n, heads int, f func(gguf, split int)) {
	size := n / heads
	for row := range n {
		head, r := row/size, row%size
		f(head*size+r%(size/2)*2+r/(size/2), row)
	}
}
