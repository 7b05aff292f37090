package bench

import (
	"cmp"
	"context"
	"math"
	"os"
	"runtime"
	"slices"
)

// measure does its work once and returns the figure.
type measure func(ctx context.Context) (float64, error)

// rounds are the figures of both sides, round by round, and the CPU seconds that each took, servers included: they tell more than the clock where
// other programs compete for the machine.
type rounds struct{ subject, baseline, subjectCPU, baselineCPU []float64 }

// compare runs subject and baseline in alternation, changing who goes first, after one uncounted round each.
func (e *Env) compare(ctx context.Context, name, unit string, subject, baseline measure) (rounds, error) {
	var r rounds
	for i := range e.runs() + 1 {
		sides := []struct {
			of, cpu *[]float64
			what    string
			run     measure
		}{{&r.subject, &r.subjectCPU, name, subject}, {&r.baseline, &r.baselineCPU, "baseline", baseline}}
		if i%2 == 1 {
			slices.Reverse(sides)
		}
		for _, side := range sides {
			runtime.GC() // what one side left behind is not the other's to clean up
			before, err := cpuSeconds()
			if err != nil {
				return r, err
			}
			v, err := side.run(ctx)
			if err != nil {
				return r, err
			}
			after, err := cpuSeconds()
			if err != nil {
				return r, err
			}
			if i == 0 {
				e.note("warming up  %-9s %12.2f %s", side.what, v, unit)
				continue
			}
			e.note("round %d/%d  %-9s %12.2f %s, %.1f s of CPU time", i, e.runs(), side.what, v, unit, after-before)
			*side.of, *side.cpu = append(*side.of, v), append(*side.cpu, after-before)
		}
	}
	return r, nil
}

// higher makes the result of a figure that is better when it is higher.
func (r rounds) higher(name, unit string, extra map[string]any) Result {
	m := Result{Name: name, Unit: unit, Value: median(r.subject), Baseline: median(r.baseline), Extra: extra}
	if m.Baseline > 0 {
		m.Ratio = m.Value / m.Baseline
	}
	if m.Extra == nil {
		m.Extra = map[string]any{}
	}
	m.Extra["rounds"], m.Extra["baseline_rounds"] = rounded(r.subject), rounded(r.baseline)
	cpu, baseline := median(r.subjectCPU), median(r.baselineCPU)
	m.Extra["cpu_seconds"], m.Extra["baseline_cpu_seconds"] = cpu, baseline
	if cpu > 0 {
		m.Extra["cpu_ratio"] = baseline / cpu
	}
	return m
}

// cpuSeconds is the user and system time so far of this process and the servers that it has started.
func cpuSeconds() (sum float64, err error) {
	processes, err := descend(os.Getpid())
	for _, p := range processes {
		sum += p.cpuSeconds
	}
	return sum, err
}

// lower makes the result of a figure that is better when it is lower.
func lower(name, unit string, value, baseline float64, extra map[string]any) Result {
	m := Result{Name: name, Unit: unit, Value: value, Baseline: baseline, Extra: extra}
	if value > 0 {
		m.Ratio = baseline / value
	}
	return m
}

func median(v []float64) float64 { return percentile(v, 50) }

// percentile is the smallest value that at least p percent of the values do not exceed; 0 of none.
func percentile[T cmp.Ordered](v []T, p float64) T {
	var zero T
	if len(v) == 0 {
		return zero
	}
	sorted := slices.Sorted(slices.Values(v))
	i := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func rounded(v []float64) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = math.Round(x*100) / 100
	}
	return out
}
