package gguf_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/gguf/gguftest"
)

// small is a whole model of the llama architecture with two blocks, as the writer makes it.
func small(t testing.TB, change func(pairs []gguf.Pair, tensors []gguf.Source) ([]gguf.Pair, []gguf.Source)) []byte {
	t.Helper()
	pairs := []gguf.Pair{
		{"general.architecture", "llama"},
		{"general.name", "small"},
		{"llama.block_count", uint32(1)},
		{"llama.embedding_length", uint32(8)},
		{"llama.attention.head_count", uint32(2)},
		{"llama.attention.head_count_kv", uint32(1)},
		{"llama.feed_forward_length", uint32(12)},
		{"llama.context_length", uint64(64)},
		{"llama.rope.freq_base", float32(1e5)},
		{"tokenizer.ggml.tokens", []string{"a", "b", "", "ü"}},
		{"tokenizer.ggml.token_type", []int32{1, 1, 3, 1}},
		{"list.bool", []bool{true, false}},
		{"list.u8", []uint8{1, 2}},
		{"one.f64", math.Pi},
		{"one.i8", int8(-3)},
		{"one.bool", true},
		{"empty", []float32{}},
	}
	var tensors []gguf.Source
	rng := rand.New(rand.NewPCG(1, 2))
	add := func(name string, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		tensors = append(tensors, gguf.Source{Name: name + ".weight", Shape: shape, Chunks: gguf.Numbers(x)})
	}
	add("token_embd", 8, 4)
	add("output_norm", 8)
	add("blk.0.attn_norm", 8)
	add("blk.0.attn_q", 8, 8)
	add("blk.0.attn_k", 8, 4)
	add("blk.0.attn_v", 8, 4)
	add("blk.0.attn_output", 8, 8)
	add("blk.0.ffn_norm", 8)
	add("blk.0.ffn_gate", 8, 12)
	add("blk.0.ffn_up", 8, 12)
	add("blk.0.ffn_down", 12, 8)
	if change != nil {
		pairs, tensors = change(pairs, tensors)
	}
	var b bytes.Buffer
	if err := gguf.Write(&b, pairs, tensors); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(t testing.TB, b []byte) (*gguf.File, error) {
	t.Helper()
	return gguf.Read(bytes.NewReader(b), int64(len(b)))
}

// TestWritten: what the writer writes, the reader reads, every kind of value included; a copy of the copy has the same bytes.
func TestWritten(t *testing.T) {
	raw := small(t, nil)
	f, err := read(t, raw)
	if err != nil {
		t.Fatal(err)
	}
	if f.Version != 3 || len(f.Tensors) != 11 || len(f.Pairs) != 17 {
		t.Fatalf("version %d, %d tensors, %d pairs", f.Version, len(f.Tensors), len(f.Pairs))
	}
	for key, want := range map[string]any{
		"one.f64": math.Pi, "one.i8": int8(-3), "one.bool": true, "list.bool": []bool{true, false}, "list.u8": []uint8{1, 2}, "empty": []float32{},
		"tokenizer.ggml.tokens": []string{"a", "b", "", "ü"}, "none": nil,
	} {
		if got := f.Value(key); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %#v, want %#v", key, got, want)
		}
	}
	if n, ok := f.Uint("one.i8"); ok {
		t.Errorf("-3 was taken for the unsigned %d", n)
	}
	m, err := f.Llama()
	if err != nil {
		t.Fatal(err)
	}
	want := gguf.Llama{
		Name: "small", Architecture: "llama", Blocks: 1, Hidden: 8, Heads: 2, KVHeads: 1, HeadSize: 4, FFN: 12, Vocabulary: 4, Context: 64,
		RopeBase: 1e5, Frequencies: []float64{1, 1 / math.Sqrt(1e5)}, Epsilon: 1e-5, TiedOutput: true,
	}
	if !reflect.DeepEqual(*m, want) {
		t.Errorf("got %+v, want %+v", *m, want)
	}
	var copied bytes.Buffer
	if err := f.WriteFloat32(&copied); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(copied.Bytes(), raw) {
		t.Error("a copy as F32 of a file in F32 has other bytes")
	}
}

// TestTruncated: a file that ends anywhere before its end is refused, with an error that says so, without a panic.
func TestTruncated(t *testing.T) {
	raw := small(t, nil)
	for n := range len(raw) {
		f, err := read(t, raw[:n])
		if err == nil {
			t.Fatalf("%d of %d bytes were taken for a whole file with %d tensors", n, len(raw), len(f.Tensors))
		}
		if n >= 4 && !strings.Contains(err.Error(), "truncated or damaged") {
			t.Fatalf("%d of %d bytes: %v", n, len(raw), err)
		}
	}
}

// TestRefused: files that cannot be served or trained give errors that name what is wrong.
func TestRefused(t *testing.T) {
	type parts = func(p []gguf.Pair, s []gguf.Source) ([]gguf.Pair, []gguf.Source)
	set := func(key string, value any) parts {
		return func(p []gguf.Pair, s []gguf.Source) ([]gguf.Pair, []gguf.Source) {
			p = slices.DeleteFunc(p, func(x gguf.Pair) bool { return x.Key == key })
			if value != nil {
				p = append(p, gguf.Pair{Key: key, Value: value})
			}
			return p, s
		}
	}
	with := func(name string, numbers ...float32) parts {
		return func(p []gguf.Pair, s []gguf.Source) ([]gguf.Pair, []gguf.Source) {
			return p, append(s, gguf.Source{Name: name, Shape: []int{len(numbers)}, Chunks: gguf.Numbers(numbers)})
		}
	}
	for want, change := range map[string]parts{
		`architecture "gemma3"`:         set("general.architecture", "gemma3"),
		"of which architecture":         set("general.architecture", nil),
		"not a model":                   set("general.type", "adapter"),
		"mixture of 8 experts":          set("llama.expert_count", uint32(8)),
		"llama.block_count":             set("llama.block_count", nil),
		"llama.embedding_length":        set("llama.embedding_length", "eight"),
		"3 tokens and the embedding 4":  set("tokenizer.ggml.tokens", []string{"a", "b", "c"}),
		"blk.1.attn_norm.weight is mis": set("llama.block_count", uint32(2)),
		"has the shape [8 12]":          set("llama.feed_forward_length", uint32(16)),
		"do not go together":            set("llama.attention.head_count", uint32(3)),
		"not a power of two":            set("general.alignment", uint32(24)),
		`by "yarn"`:                     set("llama.rope.scaling.type", "yarn"),
		"scales its attention by 1.5":   set("llama.rope.scaling.attn_factor", float32(1.5)),
		"turn by -1":                    set("llama.rope.scaling.factor", float32(-1)),
		"2 of them rotated":             set("llama.rope.dimension_count", uint32(2)),
		"8 of them values":              set("llama.attention.value_length", uint32(8)),
		"rope_freqs.weight has the sh":  with("rope_freqs.weight", 1, 1, 1),
		"turn by +Inf":                  with("rope_freqs.weight", 1, 0),
		"blk.0.attn_k.bias is missing":  with("blk.0.attn_q.bias", 0, 0, 0, 0, 0, 0, 0, 0),
		"has the tensor blk.0.attn_out": with("blk.0.attn_output.bias", 0, 0, 0, 0, 0, 0, 0, 0),
		"stands in it twice": func(p []gguf.Pair, s []gguf.Source) ([]gguf.Pair, []gguf.Source) {
			return append(p, p[0]), s
		},
		"token_embd.weight is missing": func(p []gguf.Pair, s []gguf.Source) ([]gguf.Pair, []gguf.Source) {
			return p, s[1:]
		},
	} {
		f, err := read(t, small(t, change))
		if err == nil {
			_, err = f.Llama()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	for want, raw := range map[string]string{
		"not a GGUF file":   "PK\x03\x04 an archive",
		"version 3003":      "GGUF\xbb\x0b\x00\x00" + strings.Repeat("\x00", 16),
		"claims 1844674407": "GGUF\x03\x00\x00\x00" + strings.Repeat("\xff", 16),
	} {
		if _, err := read(t, []byte(raw)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

// TestMembers: what each member of the family has is taken, and what it has not is refused: llama.cpp, which serves the same file, would compute something else.
func TestMembers(t *testing.T) {
	for _, c := range []struct {
		architecture, refused string
		change                func(m *gguftest.Model)
	}{
		{"llama", "", func(m *gguftest.Model) { m.Biased, m.Factors = true, []float32{1, 2} }},
		{"llama", "attn_q_norm", func(m *gguftest.Model) { m.HeadNorms = true }},
		{"qwen2", "", func(m *gguftest.Model) { m.Biased = true }},
		{"qwen2", "", func(m *gguftest.Model) { m.Untied = true }},
		{"qwen2", "rope_freqs", func(m *gguftest.Model) { m.Factors = []float32{1, 2} }},
		{"qwen3", "", func(m *gguftest.Model) { m.HeadNorms = true }},
		{"qwen3", "attn_q_norm.weight is missing", func(*gguftest.Model) {}},
		{"qwen3", "attn_q.bias", func(m *gguftest.Model) { m.HeadNorms, m.Biased = true, true }},
	} {
		m := gguftest.Tiny()
		m.Architecture = c.architecture
		c.change(&m)
		f, err := m.Open()
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Llama()
		if c.refused != "" {
			if err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%+v: want an error with %q, got %v", m, c.refused, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", m, err)
			continue
		}
		if got.Architecture != m.Architecture || got.Biased != m.Biased || got.HeadNorms != m.HeadNorms || got.TiedOutput == m.Untied {
			t.Errorf("%+v was read as %+v", m, got)
		}
	}
}

// TestOpen: errors name the file.
func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	if _, err := gguf.Open(path); err == nil || !strings.Contains(err.Error(), "model.gguf") {
		t.Errorf("a missing file: %v", err)
	}
	raw := small(t, nil)
	if err := os.WriteFile(path, raw[:len(raw)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := gguf.Open(path); err == nil || !strings.Contains(err.Error(), "model.gguf: the file is truncated") {
		t.Errorf("a truncated file: %v", err)
	}
}

// TestClaims: counts and lengths in the file that claim far more than the file has cost no memory and no time. Method: every 8 bytes of the header in
// turn become huge numbers; the sum of what is allocated is compared with the file's size.
func TestClaims(t *testing.T) {
	raw := small(t, nil)
	for _, claim := range []uint64{1 << 33, 1 << 62, math.MaxUint64, math.MaxInt64} {
		for at := 8; at+8 < 1500; at++ {
			b := slices.Clone(raw)
			binary.LittleEndian.PutUint64(b[at:], claim)
			if f, err := read(t, b); err == nil {
				_, _ = f.Llama()
			}
		}
	}
	b := slices.Clone(raw[:24])
	binary.LittleEndian.PutUint64(b[8:], 1<<18)
	binary.LittleEndian.PutUint64(b[16:], 1<<16)
	perRun := testing.Benchmark(func(b2 *testing.B) {
		b2.ReportAllocs()
		for b2.Loop() {
			_, _ = read(b2, b)
		}
	}).AllocedBytesPerOp()
	if perRun > 1<<21 {
		t.Errorf("a file of 24 bytes cost %d bytes", perRun)
	}
}

// TestPermute: Unpermute undoes Permute, and a head's neighbours become halves.
func TestPermute(t *testing.T) {
	x := []float32{0, 1, 2, 3, 4, 5, 6, 7} // 2 heads of 4 rows, one number each
	if got := gguf.Unpermute(x, 2, 1); !slices.Equal(got, []float32{0, 2, 1, 3, 4, 6, 5, 7}) {
		t.Errorf("got %v", got)
	}
	long := make([]float32, 3*8*5)
	for i := range long {
		long[i] = float32(i)
	}
	if !slices.Equal(gguf.Permute(gguf.Unpermute(long, 3, 5), 3, 5), long) {
		t.Error("Permute does not undo Unpermute")
	}
}

// FuzzRead: no bytes make the reader panic; what it accepts lies inside of the file and can be read.
func FuzzRead(f *testing.F) {
	raw := small(f, nil)
	f.Add(raw)
	f.Add(raw[:len(raw)/2])
	f.Add([]byte("GGUF"))
	scaled := gguftest.Model{
		Architecture: "qwen3", Blocks: 1, Hidden: 4, Heads: 2, KVHeads: 1, HeadSize: 2, FFN: 4, Vocabulary: 3, Context: 8, HeadNorms: true,
		Pairs: []gguf.Pair{{Key: "qwen3.rope.scaling.type", Value: "linear"}, {Key: "qwen3.rope.scaling.factor", Value: float32(2)}},
	}
	var other bytes.Buffer
	if err := scaled.Write(&other); err != nil {
		f.Fatal(err)
	}
	f.Add(other.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := read(t, b)
		if err != nil {
			return
		}
		for _, x := range file.Tensors {
			if x.Offset < 0 || x.Bytes < 0 || x.Offset+x.Bytes > int64(len(b)) {
				t.Fatalf("%s lies at %d, %d bytes, in a file of %d", x.Name, x.Offset, x.Bytes, len(b))
			}
			if got, err := file.Float32(x); err == nil && len(got) != x.Numbers() {
				t.Fatalf("%s: %d numbers of %d", x.Name, len(got), x.Numbers())
			}
		}
		if m, err := file.Llama(); err == nil && len(m.Frequencies) != m.HeadSize/2 {
			t.Fatalf("%d frequencies for heads of %d", len(m.Frequencies), m.HeadSize)
		}
	})
}
