package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
)

// statusText is the whole status for people; now is the time that ages are counted from.
func statusText(st ops.Status, now time.Time) string {
	return sections(stageLags(st), eventCounts(st), deadLetterCounts(st), sessionLines(st), versionTable(st, now), updateTable(st, now))
}

// watchText is the status for a screen: one line a stage, no counts of events, the time.
func watchText(st ops.Status, now time.Time) string {
	head := fmt.Sprintf("nextstate  %s   Ctrl-C ends\n", now.UTC().Format("2006-01-02 15:04:05 UTC"))
	return sections(head+sessionLines(st), stageSums(st), versionTable(st, now), updateTable(st, now), deadLetterCounts(st))
}

// sections joins texts that end with a newline by an empty line; those without content are left out.
func sections(all ...string) string {
	var kept []string
	for _, s := range all {
		if s != "" {
			kept = append(kept, s)
		}
	}
	return strings.Join(kept, "\n")
}

// table aligns rows of tab-separated cells below a head.
func table(head string, rows []string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for _, r := range rows {
		fmt.Fprintln(w, r)
	}
	_ = w.Flush() // a strings.Builder takes everything
	lines := strings.Split(b.String(), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n")
}

func stageLags(st ops.Status) string {
	var rows []string
	for _, l := range st.Stages {
		rows = append(rows, fmt.Sprintf("%s\t%s\t%d\t%d", l.Stage, l.Topic, l.Records, l.Lag))
	}
	return table("STAGE\tTOPIC\tRECORDS\tLAG", rows)
}

// stageSums adds up the topics of each stage.
func stageSums(st ops.Status) string {
	var order []string
	lag, records := map[string]int64{}, map[string]int64{}
	for _, l := range st.Stages {
		if _, ok := lag[l.Stage]; !ok {
			order = append(order, l.Stage)
		}
		lag[l.Stage] += l.Lag
		records[l.Stage] += l.Records
	}
	var rows []string
	for _, s := range order {
		rows = append(rows, fmt.Sprintf("%s\t%d\t%d", s, records[s], lag[s]))
	}
	return table("STAGE\tRECORDS\tLAG", rows)
}

func counts(head string, all []ops.Count) string {
	if len(all) == 0 {
		return ""
	}
	var rows []string
	for _, c := range all {
		rows = append(rows, fmt.Sprintf("%s\t%d", c.Name, c.Count))
	}
	return table(head+"\tCOUNT", rows)
}

func eventCounts(st ops.Status) string      { return counts("EVENTS IN THE HISTORY", st.Events) }
func deadLetterCounts(st ops.Status) string { return counts("DEAD LETTERS OF", st.DeadLetters) }

// sessionLines are the sessions, the turns and what is served, a line each.
func sessionLines(st ops.Status) string {
	t, r := st.Turns, st.Recent
	s := fmt.Sprintf("sessions %d open, %d ended\n", st.Sessions.Open, st.Sessions.Ended)
	s += fmt.Sprintf("turns %d: %d good, %d bad, %d with a hint; samples %d, skipped %d\n", t.Closed, t.Good, t.Bad, t.Hinted, t.Samples, t.Skipped)
	s += fmt.Sprintf("judged in the last %d minutes: %d good, %d bad, %d neutral, %d without a score\n", r.Minutes, r.Good, r.Bad, r.Neutral, r.Unjudged)
	switch v := st.Serving; {
	case v.Error != "":
		s += "gateway " + v.URL + ": " + v.Error + "\n"
	case v.Version != "":
		s += fmt.Sprintf("gateway %s serves %s, version %s\n", v.URL, v.Model, v.Version)
	case v.URL != "":
		s += fmt.Sprintf("gateway %s serves no policy of ours\n", v.URL)
	}
	return s
}

// versionTable is the reward by policy version.
func versionTable(st ops.Status, now time.Time) string {
	if len(st.Versions) == 0 {
		return ""
	}
	var rows []string
	for _, v := range st.Versions {
		update, published, state := "", "", ""
		if v.Update != nil {
			update = fmt.Sprint(*v.Update)
		}
		if v.Published != nil {
			published = age(*v.Published, now)
		}
		switch {
		case v.Served:
			state = "served"
		case v.Loaded:
			state = "loaded"
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%d\t%d\t%s\t%d\t%s", v.ID, update, published, v.Turns, v.Good, v.Bad, v.Neutral, optional("%+.2f", v.MeanScore), v.Hinted, state))
	}
	return table("VERSION\tUPDATE\tPUBLISHED\tTURNS\tGOOD\tBAD\tNEUTRAL\tREWARD\tHINTS\t", rows)
}

// updateMetrics are the columns of the table of updates: the name of the metric, the title and the form.
var updateMetrics = []struct{ name, title, format string }{
	{"loss", "LOSS", "%.4f"},
	{"reward_mean", "REWARD", "%+.2f"},
	{"clip_fraction", "CLIPPED", "%.3f"},
	{"grad_norm", "GRAD NORM", "%.3g"},
	{"staleness_mean", "STALENESS", "%.1f"},
	{"logprob_gap", "LOGPROB GAP", "%.2g"},
	{"seconds", "SECONDS", "%.1f"},
}

// updateTable is the newest updates. A metric that an update did not report is a dash, never 0.
func updateTable(st ops.Status, now time.Time) string {
	if len(st.Updates) == 0 {
		return ""
	}
	head := "UPDATE\tSAMPLES\tSTARTED"
	for _, m := range updateMetrics {
		head += "\t" + m.title
	}
	var rows []string
	for _, u := range st.Updates {
		row := fmt.Sprintf("%d\t%d\t%s", u.Update, u.Samples, age(u.Started, now))
		for _, m := range updateMetrics {
			var value *float64
			if v, ok := u.Metrics[m.name]; ok {
				value = &v
			}
			row += "\t" + optional(m.format, value)
		}
		rows = append(rows, row+"\t"+outcome(u))
	}
	return table(head+"\tVERSION", rows)
}

// outcome is what came of an update.
func outcome(u ops.UpdateStatus) string {
	switch {
	case u.Version != "":
		return u.Version
	case u.Skipped != "":
		return "skipped: " + clip(u.Skipped, 100)
	}
	return "(in work)"
}

func optional(format string, v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

// age says how long ago something was, in the unit that matters. The log's clock may be ahead of ours.
func age(t, now time.Time) string {
	d := max(0, now.Sub(t))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return t.UTC().Format("2006-01-02")
}
