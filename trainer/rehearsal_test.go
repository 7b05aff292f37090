package trainer_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
)

// rehearsalEvent is sample n as a rehearsal: of no policy version and without log-probs of a sampler; its teacher gives the first of its three tokens most of the mass.
func rehearsalEvent(n int) schemas.Event {
	e := sampleEvent(n)
	s := sampleOf(e)
	top := s.Tokens.TopK
	top.Logprobs = nil
	for range s.Tokens.ResponseIds {
		top.Logprobs = append(top.Logprobs, float32(math.Log(.8)), float32(math.Log(.1)), float32(math.Log(.05)))
	}
	s.Kind, s.Reward, s.PolicyVersion = schemas.SampleKind_SAMPLE_KIND_REHEARSAL, 0, nil
	s.Teacher = &schemas.TeacherScored{TurnId: s.TurnId, Temperature: 0.7, Logprobs: s.Tokens.LogprobsSampled, TopK: top, TeacherVersion: "base"}
	s.Tokens.LogprobsSampled, s.Tokens.TopK = nil, nil
	return e
}

// TestRehearsal: rehearsals are learned by the loss that objective.rehearsal names, whatever the others are learned by, and nothing else of them counts.
// Method: updates of four rehearsals on the plain engine under a recipe whose directive form is none: the log-prob of what the teacher likes best rises to
// about its own, by forward and by reverse KL. A reward and a weight of the directive loss change no bit.
func TestRehearsal(t *testing.T) {
	for _, form := range []trainer.Directive{trainer.DirectiveForwardKL, trainer.DirectiveReverseKL} {
		e := newBigram()
		u := options(e, func(r *trainer.Recipe) {
			r.Objective.Directive, r.Objective.Rehearsal, r.Optimizer.LearningRate = trainer.DirectiveNone, form, 0.02
		})
		u.Samples = nil
		for n := range 4 {
			u.Samples = append(u.Samples, sampleOf(rehearsalEvent(n)))
		}
		first, err := u.Run(t.Context(), e)
		must(t, err)
		if m := first.Metrics; m["rehearsal_fraction"] != 1 || m["teacher_fraction"] != 1 || m["loss_eval"] != 0 {
			t.Errorf("%s: metrics %v", form, m)
		}
		if _, has := first.Metrics["reward_mean"]; has {
			t.Errorf("%s: rehearsals have a mean reward", form)
		}
		u.Objective.WDir = 0
		for _, s := range u.Samples {
			s.Reward = 1
		}
		again, err := u.Run(t.Context(), e)
		must(t, err)
		if bits(again.Adapter) != bits(first.Adapter) {
			t.Errorf("%s: a reward or the weight of the directive loss changed the update", form)
		}
		for range 300 {
			out, err := u.Run(t.Context(), e)
			must(t, err)
			u.Parent, u.Moments = out.Adapter, out.Moments
		}
		after, err := u.Run(t.Context(), e)
		must(t, err)
		if was, is := first.Metrics["loss_dir"], after.Metrics["loss_dir"]; is > was/4 {
			t.Errorf("%s: 300 updates brought the divergence from %v to %v", form, was, is)
		}
	}
}

// TestRehearsalRefused: a rehearsal needs what its loss looks at, and a recipe that trains rehearsals. Method: one defect at a time.
func TestRehearsalRefused(t *testing.T) {
	objective := tinyRecipe().Objective
	admission := trainer.Admission{Vocabulary: tinyVocabulary, MaxTokens: 32}
	must(t, admission.AdmitUnder(objective, sampleOf(rehearsalEvent(0))))
	for says, spoil := range map[string]func(s *schemas.SampleAssembled){
		"no token ids":         func(s *schemas.SampleAssembled) { s.Tokens.PromptIds = nil },
		"sampling temperature": func(s *schemas.SampleAssembled) { s.Sampling = nil },
		"gave no top-k":        func(s *schemas.SampleAssembled) { s.Teacher = nil },
		"has 3 ids for":        func(s *schemas.SampleAssembled) { s.Teacher.TopK.Ids = s.Teacher.TopK.Ids[:3] },
		"stands twice":         func(s *schemas.SampleAssembled) { s.Teacher.TopK.Ids[1] = s.Teacher.TopK.Ids[0] },
		"NaN":                  func(s *schemas.SampleAssembled) { s.Teacher.TopK.Logprobs[1] = float32(math.NaN()) },
	} {
		s := sampleOf(rehearsalEvent(0))
		spoil(s)
		var refused *trainer.Refused
		if err := admission.AdmitUnder(objective, s); !errors.As(err, &refused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want a refusal with %q", err, says)
		}
	}
	objective.Rehearsal = trainer.DirectiveNone
	if err := admission.AdmitUnder(objective, sampleOf(rehearsalEvent(0))); err == nil || !strings.Contains(err.Error(), "objective.rehearsal") {
		t.Errorf("a recipe without rehearsals: %v", err)
	}
}

// TestLoopRehearsal: rehearsals are trained by the loop among other samples, and are never stale. Method: minibatches of four under a bound of one version,
// with rehearsals that wait while three versions are published; a rehearsal may name a version that was never published.
func TestLoopRehearsal(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	r.cfg.MaxStaleness, r.cfg.PerUser = 1, 3
	var want []string
	for n := range 6 { // of one user: three an update
		e := rehearsalEvent(3 * n)
		sampleOf(e).User = proto.String("u")
		sampleOf(e).PolicyVersion = proto.String("elsewhere")
		if n == 0 {
			sampleOf(e).PolicyVersion = nil
		}
		r.add(e)
		want = append(want, e.ID)
	}
	r.cfg.Wait = 1
	r.run(schemas.TopicPolicies, publishedCount(2))
	var got []string
	for _, u := range updates(r.events(schemas.TopicPolicies)) {
		got = append(got, u.GetSampleIds()...)
	}
	if strings.Join(got, " ") != strings.Join(want, " ") || len(r.deadReasons()) != 0 {
		t.Errorf("trained %v, want %v; dead letters %q", got, want, r.deadReasons())
	}
	for i, v := range versions(r.events(schemas.TopicPolicies)) {
		if v.GetMetrics()["staleness_max"] != 0 || v.GetMetrics()["rehearsal_fraction"] != 1 {
			t.Errorf("version %d: %v", i+1, v.GetMetrics())
		}
	}
}
