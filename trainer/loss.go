package trainer

import "math"

// logRatioMax bounds log-ratios before exp; outside there is no gradient (algorithm, section 6).
const logRatioMax = 20

// Surrogate is PPO's clipped loss of one token, with its derivative by the current log-prob (algorithm, section 6; PPO, equation 7):
//
//	L(rho, A) = max(-A*rho, -A*clip(rho, 1-low, 1+high)), rho = exp(clamp(cur-old, -20, 20))
//
// clipped says that the clipped arm won, where the gradient is zero.
func Surrogate(cur, old, advantage, low, high float64) (loss, grad float64, clipped bool) {
	d := cur - old // nats
	rho := math.Exp(math.Max(-logRatioMax, math.Min(logRatioMax, d)))
	free := -advantage * rho
	bound := -advantage * math.Max(1-low, math.Min(1+high, rho))
	if bound > free {
		return bound, 0, true
	}
	if d < -logRatioMax || d > logRatioMax {
		return free, 0, false
	}
	return free, free, false // d(-A*exp(d))/d cur
}

// KLKind names an estimator of the KL divergence to a reference.
type KLKind string

// The estimators (algorithm, section 6). KLLowVar clamps the value to at most 10, without gradient there.
const (
	KLK3     KLKind = "k3"
	KLLowVar KLKind = "low_var_kl"
)

// klLowVarMax bounds the value of KLLowVar.
const klLowVarMax = 10

// KL estimates the divergence of one token to a reference, with its derivative by the current log-prob (Schulman's k3):
// exp(d) - d - 1 with d = clamp(ref-cur, -20, 20).
func KL(kind KLKind, cur, ref float64) (kl, grad float64) {
	raw := ref - cur
	d := math.Max(-logRatioMax, math.Min(logRatioMax, raw))
	e := math.Exp(d)
	kl = e - d - 1
	if raw == d {
		grad = 1 - e
	}
	if kind == KLLowVar && kl > klLowVarMax {
		return klLowVarMax, 0
	}
	return kl, grad
}

// ImportanceWeight is the truncated weight of an off-policy token (detached): min(exp(old-sampler), limit) (algorithm, section 6).
func ImportanceWeight(old, sampler, limit float64) float64 {
	return math.Min(math.Exp(old-sampler), limit)
}
