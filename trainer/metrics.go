package trainer

import "math"

// metrics sums what an update reports. Means are over tokens, that of the loss over samples, that of the reward over those that are no rehearsals.
type metrics struct {
	samples, rehearsals, tokens, known, teachers, clipped float64
	sum                                                   map[string]float64
	gapMax                                                float64
}

func newMetrics(samples int) *metrics {
	return &metrics{samples: float64(samples), sum: map[string]float64{}}
}

func (m *metrics) add(e *example, l *TurnLoss, current [][]float32, entropy []float32, o Objective) {
	m.sum["loss"] += l.Loss / m.samples
	if e.turn.Rehearsal {
		m.rehearsals++
	} else {
		m.sum["reward_mean"] += e.turn.Reward
	}
	if e.turn.Teacher != nil {
		m.teachers++
	}
	m.clipped += float64(l.Clipped)
	for i := range l.Eval {
		m.tokens++
		m.sum["loss_eval"] += l.Eval[i]
		m.sum["loss_dir"] += l.Dir[i]
		m.sum["kl"] += l.KL[i]
		m.sum["entropy"] += float64(entropy[i])
		m.sum["ratio_mean"] += math.Exp(float64(current[i][0]) - e.turn.Old[i])
		if e.turn.Sampler != nil {
			gap := math.Abs(e.turn.Old[i] - e.turn.Sampler[i])
			m.known++
			m.sum["logprob_gap"] += gap
			m.gapMax = max(m.gapMax, gap)
			if o.ImportanceCap > 0 {
				m.sum["importance_weight_mean"] += ImportanceWeight(e.turn.Old[i], e.turn.Sampler[i], o.ImportanceCap)
			}
		}
	}
}

// finish turns sums into means.
func (m *metrics) finish(norm, rate float64) map[string]float64 {
	out := map[string]float64{
		"grad_norm": norm, "learning_rate": rate, "tokens": m.tokens, "samples": m.samples, "teacher_fraction": m.teachers / m.samples,
		"clip_fraction": m.clipped / m.tokens, "rehearsal_fraction": m.rehearsals / m.samples,
	}
	for name, v := range m.sum {
		switch name {
		case "loss":
			out[name] = v
		case "reward_mean":
			out[name] = v / (m.samples - m.rehearsals)
		case "logprob_gap", "importance_weight_mean":
			out[name] = v / m.known
		default:
			out[name] = v / m.tokens
		}
	}
	if m.known > 0 {
		out["logprob_gap_max"] = m.gapMax
	}
	return out
}
