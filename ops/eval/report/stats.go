package report

import (
	"math"
	"math/rand/v2"
	"slices"
)

// resamples of a bootstrap: enough that the ends of an interval move by less than a hundredth of its length from seed to seed.
const resamples = 10_000

// Estimate is a mean over seeds with its interval.
type Estimate struct {
	Mean float64 `json:"mean"`
	// Low and High are the 95 % interval by bootstrap over seeds; absent for one seed.
	Low  *float64 `json:"low,omitempty"`
	High *float64 `json:"high,omitempty"`
	// N counts seeds, Censored those whose value is only a lower bound.
	N        int `json:"n"`
	Censored int `json:"censored,omitempty"`
}

// estimate is the mean of values, one a seed, with its interval: the 2.5th and the 97.5th percentile of the means of resamples of the values with
// replacement (Efron's percentile bootstrap). Values that are not finite are left out. Nil: there are none. Pure: the same values and seed give the same.
func estimate(values []float64, seed uint64) *Estimate {
	values = slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(values) == 0 {
		return nil
	}
	e := &Estimate{Mean: mean(values), N: len(values)}
	if len(values) == 1 {
		return e
	}
	random := rand.New(rand.NewPCG(seed, 0x626f6f74)) //nolint:gosec // statistics
	means := make([]float64, resamples)
	for i := range means {
		sum := 0.0
		for range values {
			sum += values[random.IntN(len(values))]
		}
		means[i] = sum / float64(len(values))
	}
	slices.Sort(means)
	low, high := means[resamples*25/1000], means[resamples*975/1000-1]
	e.Low, e.High = &low, &high
	return e
}

// paired is the mean difference a - b over the seeds that both have, with its interval: seeds are resampled, never a and b apart, because the runs of one
// seed share their problems and words. Nil: no seed in common.
func paired(a, b map[uint64]float64, seed uint64) *Estimate {
	var differences []float64
	for _, s := range sortedKeys(a) {
		if other, ok := b[s]; ok {
			differences = append(differences, a[s]-other)
		}
	}
	return estimate(differences, seed)
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// wilson is the 95 % interval of a share of k in n (Wilson's score interval), right also where k is 0 or n. n must be positive.
func wilson(k, n uint64) (low, high float64) {
	const z = 1.959964
	p, m := float64(k)/float64(n), float64(n)
	center, half := p+z*z/(2*m), z*math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	scale := 1 + z*z/m
	return max(0, (center-half)/scale), min(1, (center+half)/scale)
}

// smooth is the mean over a window of 2*reach+1 neighbours, weighted by how many replies each stands for; at the ends the window is what there is of it.
func smooth(sums, counts []float64, reach int) []float64 {
	out := make([]float64, len(sums))
	for i := range sums {
		sum, n := 0.0, 0.0
		for j := max(0, i-reach); j <= min(len(sums)-1, i+reach); j++ {
			sum, n = sum+sums[j], n+counts[j]
		}
		out[i] = math.NaN()
		if n > 0 {
			out[i] = sum / n
		}
	}
	return out
}

func sortedKeys[V any](m map[uint64]V) []uint64 {
	keys := make([]uint64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
