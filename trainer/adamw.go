package trainer

import "math"

// AdamW are the optimizer's hyperparameters (Loshchilov and Hutter, algorithm 2: the decay is decoupled from the gradient).
type AdamW struct {
	LearningRate float64 `json:"learning_rate"`
	Beta1        float64 `json:"beta1"`
	Beta2        float64 `json:"beta2"`
	Epsilon      float64 `json:"epsilon"`
	WeightDecay  float64 `json:"weight_decay"`
	// ClipNorm bounds the L2 norm of the gradient; 0: no bound.
	ClipNorm float64 `json:"clip_norm"`
	// WarmUp is the number of updates over which the learning rate rises linearly to its value.
	WarmUp uint64 `json:"warm_up"`
}

// Moments are the optimizer's state: part of a checkpoint.
type Moments struct {
	// Step counts the updates that were made.
	Step uint64
	// First and Second are the running means of the gradient and of its square.
	First, Second *Adapter
}

// NewMoments is the state before the first update.
func NewMoments(a *Adapter) *Moments { return &Moments{First: a.Zero(), Second: a.Zero()} }

// Rate is the learning rate of update number step (from 1).
func (o AdamW) Rate(step uint64) float64 {
	if step < o.WarmUp {
		return o.LearningRate * float64(step) / float64(o.WarmUp)
	}
	return o.LearningRate
}

// Update changes the adapter by one update, and returns the gradient's norm before it was clipped. grad is scaled in place when it is clipped.
func (o AdamW) Update(a *Adapter, m *Moments, grad *Adapter) (norm float64) {
	norm = grad.Norm()
	if o.ClipNorm > 0 && norm > o.ClipNorm {
		grad.Scale(o.ClipNorm / norm)
	}
	m.Step++
	rate := o.Rate(m.Step)
	unbias1 := 1 - math.Pow(o.Beta1, float64(m.Step))
	unbias2 := 1 - math.Pow(o.Beta2, float64(m.Step))
	lists := func(x *Adapter) (out [][]float32) {
		x.each(func(_ int, v []float32) { out = append(out, v) })
		return out
	}
	first, second, grads := lists(m.First), lists(m.Second), lists(grad)
	a.each(func(i int, x []float32) {
		m1, m2, g := first[i], second[i], grads[i]
		for j := range x {
			d := float64(g[j])
			v1 := o.Beta1*float64(m1[j]) + (1-o.Beta1)*d
			v2 := o.Beta2*float64(m2[j]) + (1-o.Beta2)*d*d
			m1[j], m2[j] = float32(v1), float32(v2)
			w := float64(x[j])
			x[j] = float32(w - rate*(v1/unbias1/(math.Sqrt(v2/unbias2)+o.Epsilon)+o.WeightDecay*w))
		}
	})
	return norm
}
