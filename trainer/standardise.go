package trainer

import "math"

// Steps are the step rewards of one sample of a group: Rewards[i] belongs to the step with index Indices[i] (algorithm, section 2).
type Steps struct {
	Group   string
	Rewards []float64
	Indices []int
}

const (
	stdFloor       = 1e-6
	varianceFloor  = 1e-12
	soleBucketSize = 1
)

// Standardise replaces each reward by (x - mean) / (population std + 1e-6) within its bucket (group, step index). A bucket of one keeps the raw value; a
// constant bucket is dropped, but when a group's buckets would all go, the first seen stays (its values become 0). A sample that is left without a step is
// not trained. The arguments stay as they are.
func Standardise(samples []Steps) []Steps {
	type bucket struct {
		group string
		index int
	}
	values := map[bucket][]float64{}
	var order []bucket
	for _, s := range samples {
		for i, r := range s.Rewards {
			b := bucket{s.Group, s.Indices[i]}
			if values[b] == nil {
				order = append(order, b)
			}
			values[b] = append(values[b], r)
		}
	}
	type moments struct {
		mean, std float64
		raw, drop bool
	}
	stats := map[bucket]moments{}
	kept := 0
	for _, b := range order {
		m := moments{raw: len(values[b]) == soleBucketSize}
		var variance float64
		m.mean, variance = meanVariance(values[b])
		m.std = math.Sqrt(variance)
		m.drop = !m.raw && variance <= varianceFloor
		if !m.drop {
			kept++
		}
		stats[b] = m
	}
	if kept == 0 && len(order) > 0 {
		m := stats[order[0]]
		m.drop = false
		stats[order[0]] = m
	}
	out := make([]Steps, len(samples))
	for n, s := range samples {
		out[n].Group = s.Group
		for i, r := range s.Rewards {
			m := stats[bucket{s.Group, s.Indices[i]}]
			if m.drop {
				continue
			}
			if !m.raw {
				r = (r - m.mean) / (m.std + stdFloor)
			}
			out[n].Rewards, out[n].Indices = append(out[n].Rewards, r), append(out[n].Indices, s.Indices[i])
		}
	}
	return out
}

func meanVariance(x []float64) (mean, variance float64) {
	for _, v := range x {
		mean += v
	}
	mean /= float64(len(x))
	for _, v := range x {
		variance += (v - mean) * (v - mean)
	}
	return mean, variance / float64(len(x))
}
