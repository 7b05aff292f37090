package report

import (
	"fmt"
	"math"
	"slices"
)

// smoothReach is how many sessions to each side a point of a plot is the mean of.
const smoothReach = 1

// bins bounds the columns of a table over sessions.
const bins = 6

// counts sums first replies by session: [sessions], the first session first.
func (r *Report) counts(match func(FirstReplies) bool) []Counts {
	var out []Counts
	for _, f := range r.First {
		if !match(f) {
			continue
		}
		for len(out) < f.Session {
			out = append(out, Counts{})
		}
		out[f.Session-1] = out[f.Session-1].plus(f.Counts)
	}
	return out
}

// curve is a smoothed share of replies by session.
func curve(s style, counts []Counts, of func(Counts) uint64) line {
	l := line{Style: s}
	var sums, replies []float64
	for i, c := range counts {
		l.X = append(l.X, float64(i+1))
		sums, replies = append(sums, float64(of(c))), append(replies, float64(c.Replies))
	}
	l.Y = smooth(sums, replies, smoothReach)
	return l
}

func satisfiedOf(c Counts) uint64 { return c.Satisfied }

func firstReplies(r *Report) section {
	f := figure{
		Caption: "First replies by session, all runs of an arm together, each point the mean of three sessions. The base model is the frozen arm and every control.",
		Columns: 1 + len(r.Personas),
		Legend:  []legend{{styleSatisfied, "satisfied"}, {styleGuard, "guard passed"}, {styleForm, "form right"}, {styleBase, "base model, satisfied"}},
	}
	longest := 1
	for _, c := range r.First {
		longest = max(longest, c.Session)
	}
	of := func(persona string, c FirstReplies) bool { return persona == all || c.Persona == persona }
	width := (longest + bins - 1) / bins
	t := table{Caption: "Share of satisfied first replies, by sessions", Head: []string{"arm", "persona"}}
	for from := 1; from <= longest; from += width {
		t.Head = append(t.Head, between(from, min(from+width-1, longest)))
	}
	guards := table{Caption: "Share of first replies that the guard let pass, by sessions", Head: slices.Clone(t.Head)}
	for _, arm := range r.Arms {
		for _, persona := range append([]string{all}, r.Personas...) {
			live := r.counts(func(c FirstReplies) bool { return c.Arm == arm && c.Phase == live && of(persona, c) })
			base := r.counts(func(c FirstReplies) bool { return (c.Phase == "control" || c.Arm == frozen) && of(persona, c) })
			f.Panels = append(f.Panels, panel{
				Title: arm + ": " + persona, XLabel: "session", Low: 0, High: 1, XHigh: float64(longest),
				Lines: []line{
					curve(styleBase, base, satisfiedOf), curve(styleForm, live, func(c Counts) uint64 { return c.Preference }),
					curve(styleGuard, live, func(c Counts) uint64 { return c.GuardPassed }), curve(styleSatisfied, live, satisfiedOf),
				},
			}.draw())
			good, passed := []string{arm, persona}, []string{arm, persona}
			for from := 0; from < longest; from += width {
				var sum Counts
				for i := from; i < min(from+width, len(live)); i++ {
					sum = sum.plus(live[i])
				}
				good, passed = append(good, part(sum.Satisfied, sum.Replies)), append(passed, part(sum.GuardPassed, sum.Replies))
			}
			t.add(good...)
			guards.add(passed...)
		}
	}
	why := table{Caption: "Why the guard refused first replies: the most frequent reasons, numbers put as N", Head: []string{"arm", "phase", "reason", "replies"}}
	for _, arm := range r.Arms {
		for _, g := range r.Guard {
			if g.Arm == arm {
				why.add(arm, g.Phase, g.Reason, fmt.Sprint(g.Replies))
			}
		}
	}
	blocks := []block{figureOf(f), tableOf(t), tableOf(guards), r.query(queryFirstReplies), tableOf(why), r.query(queryGuard)}
	return sec("first-replies", "First replies by session", append(blocks, rates(r, live, "all sessions of a run")...)...)
}

func between(from, to int) string {
	if from == to {
		return fmt.Sprint(from)
	}
	return fmt.Sprintf("%d–%d", from, to)
}

func drift(r *Report) section {
	f := figure{
		Caption: "Replies of a session, all turns and runs of an arm: mean log-prob of a token under the base model at temperature 1 (nats), and length (tokens). The base model's are those of the frozen arm.",
		Columns: 4, Legend: []legend{{styleSatisfied, "arm"}, {styleBase, "frozen"}},
	}
	series := func(arm string, s style) (logprob, tokens line) {
		logprob, tokens = line{Style: s}, line{Style: s}
		for _, d := range r.Drift {
			if d.Arm == arm {
				x := float64(d.Session)
				logprob.X, logprob.Y = append(logprob.X, x), append(logprob.Y, value(d.BaseLogprob))
				tokens.X, tokens.Y = append(tokens.X, x), append(tokens.Y, d.Tokens)
			}
		}
		return logprob, tokens
	}
	var everyLogprob, everyTokens []line
	for _, arm := range r.Arms {
		l, n := series(arm, styleSatisfied)
		everyLogprob, everyTokens = append(everyLogprob, l), append(everyTokens, n)
	}
	lowLogprob, highLogprob := span(everyLogprob)
	lowTokens, highTokens := span(everyTokens)
	baseLogprob, baseTokens := series(frozen, styleBase)
	t := table{
		Caption: "First and last session with replies: mean log-prob under the base model (nats a token), and mean length (tokens)",
		Head:    []string{"arm", "log-prob, first", "log-prob, last", "tokens, first", "tokens, last", "last session"},
	}
	for i, arm := range r.Arms {
		f.Panels = append(f.Panels,
			panel{Title: arm + ": log-prob", XLabel: "session", Low: lowLogprob, High: highLogprob, Lines: []line{baseLogprob, everyLogprob[i]}}.draw(),
			panel{Title: arm + ": tokens", XLabel: "session", Low: lowTokens, High: highTokens, Lines: []line{baseTokens, everyTokens[i]}}.draw())
		x := everyTokens[i].X
		if len(x) == 0 {
			t.add(arm, none, none, none, none, none)
			continue
		}
		last := len(x) - 1
		t.add(arm, number(&everyLogprob[i].Y[0], 2), number(&everyLogprob[i].Y[last], 2), number(&everyTokens[i].Y[0], 1), number(&everyTokens[i].Y[last], 1), fmt.Sprint(x[last]))
	}
	return sec("drift", "Drift from the base model", figureOf(f), tableOf(t), r.query(queryDrift), tableOf(sameness(r)), r.query(querySameness))
}

// sameness is the table of what replies have in common.
func sameness(r *Report) table {
	parts := []string{"first half", "second half", "held out", "held out, base"}
	t := table{
		Caption: "Sameness: the share of a first reply's word 3-grams that another one has too, mean over pairs of replies to different problems, any number being the same word; behind the slash, with replies to the other personas. " +
			"One template for everything shows here and in no guard.",
		Head: append([]string{"arm", "persona"}, parts...),
	}
	for _, arm := range r.Arms {
		for _, persona := range r.Personas {
			cells := []string{arm, persona}
			for _, part := range parts {
				i := slices.IndexFunc(r.Sameness, func(s Sameness) bool { return s.Arm == arm && s.Persona == persona && s.Part == part })
				cell := none
				if i >= 0 {
					cell = number(r.Sameness[i].Same, 2) + " / " + number(r.Sameness[i].Across, 2)
				}
				cells = append(cells, cell)
			}
			t.add(cells...)
		}
	}
	return t
}

func updates(r *Report) section {
	metrics := []struct {
		name string
		of   func(Update) *float64
	}{
		{"loss", func(u Update) *float64 { return u.Loss }},
		{"directive loss", func(u Update) *float64 { return u.LossDir }},
		{"KL", func(u Update) *float64 { return u.KL }},
		{"entropy", func(u Update) *float64 { return u.Entropy }},
		{"gradient norm", func(u Update) *float64 { return u.GradNorm }},
		{"reward", func(u Update) *float64 { return u.RewardMean }},
	}
	if len(r.Updates) == 0 {
		return sec("updates", "Updates", text("There was no update."), r.query(queryUpdates), r.query(queryHints))
	}
	f := figure{Caption: "Metrics of an update, mean over the runs of an arm that had one of this number; KL is 0 where the objective has no KL term.", Columns: len(metrics), Legend: []legend{{styleSatisfied, "arm"}}}
	t := table{Caption: "Updates: runs that had any, the most in a run, those that came to nothing (all runs), and first → last", Head: []string{"arm", "runs", "updates", "skipped"}}
	for _, m := range metrics {
		t.Head = append(t.Head, m.name)
	}
	lines := map[string][]line{}
	for _, m := range metrics {
		for _, arm := range r.Arms {
			l := line{Style: styleSatisfied}
			for _, u := range r.Updates {
				if u.Arm == arm {
					l.X, l.Y = append(l.X, float64(u.Number)), append(l.Y, value(m.of(u)))
				}
			}
			lines[m.name] = append(lines[m.name], l)
		}
	}
	for i, arm := range r.Arms {
		var runs, skipped uint64
		most := 0
		for _, u := range r.Updates {
			if u.Arm == arm {
				runs, skipped, most = max(runs, u.Runs), skipped+u.Skipped, max(most, u.Number)
			}
		}
		cells := []string{arm, fmt.Sprint(runs), fmt.Sprint(most), fmt.Sprint(skipped)}
		for _, m := range metrics {
			l := lines[m.name][i]
			low, high := span(lines[m.name])
			if most > 0 {
				f.Panels = append(f.Panels, panel{Title: arm + ": " + m.name, XLabel: "update", Low: low, High: high, Lines: []line{l}}.draw())
			}
			cells = append(cells, ends(l.Y))
		}
		t.add(cells...)
	}
	hints := table{Caption: "Turns with a hint, and with several to select from", Head: []string{"arm", "turns", "with several"}}
	for _, h := range r.Hints {
		hints.add(h.Arm, fmt.Sprint(h.Turns), fmt.Sprint(h.Several))
	}
	return sec("updates", "Updates", figureOf(f), tableOf(t), r.query(queryUpdates), tableOf(hints), r.query(queryHints))
}

// ends are the first and the last finite value.
func ends(values []float64) string {
	values = slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return !finite(v) })
	if len(values) == 0 {
		return none
	}
	return fmt.Sprintf("%.3f → %.3f", values[0], values[len(values)-1])
}

func value(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}
