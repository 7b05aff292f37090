package trainer

// leaveOneOut gives each judged sample of a minibatch its baseline: the mean reward of the other judged ones, once scaled (Kool et al., "Buy 4 REINFORCE
// samples, get a baseline for free!"). It does not depend on the sample's own reward, so it adds no bias. A sole judged sample has none, and neither have samples that
// nobody judged: their reward of 0 is no verdict.
func (o Objective) leaveOneOut(examples []*example) {
	sum, judged := 0.0, 0.0
	for _, e := range examples {
		if e.judged {
			sum += o.scaled(e.turn.Reward)
			judged++
		}
	}
	for _, e := range examples {
		if e.judged && judged > 1 {
			e.turn.Baseline = (sum - o.scaled(e.turn.Reward)) / (judged - 1)
		}
	}
}
