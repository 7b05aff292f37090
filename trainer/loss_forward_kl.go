package trainer

import "math"

// ForwardKL is KL(teacher || student) of one position over the teacher's top-K and one tail bin for all the rest:
//
//	sum_i p_T(i)*(log p_T(i) - log p_S(i)) + p_T(tail)*(log p_T(tail) - log p_S(tail)), p(tail) = 1 - sum_i p(i)
//
// with its derivatives by the current log-probs: -p_T(i), and by the tail p_T(tail)*p_S(i)/p_S(tail). It wants mass wherever the teacher has some, so it moves
// the student faster than ReverseKL, and leaves it with more entropy. A student's tail that is clamped has no gradient.
func ForwardKL(ids []uint32, teacher []float64, current func(id uint32) float64) (kl float64, grads []Gradient) {
	cur := make([]float64, len(ids))
	for j, id := range ids {
		cur[j] = current(id)
		kl += math.Exp(teacher[j]) * (teacher[j] - cur[j])
	}
	tail, clamped := tailOf(cur)
	teacherTail, _ := tailOf(teacher)
	kl += math.Exp(teacherTail) * (teacherTail - tail)
	for j, id := range ids {
		g := -math.Exp(teacher[j])
		if !clamped { // the tail's mass is 1 - sum p, so its log's derivative by cur_j is -p_j/p(tail)
			g += math.Exp(teacherTail + cur[j] - tail)
		}
		grads = append(grads, Gradient{id, g})
	}
	return kl, grads
}
