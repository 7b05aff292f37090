package report

import (
	"fmt"
	"slices"
	"strings"
)

// caveatsOf is what a reader has to know before any figure.
func caveatsOf(r *Report, in Input, rows []alignmentRow) []string {
	caveats := slices.Clone(in.Notes)
	add := func(format string, args ...any) { caveats = append(caveats, fmt.Sprintf(format, args...)) }
	for _, c := range []func(*Report, func(string, ...any)){caveatSeeds, caveatEnds, caveatSettings, caveatMissing, caveatHints} {
		c(r, add)
	}
	for _, row := range rows {
		i := slices.IndexFunc(r.Runs, func(run Run) bool { return run.Tenant == row.Tenant })
		said, known := r.Runs[i].AlignedAt[row.Persona]
		switch {
		case r.Runs[i].Outcome == nil:
		case known && row.AlignedAt == nil:
			add("Run %s says that %s was aligned in session %d; its replies in the history do not. The replies count here.", row.Tenant, row.Persona, said)
		case row.AlignedAt != nil && said != *row.AlignedAt:
			add("Run %s says session %d of %s (0: not aligned); its replies in the history say %d, which counts here.", row.Tenant, said, row.Persona, *row.AlignedAt)
		}
	}
	add("The guard is mechanical: length, repetition, topic, refusals, fluency. It does not know whether the arithmetic is right. Read the samples.")
	return caveats
}

func caveatSeeds(r *Report, add func(string, ...any)) {
	seeds := map[string][]uint64{}
	for _, run := range r.Runs {
		if run.Outcome != nil {
			seeds[run.Arm] = append(seeds[run.Arm], run.Seed)
		}
	}
	var single, few []string
	for _, arm := range r.Arms {
		switch n := len(seeds[arm]); {
		case n == 1:
			single = append(single, arm)
		case n > 1 && n < barSeeds:
			few = append(few, fmt.Sprintf("%s (%d)", arm, n))
		}
	}
	if len(single) > 0 {
		add("One seed only, so there is no interval and a difference proves nothing: %s.", strings.Join(single, ", "))
	}
	if len(few) > 0 {
		add("An interval by bootstrap over so few seeds is too narrow, and one of zero length says only that the seeds agree: %s.", strings.Join(few, ", "))
	}
	for _, reference := range []string{hybrid, frozen} {
		var apart []string
		for _, arm := range r.Arms {
			common := slices.ContainsFunc(seeds[arm], func(s uint64) bool { return slices.Contains(seeds[reference], s) })
			if slices.Contains(r.Arms, reference) && !common {
				apart = append(apart, arm)
			}
		}
		if len(apart) > 0 {
			add("No ended seed in common with %s, so not compared to it: %s.", reference, strings.Join(apart, ", "))
		}
		if !slices.Contains(r.Arms, reference) {
			add("There is no arm %s to compare with.", reference)
		}
	}
}

// selecting are the arms that differ from hybrid by which of several hints they select.
var selecting = []string{"random-hint", "token-optimal", "sequence-optimal"}

func caveatHints(r *Report, add func(string, ...any)) {
	var alike []string
	for _, h := range r.Hints {
		if h.Several == 0 && slices.ContainsFunc(selecting, func(name string) bool { return h.Arm == name || strings.HasPrefix(h.Arm, name+"-") }) {
			alike = append(alike, h.Arm)
		}
	}
	if len(alike) > 0 {
		add("No turn had several hints to select from, so these arms are the same as %s, and differ from it by chance only: %s.", hybrid, strings.Join(alike, ", "))
	}
}

func caveatEnds(r *Report, add func(string, ...any)) {
	ended, censored, timed, open := 0, 0, 0, []string{}
	for _, run := range r.Runs {
		switch {
		case run.Outcome == nil:
			open = append(open, run.Tenant)
			continue
		case *run.Outcome == "time":
			timed++
		}
		ended++
	}
	for _, arm := range r.Arms {
		if a := r.alignmentOf(arm, joint); a != nil && a.Sessions != nil {
			censored += a.Sessions.Censored
		}
	}
	if censored > 0 {
		add("%d of %d runs did not align jointly. They count as the cap of sessions (%d at most), so a mean with such runs is a lower bound, marked ≥, and a difference between arms that have some is drawn towards 0.",
			censored, ended, r.limit())
	}
	if timed > 0 {
		add("%d of %d runs were ended by the limit of time before the cap; they count as not aligned, too.", timed, ended)
	}
	if len(open) > 0 {
		add("Not ended, and left out of all means over seeds: %s. Their replies are in the plots.", strings.Join(open, ", "))
	}
	add("A run ends when all its personas are aligned: later sessions in the plots come from the runs that took longer, which makes them look worse than an arm is.")
}

func caveatSettings(r *Report, add func(string, ...any)) {
	for _, what := range []struct {
		name string
		of   func(Run) string
	}{
		{"cap of sessions", func(run Run) string { return fmt.Sprint(run.Cap) }},
		{"half", func(run Run) string { return run.Half }},
		{"base model", func(run Run) string { return run.BaseModel }},
		{"personas", func(run Run) string { return strings.Join(run.Personas, ", ") }},
	} {
		if values := distinct(r.Runs, what.of); len(values) > 1 {
			add("The runs differ in their %s: %s. Compare with care.", what.name, strings.Join(values, " | "))
		}
	}
	if slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Half == "tuning" }) {
		add("Runs of the tuning half: settings were chosen on these problems, so the figures flatter.")
	}
}

func caveatMissing(r *Report, add func(string, ...any)) {
	var without, unchecked, still []string
	for _, arm := range r.Arms {
		if r.rateOf(heldOut, arm, all) == nil {
			without = append(without, arm)
		}
		if !slices.ContainsFunc(r.Drift, func(d Drift) bool { return d.Arm == arm && d.BaseLogprob != nil }) {
			unchecked = append(unchecked, arm)
		}
		if !r.learns(arm) && arm != frozen && arm != "memory" {
			still = append(still, arm)
		}
	}
	if len(without) > 0 {
		add("No held-out check: %s.", strings.Join(without, ", "))
	}
	if len(unchecked) > 0 {
		add("Fluency under the base model was not measured: %s.", strings.Join(unchecked, ", "))
	}
	if len(still) > 0 {
		add("Not one update came of these arms, so their policy is the base model: %s.", strings.Join(still, ", "))
	}
}

// distinct are the different values, in the order of the runs.
func distinct(runs []Run, of func(Run) string) []string {
	var values []string
	for _, run := range runs {
		if v := of(run); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}
