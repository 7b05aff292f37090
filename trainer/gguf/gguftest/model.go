package gguftest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// Model describes one. The weights are those of a model that was never trained: linear layers with a standard deviation of 0.3, norms around one.
type Model struct {
	// Architecture in GGUF, such as "llama".
	Architecture string
	// Sizes as in gguf.Llama.
	Blocks, Hidden, Heads, KVHeads, HeadSize, FFN, Vocabulary, Context int
	// Untied has an output matrix of its own, Biased has biases of q, k and v, HeadNorms a norm of each head of q and k.
	Untied, Biased, HeadNorms bool
	// Factors divide the frequencies of rotation, [HeadSize/2]; nil: none.
	Factors []float32
	// Pairs are further metadata, such as a tokenizer; they win over the model's own.
	Pairs []gguf.Pair
	Seed  uint64
}

// Tiny is a llama with two blocks, three query heads a key head and a vocabulary of 53. The caller may change it.
func Tiny() Model {
	return Model{Architecture: "llama", Blocks: 2, Hidden: 24, Heads: 6, KVHeads: 2, HeadSize: 4, FFN: 40, Vocabulary: 53, Context: 64, Seed: 1}
}

// Write writes the model.
func (m Model) Write(w io.Writer) error {
	return gguf.Write(w, m.pairs(), m.tensors())
}

// WriteFile writes the model to a new file.
func (m Model) WriteFile(path string) error {
	var out bytes.Buffer
	if err := m.Write(&out); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o600)
}

// Open gives the model as a file that is open, in memory.
func (m Model) Open() (*gguf.File, error) {
	var out bytes.Buffer
	if err := m.Write(&out); err != nil {
		return nil, err
	}
	return gguf.Read(bytes.NewReader(out.Bytes()), int64(out.Len()))
}

// pairs name no tokenizer unless Pairs do: nothing that reads text can take the model then.
func (m Model) pairs() []gguf.Pair {
	list := []gguf.Pair{{Key: "general.architecture", Value: m.Architecture}, {Key: "tokenizer.ggml.model", Value: "none"}}
	for _, p := range []struct {
		key   string
		value int
	}{
		{"block_count", m.Blocks},
		{"embedding_length", m.Hidden},
		{"attention.head_count", m.Heads},
		{"attention.head_count_kv", m.KVHeads},
		{"attention.key_length", m.HeadSize},
		{"attention.value_length", m.HeadSize},
		{"rope.dimension_count", m.HeadSize},
		{"feed_forward_length", m.FFN},
		{"context_length", m.Context},
		{"vocab_size", m.Vocabulary},
	} {
		list = append(list, gguf.Pair{Key: m.Architecture + "." + p.key, Value: uint32(p.value)}) //nolint:gosec // sizes of a small model
	}
	list = append(list, gguf.Pair{Key: m.Architecture + ".attention.layer_norm_rms_epsilon", Value: float32(1e-5)})
	list = slices.DeleteFunc(list, func(p gguf.Pair) bool {
		return slices.ContainsFunc(m.Pairs, func(own gguf.Pair) bool { return own.Key == p.Key })
	})
	return append(list, m.Pairs...)
}

func (m Model) tensors() []gguf.Source {
	const around0, around1 = 0, 1
	r := rand.New(rand.NewPCG(m.Seed, 2)) //nolint:gosec // reproducible on purpose
	var list []gguf.Source
	add := func(name string, mean, deviation float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(mean + r.NormFloat64()*deviation)
		}
		list = append(list, gguf.Source{Name: name, Shape: shape, Chunks: gguf.Numbers(x)})
	}
	add("token_embd.weight", around0, 1, m.Hidden, m.Vocabulary)
	if m.Untied {
		add("output.weight", around0, 0.3, m.Hidden, m.Vocabulary)
	}
	add("output_norm.weight", around1, 0.1, m.Hidden)
	if m.Factors != nil {
		list = append(list, gguf.Source{Name: "rope_freqs.weight", Shape: []int{len(m.Factors)}, Chunks: gguf.Numbers(m.Factors)})
	}
	query, key := m.Heads*m.HeadSize, m.KVHeads*m.HeadSize
	for i := range m.Blocks {
		b := fmt.Sprintf("blk.%d.", i)
		add(b+"attn_norm.weight", around1, 0.1, m.Hidden)
		add(b+"ffn_norm.weight", around1, 0.1, m.Hidden)
		add(b+"attn_q.weight", around0, 0.3, m.Hidden, query)
		add(b+"attn_k.weight", around0, 0.3, m.Hidden, key)
		add(b+"attn_v.weight", around0, 0.3, m.Hidden, key)
		add(b+"attn_output.weight", around0, 0.3, query, m.Hidden)
		add(b+"ffn_gate.weight", around0, 0.3, m.Hidden, m.FFN)
		add(b+"ffn_up.weight", around0, 0.3, m.Hidden, m.FFN)
		add(b+"ffn_down.weight", around0, 0.3, m.FFN, m.Hidden)
		if m.Biased {
			add(b+"attn_q.bias", around0, 0.5, query)
			add(b+"attn_k.bias", around0, 0.5, key)
			add(b+"attn_v.bias", around0, 0.5, key)
		}
		if m.HeadNorms {
			add(b+"attn_q_norm.weight", around1, 0.3, m.HeadSize)
			add(b+"attn_k_norm.weight", around1, 0.3, m.HeadSize)
		}
	}
	return list
}
