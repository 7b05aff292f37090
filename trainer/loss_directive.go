package trainer

import (
	"fmt"
	"math"
	"slices"
)

// topK is the directive loss at position i over the support (algorithm, section 6): for v in S(t), w_v = softmax over S(t) of old(v),
// Delta_v = clip(teacher(v)-old(v), -C, C), A_v = Delta_v*w_v (detached), and the sum of L(rho_v, A_v). With CenterDelta, Delta_v is reduced by the sum of
// w_u*Delta_u.
func (o Objective) topK(t *Turn, i int, current Current) (loss float64, grads []Gradient, size int, err error) {
	ids, old, teacher, err := o.support(t, i)
	if err != nil || len(ids) == 0 {
		return 0, nil, 0, err
	}
	norm, mean := logSumExp(old), 0.0
	delta := make([]float64, len(ids)) // nats
	for j := range ids {
		delta[j] = teacher[j] - old[j]
		if o.DeltaClip > 0 {
			delta[j] = math.Max(-o.DeltaClip, math.Min(o.DeltaClip, delta[j]))
		}
		if o.CenterDelta {
			mean += delta[j] * math.Exp(old[j]-norm)
		}
	}
	for j, id := range ids {
		l, g, _ := Surrogate(current(i, id), old[j], (delta[j]-mean)*math.Exp(old[j]-norm), o.EpsLow, o.EpsHigh)
		loss += l
		grads = append(grads, Gradient{id, g})
	}
	return loss, grads, len(ids), nil
}

// support lists S(t) with the old policy's and the teacher's log-probs.
func (o Objective) support(t *Turn, i int) (ids []uint32, old, teacher []float64, err error) {
	student, native := t.StudentIDs[i], t.Teacher.IDs[i]
	for _, row := range [][]uint32{student, native} {
		if id, twice := repeated(row); twice {
			return nil, nil, nil, fmt.Errorf("token %d stands twice in a top-k: its ids must be distinct", id)
		}
	}
	switch o.Support {
	case SupportTeacher:
		return native, t.Teacher.OldAtIDs[i], t.Teacher.Logprobs[i], nil
	case SupportStudent:
		return student, t.StudentOld[i], t.Teacher.AtStudent[i], nil
	case SupportOverlap:
		for j, id := range student {
			if slices.Contains(native, id) {
				ids, old, teacher = append(ids, id), append(old, t.StudentOld[i][j]), append(teacher, t.Teacher.AtStudent[i][j])
			}
		}
		return ids, old, teacher, nil
	}
	return nil, nil, nil, fmt.Errorf("support %q: use student, teacher or overlap", o.Support)
}

func repeated(row []uint32) (uint32, bool) {
	for i, id := range row {
		if slices.Contains(row[:i], id) {
			return id, true
		}
	}
	return 0, false
}

// tailLogSumExpMax keeps a little mass for the tail bin.
const tailLogSumExpMax = -1e-7

// tailOf is the log-prob of all tokens but those of a top-k.
func tailOf(top []float64) (tail float64, clamped bool) {
	sum := logSumExp(top)
	return math.Log(-math.Expm1(math.Min(sum, tailLogSumExpMax))), sum > tailLogSumExpMax
}

// ReverseKL is KL(student || teacher) of one position over the teacher's top-K and one tail bin (algorithm, section 6). A tail that is clamped has no
// gradient.
func ReverseKL(ids []uint32, teacher []float64, current func(id uint32) float64) (kl float64, grads []Gradient) {
	cur := make([]float64, len(ids))
	for j, id := range ids {
		cur[j] = current(id)
		kl += math.Exp(cur[j]) * (cur[j] - teacher[j])
	}
	tail, clamped := tailOf(cur)
	teacherTail, _ := tailOf(teacher)
	kl += math.Exp(tail) * (tail - teacherTail)
	for j, id := range ids {
		p := math.Exp(cur[j])
		g := p * (cur[j] - teacher[j] + 1)
		if !clamped { // the tail's mass is 1 - sum p, so its derivative by cur_j is -p_j
			g -= p * (tail - teacherTail + 1)
		}
		grads = append(grads, Gradient{id, g})
	}
	return kl, grads
}

func logSumExp(x []float64) float64 {
	top := slices.Max(x)
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(v - top)
	}
	return top + math.Log(sum)
}

// LogitGradient turns gradients by log-probs at one position into the gradient by the logits [V] that gave them: p is softmax(logits/temperature),
// and log p(v) = logits(v)/temperature - logsumexp. It adds to out.
func LogitGradient(grads []Gradient, p []float64, temperature float64, out []float64) {
	sum := 0.0
	for _, g := range grads {
		out[g.ID] += g.G / temperature
		sum += g.G
	}
	for v := range out {
		out[v] -= p[v] * sum / temperature
	}
}
