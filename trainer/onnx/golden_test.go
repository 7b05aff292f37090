package onnx_test

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/schemas/goldentest"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

func smollm2(t *testing.T, cfg onnx.Config) *onnx.Engine {
	t.Helper()
	f, err := gguf.Open(filepath.Join(assets.ForTest(t, assets.SmolLM2), assets.SmolLM2File))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := onnx.Open(library(t), f, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestGoldenLogprobs: the forward pass of the real model gives the reference's log-probs, of several sequences packed into one run.
func TestGoldenLogprobs(t *testing.T) {
	e := smollm2(t, onnx.Config{Rank: 1, Alpha: 1, Threads: 2})
	goldentest.Each(t, "logprobs.json", func(t *testing.T, f struct {
		Tolerance float64 `json:"tolerance_abs"`
		Cases     []struct {
			Prompt   []uint32    `json:"prompt_ids"`
			Response []uint32    `json:"response_ids"`
			Logprobs []float64   `json:"logprobs"`
			TopIDs   [][]uint32  `json:"top5_ids"`
			Top      [][]float64 `json:"top5_logprobs"`
		}
	},
	) {
		var sequences []trainer.Sequence
		for _, c := range f.Cases {
			s := trainer.Sequence{Tokens: append(append([]uint32{}, c.Prompt...), c.Response...), Prompt: len(c.Prompt), Temperature: 1}
			for i, id := range c.Response {
				s.Wanted = append(s.Wanted, append([]uint32{id}, c.TopIDs[i]...))
			}
			sequences = append(sequences, s)
		}
		got, _, err := e.Logprobs(t.Context(), trainer.NewAdapter(e.Layers(), 1, 1), sequences)
		if err != nil {
			t.Fatal(err)
		}
		worst := 0.0
		for n, c := range f.Cases {
			for i := range c.Response {
				for k, want := range append([]float64{c.Logprobs[i]}, c.Top[i]...) {
					worst = math.Max(worst, math.Abs(float64(got[n][i][k])-want))
				}
			}
		}
		t.Logf("largest difference %.2g", worst)
		if !(worst < f.Tolerance) {
			t.Errorf("the largest difference is %v, more than %v", worst, f.Tolerance)
		}
	})
}

// lcg is the generator that golden/lora_step.json describes.
type lcg uint64

func (s *lcg) fill(x []float32, scale float64) {
	for i := range x {
		*s = *s*6364136223846793005 + 1442695040888963407
		u := float64(uint64(*s)>>40) / (1 << 24)
		x[i] = float32((2*u - 1) * scale)
	}
}

// loraStep is one gradient of the hybrid objective on the real model, with a given adapter.
type loraStep struct {
	Config struct {
		WEval   float64 `json:"w_eval"`
		WDir    float64 `json:"w_dir"`
		EpsLow  float64 `json:"eps_lo"`
		EpsHigh float64 `json:"eps_hi"`
		C       float64
		Support trainer.Support
	}
	LoRA struct {
		R      int
		Alpha  float64
		Seed   uint64
		ScaleA float64 `json:"scale_a"`
		ScaleB float64 `json:"scale_b"`
	}
	Samples []struct {
		Prompt    []uint32 `json:"prompt_ids"`
		Response  []uint32 `json:"response_ids"`
		Reward    float64
		Old       []float64   `json:"l_old"`
		StudentID [][]uint32  `json:"student_idx"`
		StudentLP [][]float64 `json:"student_lp"`
		Teacher   []struct {
			NativeID  [][]uint32  `json:"native_idx"`
			NativeLP  [][]float64 `json:"native_lp"`
			AtStudent [][]float64 `json:"lp_at_student"`
		}
	}
	First    map[string][]float64 `json:"first_values"`
	Expected struct {
		Loss    float64
		Samples []struct {
			Cur      []float64 `json:"l_cur"`
			HintStar []int     `json:"hint_star"`
		}
		Norms   map[string]float64 `json:"grad_norm"`
		Total   float64            `json:"grad_norm_total"`
		Entries []struct {
			Param string
			Index []int
			Value float64
		} `json:"grad_entries"`
		Tolerance float64 `json:"tolerance_rel"`
	}
}

// shortNames are the layers' names in the golden file, in the engine's order.
var shortNames = []string{"q", "k", "v", "o", "gate", "up", "down"}

// TestGoldenLoRAStep: losses in Go and gradients by ONNX Runtime together give the reference's LoRA gradient of the hybrid objective on the real model.
func TestGoldenLoRAStep(t *testing.T) {
	goldentest.Each(t, "lora_step.json", func(t *testing.T, f loraStep) {
		e := smollm2(t, onnx.Config{Rank: f.LoRA.R, Alpha: f.LoRA.Alpha, Threads: 2})
		a, random := trainer.NewAdapter(e.Layers(), f.LoRA.R, f.LoRA.Alpha), lcg(f.LoRA.Seed)
		grad, places := a.Zero(), map[string]int{} // "layer.module" to the layer's index
		for n := range a.Layers {
			random.fill(a.A[n], f.LoRA.ScaleA)
			random.fill(a.B[n], f.LoRA.ScaleB)
			short := fmt.Sprintf("%d.%s", n/len(shortNames), shortNames[n%len(shortNames)])
			places[short] = n
			for side, x := range map[string][]float32{".A": a.A[n], ".B": a.B[n]} {
				for j, want := range f.First[short+side] {
					if math.Abs(float64(x[j])-want) > 1e-7 {
						t.Fatalf("%s%s[%d] is %v, not %v: the adapter is another", short, side, j, x[j], want)
					}
				}
			}
		}
		f.run(t, e, a, grad)
		f.compare(t, grad, places)
	})
}

// run computes the loss and fills in grad.
func (f loraStep) run(t *testing.T, e *onnx.Engine, a, grad *trainer.Adapter) {
	t.Helper()
	o := trainer.Objective{
		WEval: f.Config.WEval, WDir: f.Config.WDir, EpsLow: f.Config.EpsLow, EpsHigh: f.Config.EpsHigh, Directive: trainer.DirectiveTopK, Support: f.Config.Support,
		DeltaClip: f.Config.C, NegativeScale: 1,
	}
	var sequences []trainer.Sequence
	for _, s := range f.Samples {
		q := trainer.Sequence{Tokens: append(append([]uint32{}, s.Prompt...), s.Response...), Prompt: len(s.Prompt), Temperature: 1}
		for i, id := range s.Response {
			q.Wanted = append(q.Wanted, append([]uint32{id}, s.StudentID[i]...))
		}
		sequences = append(sequences, q)
	}
	logprobs, _, err := e.Logprobs(t.Context(), a, sequences)
	if err != nil {
		t.Fatal(err)
	}
	loss := 0.0
	var coef [][][]float64
	for n, s := range f.Samples {
		turn := &trainer.Turn{ResponseIDs: s.Response, Reward: s.Reward, Old: s.Old, StudentIDs: s.StudentID, StudentOld: s.StudentLP}
		if s.Teacher != nil {
			turn.Teacher = &trainer.TeacherRows{}
		}
		for i := range s.Response {
			if s.Teacher == nil {
				break
			}
			h := s.Teacher[f.Expected.Samples[n].HintStar[i]]
			turn.Teacher.IDs, turn.Teacher.Logprobs = append(turn.Teacher.IDs, h.NativeID[i]), append(turn.Teacher.Logprobs, h.NativeLP[i])
			turn.Teacher.AtStudent = append(turn.Teacher.AtStudent, h.AtStudent[i])
		}
		got, err := o.Loss(turn, func(i int, id uint32) float64 {
			for k, wanted := range sequences[n].Wanted[i] {
				if wanted == id {
					return float64(logprobs[n][i][k])
				}
			}
			t.Fatalf("token %d at %d was not asked for", id, i)
			return 0
		})
		if err != nil {
			t.Fatal(err)
		}
		loss += got.Loss / float64(len(f.Samples))
		rows := make([][]float64, len(s.Response))
		for i := range rows {
			rows[i] = make([]float64, len(sequences[n].Wanted[i]))
			for _, g := range got.Gradients[i] {
				for k, wanted := range sequences[n].Wanted[i] {
					if wanted == g.ID {
						rows[i][k] += g.G / float64(len(f.Samples))
						break // a token that is wanted twice counts once
					}
				}
			}
			if d := math.Abs(float64(logprobs[n][i][0]) - f.Expected.Samples[n].Cur[i]); d > 1e-3 {
				t.Errorf("sample %d, position %d: the log-prob is off by %v", n, i, d)
			}
		}
		coef = append(coef, rows)
	}
	if d := math.Abs(loss-f.Expected.Loss) / math.Abs(f.Expected.Loss); d > f.Expected.Tolerance {
		t.Errorf("loss %v, want %v", loss, f.Expected.Loss)
	}
	if err := e.Gradient(t.Context(), a, sequences, coef, grad); err != nil {
		t.Fatal(err)
	}
}

// compare holds the gradient against the expected norms and entries.
func (f loraStep) compare(t *testing.T, grad *trainer.Adapter, places map[string]int) {
	t.Helper()
	side := func(param string) ([]float32, int) { // with the length of a row
		name, which := param[:strings.LastIndex(param, ".")], param[strings.LastIndex(param, ".")+1:]
		n, ok := places[name]
		if !ok {
			t.Fatalf("there is no %s", param)
		}
		if which == "A" {
			return grad.A[n], len(grad.A[n]) / f.LoRA.R
		}
		return grad.B[n], f.LoRA.R
	}
	norm := func(x []float32) float64 {
		sum := 0.0
		for _, v := range x {
			sum += float64(v) * float64(v)
		}
		return math.Sqrt(sum)
	}
	if d := math.Abs(grad.Norm()-f.Expected.Total) / f.Expected.Total; d > f.Expected.Tolerance {
		t.Errorf("the gradient's norm is %v, want %v", grad.Norm(), f.Expected.Total)
	}
	for param, want := range f.Expected.Norms {
		x, _ := side(param)
		if d := math.Abs(norm(x)-want) / want; d > f.Expected.Tolerance {
			t.Errorf("%s: norm %v, want %v", param, norm(x), want)
		}
	}
	for _, entry := range f.Expected.Entries {
		x, width := side(entry.Param)
		got := float64(x[entry.Index[0]*width+entry.Index[1]])
		if d := math.Abs(got - entry.Value); d > f.Expected.Tolerance*norm(x) {
			t.Errorf("%s%v: %v, want %v", entry.Param, entry.Index, got, entry.Value)
		}
	}
	if len(f.Expected.Norms) == 0 || len(f.Expected.Entries) == 0 {
		t.Fatal("the golden file has lost its values")
	}
}
