package trainer

import (
	"fmt"
	"math"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Admission bounds what is trained.
type Admission struct {
	// Vocabulary is the number of tokens of the base model, MaxTokens the most tokens of one sample, prompt included.
	Vocabulary int
	MaxTokens  int
}

// example is one sample as the engine and the losses take it.
type example struct {
	sequence Sequence
	turn     Turn
	// teacherAt[t][k] is the column of the teacher's k-th token among the wanted ones; nil without a teacher.
	teacherAt [][]int
	// judged: the reward is a verdict, and not the 0 of a turn that nobody judged.
	judged bool
	// old are the log-probs of the wanted tokens before the update [R][K], nats; nil before the first pass.
	old [][]float32
}

// Refused says why a sample cannot be trained. It is permanent: the sample is dead-lettered with this reason.
type Refused struct{ Reason string }

func (e *Refused) Error() string { return "the sample cannot be trained: " + e.Reason }

func refuse(format string, args ...any) error { return &Refused{fmt.Sprintf(format, args...)} }

// Admit reports whether a sample can be trained by the default form of the objective, as a *Refused.
func (a Admission) Admit(s *schemas.SampleAssembled) error {
	return a.AdmitUnder(Objective{Directive: DirectiveTopK, Support: SupportStudent}, s)
}

// AdmitUnder reports whether a sample can be trained by an objective, as a *Refused.
func (a Admission) AdmitUnder(o Objective, s *schemas.SampleAssembled) error {
	_, err := a.example(s, o)
	return err
}

// example checks everything that the losses rely on: lengths, finite numbers, tokens of this vocabulary.
func (a Admission) example(s *schemas.SampleAssembled, o Objective) (*example, error) {
	t := s.GetTokens()
	n, temperature := len(t.GetResponseIds()), temperatureOf(s.GetSampling())
	switch {
	case n == 0 || len(t.GetPromptIds()) == 0:
		return nil, refuse("it has no token ids; text is never tokenised again")
	case n+len(t.GetPromptIds()) > a.MaxTokens:
		return nil, refuse("it has %d tokens, more than max_tokens %d", n+len(t.GetPromptIds()), a.MaxTokens)
	case !(temperature > 0) || math.IsInf(temperature, 0):
		return nil, refuse("its sampling temperature is %v: it must be known and greater than 0", temperature)
	case math.IsNaN(s.GetReward()) || math.IsInf(s.GetReward(), 0):
		return nil, refuse("its reward is %v", s.GetReward())
	case len(t.GetLogprobsSampled()) != 0 && len(t.GetLogprobsSampled()) != n, len(t.GetMask()) != 0 && len(t.GetMask()) != n:
		return nil, refuse("%d log-probs and %d mask entries for %d response tokens", len(t.GetLogprobsSampled()), len(t.GetMask()), n)
	}
	e := &example{
		sequence: Sequence{Prompt: len(t.GetPromptIds()), Temperature: temperature},
		turn:     Turn{ResponseIDs: t.GetResponseIds(), Rehearsal: rehearsal(s)},
		judged:   !rehearsal(s) && s.GetKind() != schemas.SampleKind_SAMPLE_KIND_DIRECTIVE,
	}
	if !e.turn.Rehearsal {
		e.turn.Reward = reward(s)
	}
	o = o.under(e.turn.Rehearsal)
	e.sequence.Tokens = append(append(e.sequence.Tokens, t.GetPromptIds()...), t.GetResponseIds()...)
	for _, id := range e.sequence.Tokens {
		if int64(id) >= int64(a.Vocabulary) {
			return nil, refuse("token %d is not in the vocabulary of %d", id, a.Vocabulary)
		}
	}
	for _, m := range t.GetMask() {
		e.turn.Mask = append(e.turn.Mask, float64(min(m, 1)))
	}
	if err := a.signals(e, s, o); err != nil {
		return nil, err
	}
	e.want(o)
	return e, nil
}

// signals adds what the sampler and the teacher said. A rehearsal was sampled from the teacher: only the teacher's top-k counts.
func (a Admission) signals(e *example, s *schemas.SampleAssembled, o Objective) (err error) {
	t, n := s.GetTokens(), len(e.turn.ResponseIDs)
	if e.turn.Rehearsal {
		if o.Directive == DirectiveNone || o.Directive == "" {
			return refuse("it is a rehearsal, and the recipe trains none (objective.rehearsal)")
		}
		e.turn.Teacher = &TeacherRows{}
		if err := a.likeliest(e.turn.Teacher, s.GetTeacher(), n); err != nil {
			return err
		}
		return e.taughtFor(o.Directive)
	}
	if e.turn.Sampler, err = finite("sampler's log-probs", t.GetLogprobsSampled()); err != nil {
		return err
	}
	if e.turn.StudentIDs, err = a.rows("student's top-k", t.GetTopK(), n); err != nil {
		return err
	}
	if s.GetTeacher() == nil || o.Directive == DirectiveNone {
		return nil
	}
	if err := a.teach(e, s.GetTeacher(), n); err != nil {
		return err
	}
	return e.taughtFor(o.Directive)
}

// rehearsal says that a sample is a reply under a standing hint, to be learned without it.
func rehearsal(s *schemas.SampleAssembled) bool {
	return s.GetKind() == schemas.SampleKind_SAMPLE_KIND_REHEARSAL
}

// temperatureOf is that of all log-probs of a sample. A turn at temperature 0 becomes a sample only where the policy engine was told to have it trained
// (--policy-train-greedy): its log-probs are then those at temperature 1. 0 means not known.
func temperatureOf(s *schemas.Sampling) float64 {
	if s != nil && s.Temperature != nil && s.GetTemperature() == 0 {
		return 1
	}
	return s.GetTemperature()
}

// reward is the step reward when the turn has one (algorithm, section 2), else the score.
func reward(s *schemas.SampleAssembled) float64 {
	if s.StepReward != nil {
		return s.GetStepReward()
	}
	return s.GetReward()
}

// teach adds the teacher's rows.
func (a Admission) teach(e *example, t *schemas.TeacherScored, n int) error {
	if len(t.GetLogprobs()) != n {
		return refuse("the teacher gave %d log-probs for %d response tokens", len(t.GetLogprobs()), n)
	}
	rows := &TeacherRows{}
	var err error
	if rows.Response, err = finite("teacher's log-probs", t.GetLogprobs()); err != nil {
		return err
	}
	if err := a.likeliest(rows, t, n); err != nil {
		return err
	}
	values, err := finite("teacher's log-probs at the student's tokens", t.GetLogprobsAtStudent())
	if err != nil {
		return err
	}
	k := 0
	if e.turn.StudentIDs != nil {
		k = len(e.turn.StudentIDs[0])
	}
	if rows.AtStudent, err = table("teacher's log-probs at the student's tokens", values, n, k); err != nil {
		return err
	}
	e.turn.Teacher = rows
	return nil
}

// likeliest adds the teacher's own top-k.
func (a Admission) likeliest(rows *TeacherRows, t *schemas.TeacherScored, n int) (err error) {
	if rows.IDs, err = a.rows("teacher's top-k", t.GetTopK(), n); err != nil {
		return err
	}
	values, err := finite("teacher's top-k log-probs", t.GetTopK().GetLogprobs())
	if err != nil {
		return err
	}
	rows.Logprobs, err = table("teacher's top-k log-probs", values, n, int(t.GetTopK().GetK()))
	return err
}

// taughtFor refuses a teacher without the rows that the directive loss sums over.
func (e *example) taughtFor(d Directive) error {
	switch {
	case d == DirectiveTopK && e.turn.StudentIDs == nil:
		return refuse("it has a teacher and no top-k of its own: sample with --policy-top-k above 0")
	case d != DirectiveToken && e.turn.Teacher.IDs == nil:
		return refuse("its teacher gave no top-k: ask it for one")
	}
	return nil
}

// rows are the ids of a top-k, [n][k]; nil when there is none.
func (a Admission) rows(what string, top *schemas.TopK, n int) ([][]uint32, error) {
	k := int(top.GetK())
	if k == 0 {
		return nil, nil
	}
	if len(top.GetIds()) != n*k {
		return nil, refuse("the %s has %d ids for %d tokens of %d", what, len(top.GetIds()), n, k)
	}
	out := make([][]uint32, n)
	for i := range out {
		out[i] = top.GetIds()[i*k : (i+1)*k]
		if id, twice := repeated(out[i]); twice {
			return nil, refuse("token %d stands twice in the %s", id, what)
		}
		for _, id := range out[i] {
			if int64(id) >= int64(a.Vocabulary) {
				return nil, refuse("token %d in the %s is not in the vocabulary of %d", id, what, a.Vocabulary)
			}
		}
	}
	return out, nil
}

func finite(what string, x []float32) ([]float64, error) {
	var out []float64
	for _, v := range x {
		f := float64(v)
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, refuse("the %s hold %v", what, v)
		}
		out = append(out, f)
	}
	return out, nil
}

// table cuts a row-major array; a k of 0 wants no numbers.
func table(what string, x []float64, n, k int) ([][]float64, error) {
	if len(x) != n*k {
		return nil, refuse("the %s are %d numbers for %d tokens of %d", what, len(x), n, k)
	}
	if k == 0 {
		return nil, nil
	}
	out := make([][]float64, n)
	for i := range out {
		out[i] = x[i*k : (i+1)*k]
	}
	return out, nil
}

// want lists the tokens at each position whose log-probs the objective looks at: the sampled one, the student's top-k, and the teacher's.
func (e *example) want(o Objective) {
	teacher := e.turn.Teacher != nil && e.turn.Teacher.IDs != nil && o.overTeachers()
	if teacher {
		e.teacherAt = make([][]int, len(e.turn.ResponseIDs))
	}
	e.sequence.Wanted = make([][]uint32, len(e.turn.ResponseIDs))
	for i, id := range e.turn.ResponseIDs {
		row := []uint32{id}
		if e.turn.StudentIDs != nil {
			row = append(row, e.turn.StudentIDs[i]...)
		}
		if teacher {
			for _, native := range e.turn.Teacher.IDs[i] {
				e.teacherAt[i] = append(e.teacherAt[i], len(row))
				row = append(row, native)
			}
		}
		e.sequence.Wanted[i] = row
	}
}

// width is how many tokens are wanted at each position.
func (e *example) width() int { return len(e.sequence.Wanted[0]) }

// pad makes the rows as wide as those of the other examples; the coefficients of the added columns stay 0.
func (e *example) pad(width int) {
	for i, row := range e.sequence.Wanted {
		for len(row) < width {
			row = append(row, row[0])
		}
		e.sequence.Wanted[i] = row
	}
}
