package report

import (
	"fmt"
	"slices"
	"strings"
)

// compose puts what was found into words, tables and plots, what to know before any figure first.
func compose(r *Report, in Input) document {
	return document{Title: "Does it learn? Sessions to alignment", Sections: []section{
		opening(r, in), runs(r), alignment(r), firstReplies(r), newProblems(r), drift(r), updates(r), offDiagonal(r), chance(r), samples(r), seconds(r),
	}}
}

func opening(r *Report, in Input) section {
	words := func(of func(Run) string) string { return strings.Join(distinct(r.Runs, of), " | ") }
	blocks := []block{
		text("Scripted users talk to one policy that learns from what they say. Each has a wish about the form of a reply, and corrects what it does not like. " +
			"The measure is the session of the first of three satisfied first replies in a row: the form is right, and the guard lets the reply pass."),
		{List: []string{
			"Base model: " + words(func(run Run) string { return run.BaseModel }),
			fmt.Sprintf("Arms: %s; runs: %d; seeds: %s", strings.Join(r.Arms, ", "), len(r.Runs), strings.Join(seedsOf(r), ", ")),
			"Users at once: " + strings.Join(r.Personas, ", "),
			fmt.Sprintf("Problems: the %s half; at most %s sessions", words(func(run Run) string { return run.Half }), words(func(run Run) string { return fmt.Sprint(run.Cap) })),
			fmt.Sprintf("Intervals: 95 %%, percentile bootstrap over seeds, %d resamples, seed %d", resamples, r.Seed),
		}},
		text("What to know before any figure:"),
		{List: r.Caveats},
	}
	bars := table{Caption: "The bars of the project, and what was found", Head: []string{"bar", "found", "verdict"}}
	for _, b := range r.Bars {
		bars.add(b.Bar, b.Found, b.Verdict)
	}
	blocks = append(blocks, tableOf(bars))
	if in.Command != "" {
		blocks = append(blocks, block{Code: &code{"The command that repeats this", in.Command}})
	}
	return sec("summary", "Settings and caveats", blocks...)
}

func seedsOf(r *Report) []string {
	seen := map[uint64]bool{}
	for _, run := range r.Runs {
		seen[run.Seed] = true
	}
	var all []string
	for _, seed := range sortedKeys(seen) {
		all = append(all, fmt.Sprint(seed))
	}
	return all
}

func runs(r *Report) section {
	t := table{Caption: "Every run; sessions to alignment as the run itself said them", Head: []string{"run", "arm", "seed", "ended by", "sessions held", "updates", joint}}
	t.Head = append(t.Head, r.Personas...)
	var settings strings.Builder
	shown := map[string]bool{}
	for _, run := range r.Runs {
		outcome := "not ended"
		if run.Outcome != nil {
			outcome = *run.Outcome
		}
		cells := []string{run.Tenant, run.Arm, fmt.Sprint(run.Seed), outcome, optional(run.Sessions), optional(run.Updates)}
		for _, target := range r.targets() {
			cell := none
			if at, ok := run.AlignedAt[target]; ok {
				cell = fmt.Sprint(at)
			}
			cells = append(cells, cell)
		}
		t.add(cells...)
		if key := run.Arm + "\x00" + run.Settings; !shown[key] {
			shown[key] = true
			fmt.Fprintf(&settings, "%s: %s\n", run.Arm, run.Settings)
		}
	}
	return sec("runs", "Runs", tableOf(t), block{Code: &code{"What each arm sets", settings.String()}}, r.query(queryRuns))
}

func alignment(r *Report) section {
	f := figure{
		Caption: "Mean sessions to alignment with its interval; small marks are seeds; an open dot is a lower bound, because runs did not align within the cap. The dashed line is the bar.",
		Columns: 2,
	}
	t := table{Caption: "Sessions to alignment: mean over seeds [95 % interval]", Head: append([]string{"arm"}, r.aims()...)}
	for _, target := range r.aims() {
		chart := forest{Title: target, High: float64(max(r.limit(), 1))}
		if target == joint {
			chart.Mark = barSessions
		}
		for _, arm := range r.Arms {
			a := r.alignmentOf(arm, target)
			chart.Rows = append(chart.Rows, forestArm{arm, a.Sessions, valuesOf(a.BySeed)})
		}
		f.Panels = append(f.Panels, chart.draw())
	}
	for _, arm := range r.Arms {
		cells := []string{arm}
		for _, target := range r.aims() {
			cells = append(cells, sessions(r.alignmentOf(arm, target).Sessions))
		}
		t.add(cells...)
	}
	blocks := []block{figureOf(f), tableOf(t)}
	for _, against := range []string{hybrid, frozen} {
		if slices.Contains(r.Arms, against) && len(r.Arms) > 1 {
			blocks = append(blocks, tableOf(compared(r, "sessions", against, r.aims(), "Sessions to alignment, arm minus "+against+" over the same seeds (below 0: the arm is faster)")))
		}
	}
	return sec("alignment", "Sessions to alignment", append(blocks, r.query(queryAlignment))...)
}

// compared is the table of one metric's paired differences to one arm.
func compared(r *Report, metric, against string, targets []string, caption string) table {
	t := table{Caption: caption, Head: append([]string{"arm"}, targets...)}
	for _, arm := range r.Arms {
		if arm == against {
			continue
		}
		cells := []string{arm}
		for _, target := range targets {
			cell := none
			if c := r.comparison(metric, target, arm, against); c != nil {
				cell = signed(c.Difference)
			}
			cells = append(cells, cell)
		}
		t.add(cells...)
	}
	return t
}

// rates are the tables of one phase: the shares, and the differences to some arms.
func rates(r *Report, phase, where string) []block {
	targets := append([]string{all}, r.Personas...)
	var blocks []block
	for _, what := range []struct {
		caption string
		of      func(*Rate) *Estimate
	}{
		{"Satisfied (form and guard), " + where + ": mean over seeds [95 % interval]", func(h *Rate) *Estimate { return h.Satisfied }},
		{"The guard lets the reply pass, " + where, func(h *Rate) *Estimate { return h.Guard }},
		{"The form is right, whatever the guard says, " + where, func(h *Rate) *Estimate { return h.Preference }},
	} {
		t := table{Caption: what.caption, Head: slices.Concat([]string{"arm"}, targets, []string{"replies"})}
		for _, arm := range append(slices.Clip(r.Arms), control) {
			h := r.rateOf(phase, arm, all)
			if h == nil {
				continue
			}
			cells := []string{arm}
			for _, target := range targets {
				cell := none
				if h := r.rateOf(phase, arm, target); h != nil {
					cell = share(what.of(h))
				}
				cells = append(cells, cell)
			}
			t.add(append(cells, fmt.Sprint(h.Replies))...)
		}
		blocks = append(blocks, tableOf(t))
	}
	for _, against := range []string{hybrid, frozen, control} {
		if r.rateOf(phase, against, all) != nil && slices.ContainsFunc(r.Arms, func(arm string) bool { return arm != against }) {
			blocks = append(blocks, tableOf(compared(r, phase, against, targets, "Satisfied, "+where+", arm minus "+against+" over the same seeds (above 0: the arm is better)")))
		}
	}
	return append(blocks, r.query(queryRates))
}

func newProblems(r *Report) section {
	if !slices.ContainsFunc(r.Rates, func(h Rate) bool { return h.Phase == heldOut }) {
		return sec("held-out", "New problems", text("There was no held-out check."), r.query(queryRates))
	}
	return sec("held-out", "New problems", append([]block{
		text("After the last session: first replies to problems that no session was about, by the newest version, and by the base model on the same problems."),
	}, rates(r, heldOut, "new problems")...)...)
}
