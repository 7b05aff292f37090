package trainer

import (
	"context"
	"math"
	"slices"
)

// halvingsMax bounds how often a step is halved; one that is too far even then is not made.
const halvingsMax = 10

// restrain keeps the update within its trust region: it halves the step from before to out.Adapter until the mean KL(old || new) of a trained token is at
// most MaxKL. moved is that KL at before. The optimizer's moments stay: they are means of gradients, which a shorter step does not change.
func (u Update) restrain(ctx context.Context, engine Engine, parts []part, out *Updated, before *Adapter, moved float64) error {
	step := out.Adapter
	for halvings, scale := 0, 1.0; halvings <= halvingsMax; halvings, scale = halvings+1, scale/2 {
		if halvings > 0 {
			out.Adapter = before.towards(step, scale)
		}
		kl, err := drift(ctx, engine, out.Adapter, parts)
		if err != nil {
			return err
		}
		if kl <= u.MaxKL { // never with NaN
			out.Metrics["step_kl"], out.Metrics["step_scale"] = kl, scale
			return nil
		}
	}
	out.Adapter = before
	out.Metrics["step_kl"], out.Metrics["step_scale"] = moved, 0
	return nil
}

// drift is the mean KL(old || a) of the trained tokens, nats: over the tokens that the losses look at and one bin for all the rest, so at most the KL over
// the whole vocabulary.
func drift(ctx context.Context, engine Engine, a *Adapter, parts []part) (float64, error) {
	sum, tokens := 0.0, 0.0
	for _, p := range parts {
		now, _, err := engine.Logprobs(ctx, a, p.sequences)
		if err != nil {
			return 0, err
		}
		for n, e := range p.examples {
			for i, wanted := range e.sequence.Wanted {
				var ids []uint32
				var old []float64
				for k, id := range wanted {
					if !slices.Contains(ids, id) {
						ids, old = append(ids, id), append(old, float64(e.old[i][k]))
					}
				}
				current := e.lookup(now[n])
				kl, _ := ForwardKL(ids, old, func(id uint32) float64 { return current(i, id) })
				sum += e.turn.mask(i) * kl
				tokens += e.turn.mask(i)
			}
		}
	}
	return sum / math.Max(1, tokens), nil
}
