package report

import (
	"cmp"
	"fmt"
	"slices"
)

// alignmentsOf is the mean over seeds of each arm, of the runs that ended.
func alignmentsOf(r *Report, rows []alignmentRow) []Alignment {
	ended := map[string]bool{}
	for _, run := range r.Runs {
		ended[run.Tenant] = run.Outcome != nil
	}
	var out []Alignment
	for _, arm := range r.Arms {
		for _, target := range r.aims() {
			a, users, censored := Alignment{Arm: arm, Persona: target, BySeed: map[uint64]float64{}}, map[uint64]float64{}, map[uint64]bool{}
			for _, row := range rows {
				of := row.Persona == target || target == usersMean && row.Persona != joint
				if row.Arm != arm || !of || !ended[row.Tenant] {
					continue
				}
				users[row.Seed]++
				a.BySeed[row.Seed] += (row.Sessions - a.BySeed[row.Seed]) / users[row.Seed]
				if row.Censored {
					censored[row.Seed] = true
				}
			}
			if a.Sessions = estimate(valuesOf(a.BySeed), r.Seed); a.Sessions != nil {
				a.Sessions.Censored = len(censored)
			}
			out = append(out, a)
		}
	}
	return out
}

// valuesOf are the values in the order of the seeds, so that a bootstrap is the same each time.
func valuesOf(bySeed map[uint64]float64) []float64 {
	values := make([]float64, 0, len(bySeed))
	for _, seed := range sortedKeys(bySeed) {
		values = append(values, bySeed[seed])
	}
	return values
}

// alignmentOf finds one.
func (r *Report) alignmentOf(arm, persona string) *Alignment {
	i := slices.IndexFunc(r.Alignment, func(a Alignment) bool { return a.Arm == arm && a.Persona == persona })
	if i < 0 {
		return nil
	}
	return &r.Alignment[i]
}

// ratesOf is the mean over seeds of each arm in one phase; on new problems also that of the base model.
func ratesOf(r *Report, phase string, rows []rateRow) []Rate {
	var out []Rate
	for _, arm := range append(slices.Clip(r.Arms), control) {
		for _, target := range append([]string{all}, r.Personas...) {
			bySeed, sum := map[uint64]Counts{}, Counts{}
			for _, row := range rows {
				from, in := row.Arm, row.Phase
				if in == heldOutControl { // one seed's control is one, whichever arm's run asked for it
					from, in = control, heldOut
				}
				if in == phase && from == arm && (target == all || row.Persona == target) {
					bySeed[row.Seed], sum = bySeed[row.Seed].plus(row.Counts), sum.plus(row.Counts)
				}
			}
			if sum.Replies == 0 {
				continue
			}
			share := func(of func(Counts) uint64) map[uint64]float64 {
				shares := map[uint64]float64{}
				for seed, c := range bySeed {
					shares[seed] = float64(of(c)) / float64(c.Replies)
				}
				return shares
			}
			satisfied := share(func(c Counts) uint64 { return c.Satisfied })
			out = append(out, Rate{
				Phase: phase, Arm: arm, Persona: target, Replies: sum.Replies, BySeed: satisfied, Satisfied: estimate(valuesOf(satisfied), r.Seed),
				Guard:      estimate(valuesOf(share(func(c Counts) uint64 { return c.GuardPassed })), r.Seed),
				Preference: estimate(valuesOf(share(func(c Counts) uint64 { return c.Preference })), r.Seed),
			})
		}
	}
	return out
}

func (r *Report) rateOf(phase, arm, persona string) *Rate {
	i := slices.IndexFunc(r.Rates, func(h Rate) bool { return h.Phase == phase && h.Arm == arm && h.Persona == persona })
	if i < 0 {
		return nil
	}
	return &r.Rates[i]
}

// compare pairs every arm with hybrid and with frozen, on new problems also with the base model.
func compare(r *Report) []Comparison {
	var out []Comparison
	for _, against := range []string{hybrid, frozen} {
		for _, arm := range r.Arms {
			if arm == against || !slices.Contains(r.Arms, against) {
				continue
			}
			for _, target := range r.aims() {
				out = append(out, Comparison{"sessions", target, arm, against, r.sessionsLess(arm, against, target)})
			}
		}
	}
	for _, phase := range []string{live, heldOut} {
		for _, against := range []string{hybrid, frozen, control} {
			for _, arm := range r.Arms {
				for _, target := range append([]string{all}, r.Personas...) {
					a, b := r.rateOf(phase, arm, target), r.rateOf(phase, against, target)
					if arm != against && a != nil && b != nil {
						out = append(out, Comparison{phase, target, arm, against, paired(a.BySeed, b.BySeed, r.Seed)})
					}
				}
			}
		}
	}
	return out
}

// sessionsLess is arm minus against in sessions to alignment: below 0, arm is faster. Nil: no seed in common. Censored counts the pairs in which either is.
func (r *Report) sessionsLess(arm, against, target string) *Estimate {
	a, b := r.alignmentOf(arm, target), r.alignmentOf(against, target)
	if a == nil || b == nil {
		return nil
	}
	return paired(a.BySeed, b.BySeed, r.Seed)
}

func (r *Report) comparison(metric, target, arm, against string) *Comparison {
	i := slices.IndexFunc(r.Compared, func(c Comparison) bool {
		return c.Metric == metric && c.Persona == target && c.Arm == arm && c.Against == against
	})
	if i < 0 {
		return nil
	}
	return &r.Compared[i]
}

// secondsOf is the mean wall time of an arm's ended runs by part.
func secondsOf(r *Report) map[string]Seconds {
	out := map[string]Seconds{}
	for _, run := range r.Runs {
		if run.Outcome == nil {
			continue
		}
		s, ok := out[run.Arm]
		if !ok {
			s.Parts = map[string]float64{}
		}
		s.Runs++
		s.Sessions += float64(*run.Sessions)
		for part, v := range run.Seconds {
			s.Parts[part] += v
		}
		out[run.Arm] = s
	}
	for arm, s := range out {
		s.Sessions /= float64(s.Runs)
		for part := range s.Parts {
			s.Parts[part] /= float64(s.Runs)
		}
		out[arm] = s
	}
	return out
}

// Bar is one of the project's bars, and whether it is met.
type Bar struct {
	Bar     string `json:"bar"`
	Found   string `json:"found"`
	Verdict string `json:"verdict"`
}

// Verdicts of a bar.
const (
	met        = "met"
	notMet     = "not met"
	undecided  = "undecided"
	unmeasured = "not measured"
)

// The bars' figures.
const (
	barSessions = 8
	barSeeds    = 5
	barHeldOut  = 0.8
	barSeconds  = 60
)

// barsOf holds the figures against the bars.
func barsOf(r *Report) []Bar {
	best := r.best()
	bars := []Bar{barBest(r, best), barNew(r, best)}
	for _, pair := range [][2]string{{hybrid, "evaluative"}, {"evaluative", "directive"}, {hybrid, "memory"}} {
		b := Bar{Bar: fmt.Sprintf("%s aligns in fewer joint sessions than %s", pair[0], pair[1]), Found: "no seed in common", Verdict: unmeasured}
		if d := r.sessionsLess(pair[0], pair[1], joint); d != nil {
			b.Found, b.Verdict = "difference "+signed(d), undecided
			if mean := r.sessionsLess(pair[0], pair[1], usersMean); mean != nil {
				b.Found += "; " + usersMean + ": " + signed(mean)
			}
			switch {
			case d.High != nil && *d.High < 0:
				b.Verdict = met
			case d.Mean > 0:
				b.Verdict = notMet
			}
		}
		bars = append(bars, b)
	}
	return append(bars, barTime(r))
}

// learns is whether an update of the arm ever made a version. Where none did, the policy is the base model.
func (r *Report) learns(arm string) bool {
	return slices.ContainsFunc(r.Updates, func(u Update) bool { return u.Arm == arm && u.Skipped < u.Runs })
}

// best is the arm that learns with the fewest joint sessions; of equal ones that with the least mean over users, then that with the most satisfied on new problems. Empty: none has an ended run.
func (r *Report) best() string {
	rate := func(arm string) float64 {
		if h := r.rateOf(heldOut, arm, all); h != nil && h.Satisfied != nil {
			return h.Satisfied.Mean
		}
		return 0
	}
	last := r.aims()[len(r.aims())-1] // the mean of users, when there are several
	mean := func(arm, target string) float64 { return r.alignmentOf(arm, target).Sessions.Mean }
	var arms []string
	for _, arm := range r.Arms {
		if a := r.alignmentOf(arm, joint); a != nil && a.Sessions != nil && r.learns(arm) {
			arms = append(arms, arm)
		}
	}
	if len(arms) == 0 {
		return ""
	}
	return slices.MinFunc(arms, func(a, b string) int {
		return cmp.Or(cmp.Compare(mean(a, joint), mean(b, joint)), cmp.Compare(mean(a, last), mean(b, last)), cmp.Compare(rate(b), rate(a)))
	})
}

func barBest(r *Report, best string) Bar {
	b := Bar{Bar: fmt.Sprintf("at most %d joint sessions to alignment, mean over at least %d seeds of the reporting half", barSessions, barSeeds), Found: "no arm that learns", Verdict: unmeasured}
	if best == "" {
		return b
	}
	e := r.alignmentOf(best, joint).Sessions
	b.Found = fmt.Sprintf("best arm %s: %s", best, sessions(e))
	reporting := !slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Arm == best && run.Half != "reporting" })
	switch {
	case e.Mean > barSessions:
		b.Verdict = notMet
	case e.N < barSeeds:
		b.Found, b.Verdict = b.Found+fmt.Sprintf("; %d seeds are too few", e.N), undecided
	case !reporting:
		b.Found, b.Verdict = b.Found+"; not the reporting half", undecided
	default:
		b.Verdict = met
	}
	return b
}

func barNew(r *Report, best string) Bar {
	b := Bar{Bar: fmt.Sprintf("at least %.1f of the first replies to new problems satisfy, guard included", barHeldOut), Found: "no arm that learns", Verdict: unmeasured}
	if best == "" {
		return b
	}
	b.Found = "best arm " + best + ": no held-out check"
	if h := r.rateOf(heldOut, best, all); h != nil {
		b.Found, b.Verdict = fmt.Sprintf("best arm %s: %s", best, share(h.Satisfied)), notMet
		if h.Satisfied.Mean >= barHeldOut {
			b.Verdict = met
		}
	}
	return b
}

// barTime holds the slowest arm that does not rehearse against the bar: what a joint session takes, without the start of a run and its held-out check.
func barTime(r *Report) Bar {
	b := Bar{Bar: fmt.Sprintf("a joint session, updates included and rehearsal not, takes at most %d s of wall time", barSeconds), Found: "no run that told its time", Verdict: unmeasured}
	slowest := 0.0
	for _, arm := range r.Arms {
		s := r.Seconds[arm]
		if _, ok := s.Parts["total"]; !ok || s.Parts["rehearsal"] > 0 || s.Sessions == 0 {
			continue
		}
		inSessions := s.Parts["total"] - s.Parts["start"] - s.Parts["held_out"]
		if perSession := inSessions / s.Sessions; perSession > slowest {
			slowest, b.Verdict = perSession, notMet
			b.Found = fmt.Sprintf("slowest arm %s: %.1f s, %.0f %% of it in the engines (decode and training)", arm, perSession, 100*(s.Parts["decode"]+s.Parts["training"])/inSessions)
			if perSession <= barSeconds {
				b.Verdict = met
			}
		}
	}
	return b
}
