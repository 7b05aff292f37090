package llama

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// linear is a matrix of the test model that a LoRA can change: blk.N.name, in and out in tokens' features.
type linear struct {
	name    string
	in, out int
}

// shape of an adapter: that of SmolLM2-135M unless a test wants another.
type shape struct {
	layers       int
	architecture string
	linears      []linear
}

func smol() shape {
	return shape{30, "llama", []linear{
		{"attn_q", 576, 576},
		{"attn_k", 576, 192},
		{"attn_v", 576, 192},
		{"attn_output", 576, 576},
		{"ffn_gate", 576, 1536},
		{"ffn_up", 576, 1536},
		{"ffn_down", 1536, 576},
	}}
}

// writeLoRA writes an adapter with normal A and B as GGUF (version 3), the same for the same seed, and returns its path.
func writeLoRA(t testing.TB, s shape, seed uint64, scale float32) string {
	t.Helper()
	const rank, alpha = 8, float32(16)
	rng := rand.New(rand.NewPCG(seed, 0))
	type tensor struct {
		name string
		ne   [2]int
	}
	var tensors []tensor
	for l := range s.layers {
		for _, m := range s.linears {
			name := fmt.Sprintf("blk.%d.%s.weight.lora_", l, m.name)
			tensors = append(tensors, tensor{name + "a", [2]int{m.in, rank}}, tensor{name + "b", [2]int{rank, m.out}})
		}
	}
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			if text, ok := v.(string); ok {
				_ = binary.Write(&b, binary.LittleEndian, uint64(len(text)))
				b.WriteString(text)
				continue
			}
			_ = binary.Write(&b, binary.LittleEndian, v)
		}
	}
	pad := func() { b.Write(make([]byte, (32-b.Len()%32)%32)) }
	b.WriteString("GGUF")
	const isString, isFloat, f32 = uint32(8), uint32(6), uint32(0)
	put(uint32(3), uint64(len(tensors)), uint64(4))
	put("general.architecture", isString, s.architecture, "general.type", isString, "adapter", "adapter.type", isString, "lora")
	put("adapter.lora.alpha", isFloat, alpha)
	var offset uint64
	for _, one := range tensors {
		put(one.name, uint32(2), uint64(one.ne[0]), uint64(one.ne[1]), f32, offset)
		offset += uint64(one.ne[0]*one.ne[1]*4+31) / 32 * 32
	}
	pad()
	for _, one := range tensors {
		values := make([]float32, one.ne[0]*one.ne[1])
		for i := range values {
			values[i] = float32(rng.NormFloat64()) * scale
		}
		put(values)
		pad()
	}
	path := filepath.Join(t.TempDir(), fmt.Sprintf("lora-%d.gguf", seed))
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
