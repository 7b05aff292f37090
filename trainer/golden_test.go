package trainer_test

import (
	"math"
	"slices"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas/goldentest"
	"github.com/nextstate-rl/nextstate/trainer"
)

const tolerance = 1e-9

// near compares to tol relative to the larger of 1 and the value.
func near(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	if math.IsNaN(got) || math.Abs(got-want) > tol*math.Max(1, math.Abs(want)) {
		t.Errorf("%s: got %.12g, want %.12g", what, got, want)
	}
}

func nearAll(t *testing.T, what string, got, want []float64, tol float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		near(t, what, got[i], want[i], tol)
	}
}

// TestGoldenSurrogate: the clipped loss of one token and its gradient equal the reference's, at and beyond every clamp.
func TestGoldenSurrogate(t *testing.T) {
	type file struct {
		Cases []struct {
			Name                           string
			Low                            float64   `json:"eps_lo"`
			High                           float64   `json:"eps_hi"`
			Cur                            []float64 `json:"l_cur"`
			Old                            []float64 `json:"l_old"`
			Advantage, Loss, Grad, Clipped []float64
		}
	}
	goldentest.Each(t, "ppo.json", func(t *testing.T, f file) {
		for _, c := range f.Cases {
			for i := range c.Cur {
				loss, grad, clipped := trainer.Surrogate(c.Cur[i], c.Old[i], c.Advantage[i], c.Low, c.High)
				near(t, c.Name+" loss", loss, c.Loss[i], tolerance)
				near(t, c.Name+" grad", grad, c.Grad[i], tolerance)
				if clipped != (c.Clipped[i] == 1) {
					t.Errorf("%s %d: clipped %v", c.Name, i, clipped)
				}
			}
		}
	})
}

// TestGoldenKL: both estimators and their gradients.
func TestGoldenKL(t *testing.T) {
	type file struct {
		Cases []struct {
			Name     string
			Kind     trainer.KLKind
			Ref      []float64 `json:"l_ref"`
			Cur      []float64 `json:"l_cur"`
			KL, Grad []float64
		}
	}
	goldentest.Each(t, "kl.json", func(t *testing.T, f file) {
		for _, c := range f.Cases {
			for i := range c.Cur {
				kl, grad := trainer.KL(c.Kind, c.Cur[i], c.Ref[i])
				near(t, c.Name+" kl", kl, c.KL[i], tolerance)
				near(t, c.Name+" grad", grad, c.Grad[i], tolerance)
			}
		}
	})
}

// TestGoldenOffPolicy: the truncated importance weight, and the losses that external engines compute.
func TestGoldenOffPolicy(t *testing.T) {
	type file struct {
		TIS []struct {
			Name             string
			Cap              float64
			Old              []float64 `json:"l_old"`
			Sampler          []float64 `json:"l_sampler"`
			TokenLoss        []float64 `json:"token_loss"`
			Weight, Weighted []float64
		}
		Engine []struct {
			Name            string
			Kind            trainer.EngineLoss
			Low, High, Loss float64
			Cur             []float64 `json:"l_cur"`
			Old             []float64 `json:"l_old"`
			Advantage, Grad []float64
		}
	}
	goldentest.Each(t, "off_policy.json", func(t *testing.T, f file) {
		for _, c := range f.TIS {
			for i := range c.Old {
				w := trainer.ImportanceWeight(c.Old[i], c.Sampler[i], c.Cap)
				near(t, c.Name+" weight", w, c.Weight[i], tolerance)
				near(t, c.Name+" weighted", w*c.TokenLoss[i], c.Weighted[i], tolerance)
			}
		}
		for _, c := range f.Engine {
			sum := 0.0
			for i := range c.Cur {
				loss, grad, err := c.Kind.Token(c.Cur[i], c.Old[i], c.Advantage[i], c.Low, c.High)
				if err != nil {
					t.Fatal(err)
				}
				sum += loss
				near(t, c.Name+" grad", grad, c.Grad[i], tolerance)
			}
			near(t, c.Name+" loss", sum, c.Loss, tolerance)
		}
	})
}

// TestGoldenStepRewards: group standardisation.
func TestGoldenStepRewards(t *testing.T) {
	type steps struct {
		Group   int
		Rewards []float64
		Indices []int
		Removed bool
	}
	type file struct {
		Cases []struct {
			Name              string
			Samples, Expected []steps
		}
	}
	goldentest.Each(t, "step_rewards.json", func(t *testing.T, f file) {
		for _, c := range f.Cases {
			in := make([]trainer.Steps, len(c.Samples))
			for i, s := range c.Samples {
				in[i] = trainer.Steps{Group: string(rune('a' + s.Group)), Rewards: s.Rewards, Indices: s.Indices}
			}
			for i, got := range trainer.Standardise(in) {
				want := c.Expected[i]
				nearAll(t, c.Name, got.Rewards, want.Rewards, tolerance)
				if !slices.Equal(got.Indices, want.Indices) || (len(got.Indices) == 0) != want.Removed {
					t.Errorf("%s sample %d: indices %v, want %v, removed %v", c.Name, i, got.Indices, want.Indices, want.Removed)
				}
			}
		}
	})
}

// softmax gives log-probs and probabilities of a row of logits at a temperature.
func softmax(logits []float64, temperature float64) (logp, p []float64) {
	top := slices.Max(logits)
	sum := 0.0
	for _, z := range logits {
		sum += math.Exp((z - top) / temperature)
	}
	for _, z := range logits {
		l := (z-top)/temperature - math.Log(sum)
		logp, p = append(logp, l), append(p, math.Exp(l))
	}
	return logp, p
}

// TestGoldenReverseKL: the divergence over the teacher's top-K and the tail bin, and the gradient by the logits.
func TestGoldenReverseKL(t *testing.T) {
	type file struct {
		Cases []struct {
			Name   string
			Logits [][]float64 `json:"logits_cur"`
			IDs    [][]uint32  `json:"teacher_idx"`
			LP     [][]float64 `json:"teacher_lp"`
			KL     []float64
			Loss   float64
			Grad   [][]float64 `json:"grad_logits"`
		}
	}
	goldentest.Each(t, "reverse_kl.json", func(t *testing.T, f file) {
		for _, c := range f.Cases {
			mean := 0.0
			for i, row := range c.Logits {
				logp, p := softmax(row, 1)
				kl, grads := trainer.ReverseKL(c.IDs[i], c.LP[i], func(id uint32) float64 { return logp[id] })
				near(t, c.Name+" kl", kl, c.KL[i], tolerance)
				mean += kl / float64(len(c.Logits))
				out := make([]float64, len(row))
				trainer.LogitGradient(grads, p, 1, out)
				for v := range out {
					near(t, c.Name+" grad", out[v]/float64(len(c.Logits)), c.Grad[i][v], 1e-7)
				}
			}
			near(t, c.Name+" loss", mean, c.Loss, tolerance)
		}
	})
}

// hint is one candidate's rows in hybrid.json.
type hint struct {
	NativeIDs   [][]uint32  `json:"native_idx"`
	NativeLP    [][]float64 `json:"native_lp"`
	AtStudent   [][]float64 `json:"lp_at_student"`
	OldAtNative [][]float64 `json:"old_lp_at_native"`
}

type goldenSample struct {
	Logits    [][]float64 `json:"logits_cur"`
	IDs       []uint32    `json:"response_ids"`
	Mask      []float64
	Reward    float64
	Old       []float64   `json:"l_old"`
	TeacherLP []float64   `json:"l_teacher"`
	Ref       []float64   `json:"l_ref"`
	Student   [][]uint32  `json:"student_idx"`
	StudentLP [][]float64 `json:"student_lp"`
	Teacher   []hint
}

// turn makes the losses' view of a sample, with the teacher's rows of the hint chosen at each position.
func (s goldenSample) turn(chosen []int) *trainer.Turn {
	out := &trainer.Turn{ResponseIDs: s.IDs, Mask: s.Mask, Reward: s.Reward, Old: s.Old, Reference: s.Ref, StudentIDs: s.Student, StudentOld: s.StudentLP}
	if s.TeacherLP != nil {
		out.Teacher = &trainer.TeacherRows{Response: s.TeacherLP}
	}
	if s.Teacher == nil {
		return out
	}
	rows := &trainer.TeacherRows{}
	for i := range s.IDs {
		h := s.Teacher[chosen[i]]
		rows.IDs, rows.Logprobs = append(rows.IDs, h.NativeIDs[i]), append(rows.Logprobs, h.NativeLP[i])
		rows.AtStudent, rows.OldAtIDs = append(rows.AtStudent, h.AtStudent[i]), append(rows.OldAtIDs, h.OldAtNative[i])
	}
	out.Teacher = rows
	return out
}

// compare runs a sample and compares everything that is expected of it.
func (s goldenSample) compare(t *testing.T, name string, o trainer.Objective, temperature float64, chosen []int, samples int, grad [][]float64) *trainer.TurnLoss {
	t.Helper()
	var logp, p [][]float64
	for _, row := range s.Logits {
		l, q := softmax(row, temperature)
		logp, p = append(logp, l), append(p, q)
	}
	got, err := o.Loss(s.turn(chosen), func(i int, id uint32) float64 { return logp[i][id] })
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for i, row := range s.Logits {
		out := make([]float64, len(row))
		trainer.LogitGradient(got.Gradients[i], p[i], temperature, out)
		for v := range out {
			near(t, name+" grad_logits", out[v]/float64(samples), grad[i][v], 1e-8)
		}
	}
	return got
}

// TestGoldenHybrid: whole updates in every form of support and selection: losses, their parts, and the gradient by the logits.
func TestGoldenHybrid(t *testing.T) {
	type file struct {
		Cases []struct {
			Name   string
			Config struct {
				WEval       float64 `json:"w_eval"`
				WDir        float64 `json:"w_dir"`
				Low         float64 `json:"eps_lo"`
				High        float64 `json:"eps_hi"`
				C           *float64
				Support     trainer.Support
				Temperature float64
				KLCoef      float64        `json:"kl_coef"`
				KLKind      trainer.KLKind `json:"kl_type"`
			}
			Samples  []goldenSample
			Expected struct {
				Loss    float64
				Samples []struct {
					Eval, Dir, KL []float64
					HintStar      []int       `json:"hint_star"`
					SupportSize   []int       `json:"support_size"`
					Loss          float64     `json:"sample_loss"`
					Grad          [][]float64 `json:"grad_logits"`
				}
			}
		}
	}
	goldentest.Each(t, "hybrid.json", func(t *testing.T, f file) {
		for _, c := range f.Cases {
			o := trainer.Objective{
				WEval: c.Config.WEval, WDir: c.Config.WDir, EpsLow: c.Config.Low, EpsHigh: c.Config.High, Directive: trainer.DirectiveTopK,
				Support: c.Config.Support, NegativeScale: 1, KLCoef: c.Config.KLCoef, KLKind: c.Config.KLKind,
			}
			if c.Config.C != nil {
				o.DeltaClip = *c.Config.C
			}
			mean := 0.0
			for n, s := range c.Samples {
				want := c.Expected.Samples[n]
				got := s.compare(t, c.Name, o, c.Config.Temperature, want.HintStar, len(c.Samples), want.Grad)
				mean += got.Loss / float64(len(c.Samples))
				nearAll(t, c.Name+" eval", got.Eval, want.Eval, tolerance)
				nearAll(t, c.Name+" dir", got.Dir, want.Dir, tolerance)
				nearAll(t, c.Name+" kl", got.KL, want.KL, tolerance)
				near(t, c.Name+" sample loss", got.Loss, want.Loss, tolerance)
				if s.Teacher != nil && !slices.Equal(got.SupportSize, want.SupportSize) {
					t.Errorf("%s: support %v, want %v", c.Name, got.SupportSize, want.SupportSize)
				}
			}
			near(t, c.Name+" loss", mean, c.Expected.Loss, tolerance)
		}
	})
}

// TestGoldenTokenLevel: the directive signal as an advantage at the sampled token (the paper's first version).
func TestGoldenTokenLevel(t *testing.T) {
	type file struct {
		Cases []struct {
			Name   string
			Config struct {
				WEval float64 `json:"w_eval"`
				WDir  float64 `json:"w_dir"`
				Low   float64 `json:"eps_lo"`
				High  float64 `json:"eps_hi"`
			}
			Samples  []goldenSample
			Expected struct {
				Loss    float64
				Samples []struct {
					Grad [][]float64 `json:"grad_logits"`
				}
			}
		}
	}
	goldentest.Each(t, "token_level.json", func(t *testing.T, f file) {
		for _, c := range f.Cases {
			o := trainer.Objective{WEval: c.Config.WEval, WDir: c.Config.WDir, EpsLow: c.Config.Low, EpsHigh: c.Config.High, Directive: trainer.DirectiveToken, NegativeScale: 1}
			mean := 0.0
			for n, s := range c.Samples {
				got := s.compare(t, c.Name, o, 1, nil, len(c.Samples), c.Expected.Samples[n].Grad)
				mean += got.Loss / float64(len(c.Samples))
			}
			near(t, c.Name+" loss", mean, c.Expected.Loss, tolerance)
		}
	})
}
