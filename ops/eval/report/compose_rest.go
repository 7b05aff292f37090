package report

import (
	"cmp"
	"fmt"
	"slices"
)

func offDiagonal(r *Report) section {
	t := table{
		Caption: "A persona's first replies, in one session → in the next, by whose hints were trained between the two",
		Head:    []string{"arm", "replies to", "hints of", "pairs", "form right", "guard passed"},
	}
	for _, arm := range r.Arms {
		for _, o := range r.OffDiag {
			if o.Arm != arm {
				continue
			}
			whose := o.Teacher
			switch whose {
			case "":
				whose = "nobody"
			case o.Persona:
				whose += " (own)"
			}
			t.add(arm, o.Persona, whose, fmt.Sprint(o.Pairs), change(o.PreferenceBefore, o.PreferenceAfter, o.Pairs), change(o.GuardBefore, o.GuardAfter, o.Pairs))
		}
	}
	blocks := []block{
		text("What one user's hints do to another user's replies. A line with another's hints counts only pairs of sessions between which the persona's own hints were not trained. " +
			"It is an association: several users' hints often share an update, and then a pair counts for each of them."),
		tableOf(t), r.query(queryOffDiagonal),
	}
	if len(r.Rehearsals) > 0 {
		t := table{
			Caption: "Rehearsals of standing hints: means, and the guard on held-out replies before and after, as the rehearsals measured it",
			Head:    []string{"arm", "runs", "rehearsals", "samples each", "guard before", "guard after", "guard fell", "without an update"},
		}
		for _, arm := range r.Arms {
			for _, h := range r.Rehearsals {
				if h.Arm == arm {
					t.add(arm, fmt.Sprint(h.Runs), fmt.Sprint(h.Rehearsals), number(&h.Samples, 1), number(h.GuardBefore, 2), number(h.GuardAfter, 2), fmt.Sprint(h.GuardFell), fmt.Sprint(h.WithoutUpdate))
				}
			}
		}
		blocks = append(blocks, tableOf(t))
	}
	return sec("off-diagonal", "One user's hints, another user's replies", append(blocks, r.query(queryRehearsals))...)
}

// change is a share before and after.
func change(before, after, n uint64) string {
	return fmt.Sprintf("%.2f → %.2f", float64(before)/float64(n), float64(after)/float64(n))
}

func chance(r *Report) section {
	if len(r.Chance) == 0 {
		return sec("chance", "What luck alone gives", text("No first reply of the base model was judged: the arm frozen, or a control, is needed for this table."), r.query(queryChance))
	}
	t := table{
		Caption: fmt.Sprintf("Probability that the base model is called aligned within %d sessions, and the sessions that luck takes", r.limit()),
		Head:    []string{"persona", "satisfied", "rate [95 % interval]", "aligned by luck", "at the upper end of the rate", "expected sessions, cap counted", "expected session, no cap"},
	}
	for _, l := range r.Chance {
		counts, rate := none, none
		if l.Rate != nil {
			counts, rate = fmt.Sprintf("%d of %d", l.Satisfied, l.Replies), fmt.Sprintf("%.3f [%.3f, %.3f]", *l.Rate, *l.RateLow, *l.RateHigh)
		}
		t.add(l.Persona, counts, rate, fmt.Sprintf("%.4f", l.Aligned), fmt.Sprintf("%.4f", l.AlignedHigh), fmt.Sprintf("%.1f", l.Sessions), number(l.Uncapped, 1))
	}
	return sec("chance", "What luck alone gives",
		text("The base model's rate on first replies (the arm frozen, and controls), taken as independent from session to session, in an exact chain of how many were satisfied in a row. "+
			"The interval of the rate is Wilson's."), tableOf(t), r.query(queryChance))
}

func samples(r *Report) section {
	blocks := []block{text(fmt.Sprintf("Drawn by lot with seed %d, three a persona and arm: before, first replies of the first session; after, replies to new problems, or, where there was no such check, first replies of the last session.", r.Seed))}
	for _, arm := range r.Arms {
		of := slices.DeleteFunc(slices.Clone(r.Samples), func(s Sample) bool { return s.Arm != arm })
		if len(of) > 0 {
			blocks = append(blocks, block{Samples: of})
		}
	}
	return sec("samples", "Replies before and after", append(blocks, r.query(querySamples))...)
}

func seconds(r *Report) section {
	// The order in which a run tells them; others come after, by name.
	known := []string{"start", "decode", "talk", "signals", "training", "serving", "rehearsal", "held_out", "other", "total"}
	var parts []string
	for _, s := range r.Seconds {
		for part := range s.Parts {
			if !slices.Contains(parts, part) {
				parts = append(parts, part)
			}
		}
	}
	place := func(part string) int {
		if i := slices.Index(known, part); i >= 0 {
			return i
		}
		return len(known)
	}
	slices.SortFunc(parts, func(a, b string) int { return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b)) })
	t := table{Caption: "Seconds of wall time in a run, mean over an arm's runs, by part as the run told them", Head: append([]string{"arm", "runs", "sessions"}, parts...)}
	for _, arm := range r.Arms {
		s, ok := r.Seconds[arm]
		if !ok {
			continue
		}
		cells := []string{arm, fmt.Sprint(s.Runs), fmt.Sprintf("%.1f", s.Sessions)}
		for _, part := range parts {
			cell := none
			if v, ok := s.Parts[part]; ok {
				cell = fmt.Sprintf("%.1f", v)
			}
			cells = append(cells, cell)
		}
		t.add(cells...)
	}
	return sec("seconds", "Where the time went", tableOf(t), r.query(queryRuns))
}
