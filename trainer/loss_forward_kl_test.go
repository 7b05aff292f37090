package trainer_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/nextstate-rl/nextstate/trainer"
)

// TestForwardKL: the loss and its gradient on a case that can be done by hand. Method: four tokens, of which the teacher's top-2 are 1 and 2.
//
//	p_S = .5 .2 .1 .2    p_T = .1 .6 .2 .1    tails .7 and .2
//	.6 ln(.6/.2) + .2 ln(.2/.1) + .2 ln(.2/.7) = 0.5472442156137811
//	d/dl_1 = -.6 + .2*.2/.7 = -0.5428571428571428    d/dl_2 = -.2 + .2*.1/.7 = -0.17142857142857143
//
// A student that is the teacher has loss 0, and a gradient by the logits of 0; as the form of the directive loss it has that loss's weight; one whose tail is clamped has a gradient by the top-k only.
func TestForwardKL(t *testing.T) {
	logs := func(p ...float64) (out []float64) {
		for _, v := range p {
			out = append(out, math.Log(v))
		}
		return out
	}
	student, teacher := logs(.5, .2, .1, .2), logs(.6, .2)
	current := func(id uint32) float64 { return student[id] }
	kl, grads := trainer.ForwardKL([]uint32{1, 2}, teacher, current)
	near(t, "loss", kl, 0.5472442156137811, 1e-12)
	near(t, "gradient of 1", grads[0].G, -0.5428571428571428, 1e-12)
	near(t, "gradient of 2", grads[1].G, -0.17142857142857143, 1e-12)

	turn := &trainer.Turn{ResponseIDs: []uint32{3}, Old: logs(.2), Teacher: &trainer.TeacherRows{IDs: [][]uint32{{1, 2}}, Logprobs: [][]float64{teacher}}}
	loss, err := trainer.Objective{WDir: 2, Directive: trainer.DirectiveForwardKL}.Loss(turn, func(_ int, id uint32) float64 { return student[id] })
	must(t, err)
	near(t, "loss of a turn", loss.Loss, 2*kl, 1e-12)

	kl, grads = trainer.ForwardKL([]uint32{1, 2}, logs(.2, .1), current)
	near(t, "loss of the same", kl, 0, 1e-12)
	byLogit := make([]float64, 4)
	trainer.LogitGradient(grads, []float64{.5, .2, .1, .2}, 1, byLogit)
	nearAll(t, "gradient of the same by logits", byLogit, make([]float64, 4), 1e-12)

	sure := func(uint32) float64 { return math.Log(.5) }
	_, grads = trainer.ForwardKL([]uint32{1, 2}, teacher, sure)
	near(t, "gradient without a tail", grads[0].G, -.6, 1e-12)
}

// TestKLGradients: the gradients of both KL forms are those of their losses. Method: random logits of 9 tokens, a teacher with a top-4, and central
// differences by each logit, at two temperatures.
func TestKLGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, loss := range map[string]func([]uint32, []float64, func(uint32) float64) (float64, []trainer.Gradient){
		"forward": trainer.ForwardKL, "reverse": trainer.ReverseKL,
	} {
		for _, temperature := range []float64{1, 0.6} {
			logits, other := make([]float64, 9), make([]float64, 9)
			for i := range logits {
				logits[i], other[i] = r.NormFloat64(), r.NormFloat64()
			}
			ids := []uint32{7, 0, 3, 4}
			logT, _ := softmax(other, temperature)
			var teacher []float64
			for _, id := range ids {
				teacher = append(teacher, logT[id])
			}
			at := func(logits []float64) (float64, []trainer.Gradient) {
				logp, _ := softmax(logits, temperature)
				return loss(ids, teacher, func(id uint32) float64 { return logp[id] })
			}
			_, grads := at(logits)
			_, p := softmax(logits, temperature)
			byLogit := make([]float64, 9)
			trainer.LogitGradient(grads, p, temperature, byLogit)
			for i := range logits {
				const h = 1e-5
				up, down := append([]float64{}, logits...), append([]float64{}, logits...)
				up[i] += h
				down[i] -= h
				a, _ := at(up)
				b, _ := at(down)
				near(t, fmt.Sprintf("%s KL at %v, logit %d", name, temperature, i), byLogit[i], (a-b)/(2*h), 1e-6)
			}
		}
	}
}
