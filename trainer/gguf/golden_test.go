package gguf_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/schemas/goldentest"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// ggufName gives the GGUF's name of a tensor.
func ggufName(name string) string {
	return strings.NewReplacer("embed_tokens", "token_embd", "layers.", "blk.", "self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k",
		"self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output", "mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up",
		"mlp.down_proj", "ffn_down").Replace(regexp.MustCompile(`^norm\b`).ReplaceAllString(name, "output_norm"))
}

// TestGoldenDequantised: the default policy's tensors, dequantised and with q and k rows in half-split order, have the expected numbers.
func TestGoldenDequantised(t *testing.T) {
	f, err := gguf.Open(filepath.Join(assets.ForTest(t, assets.SmolLM2), assets.SmolLM2File))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := f.Llama()
	if err != nil {
		t.Fatal(err)
	}
	type golden struct {
		Dequantised []struct {
			Tensor string
			Shape  []int
			Sum    float64
			AbsSum float64 `json:"abs_sum"`
			First  []float32
			At     [][2]float64
		}
	}
	goldentest.Each(t, "logprobs.json", func(t *testing.T, g golden) {
		if len(g.Dequantised) == 0 {
			t.Fatal("no expected tensors")
		}
		for _, want := range g.Dequantised {
			tensor := f.Tensor(ggufName(want.Tensor))
			if tensor == nil {
				t.Fatalf("%s: no tensor %s", want.Tensor, ggufName(want.Tensor))
			}
			x, err := f.Float32(tensor)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case strings.Contains(want.Tensor, "q_proj"):
				x = gguf.Unpermute(x, m.Heads, m.Hidden)
			case strings.Contains(want.Tensor, "k_proj"):
				x = gguf.Unpermute(x, m.KVHeads, m.Hidden)
			}
			shape := slices.Clone(tensor.Shape)
			slices.Reverse(shape)
			if !slices.Equal(shape, want.Shape) {
				t.Errorf("%s: shape %v, want %v", want.Tensor, shape, want.Shape)
			}
			var sum, abs float64
			for _, v := range x {
				sum += float64(v)
				abs += math.Abs(float64(v))
			}
			if math.Abs(sum-want.Sum) > 1e-6*want.AbsSum || math.Abs(abs-want.AbsSum) > 1e-6*want.AbsSum {
				t.Errorf("%s: sums %.9g, %.9g, want %.9g, %.9g", want.Tensor, sum, abs, want.Sum, want.AbsSum)
			}
			if !slices.Equal(x[:len(want.First)], want.First) {
				t.Errorf("%s: begins with %v, want %v", want.Tensor, x[:len(want.First)], want.First)
			}
			for _, at := range want.At {
				if got := x[int(at[0])]; float64(got) != at[1] {
					t.Errorf("%s: %v at %v, want %v", want.Tensor, got, at[0], at[1])
				}
			}
		}
	})
}

// TestDequantiseAsNative: every block format gives the numbers that llama.cpp's own code gives for the same random blocks, to one unit in the last
// place of the block's largest number (native code may fuse multiply and add).
func TestDequantiseAsNative(t *testing.T) {
	lib, err := purego.Dlopen(filepath.Join(assets.ForTest(t, assets.Llama), "libggml-base.so"), purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		kind    gguf.Type
		symbol  string
		numbers int
		bytes   int
		halves  []int // where the block's f16 stand
	}{
		{gguf.Q4_0, "dequantize_row_q4_0", 32, 18, []int{0}},
		{gguf.Q4_1, "dequantize_row_q4_1", 32, 20, []int{0, 2}},
		{gguf.Q8_0, "dequantize_row_q8_0", 32, 34, []int{0}},
		{gguf.Q4_K, "dequantize_row_q4_K", 256, 144, []int{0, 2}},
		{gguf.Q5_K, "dequantize_row_q5_K", 256, 176, []int{0, 2}},
		{gguf.Q6_K, "dequantize_row_q6_K", 256, 210, []int{208}},
		{gguf.F16, "ggml_fp16_to_fp32_row", 1, 2, nil},
		{gguf.BF16, "ggml_bf16_to_fp32_row", 1, 2, nil},
	} {
		var native func(src *byte, dst *float32, n int64)
		purego.RegisterLibFunc(&native, lib, c.symbol)
		n := 256 * 33
		raw := make([]byte, n/c.numbers*c.bytes)
		for i := range raw {
			raw[i] = byte(rng.Uint32())
		}
		for at := 0; at < len(raw); at += c.bytes {
			for _, h := range c.halves { // a scale as models have them: 2^-8 to 1, either sign
				binary.LittleEndian.PutUint16(raw[at+h:], uint16(rng.Uint32())&0x83ff|uint16(7+rng.IntN(8))<<10)
			}
			if c.halves == nil && raw[at+1]&0x78 == 0x78 {
				raw[at+1] &^= 0x40 // neither infinite nor not a number
			}
		}
		want := make([]float32, n)
		native(&raw[0], &want[0], int64(n))
		got := dequantised(t, c.kind, n, raw)
		for i := range want {
			block := want[i/c.numbers*c.numbers:][:c.numbers]
			largest := max(slices.Max(block), -slices.Min(block))
			if d := math.Abs(float64(got[i] - want[i])); math.IsNaN(d) || d > float64(largest)*0x1p-22 {
				t.Fatalf("%s: number %d is %v, native %v", c.kind, i, got[i], want[i])
			}
		}
	}
}

// dequantised reads one tensor of the type out of a file made around the bytes.
func dequantised(t *testing.T, kind gguf.Type, n int, raw []byte) []float32 {
	t.Helper()
	file := []byte("GGUF")
	u32 := func(v uint32) { file = binary.LittleEndian.AppendUint32(file, v) }
	u64 := func(v uint64) { file = binary.LittleEndian.AppendUint64(file, v) }
	u32(2)
	u64(1)
	u64(0)
	u64(1)
	file = append(file, 'x')
	u32(1)
	u64(uint64(n))
	u32(uint32(kind))
	u64(0)
	for len(file)%32 != 0 {
		file = append(file, 0)
	}
	f, err := read(t, append(file, raw...))
	if err != nil {
		t.Fatal(err)
	}
	x, err := f.Float32(f.Tensor("x"))
	if err != nil {
		t.Fatal(err)
	}
	return x
}
