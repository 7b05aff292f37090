package onnx_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

const vocabulary = 53 // of tiny

func open(t *testing.T) *onnx.Engine {
	t.Helper()
	e, err := onnx.Open(library(t), tiny(t, true), onnx.Config{Rank: 4, Alpha: 8, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// sample is a turn with a reward, and with a teacher that prefers other tokens at the student's top-k.
func sample(t *testing.T, e *onnx.Engine, a *trainer.Adapter, r *rand.Rand, reward float64, taught bool) *schemas.SampleAssembled {
	t.Helper()
	const k = 4
	s := &schemas.SampleAssembled{Reward: reward, Sampling: &schemas.Sampling{Temperature: proto.Float64(0.7)}, Tokens: &schemas.Tokens{TopK: &schemas.TopK{K: k}}}
	for range 4 {
		s.Tokens.PromptIds = append(s.Tokens.PromptIds, r.Uint32N(vocabulary))
	}
	for range 6 {
		s.Tokens.ResponseIds = append(s.Tokens.ResponseIds, r.Uint32N(vocabulary))
	}
	for range s.Tokens.ResponseIds {
		for _, id := range r.Perm(vocabulary)[:k] {
			s.Tokens.TopK.Ids = append(s.Tokens.TopK.Ids, uint32(id))
		}
	}
	q := trainer.Sequence{Tokens: append(append([]uint32{}, s.Tokens.PromptIds...), s.Tokens.ResponseIds...), Prompt: 4, Temperature: 0.7}
	for i, id := range s.Tokens.ResponseIds {
		q.Wanted = append(q.Wanted, append([]uint32{id}, s.Tokens.TopK.Ids[i*k:(i+1)*k]...))
	}
	lp, _, err := e.Logprobs(t.Context(), a, []trainer.Sequence{q})
	if err != nil {
		t.Fatal(err)
	}
	teacher := &schemas.TeacherScored{TopK: &schemas.TopK{K: k, Ids: s.Tokens.TopK.Ids}, Temperature: 0.7}
	for _, row := range lp[0] {
		s.Tokens.LogprobsSampled = append(s.Tokens.LogprobsSampled, row[0])
		s.Tokens.TopK.Logprobs = append(s.Tokens.TopK.Logprobs, row[1:]...)
		teacher.Logprobs = append(teacher.Logprobs, row[0])
		// The teacher prefers the first of the student's tokens to the others.
		teacher.LogprobsAtStudent = append(teacher.LogprobsAtStudent, row[1]+0.5, row[2]-0.5, row[3]-0.5, row[4]-0.5)
	}
	teacher.TopK.Logprobs = teacher.LogprobsAtStudent
	if taught {
		s.Teacher = teacher
	}
	return s
}

func update(a *trainer.Adapter, samples ...*schemas.SampleAssembled) trainer.Update {
	return trainer.Update{
		Objective: trainer.Objective{
			WEval: 1, WDir: 1, EpsLow: 0.2, EpsHigh: 0.28, Directive: trainer.DirectiveTopK, Support: trainer.SupportStudent, DeltaClip: 1, NegativeScale: 1, ImportanceCap: 2,
		},
		Optimizer: trainer.AdamW{LearningRate: 1e-2, Beta1: 0.9, Beta2: 0.98, Epsilon: 1e-8, ClipNorm: 1},
		Admission: trainer.Admission{Vocabulary: vocabulary, MaxTokens: 64},
		Parent:    a, Moments: trainer.NewMoments(a), Samples: samples,
	}
}

// TestUpdate shows that updates do what the signals say. Method: on a tiny model, thirty updates on one rewarded turn raise its log-prob and on one punished
// turn lower it; thirty on a taught turn without reward move its probabilities to the token that the teacher prefers. The parent never changes, the
// sampler's gap is zero where trainer and sampler are one engine, and the same update gives the same bytes.
func TestUpdate(t *testing.T) {
	e := open(t)
	for _, c := range []struct {
		name   string
		reward float64
		taught bool
		column int // of the wanted tokens
		rises  bool
	}{{"rewarded", 1, false, 0, true}, {"punished", -1, false, 0, false}, {"taught", 0, true, 1, true}, {"taught away", 0, true, 2, false}} {
		a := trainer.NewAdapter(e.Layers(), 4, 8)
		a.Initialise(1)
		s := sample(t, e, a, rand.New(rand.NewPCG(5, 6)), c.reward, c.taught)
		u := update(a, s)
		first, err := u.Run(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		again, err := u.Run(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(file(t, first), file(t, again)) {
			t.Errorf("%s: the same update gave other bytes", c.name)
		}
		if gap := first.Metrics["logprob_gap_max"]; gap > 1e-5 {
			t.Errorf("%s: gap %v between one engine and itself", c.name, gap)
		}
		if a.B[0][0] != 0 || u.Moments.Step != 0 {
			t.Fatalf("%s: the parent changed", c.name)
		}
		before := mean(t, e, a, s, c.column)
		for range 30 {
			out, err := u.Run(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			u.Parent, u.Moments = out.Adapter, out.Moments
		}
		if after := mean(t, e, u.Parent, s, c.column); (after > before) != c.rises || math.Abs(after-before) < 0.02 {
			t.Errorf("%s: the mean log-prob of column %d went from %.3f to %.3f", c.name, c.column, before, after)
		}
	}
}

func file(t *testing.T, u *trainer.Updated) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := u.Adapter.WriteCheckpoint(&out, "tiny", u.Moments); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// mean is the mean log-prob of the sampled tokens (column 0) or of one column of the student's top-k.
func mean(t *testing.T, e *onnx.Engine, a *trainer.Adapter, s *schemas.SampleAssembled, column int) float64 {
	t.Helper()
	q := trainer.Sequence{Tokens: append(append([]uint32{}, s.Tokens.PromptIds...), s.Tokens.ResponseIds...), Prompt: len(s.Tokens.PromptIds), Temperature: 0.7}
	for i, id := range s.Tokens.ResponseIds {
		if column > 0 {
			id = s.Tokens.TopK.Ids[i*4+column-1]
		}
		q.Wanted = append(q.Wanted, []uint32{id})
	}
	lp, _, err := e.Logprobs(t.Context(), a, []trainer.Sequence{q})
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, row := range lp[0] {
		sum += float64(row[0]) / float64(len(lp[0]))
	}
	return sum
}

// TestUpdateRefuses: whatever is wrong with a sample is refused with a reason before anything is computed, and nothing that is not finite gets into an adapter.
func TestUpdateRefuses(t *testing.T) {
	e := open(t)
	a := trainer.NewAdapter(e.Layers(), 4, 8)
	a.Initialise(1)
	nan := float32(math.NaN())
	for name, spoil := range map[string]func(s *schemas.SampleAssembled){
		"no tokens":         func(s *schemas.SampleAssembled) { s.Tokens = nil },
		"no prompt":         func(s *schemas.SampleAssembled) { s.Tokens.PromptIds = nil },
		"too long":          func(s *schemas.SampleAssembled) { s.Tokens.PromptIds = make([]uint32, 100) },
		"no temperature":    func(s *schemas.SampleAssembled) { s.Sampling = nil },
		"cold":              func(s *schemas.SampleAssembled) { s.Sampling.Temperature = proto.Float64(-1) },
		"strange token":     func(s *schemas.SampleAssembled) { s.Tokens.ResponseIds[2] = vocabulary },
		"short logprobs":    func(s *schemas.SampleAssembled) { s.Tokens.LogprobsSampled = s.Tokens.LogprobsSampled[1:] },
		"NaN logprob":       func(s *schemas.SampleAssembled) { s.Tokens.LogprobsSampled[0] = nan },
		"short mask":        func(s *schemas.SampleAssembled) { s.Tokens.Mask = []uint32{1} },
		"NaN reward":        func(s *schemas.SampleAssembled) { s.Reward = math.NaN() },
		"short top-k":       func(s *schemas.SampleAssembled) { s.Tokens.TopK.Ids = s.Tokens.TopK.Ids[1:] },
		"repeated top-k":    func(s *schemas.SampleAssembled) { s.Tokens.TopK.Ids[1] = s.Tokens.TopK.Ids[0] },
		"strange top-k":     func(s *schemas.SampleAssembled) { s.Tokens.TopK.Ids[1] = 1 << 31 },
		"short teacher":     func(s *schemas.SampleAssembled) { s.Teacher.Logprobs = nil },
		"NaN teacher":       func(s *schemas.SampleAssembled) { s.Teacher.LogprobsAtStudent[3] = nan },
		"narrow teacher":    func(s *schemas.SampleAssembled) { s.Teacher.LogprobsAtStudent = s.Teacher.LogprobsAtStudent[:12] },
		"teacher's top-k":   func(s *schemas.SampleAssembled) { s.Teacher.TopK.Logprobs = s.Teacher.TopK.Logprobs[:3] },
		"student's missing": func(s *schemas.SampleAssembled) { s.Tokens.TopK = nil },
	} {
		s := proto.Clone(sample(t, e, a, rand.New(rand.NewPCG(7, 8)), 1, true)).(*schemas.SampleAssembled)
		spoil(s)
		_, err := update(a, s).Run(t.Context(), e)
		var refused *trainer.Refused
		if !errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
		if admitted := (trainer.Admission{Vocabulary: vocabulary, MaxTokens: 64}).Admit(s); !errors.As(admitted, &refused) {
			t.Errorf("%s was admitted: %v", name, admitted)
		}
	}
	a.B[3][0] = nan
	if _, err := update(a, sample(t, e, a.Zero(), rand.New(rand.NewPCG(7, 8)), 1, true)).Run(t.Context(), e); !errors.Is(err, trainer.ErrNotFinite) {
		t.Errorf("an adapter with a NaN: %v", err)
	}
}
