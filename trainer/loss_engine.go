package trainer

import (
	"fmt"
	"math"
)

// EngineLoss names a loss that external training engines compute, a sum over tokens (algorithm, section 6).
type EngineLoss string

// The losses, written as the engines define them; low and high are ABSOLUTE ratios there.
const (
	LossImportanceSampling EngineLoss = "importance_sampling"
	LossPPO                EngineLoss = "ppo"
	LossCISPO              EngineLoss = "cispo"
)

// Token is the loss of one token with its derivative by the current log-prob.
func (k EngineLoss) Token(cur, old, advantage, low, high float64) (loss, grad float64, err error) {
	rho := math.Exp(cur - old)
	bounded := math.Max(low, math.Min(high, rho))
	switch k {
	case LossImportanceSampling:
		return -rho * advantage, -rho * advantage, nil
	case LossPPO:
		if bounded*advantage < rho*advantage {
			return -bounded * advantage, 0, nil
		}
		return -rho * advantage, -rho * advantage, nil
	case LossCISPO:
		return -bounded * advantage * cur, -bounded * advantage, nil
	}
	return 0, 0, fmt.Errorf("loss %q: use importance_sampling, ppo or cispo", string(k))
}
