package trainer_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

func layers() []trainer.Layer {
	return []trainer.Layer{
		{PEFT: "model.layers.0.self_attn.q_proj", GGUF: "blk.0.attn_q", In: 6, Out: 8, Heads: 2},
		{PEFT: "model.layers.0.mlp.down_proj", GGUF: "blk.0.ffn_down", In: 5, Out: 6},
	}
}

// filled is an adapter whose parameters all differ.
func filled() *trainer.Adapter {
	a := trainer.NewAdapter(layers(), 3, 6)
	a.Initialise(7)
	for _, b := range a.B {
		for i := range b {
			b[i] = float32(i) + 0.5
		}
	}
	return a
}

func same(a, b *trainer.Adapter) bool {
	return a.Fits(b) == nil && slices.EqualFunc(slices.Concat(a.A, a.B), slices.Concat(b.A, b.B), slices.Equal[[]float32])
}

// TestAdapterFiles: what is written is read again, the same adapter gives the same bytes, and a checkpoint brings the optimizer's state.
func TestAdapterFiles(t *testing.T) {
	a := filled()
	var first, second, checkpoint bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := a.WritePEFT(out, "base"); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same adapter gave different bytes")
	}
	got, err := trainer.ReadAdapter(bytes.NewReader(first.Bytes()), int64(first.Len()))
	if err != nil || !same(a, got) {
		t.Fatalf("the adapter came back changed: %v", err)
	}
	if _, _, err := trainer.ReadCheckpoint(bytes.NewReader(first.Bytes()), int64(first.Len())); !errors.Is(err, trainer.ErrNoMoments) {
		t.Errorf("an adapter read as a checkpoint: %v", err)
	}
	m := trainer.NewMoments(a)
	trainer.AdamW{LearningRate: 0.1, Beta1: 0.9, Beta2: 0.98, Epsilon: 1e-8}.Update(a, m, filled())
	if err := a.WriteCheckpoint(&checkpoint, "base", m); err != nil {
		t.Fatal(err)
	}
	got, moments, err := trainer.ReadCheckpoint(bytes.NewReader(checkpoint.Bytes()), int64(checkpoint.Len()))
	if err != nil || !same(a, got) || moments.Step != 1 || !same(m.First, moments.First) || !same(m.Second, moments.Second) {
		t.Fatalf("the checkpoint came back changed: %v", err)
	}
}

// TestAdapterFilesDamaged: a file cut at any byte, one with a number that is not finite, and one with wrong metadata are refused.
func TestAdapterFilesDamaged(t *testing.T) {
	a := filled()
	var out bytes.Buffer
	if err := a.WritePEFT(&out, "base"); err != nil {
		t.Fatal(err)
	}
	for n := range out.Len() {
		if _, err := trainer.ReadAdapter(bytes.NewReader(out.Bytes()[:n]), int64(n)); err == nil {
			t.Fatalf("the first %d of %d bytes were taken for an adapter", n, out.Len())
		}
	}
	a.B[1][2] = float32(math.NaN())
	out.Reset()
	if err := a.WritePEFT(&out, "base"); err != nil {
		t.Fatal(err)
	}
	if _, err := trainer.ReadAdapter(bytes.NewReader(out.Bytes()), int64(out.Len())); err == nil || !strings.Contains(err.Error(), "NaN") {
		t.Errorf("an adapter with a NaN: %v", err)
	}
	wrong := bytes.ReplaceAll(out.Bytes(), []byte(`\"r\":3`), []byte(`\"r\":4`))
	if _, err := trainer.ReadAdapter(bytes.NewReader(wrong), int64(len(wrong))); err == nil {
		t.Error("an adapter that claims another rank was taken")
	}
}

// TestAdapterGGUF: llama.cpp's file holds the same numbers, with the rows of rotated heads in its own order.
func TestAdapterGGUF(t *testing.T) {
	a := filled()
	var out bytes.Buffer
	if err := a.WriteGGUF(&out); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Read(bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range a.Layers {
		left, err := f.Float32(f.Tensor(l.GGUF + ".weight.lora_a"))
		if err != nil || !slices.Equal(left, a.A[i]) {
			t.Errorf("%s: A came back changed: %v", l.GGUF, err)
		}
		right, err := f.Float32(f.Tensor(l.GGUF + ".weight.lora_b"))
		if l.Heads > 0 {
			right = gguf.Unpermute(right, l.Heads, a.Rank)
		}
		if err != nil || !slices.Equal(right, a.B[i]) {
			t.Errorf("%s: B came back changed: %v", l.GGUF, err)
		}
	}
	if alpha, _ := f.Float("adapter.lora.alpha"); alpha != a.Alpha {
		t.Errorf("alpha %v", alpha)
	}
	if got, _ := f.String("general.architecture"); got != "llama" {
		t.Errorf("architecture %q", got)
	}
}

// TestAdapterOfQwen2: the architecture goes with the adapter, through its own file into llama.cpp's, which llama.cpp refuses under another.
func TestAdapterOfQwen2(t *testing.T) {
	one := []trainer.Layer{{PEFT: "model.layers.0.self_attn.q_proj", GGUF: "blk.0.attn_q", In: 2, Out: 4, Architecture: "qwen2"}}
	a := trainer.NewAdapter(one, 1, 1)
	copy(a.B[0], []float32{1, 2, 3, 4})
	var peft, out bytes.Buffer
	if err := a.WritePEFT(&peft, "base"); err != nil {
		t.Fatal(err)
	}
	back, err := trainer.ReadAdapter(bytes.NewReader(peft.Bytes()), int64(peft.Len()))
	if err != nil || !same(a, back) {
		t.Fatalf("the adapter came back changed: %v", err)
	}
	if err := back.WriteGGUF(&out); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Read(bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := f.String("general.architecture"); got != "qwen2" {
		t.Errorf("architecture %q", got)
	}
	if b, err := f.Float32(f.Tensor("blk.0.attn_q.weight.lora_b")); err != nil || !slices.Equal(b, a.B[0]) {
		t.Errorf("the rows of B, which have one order only: %v, %v", b, err)
	}
}

// TestAdamW: the update equals the algorithm written out for one number, with warm-up, decay and clipping.
func TestAdamW(t *testing.T) {
	o := trainer.AdamW{LearningRate: 0.1, Beta1: 0.9, Beta2: 0.98, Epsilon: 1e-8, WeightDecay: 0.1, ClipNorm: 1, WarmUp: 2}
	one := []trainer.Layer{{PEFT: "p", GGUF: "g", In: 1, Out: 1}}
	a := trainer.NewAdapter(one, 1, 1)
	a.A[0][0] = 2
	m := trainer.NewMoments(a)
	w, m1, m2 := 2.0, 0.0, 0.0
	for step, g := range []float64{3, 0.5, -0.2} {
		grad := a.Zero()
		grad.A[0][0] = float32(g)
		if norm := o.Update(a, m, grad); math.Abs(norm-math.Abs(g)) > 1e-6 {
			t.Errorf("norm %v of %v", norm, g)
		}
		clipped := math.Max(-1, math.Min(1, g))
		m1, m2 = 0.9*m1+0.1*clipped, 0.98*m2+0.02*clipped*clipped
		n := float64(step + 1)
		rate := 0.1 * math.Min(1, n/2)
		w -= rate * (m1/(1-math.Pow(0.9, n))/(math.Sqrt(m2/(1-math.Pow(0.98, n)))+1e-8) + 0.1*w)
		if d := math.Abs(float64(a.A[0][0]) - w); d > 1e-5 {
			t.Fatalf("step %d: %v, want %v", step+1, a.A[0][0], w)
		}
	}
	if a.B[0][0] != 0 {
		t.Error("a parameter without gradient moved")
	}
}
