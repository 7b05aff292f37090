package report

import "math"

// inRow is how many satisfied first replies in a row count as alignment.
const inRow = 3

// Luck is what chance alone would give to one persona, or to all of them jointly.
type Luck struct {
	Persona string `json:"persona"`
	// Satisfied of Replies of the base model, and Rate, their share, with its 95 % interval (Wilson). Absent for joint.
	Satisfied uint64   `json:"satisfied,omitempty"`
	Replies   uint64   `json:"replies,omitempty"`
	Rate      *float64 `json:"rate,omitempty"`
	RateLow   *float64 `json:"rate_low,omitempty"`
	RateHigh  *float64 `json:"rate_high,omitempty"`
	// Aligned is the probability of alignment within the cap at Rate, AlignedHigh at RateHigh.
	Aligned     float64 `json:"aligned"`
	AlignedHigh float64 `json:"aligned_high"`
	// Sessions is the expected number of sessions when those who do not align count as the cap.
	Sessions float64 `json:"sessions"`
	// Uncapped is the expected session without a cap; absent: luck never comes, or for joint.
	Uncapped *float64 `json:"uncapped,omitempty"`
}

// alignments is the distribution of the session of the first of inRow satisfied first replies in a row, when every first reply satisfies with probability p,
// independently. [limit+1]: at i, the probability that it is session i; the whole row must lie within the limit. What is missing to 1 is the probability of no
// alignment. An exact walk of the chain whose state is how many were satisfied in a row.
func alignments(p float64, limit int) []float64 {
	at := make([]float64, limit+1)
	state := [inRow]float64{1}
	for session := 1; session <= limit; session++ {
		var next [inRow]float64
		for have, q := range state {
			next[0] += q * (1 - p)
			switch {
			case have+1 < inRow:
				next[have+1] += q * p
			case session >= inRow: // before, nothing is in this state
				at[session-inRow+1] += q * p
			}
		}
		state = next
	}
	return at
}

// largest is the distribution of the largest of independent sessions to alignment: all have to align. Empty without any.
func largest(all [][]float64) []float64 {
	if len(all) == 0 {
		return nil
	}
	out := make([]float64, len(all[0]))
	before := 0.0
	sums := make([]float64, len(all))
	for i := range out {
		product := 1.0
		for j, d := range all {
			sums[j] += d[i]
			product *= sums[j]
		}
		out[i], before = product-before, product
	}
	return out
}

// total is the probability of any alignment, and the expected number of sessions when none counts as the cap.
func total(at []float64) (aligned, sessions float64) {
	for i, p := range at {
		aligned += p
		sessions += p * float64(i)
	}
	return aligned, sessions + (1-aligned)*float64(len(at)-1)
}

// uncapped is the expected session of the first of the row without a cap (the waiting time for a run of successes, less the rest of the run).
func uncapped(p float64) (float64, bool) {
	if p <= 0 {
		return 0, false
	}
	if p >= 1 {
		return 1, true
	}
	run := math.Pow(p, inRow)
	return (1-run)/((1-p)*run) - (inRow - 1), true
}

// luck makes the table of chance: one line a persona, and one for all of them when there are several.
func luck(rates []baseRate, limit int) []Luck {
	var lines []Luck
	var all, high [][]float64
	for _, r := range rates {
		if r.Replies == 0 {
			continue
		}
		rate := float64(r.Satisfied) / float64(r.Replies)
		low, top := wilson(r.Satisfied, r.Replies)
		at, atHigh := alignments(rate, limit), alignments(top, limit)
		line := Luck{Persona: r.Persona, Satisfied: r.Satisfied, Replies: r.Replies, Rate: &rate, RateLow: &low, RateHigh: &top}
		line.Aligned, line.Sessions = total(at)
		line.AlignedHigh, _ = total(atHigh)
		if n, ok := uncapped(rate); ok {
			line.Uncapped = &n
		}
		lines, all, high = append(lines, line), append(all, at), append(high, atHigh)
	}
	if len(lines) > 1 {
		joint := Luck{Persona: joint}
		joint.Aligned, joint.Sessions = total(largest(all))
		joint.AlignedHigh, _ = total(largest(high))
		lines = append(lines, joint)
	}
	return lines
}
