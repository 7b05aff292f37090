package gguf

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Architecture is the family's first: an adapter that names no other is for it.
const Architecture = "llama"

// members of the llama family by their names in GGUF: RMSNorm, rotated heads, some of which share keys, and SwiGLU. They differ in little. A further one is a line
// here, and a line in the test that holds the training engine against llama.cpp.
var members = map[string]struct {
	neighbours bool // the two numbers of a rotated pair are neighbours in the rows of q and k, and not half a head apart
	biases     bool // q, k and v may have biases
	factors    bool // rope_freqs.weight may divide the frequencies (Llama 3.1's scaling)
	headNorms  bool // each head of q and k is normalised before it is rotated
}{
	Architecture: {neighbours: true, biases: true, factors: true},
	"qwen2":      {biases: true},
	"qwen3":      {headNorms: true},
}

// Llama holds the sizes of a model of the llama family, and what it has beyond the family's first.
type Llama struct {
	// Name of the model as its maker gave it; may be empty.
	Name string
	// Architecture in GGUF: "llama", "qwen2" or "qwen3".
	Architecture string
	// Blocks (layers), Hidden size, Heads for queries, KVHeads for keys and values, HeadSize (numbers a head), FFN (inner size of the feed-forward part).
	Blocks, Hidden, Heads, KVHeads, HeadSize, FFN int
	// Vocabulary in tokens, Context in tokens that it was trained for.
	Vocabulary, Context int
	// RopeBase is theta.
	RopeBase float64
	// Frequencies by which the pairs of a head turn, radians a token: [HeadSize/2]. Any scaling is in them.
	Frequencies []float64
	// Epsilon of RMSNorm.
	Epsilon float64
	// TiedOutput: the output matrix is the token embedding. Biased: the linear layers q, k and v have biases. HeadNorms: q and k are normalised, head by head.
	TiedOutput, Biased, HeadNorms bool
}

const sizeMax = 1 << 24

// Llama reads the sizes and checks that every tensor which they call for is there in its shape, and that there is nothing which this family does not compute. Another
// model is an error that says what works.
func (f *File) Llama() (*Llama, error) {
	if kind, ok := f.String("general.type"); ok && kind != "model" {
		return nil, fmt.Errorf("the file holds a GGUF of the type %q, not a model; give the path of the model itself", kind)
	}
	known := strings.Join(slices.Sorted(maps.Keys(members)), ", ")
	arch, ok := f.String("general.architecture")
	if !ok {
		return nil, fmt.Errorf("the file does not say of which architecture the model is; give a GGUF of one of %s", known)
	}
	if _, ok := members[arch]; !ok {
		return nil, fmt.Errorf("the model is of the architecture %q, which cannot be served and trained here; models of %s can "+
			"(SmolLM2, Llama 2 and 3, TinyLlama, Mistral, Qwen2.5, Qwen3, ...), others through an external engine", arch, known)
	}
	if n, _ := f.Uint(arch + ".expert_count"); n > 0 {
		return nil, fmt.Errorf("the model is a mixture of %d experts, which cannot be trained here; give a dense model", n)
	}
	m, err := f.sizes(arch)
	if err != nil {
		return nil, err
	}
	if err := f.complete(m); err != nil {
		return nil, err
	}
	return m, f.rotation(m)
}

func (f *File) sizes(arch string) (*Llama, error) {
	m := &Llama{Architecture: arch, RopeBase: 10000, Epsilon: 1e-5, HeadNorms: members[arch].headNorms}
	m.Name, _ = f.String("general.name")
	for _, s := range []struct {
		key string
		to  *int
	}{
		{".block_count", &m.Blocks},
		{".embedding_length", &m.Hidden},
		{".attention.head_count", &m.Heads},
		{".feed_forward_length", &m.FFN},
		{".context_length", &m.Context},
	} {
		n, ok := f.Uint(arch + s.key)
		if !ok || n == 0 || n > sizeMax {
			return nil, fmt.Errorf("the metadata gives no usable %s (%v): the file is damaged or too unusual", arch+s.key, f.Value(arch+s.key))
		}
		*s.to = int(n)
	}
	or := func(key string, instead int) int {
		if n, ok := f.Uint(arch + key); ok && n > 0 && n <= sizeMax {
			return int(n)
		}
		return instead
	}
	m.KVHeads = or(".attention.head_count_kv", m.Heads)
	if m.Hidden%m.Heads == 0 {
		m.HeadSize = m.Hidden / m.Heads
	}
	m.HeadSize = or(".attention.key_length", m.HeadSize)
	if v, ok := f.Float(arch + ".rope.freq_base"); ok {
		m.RopeBase = v
	}
	if v, ok := f.Float(arch + ".attention.layer_norm_rms_epsilon"); ok {
		m.Epsilon = v
	}
	if m.HeadSize == 0 || m.HeadSize%2 != 0 || m.Heads%m.KVHeads != 0 {
		return nil, fmt.Errorf("%d heads (%d for keys) of %d numbers do not go together: the file is damaged", m.Heads, m.KVHeads, m.HeadSize)
	}
	for what, n := range map[string]int{"rotated": or(".rope.dimension_count", m.HeadSize), "values": or(".attention.value_length", m.HeadSize)} {
		if n != m.HeadSize {
			return nil, fmt.Errorf("a head has %d numbers, %d of them %s: only models whose heads are alike and wholly rotated can be trained here; use an external engine",
				m.HeadSize, n, what)
		}
	}
	embedding := f.Tensor("token_embd.weight")
	if embedding == nil || len(embedding.Shape) != 2 {
		return nil, fmt.Errorf("the tensor token_embd.weight is missing: the file is no whole model; download it again")
	}
	m.Vocabulary = embedding.Shape[1]
	m.TiedOutput = f.Tensor("output.weight") == nil
	m.Biased = members[arch].biases && f.Tensor("blk.0.attn_q.bias") != nil
	if tokens, ok := f.Strings("tokenizer.ggml.tokens"); ok && len(tokens) != m.Vocabulary {
		return nil, fmt.Errorf("the vocabulary has %d tokens and the embedding %d rows: the file is damaged", len(tokens), m.Vocabulary)
	}
	return m, nil
}

// Part is a tensor of a block.
type Part struct {
	// Name without the block, such as "attn_q.weight".
	Name string
	// Shape as in Tensor.
	Shape []int
	// Heads > 0: the rows (or numbers, of a bias) belong to so many rotated heads, in which the file has the two numbers of a pair as neighbours (Unpermute).
	Heads int
}

// Parts are the tensors of each block.
func (m *Llama) Parts() []Part {
	query, key := m.Heads*m.HeadSize, m.KVHeads*m.HeadSize
	var heads, keyHeads int
	if m.Neighbours() {
		heads, keyHeads = m.Heads, m.KVHeads
	}
	list := []Part{
		{"attn_norm.weight", []int{m.Hidden}, 0},
		{"attn_q.weight", []int{m.Hidden, query}, heads},
		{"attn_k.weight", []int{m.Hidden, key}, keyHeads},
		{"attn_v.weight", []int{m.Hidden, key}, 0},
		{"attn_output.weight", []int{query, m.Hidden}, 0},
		{"ffn_norm.weight", []int{m.Hidden}, 0},
		{"ffn_gate.weight", []int{m.Hidden, m.FFN}, 0},
		{"ffn_up.weight", []int{m.Hidden, m.FFN}, 0},
		{"ffn_down.weight", []int{m.FFN, m.Hidden}, 0},
	}
	if m.Biased {
		list = append(list, Part{"attn_q.bias", []int{query}, heads}, Part{"attn_k.bias", []int{key}, keyHeads}, Part{"attn_v.bias", []int{key}, 0})
	}
	if m.HeadNorms {
		list = append(list, Part{"attn_q_norm.weight", []int{m.HeadSize}, 0}, Part{"attn_k_norm.weight", []int{m.HeadSize}, 0})
	}
	return list
}

// Neighbours says whether the rows of q and k are in GGUF's own order (Unpermute).
func (m *Llama) Neighbours() bool { return members[m.Architecture].neighbours }

// ropeFactors divide the frequencies: [HeadSize/2].
const ropeFactors = "rope_freqs.weight"

// complete checks the tensors: each that is needed, and none besides, as it would change what the model computes.
func (f *File) complete(m *Llama) error {
	expected := map[string]bool{}
	want := func(name string, shape ...int) error {
		expected[name] = true
		t := f.Tensor(name)
		if t == nil {
			return fmt.Errorf("the tensor %s is missing: the file is no whole model; download it again", name)
		}
		if !slices.Equal(t.Shape, shape) {
			return fmt.Errorf("the tensor %s has the shape %v, not %v: the file is damaged", name, t.Shape, shape)
		}
		return nil
	}
	parts := m.Parts()
	for i := range m.Blocks {
		for _, p := range parts {
			if err := want(fmt.Sprintf("blk.%d.%s", i, p.Name), p.Shape...); err != nil { // a false number of blocks ends at the first that is not there
				return err
			}
		}
	}
	if err := errors.Join(want("token_embd.weight", m.Hidden, m.Vocabulary), want("output_norm.weight", m.Hidden)); err != nil {
		return err
	}
	if !m.TiedOutput {
		if err := want("output.weight", m.Hidden, m.Vocabulary); err != nil {
			return err
		}
	}
	if members[m.Architecture].factors && f.Tensor(ropeFactors) != nil {
		if err := want(ropeFactors, m.HeadSize/2); err != nil {
			return err
		}
	}
	for _, t := range f.Tensors {
		if !expected[t.Name] {
			return fmt.Errorf("the model has the tensor %s, which models of %s that can be trained here have not; give another model, or use an external engine",
				t.Name, m.Architecture)
		}
	}
	return nil
}

// rotation fills in the frequencies: theta^(-2j/D) (Su et al.), divided by the factor of linear scaling (Chen et al.) and by the model's own factors.
func (f *File) rotation(m *Llama) error {
	scaling := 1.0
	for _, key := range []string{".rope.scale_linear", ".rope.scaling.factor"} { // the first is the older name
		if v, ok := f.Float(m.Architecture + key); ok && v != 0 {
			scaling = v
		}
	}
	kind, ok := f.String(m.Architecture + ".rope.scaling.type")
	switch {
	case ok && kind == "none":
		scaling = 1
	case ok && kind != "linear":
		return fmt.Errorf("the model scales its positions by %q, which cannot be trained here; only linear scaling and Llama 3's can: give the model without it, or use an external engine", kind)
	}
	if v, ok := f.Float(m.Architecture + ".rope.scaling.attn_factor"); ok && v != 1 {
		return fmt.Errorf("the model scales its attention by %g with its positions, which cannot be trained here; use an external engine", v)
	}
	var factors []float32
	if t := f.Tensor(ropeFactors); t != nil {
		var err error
		if factors, err = f.Float32(t); err != nil {
			return err
		}
	}
	for j := range m.HeadSize / 2 {
		frequency := math.Pow(m.RopeBase, -2*float64(j)/float64(m.HeadSize)) / scaling
		if factors != nil {
			frequency /= float64(factors[j])
		}
		if !(frequency > 0) || math.IsInf(frequency, 0) {
			return fmt.Errorf("the heads turn by %g a token (theta %g, scaling %g): the file is damaged", frequency, m.RopeBase, scaling)
		}
		m.Frequencies = append(m.Frequencies, frequency)
	}
	return nil
}

// Unpermute puts the rows of a q or k matrix ([heads*size][in], row-major; a bias has in = 1) from the order of neighbours (Part.Heads) into the half-split order
// of PEFT and of the training graph, and returns the new matrix. Rows of a LoRA's B are ordered likewise.
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
