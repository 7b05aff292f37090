package trainer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Update is one update of the policy: everything that its result depends on. The same Update on the same engine gives the same bytes.
type Update struct {
	Objective Objective
	Optimizer AdamW
	Admission Admission
	// Epochs is the number of optimizer steps, each over the whole minibatch; 0: one. The old log-probs are those before the first.
	Epochs int
	// MaxKL bounds the mean KL(old || new) of a trained token, nats: a step is halved until it holds. 0: no bound.
	MaxKL float64
	// Parent is the adapter before the update and Moments the optimizer's state; both are left as they are.
	Parent  *Adapter
	Moments *Moments
	// Samples of the minibatch, in the order of the ledger.
	Samples []*schemas.SampleAssembled
}

// Updated is the result.
type Updated struct {
	Adapter *Adapter
	Moments *Moments
	// Metrics by name, those of the last epoch: loss, loss_eval, loss_dir, kl, reward_mean, clip_fraction, ratio_mean, entropy, grad_norm, learning_rate, logprob_gap,
	// logprob_gap_max, tokens, samples, teacher_fraction, rehearsal_fraction; with MaxKL also step_kl and step_scale.
	Metrics map[string]float64
}

// ErrNotFinite is returned (wrapped) when a loss or a gradient is not finite: the update is skipped, and the parent stays.
var ErrNotFinite = errors.New("not finite")

// ErrNoGradient is returned when no sample has a gradient under the objective: rewards of 0 and no hints, say. The update is skipped, and the parent stays: the
// optimizer's momentum alone would go on in a direction that these samples say nothing of.
var ErrNoGradient = errors.New("no sample teaches anything under this objective")

// Run computes the update (algorithm, section 6): in each epoch old log-probs, losses, gradient, clipping, AdamW, and the trust region. In the first epoch
// the current policy is the old one, so one forward pass gives both.
func (u Update) Run(ctx context.Context, engine Engine) (*Updated, error) {
	if len(u.Samples) == 0 {
		return nil, errors.New("an update needs a sample")
	}
	parts, err := u.parts()
	if err != nil {
		return nil, err
	}
	out := &Updated{Adapter: u.Parent.Clone(), Moments: &Moments{u.Moments.Step, u.Moments.First.Clone(), u.Moments.Second.Clone()}}
	for i := range max(1, u.Epochs) {
		err := u.epoch(ctx, engine, parts, out)
		if i > 0 && errors.Is(err, ErrNoGradient) {
			break // all was learned before
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// epoch is one optimizer step over the whole minibatch.
func (u Update) epoch(ctx context.Context, engine Engine, parts []part, out *Updated) error {
	m, grad := newMetrics(len(u.Samples)), u.Parent.Zero()
	for _, p := range parts {
		if err := u.accumulate(ctx, engine, out.Adapter, p, m, grad); err != nil {
			return err
		}
	}
	switch norm := grad.Norm(); {
	case math.IsNaN(norm) || math.IsInf(norm, 0):
		return fmt.Errorf("the gradient's norm is %v: %w", norm, ErrNotFinite)
	case norm == 0:
		return ErrNoGradient
	}
	before, moved := out.Adapter, out.Metrics["step_kl"]
	out.Adapter = before.Clone()
	norm := u.Optimizer.Update(out.Adapter, out.Moments, grad)
	out.Metrics = m.finish(norm, u.Optimizer.Rate(out.Moments.Step))
	if u.MaxKL > 0 {
		return u.restrain(ctx, engine, parts, out, before, moved)
	}
	return nil
}

// microTokens bounds the tokens that an engine gets at once: of so many it can keep what the forward pass computed until their gradient is asked for.
const microTokens = 1024

// part of the minibatch, with the places of its samples there.
type part struct {
	places    []int
	examples  []*example
	sequences []Sequence
}

// parts cuts the minibatch. Sequences that begin alike, such as the turns of a conversation, stand together: an engine may compute what they have in common once.
func (u Update) parts() (parts []part, err error) {
	examples, err := u.examples()
	if err != nil {
		return nil, err
	}
	order := make([]int, len(examples))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return slices.Compare(examples[a].sequence.Tokens, examples[b].sequence.Tokens) })
	var before Sequence
	tokens := 0
	for _, place := range order {
		e := examples[place]
		more := len(e.sequence.Tokens) - before.Alike(e.sequence)
		if len(parts) == 0 || tokens+more > microTokens {
			parts, tokens, more = append(parts, part{}), 0, len(e.sequence.Tokens)
		}
		p := &parts[len(parts)-1]
		p.places, p.examples, p.sequences = append(p.places, place), append(p.examples, e), append(p.sequences, e.sequence)
		before, tokens = e.sequence, tokens+more
	}
	return parts, nil
}

// accumulate adds the gradient of a part's losses to grad. No loss looks at another sample.
func (u Update) accumulate(ctx context.Context, engine Engine, a *Adapter, p part, m *metrics, grad *Adapter) (err error) {
	var reference [][][]float32
	first := p.examples[0].old == nil
	if u.Objective.KLCoef != 0 && first { // B = 0: the model without adapter
		if reference, _, err = engine.Logprobs(ctx, u.Parent.Zero(), p.sequences); err != nil {
			return err
		}
	}
	current, entropy, err := engine.Logprobs(ctx, a, p.sequences) // last, so that the engine keeps it for the gradient
	if err != nil {
		return err
	}
	coef := make([][][]float64, len(p.examples))
	for n, e := range p.examples {
		if first {
			e.observe(current[n], reference, n)
		}
		loss, err := u.Objective.Loss(&e.turn, e.lookup(current[n]))
		if err != nil {
			return fmt.Errorf("sample %d: %w", p.places[n], err)
		}
		if math.IsNaN(loss.Loss) || math.IsInf(loss.Loss, 0) {
			return fmt.Errorf("the loss of sample %d is %v: %w", p.places[n], loss.Loss, ErrNotFinite)
		}
		coef[n] = e.coefficients(loss, 1/m.samples)
		m.add(e, loss, current[n], entropy[n], u.Objective)
	}
	if !teaches(coef) {
		return nil
	}
	return engine.Gradient(ctx, a, p.sequences, coef, grad)
}

// teaches says whether any coefficient is not 0.
func teaches(coef [][][]float64) bool {
	for _, sequence := range coef {
		for _, row := range sequence {
			if slices.ContainsFunc(row, func(g float64) bool { return g != 0 }) {
				return true
			}
		}
	}
	return false
}

// examples checks the samples and lays them out with rows of one width.
func (u Update) examples() (examples []*example, err error) {
	width := 0
	for n, s := range u.Samples {
		e, err := u.Admission.example(s, u.Objective)
		if err != nil {
			return nil, fmt.Errorf("sample %d, turn %s: %w", n, s.GetTurnId(), err)
		}
		width = max(width, e.width())
		examples = append(examples, e)
	}
	if u.Objective.Baseline == BaselineBatch {
		u.Objective.leaveOneOut(examples)
	}
	for _, e := range examples {
		e.pad(width)
	}
	return examples, nil
}

// observe fills in the old policy's log-probs, which are those of the first forward pass.
func (e *example) observe(current [][]float32, reference [][][]float32, n int) {
	t := &e.turn
	e.old = current
	for i, row := range current {
		t.Old = append(t.Old, float64(row[0]))
		if reference != nil {
			t.Reference = append(t.Reference, float64(reference[n][i][0]))
		}
		if t.StudentIDs == nil {
			continue
		}
		old := make([]float64, len(t.StudentIDs[i]))
		for k := range old {
			old[k] = float64(row[1+k])
		}
		t.StudentOld = append(t.StudentOld, old)
	}
	if e.teacherAt == nil {
		return
	}
	for i, columns := range e.teacherAt {
		old := make([]float64, len(columns))
		for k, column := range columns {
			old[k] = float64(current[i][column])
		}
		t.Teacher.OldAtIDs = append(t.Teacher.OldAtIDs, old)
	}
}

// lookup finds the current log-prob of a token among the wanted ones.
func (e *example) lookup(current [][]float32) Current {
	return func(i int, id uint32) float64 {
		for k, wanted := range e.sequence.Wanted[i] {
			if wanted == id {
				return float64(current[i][k])
			}
		}
		return math.NaN() // a loss that looks at a token that it did not ask for
	}
}

// coefficients spreads a turn's gradients over the wanted columns [R][K]. A token that is wanted twice gets its gradient once.
func (e *example) coefficients(loss *TurnLoss, scale float64) [][]float64 {
	out := make([][]float64, len(loss.Gradients))
	for i, grads := range loss.Gradients {
		out[i] = make([]float64, len(e.sequence.Wanted[i]))
		for _, g := range grads {
			for k, wanted := range e.sequence.Wanted[i] {
				if wanted == g.ID {
					out[i][k] += g.G * scale
					break
				}
			}
		}
	}
	return out
}
