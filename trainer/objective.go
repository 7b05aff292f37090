package trainer

import (
	"fmt"
	"math"
)

// Support names the set S(t) of tokens over which the directive loss sums (algorithm, section 4).
type Support string

// The supports: the student's top-k, the teacher's under the selected hint, or what both hold.
const (
	SupportStudent Support = "student"
	SupportTeacher Support = "teacher"
	SupportOverlap Support = "overlap"
)

// Directive names a form of the directive loss.
type Directive string

// The forms (algorithm, section 6); forward_kl is ours.
const (
	DirectiveTopK      Directive = "top_k"
	DirectiveToken     Directive = "token"
	DirectiveReverseKL Directive = "reverse_kl"
	DirectiveForwardKL Directive = "forward_kl"
	DirectiveNone      Directive = "none"
)

// Baseline names what is subtracted from a reward.
type Baseline string

// The baselines: nothing, or the mean reward of the other judged samples of the minibatch.
const (
	BaselineNone  Baseline = ""
	BaselineBatch Baseline = "batch"
)

// Objective is the hybrid objective with its hyperparameters (algorithm, section 6). The zero value is not usable: begin with a preset.
type Objective struct {
	// WEval and WDir weigh the evaluative and the directive loss.
	WEval float64 `json:"w_eval"`
	WDir  float64 `json:"w_dir"`
	// EpsLow and EpsHigh clip the importance ratio to [1-EpsLow, 1+EpsHigh].
	EpsLow  float64 `json:"eps_low"`
	EpsHigh float64 `json:"eps_high"`
	// Directive is the form, Support its tokens (top_k only).
	Directive Directive `json:"directive"`
	Support   Support   `json:"support"`
	// DeltaClip is C, the bound of |teacher - old| in nats; 0: none.
	DeltaClip float64 `json:"delta_clip"`
	// CenterDelta subtracts from teacher - old, once clipped, its mean over the support under the old policy (top_k only): the advantages of a position
	// then sum to 0, and the loss moves no mass out of the support.
	CenterDelta bool `json:"center_delta"`
	// NegativeScale multiplies negative rewards (1 in the paper).
	NegativeScale float64 `json:"negative_scale"`
	// Baseline is subtracted from the reward, after NegativeScale.
	Baseline Baseline `json:"baseline"`
	// Rehearsal is the form of the loss of rehearsals, which is all of theirs: forward_kl, reverse_kl, or none: they are then refused.
	Rehearsal Directive `json:"rehearsal"`
	// KLCoef weighs the KL to the reference; KLKind says which estimator.
	KLCoef float64 `json:"kl_coef"`
	KLKind KLKind  `json:"kl_kind"`
	// ImportanceCap is the limit of the truncated importance weight for off-policy samples; 0: no such weight.
	ImportanceCap float64 `json:"importance_cap"`
}

// Turn is one trainable turn as the losses see it. R = response tokens, k = top-k. All log-probs are nats at the sampling temperature.
type Turn struct {
	// ResponseIDs are the sampled tokens [R].
	ResponseIDs []uint32
	// Mask is 1 for trained tokens and 0 for others [R]; nil: all 1.
	Mask []float64
	// Reward is the turn's score, and Baseline what is subtracted from it once it is scaled.
	Reward   float64
	Baseline float64
	// Old are the log-probs of ResponseIDs under the old policy [R], recomputed by the trainer's own engine.
	Old []float64
	// Sampler are those that the serving engine gave [R]; nil: unknown, then no importance weight.
	Sampler []float64
	// Reference are those of the reference policy [R]; nil unless the objective has a KL term.
	Reference []float64
	// StudentIDs is the old policy's top-k [R][k]; StudentOld its log-probs there.
	StudentIDs [][]uint32
	StudentOld [][]float64
	// Teacher is nil when there is no hint: the directive loss is then 0.
	Teacher *TeacherRows
	// Rehearsal: the response was sampled from the teacher, and nobody judged it.
	Rehearsal bool
}

// TeacherRows is the teacher's view under the selected hint; with token_optimal selection each row is that of its own hint.
type TeacherRows struct {
	// Response are the teacher's log-probs of ResponseIDs [R].
	Response []float64
	// IDs and Logprobs are the teacher's own top-k [R][k]; OldAtIDs the old policy's log-probs there (nil unless the support is the teacher's).
	IDs      [][]uint32
	Logprobs [][]float64
	OldAtIDs [][]float64
	// AtStudent are the teacher's log-probs at StudentIDs [R][k].
	AtStudent [][]float64
}

// Current gives the current policy's log-prob of token id at position t, normalised over the whole vocabulary.
type Current func(t int, id uint32) float64

// Gradient is the derivative of a turn's loss by the current log-prob of one token at one position.
type Gradient struct {
	ID uint32
	G  float64
}

// TurnLoss is what a turn contributes.
type TurnLoss struct {
	// Eval, Dir and KL are the parts at each position [R], before weights and mask.
	Eval, Dir, KL []float64
	// SupportSize is |S(t)| [R].
	SupportSize []int
	// Clipped counts the clipped surrogates of the evaluative part.
	Clipped int
	// Loss is sum(mask*L)/max(1, sum(mask)).
	Loss float64
	// Gradients of Loss [R][any].
	Gradients [][]Gradient
}

// Loss computes the objective of one turn, with its gradients by the current log-probs. The loss of an update is the mean over its turns.
func (o Objective) Loss(t *Turn, current Current) (*TurnLoss, error) {
	n := len(t.ResponseIDs)
	o = o.under(t.Rehearsal)
	if err := t.check(o); err != nil {
		return nil, err
	}
	out := &TurnLoss{Eval: make([]float64, n), Dir: make([]float64, n), KL: make([]float64, n), SupportSize: make([]int, n), Gradients: make([][]Gradient, n)}
	masked := 0.0
	for i := range n {
		masked += t.mask(i)
	}
	for i := range n {
		l, grads, err := o.position(t, i, current, out)
		if err != nil {
			return nil, fmt.Errorf("position %d: %w", i, err)
		}
		scale := t.mask(i) / math.Max(1, masked)
		if o.ImportanceCap > 0 && t.Sampler != nil {
			scale *= ImportanceWeight(t.Old[i], t.Sampler[i], o.ImportanceCap)
		}
		out.Loss += scale * l
		for g := range grads {
			grads[g].G *= scale
		}
		out.Gradients[i] = grads
	}
	return out, nil
}

// under is the objective of a turn or of a rehearsal, which has no reward and no weight but its own.
func (o Objective) under(rehearsal bool) Objective {
	if rehearsal {
		o.Directive, o.WDir, o.ImportanceCap = o.Rehearsal, 1, 0
	}
	return o
}

// overTeachers says that the directive loss sums over the teacher's top-k.
func (o Objective) overTeachers() bool {
	return o.Directive == DirectiveTopK && o.Support == SupportTeacher || o.Directive == DirectiveReverseKL || o.Directive == DirectiveForwardKL
}

// scaled is a reward as it counts.
func (o Objective) scaled(reward float64) float64 {
	if reward < 0 {
		reward *= o.NegativeScale
	}
	return reward
}

// position is the whole loss at position i, with its gradients, before mask and importance weight.
func (o Objective) position(t *Turn, i int, current Current, out *TurnLoss) (float64, []Gradient, error) {
	id := t.ResponseIDs[i]
	cur := current(i, id)
	reward := o.scaled(t.Reward) - t.Baseline
	advantage, weight := reward, o.WEval
	if o.Directive == DirectiveToken {
		// Token level (v1): one advantage for both signals, already weighted.
		advantage, weight = o.WEval*reward, 1
		if t.Teacher != nil {
			advantage += o.WDir * (t.Teacher.Response[i] - t.Old[i])
		}
	}
	l, g, clipped := Surrogate(cur, t.Old[i], advantage, o.EpsLow, o.EpsHigh)
	out.Eval[i] = l
	if clipped {
		out.Clipped++
	}
	total := weight * l
	grads := []Gradient{{id, weight * g}}
	if o.KLCoef != 0 {
		kl, klGrad := KL(o.KLKind, cur, t.Reference[i])
		out.KL[i] = kl
		total += o.KLCoef * kl
		grads = append(grads, Gradient{id, o.KLCoef * klGrad})
	}
	if t.Teacher == nil {
		return total, grads, nil
	}
	var dir float64
	var dirGrads []Gradient
	var err error
	switch o.Directive {
	case DirectiveTopK:
		dir, dirGrads, out.SupportSize[i], err = o.topK(t, i, current)
	case DirectiveReverseKL:
		dir, dirGrads = ReverseKL(t.Teacher.IDs[i], t.Teacher.Logprobs[i], func(id uint32) float64 { return current(i, id) })
		out.SupportSize[i] = len(t.Teacher.IDs[i])
	case DirectiveForwardKL:
		dir, dirGrads = ForwardKL(t.Teacher.IDs[i], t.Teacher.Logprobs[i], func(id uint32) float64 { return current(i, id) })
		out.SupportSize[i] = len(t.Teacher.IDs[i])
	case DirectiveToken, DirectiveNone:
	}
	if err != nil {
		return 0, nil, err
	}
	out.Dir[i] = dir
	for _, d := range dirGrads {
		grads = append(grads, Gradient{d.ID, o.WDir * d.G})
	}
	return total + o.WDir*dir, grads, nil
}

func (t *Turn) mask(i int) float64 {
	if t.Mask == nil {
		return 1
	}
	return t.Mask[i]
}

// check refuses a turn whose arrays do not fit the objective.
func (t *Turn) check(o Objective) error {
	n := len(t.ResponseIDs)
	bad := func(what string, have int) error {
		return fmt.Errorf("%s has %d rows for %d response tokens", what, have, n)
	}
	switch {
	case len(t.Old) != n:
		return bad("old", len(t.Old))
	case t.Mask != nil && len(t.Mask) != n:
		return bad("mask", len(t.Mask))
	case t.Sampler != nil && len(t.Sampler) != n:
		return bad("sampler", len(t.Sampler))
	case o.KLCoef != 0 && len(t.Reference) != n:
		return bad("reference", len(t.Reference))
	}
	if t.Teacher == nil {
		return nil
	}
	switch o.Directive {
	case DirectiveTopK:
		if len(t.StudentIDs) != n || len(t.StudentOld) != n || len(t.Teacher.AtStudent) != n || len(t.Teacher.IDs) != n || len(t.Teacher.Logprobs) != n {
			return bad("top-k", min(len(t.StudentIDs), len(t.StudentOld), len(t.Teacher.AtStudent), len(t.Teacher.IDs), len(t.Teacher.Logprobs)))
		}
		if o.Support == SupportTeacher && len(t.Teacher.OldAtIDs) != n {
			return bad("old log-probs at the teacher's ids", len(t.Teacher.OldAtIDs))
		}
	case DirectiveToken:
		if len(t.Teacher.Response) != n {
			return bad("teacher", len(t.Teacher.Response))
		}
	case DirectiveReverseKL, DirectiveForwardKL:
		if len(t.Teacher.IDs) != n || len(t.Teacher.Logprobs) != n {
			return bad("teacher top-k", min(len(t.Teacher.IDs), len(t.Teacher.Logprobs)))
		}
	case DirectiveNone:
	}
	return nil
}
