package trainer_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
)

// bits is the SHA-256 of an adapter's float32 numbers.
func bits(a *trainer.Adapter) string {
	h := sha256.New()
	for i := range a.A {
		for _, list := range [][]float32{a.A[i], a.B[i]} {
			for _, v := range list {
				h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// TestUpdateBytes: options that are off change no bit of an update. Method: two updates of four samples under the preset `default` on the plain engine, held
// against a hash that changes with the order of the sums only.
func TestUpdateBytes(t *testing.T) {
	e := newBigram()
	r := tinyRecipe()
	u := trainer.Update{
		Objective: r.Objective, Optimizer: r.Optimizer, Admission: trainer.Admission{Vocabulary: tinyVocabulary, MaxTokens: 32},
		Parent: e.adapter(), Moments: trainer.NewMoments(e.adapter()),
	}
	for n := range 2 {
		u.Samples = nil
		for i := range 4 {
			u.Samples = append(u.Samples, sampleOf(sampleEvent(4*n+i)))
		}
		out, err := u.Run(t.Context(), e)
		must(t, err)
		u.Parent, u.Moments = out.Adapter, out.Moments
	}
	const want = "4cb42338445887135cdac01a8c3950b78feed769ef5bdbe8c34cb7ff752b6a3c"
	if got := bits(u.Parent); got != want {
		t.Errorf("the weights are %s, want %s", got, want)
	}
}

// options is an update of four samples on the plain engine under the tiny recipe, changed by set.
func options(e *bigram, set func(*trainer.Recipe)) trainer.Update {
	r := tinyRecipe()
	set(&r)
	var samples []*schemas.SampleAssembled
	for n := range 4 {
		samples = append(samples, sampleOf(sampleEvent(n)))
	}
	return r.Update(tinyVocabulary, e.adapter(), trainer.NewMoments(e.adapter()), samples)
}

// TestCenterDelta: with it the advantages of a position sum to 0, and each is what it is by hand. Method: a support of two tokens with
//
//	old .6 .2, w .75 .25    teacher .3 .5    Delta ln .5 = -.693147, ln 2.5 = .916291    mean -.290788
//	A = .75*(-.402359) = -.301770 and .25*1.207079 = .301770
//
// At ratio 1 the loss is -sum A = 0 and each gradient -A. Away from it the gradient is checked by central differences.
func TestCenterDelta(t *testing.T) {
	o := trainer.Objective{WDir: 1, EpsLow: 0.2, EpsHigh: 0.28, Directive: trainer.DirectiveTopK, Support: trainer.SupportStudent, CenterDelta: true}
	old, teacher := []float64{math.Log(.6), math.Log(.2)}, []float64{math.Log(.3), math.Log(.5)}
	turn := &trainer.Turn{
		ResponseIDs: []uint32{4}, Old: []float64{old[0]}, StudentIDs: [][]uint32{{4, 9}}, StudentOld: [][]float64{old},
		Teacher: &trainer.TeacherRows{Response: teacher[:1], IDs: [][]uint32{{4, 9}}, Logprobs: [][]float64{teacher}, AtStudent: [][]float64{teacher}},
	}
	at := func(cur [2]float64) *trainer.TurnLoss {
		l, err := o.Loss(turn, func(_ int, id uint32) float64 { return map[uint32]float64{4: cur[0], 9: cur[1]}[id] })
		must(t, err)
		return l
	}
	gradients := func(l *trainer.TurnLoss) (sum [2]float64) {
		for _, g := range l.Gradients[0] {
			sum[map[uint32]int{4: 0, 9: 1}[g.ID]] += g.G
		}
		return sum
	}
	l := at([2]float64(old))
	near(t, "loss", l.Loss, 0, 1e-12)
	g := gradients(l)
	near(t, "gradient of the first", g[0], 0.3017696, 1e-6)
	near(t, "gradient of the second", g[1], -0.3017696, 1e-6)
	cur := [2]float64{old[0] + 0.05, old[1] - 0.08}
	g = gradients(at(cur))
	for i := range cur {
		const h = 1e-6
		up, down := cur, cur
		up[i] += h
		down[i] -= h
		near(t, "gradient away from old", g[i], (at(up).Loss-at(down).Loss)/(2*h), 1e-6)
	}
}

// TestBaseline: the advantage of a judged sample is its scaled reward less the mean of the others'; a sample that nobody judged keeps 0 and does not count.
// Method: rewards +1 and -1, of which the negative one counts half, and a directive sample of reward 0:
//
//	1 - (-.5) = 1.5    -.5 - 1 = -1.5    0
//
// The update is, to the bit, that without a baseline of samples with rewards 1.5, -3 (half of it counts) and 0.
func TestBaseline(t *testing.T) {
	e := newBigram()
	update := func(b trainer.Baseline, rewards ...float64) string {
		u := options(e, func(r *trainer.Recipe) { r.Objective.Baseline, r.Objective.NegativeScale = b, 0.5 })
		u.Samples = u.Samples[:3]
		for i, s := range u.Samples {
			s.Reward, s.Kind = rewards[i], schemas.SampleKind_SAMPLE_KIND_COMBINED
		}
		u.Samples[2].Kind = schemas.SampleKind_SAMPLE_KIND_DIRECTIVE
		out, err := u.Run(t.Context(), e)
		must(t, err)
		near(t, "reward_mean", out.Metrics["reward_mean"], (rewards[0]+rewards[1])/3, 1e-12)
		return bits(out.Adapter)
	}
	if update(trainer.BaselineBatch, 1, -1, 0) != update(trainer.BaselineNone, 1.5, -3, 0) {
		t.Error("the baseline is not the mean of the others")
	}
	if update(trainer.BaselineBatch, 1, -1, 0) == update(trainer.BaselineNone, 1, -1, 0) {
		t.Error("the baseline changes nothing")
	}
	alone := func(b trainer.Baseline) string {
		u := options(e, func(r *trainer.Recipe) { r.Objective.Baseline = b })
		u.Samples = u.Samples[3:]
		out, err := u.Run(t.Context(), e)
		must(t, err)
		return bits(out.Adapter)
	}
	if alone(trainer.BaselineBatch) != alone(trainer.BaselineNone) {
		t.Error("a sole sample has a baseline")
	}
}

// TestEpochs: further steps on a minibatch keep the old log-probs. Method: two epochs of the evaluative loss, and the second one by hand: the first is an
// update of its own; at its adapter the coefficient of a token is -A*rho/(tokens*samples), rho against the parent's log-probs, 0 where the clip holds; AdamW
// goes on with the moments of the first.
func TestEpochs(t *testing.T) {
	e := newBigram()
	evaluative := func(epochs int) trainer.Update {
		u := options(e, func(r *trainer.Recipe) {
			r.Epochs, r.Objective.Directive, r.Objective.ImportanceCap, r.Optimizer.LearningRate = epochs, trainer.DirectiveNone, 0, 1
		})
		for _, s := range u.Samples { // no top-k: one column
			s.Tokens.TopK, s.Teacher = nil, nil
		}
		slices.SortFunc(u.Samples, func(a, b *schemas.SampleAssembled) int { // as the update sums them
			return slices.Compare(slices.Concat(a.Tokens.PromptIds, a.Tokens.ResponseIds), slices.Concat(b.Tokens.PromptIds, b.Tokens.ResponseIds))
		})
		return u
	}
	u := evaluative(1)
	first, err := u.Run(t.Context(), e)
	must(t, err)
	var sequences []trainer.Sequence
	for _, s := range u.Samples {
		q := trainer.Sequence{Tokens: append(append([]uint32{}, s.Tokens.PromptIds...), s.Tokens.ResponseIds...), Prompt: len(s.Tokens.PromptIds), Temperature: 0.7}
		for _, id := range s.Tokens.ResponseIds {
			q.Wanted = append(q.Wanted, []uint32{id})
		}
		sequences = append(sequences, q)
	}
	old, _, err := e.Logprobs(t.Context(), u.Parent, sequences)
	must(t, err)
	now, _, err := e.Logprobs(t.Context(), first.Adapter, sequences)
	must(t, err)
	coef, clipped, moved := make([][][]float64, 4), 0, 0.0
	for n, s := range u.Samples {
		a := s.Reward
		if a < 0 {
			a *= u.Objective.NegativeScale
		}
		for i := range now[n] {
			rho := math.Exp(float64(now[n][i][0]) - float64(old[n][i][0]))
			moved += math.Abs(rho - 1)
			c := -a * rho / float64(len(now[n])*len(now))
			if a > 0 && rho > 1.28 || a < 0 && rho < 0.8 {
				c = 0
				clipped++
			}
			coef[n] = append(coef[n], []float64{c})
		}
	}
	if moved < 0.1 || clipped == 0 {
		t.Fatalf("the first step moved the ratios by %v in all and clipped %d: too little to test anything", moved, clipped)
	}
	grad := u.Parent.Zero()
	must(t, e.Gradient(t.Context(), first.Adapter, sequences, coef, grad))
	u.Optimizer.Update(first.Adapter, first.Moments, grad)

	e.passes = 0
	second, err := evaluative(2).Run(t.Context(), e)
	must(t, err)
	if bits(second.Adapter) != bits(first.Adapter) || second.Moments.Step != 2 || e.passes != 2 {
		t.Errorf("two epochs are not two steps: %d steps, %d passes", second.Moments.Step, e.passes)
	}
	near(t, "clip_fraction", second.Metrics["clip_fraction"], float64(clipped)/20, 1e-12)
}

// TestMaxKL: a step that goes too far is halved until it does not, and one that cannot be is not made. Method: a large step; the KL of the result and of a
// step twice as long, over the sampled tokens and their top-k with the rest in one bin, straight from the probabilities of the plain engine.
func TestMaxKL(t *testing.T) {
	const most = 0.02
	e := newBigram()
	run := func(epochs int, maxKL float64) *trainer.Updated {
		out, err := options(e, func(r *trainer.Recipe) { r.Epochs, r.MaxKL, r.Optimizer.LearningRate = epochs, maxKL, 2 }).Run(t.Context(), e)
		must(t, err)
		return out
	}
	u := options(e, func(*trainer.Recipe) {})
	divergence := func(a *trainer.Adapter) float64 {
		sum := 0.0
		for _, s := range u.Samples {
			last := s.Tokens.PromptIds[len(s.Tokens.PromptIds)-1]
			for i, id := range s.Tokens.ResponseIds {
				_, p := softmax(e.logits(u.Parent, last, 0.7), 1)
				_, q := softmax(e.logits(a, last, 0.7), 1)
				restP, restQ, kl := 1.0, 1.0, 0.0
				ids := append([]uint32{id}, s.Tokens.TopK.Ids[3*i:3*i+3]...)
				slices.Sort(ids)
				for _, v := range slices.Compact(ids) {
					kl += p[v] * math.Log(p[v]/q[v])
					restP -= p[v]
					restQ -= q[v]
				}
				sum += kl + restP*math.Log(restP/restQ)
				last = id
			}
		}
		return sum / 20
	}
	free, held := run(1, 0), run(1, most)
	scale := held.Metrics["step_scale"]
	if scale >= 1 || scale <= 0 || math.Log2(scale) != math.Trunc(math.Log2(scale)) {
		t.Fatalf("the step was scaled by %v", scale)
	}
	part := func(scale float64) *trainer.Adapter {
		a := u.Parent.Clone()
		for j := range a.B[0] {
			a.B[0][j] += float32(scale * float64(free.Adapter.B[0][j]-a.B[0][j]))
		}
		for j := range a.A[0] {
			a.A[0][j] += float32(scale * float64(free.Adapter.A[0][j]-a.A[0][j]))
		}
		return a
	}
	near(t, "the step's KL", held.Metrics["step_kl"], divergence(held.Adapter), 1e-5)
	if kl := divergence(held.Adapter); kl > most || math.Abs(divergence(part(scale))-kl) > 1e-5 {
		t.Errorf("the KL is %v, that of %v of the free step %v", kl, scale, divergence(part(scale)))
	}
	if kl := divergence(part(2 * scale)); kl <= most {
		t.Errorf("twice the step has the KL %v, which would have been allowed", kl)
	}
	if twice := run(2, most); divergence(twice.Adapter) > most || bits(twice.Adapter) == bits(held.Adapter) || twice.Moments.Step != 2 {
		t.Errorf("after a second epoch the KL is %v", divergence(twice.Adapter))
	}
	if none := run(1, 1e-30); bits(none.Adapter) != bits(u.Parent) || none.Metrics["step_scale"] != 0 || none.Moments.Step != 1 {
		t.Errorf("a step that cannot be short enough was made: %v", none.Metrics)
	}
	if wide := run(1, 1e9); bits(wide.Adapter) != bits(free.Adapter) || wide.Metrics["step_scale"] != 1 {
		t.Error("a step within the bound was changed")
	}
}

// TestNoGradient: samples that teach nothing under an objective leave the policy as it is, and an engine is asked for no gradient. Method: an objective without weights;
// an engine without a gradient.
func TestNoGradient(t *testing.T) {
	e := newBigram()
	u := options(e, func(r *trainer.Recipe) { r.Objective.WEval, r.Objective.WDir = 0, 0 })
	if _, err := u.Run(t.Context(), noGradient{e}); !errors.Is(err, trainer.ErrNoGradient) {
		t.Errorf("nothing is taught, and: %v", err)
	}
}

// noGradient panics when it is asked for one.
type noGradient struct{ *bigram }

func (noGradient) Gradient(context.Context, *trainer.Adapter, []trainer.Sequence, [][][]float64, *trainer.Adapter) error {
	panic("an engine is asked for a gradient of nothing")
}
