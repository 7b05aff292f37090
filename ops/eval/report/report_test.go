package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
)

var rewrite = flag.Bool("golden", false, "write testdata/report.md anew")

// hostile is a reply that tries to get into the page and the table.
const hostile = "<script>alert('x')</script> | **bold** ```sh\nrm\n``` </div><svg onload=alert(1)>"

// learning is a run of the arm hybrid whose student is satisfied from session seed on, whose ta is one session later, and which ends then. Hints of
// the student are trained after the first session, hints of both after the second, and the third update comes to nothing.
func learning(seed uint64) *run {
	r := begin("hybrid", seed, 12, "student", "ta")
	last := uint32(seed) + 3 //nolint:gosec // small
	for s := uint32(1); s <= last; s++ {
		complaint := func(from uint32, what string) string {
			if s < from {
				return what
			}
			return ""
		}
		r.reply("student", schemas.ReplyPhase_REPLY_PHASE_LIVE, s, fmt.Sprintf("plain words about problem %d", s), complaint(uint32(seed), "bold"), "") //nolint:gosec // small
		r.reply("ta", schemas.ReplyPhase_REPLY_PHASE_LIVE, s, hostile, complaint(uint32(seed)+1, "only 12 tokens"), "")                                 //nolint:gosec // small
		switch s {
		case 1:
			r.update(1, map[string]float64{"loss": 2, "kl": 0.5, "entropy": 1, "grad_norm": 3, "reward_mean": -1, "seconds": 4}, "student")
		case 2:
			r.update(2, map[string]float64{"loss": math.NaN(), "kl": 0.25, "entropy": 1, "grad_norm": 1, "reward_mean": 1, "seconds": 4}, "student", "ta")
		case 3:
			r.update(3, nil, "ta")
		}
	}
	for p := uint32(1); p <= 4; p++ {
		guard := ""
		if p == 4 {
			guard = fmt.Sprintf("only %d tokens", 10+seed)
		}
		r.reply("student", schemas.ReplyPhase_REPLY_PHASE_HELD_OUT, p, fmt.Sprintf("the answer to number %c is what it is", 'a'+rune(p)), "", guard)
		r.reply("ta", schemas.ReplyPhase_REPLY_PHASE_HELD_OUT, p, fmt.Sprintf("well done with number %c I say to you", 'a'+rune(p)), "", "")
		r.reply("student", schemas.ReplyPhase_REPLY_PHASE_HELD_OUT_CONTROL, p, fmt.Sprintf("1. number %d\n2. done", p), "a numbered list", "")
		r.reply("ta", schemas.ReplyPhase_REPLY_PHASE_HELD_OUT_CONTROL, p, "short", "only 1 tokens", "only 1 tokens")
	}
	r.end("aligned", last, 3, map[string]uint32{"student": uint32(seed), "ta": uint32(seed) + 1, "joint": uint32(seed) + 1}) //nolint:gosec // small
	return r
}

// still is a run of the arm frozen: twelve sessions, the student is satisfied once, nobody twice in a row.
func still(seed uint64) *run {
	r := begin("frozen", seed, 12, "student", "ta")
	for s := uint32(1); s <= 12; s++ {
		complaint := "bold"
		if s == 2 {
			complaint = ""
		}
		r.reply("student", schemas.ReplyPhase_REPLY_PHASE_LIVE, s, fmt.Sprintf("**%d**", s), complaint, "")
		r.reply("ta", schemas.ReplyPhase_REPLY_PHASE_LIVE, s, "no", "only 1 tokens", "only 1 tokens")
	}
	r.end("sessions", 12, 0, nil)
	return r
}

// written writes a report of some runs and returns its JSON, Markdown and page.
func written(t *testing.T, runs ...*run) (*Report, string, string) {
	t.Helper()
	var events []schemas.Event
	in := Input{Dir: filepath.Join(t.TempDir(), "report"), Seed: 7, Command: "nextstate eval --arms hybrid,frozen --seeds 3", Notes: []string{"A note of the caller."}}
	for _, r := range runs {
		events = append(events, r.events...)
		in.Tenants = append(in.Tenants, r.tenant)
	}
	in.ClickHouseHTTP = filled(t, events)
	if err := Write(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(in.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	r := new(Report)
	if err := json.Unmarshal(read("report.json"), r); err != nil {
		t.Fatal(err)
	}
	return r, string(read("report.md")), string(read("index.html"))
}

// threeSeeds are two arms with three seeds each.
func threeSeeds() []*run {
	var runs []*run
	for seed := range uint64(3) {
		runs = append(runs, learning(seed+1), still(seed+1))
	}
	return runs
}

// Goal: the figures of a report are those of the events. Method: two arms and three seeds with known outcomes go through the real sink into a real
// ClickHouse; each figure is compared with what one gets by hand. The Markdown is compared with the one that was read and found right.
func TestReport(t *testing.T) {
	r, markdown, page := written(t, threeSeeds()...)
	checkAlignment(t, r)
	checkHeldOut(t, r)
	checkUpdates(t, r)
	checkOffDiagonal(t, r)
	checkRest(t, r)
	checkPage(t, page)
	golden := filepath.Join("testdata", "report.md")
	if *rewrite {
		if err := os.WriteFile(golden, []byte(markdown), 0o644); err != nil { //nolint:gosec // a golden file
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if markdown != string(want) {
		t.Errorf("the Markdown differs from %s (go test -golden writes it anew):\n%s", golden, firstDifference(markdown, string(want)))
	}
	for name, sql := range r.Queries {
		if !strings.Contains(markdown, sql) || !strings.Contains(page, strings.ReplaceAll(sql[:20], "'", "&#39;")) {
			t.Errorf("the query %s is not printed", name)
		}
	}
	if _, again, _ := written(t, threeSeeds()...); again != markdown {
		t.Error("a second report of the same history differs")
	}
}

func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return fmt.Sprintf("line %d: got %q, want %q", i+1, a[i], slices.Concat(b, make([]string, len(a)))[i])
		}
	}
	return "the end is missing"
}

func close2(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func checkAlignment(t *testing.T, r *Report) {
	t.Helper()
	for _, c := range []struct {
		arm, persona string
		mean         float64
		censored     int
	}{
		{"hybrid", "student", 2, 0},
		{"hybrid", "ta", 3, 0},
		{"hybrid", joint, 3, 0},
		{"frozen", "student", 12, 3},
		{"frozen", "ta", 12, 3},
		{"frozen", joint, 12, 3},
	} {
		e := r.alignmentOf(c.arm, c.persona).Sessions
		if e == nil || !close2(e.Mean, c.mean) || e.N != 3 || e.Censored != c.censored || e.Low == nil {
			t.Errorf("%s, %s: %+v, want a mean of %g over 3 seeds, %d censored", c.arm, c.persona, e, c.mean, c.censored)
		}
	}
	d := r.comparison("sessions", joint, hybrid, frozen).Difference
	if d == nil || !close2(d.Mean, -9) || *d.Low < -10 || *d.High > -8 || d.N != 3 {
		t.Errorf("hybrid minus frozen: %+v, want -9 within [-10, -8]", d)
	}
	if verdict := r.Bars[0].Verdict; verdict != undecided { // three seeds, and not the reporting half
		t.Errorf("the bar of sessions is %s with three seeds", verdict)
	}
	if !slices.ContainsFunc(r.Caveats, func(c string) bool { return strings.HasPrefix(c, "3 of 6 runs did not align") }) || r.Caveats[0] != "A note of the caller." {
		t.Errorf("caveats: %q", r.Caveats)
	}
}

func checkHeldOut(t *testing.T, r *Report) {
	t.Helper()
	for _, c := range []struct {
		arm, persona           string
		satisfied, guard, form float64
	}{
		{"hybrid", all, 0.875, 0.875, 1},
		{"hybrid", "student", 0.75, 0.75, 1},
		{"hybrid", "ta", 1, 1, 1},
		{control, all, 0, 0.5, 0},
		{control, "student", 0, 1, 0},
		{control, "ta", 0, 0, 0},
	} {
		h := r.rateOf(heldOut, c.arm, c.persona)
		if h == nil || !close2(h.Satisfied.Mean, c.satisfied) || !close2(h.Guard.Mean, c.guard) || !close2(h.Preference.Mean, c.form) || h.Satisfied.N != 3 {
			t.Errorf("held out: %s, %s: %+v, want %g, guard %g, form %g", c.arm, c.persona, h, c.satisfied, c.guard, c.form)
		}
	}
	if d := r.comparison(heldOut, all, hybrid, control).Difference; !close2(d.Mean, 0.875) {
		t.Errorf("held out: hybrid minus base: %+v", d)
	}
	// Live, by seed: the student is satisfied in 4, 4, 4 of 4, 5, 6 sessions, ta in 3 of each; frozen in 1 of 24.
	if l, d := r.rateOf(live, hybrid, all), r.comparison(live, all, hybrid, frozen).Difference; !close2(l.Satisfied.Mean, (7.0/8+7.0/10+7.0/12)/3) || !close2(d.Mean, l.Satisfied.Mean-1.0/24) {
		t.Errorf("live: %+v, minus frozen %+v", l.Satisfied, d)
	}
	if r.Bars[1].Verdict != met || r.rateOf(heldOut, "frozen", all) != nil {
		t.Errorf("the held-out bar is %+v", r.Bars[1])
	}
}

func checkUpdates(t *testing.T, r *Report) {
	t.Helper()
	for i, want := range []Update{{Number: 1, Runs: 3}, {Number: 2, Runs: 3}, {Number: 3, Runs: 3, Skipped: 3}} {
		u := r.Updates[i]
		if u.Arm != "hybrid" || u.Number != want.Number || u.Runs != want.Runs || u.Skipped != want.Skipped {
			t.Errorf("update %d: %+v", i+1, u)
		}
	}
	if u := r.Updates; *u[0].Loss != 2 || u[1].Loss != nil || *u[1].KL != 0.25 || u[2].KL != nil || len(u) != 3 {
		t.Errorf("metrics of the updates: %+v", u)
	}
}

// checkOffDiagonal: between sessions 1 and 2 only the student's hints were trained; between 2 and 3 those of both, so that only the own ones count; later none.
func checkOffDiagonal(t *testing.T, r *Report) {
	t.Helper()
	got := map[string]OffDiagonal{}
	for _, o := range r.OffDiag {
		got[o.Arm+" "+o.Persona+" "+o.Teacher] = o
	}
	// By seed 1, 2, 3 there are 4, 5, 6 sessions, thus 3+4+5 pairs: 3 from 1 to 2, 3 from 2 to 3, and 6 later.
	for key, want := range map[string]OffDiagonal{
		"hybrid student student": {Pairs: 6, PreferenceBefore: 3, PreferenceAfter: 5, GuardBefore: 6, GuardAfter: 6},
		"hybrid ta student":      {Pairs: 3, PreferenceBefore: 0, PreferenceAfter: 1, GuardBefore: 3, GuardAfter: 3},
		"hybrid ta ta":           {Pairs: 3, PreferenceBefore: 1, PreferenceAfter: 2, GuardBefore: 3, GuardAfter: 3},
		"hybrid student ":        {Pairs: 6, PreferenceBefore: 6, PreferenceAfter: 6, GuardBefore: 6, GuardAfter: 6},
		"hybrid ta ":             {Pairs: 6, PreferenceBefore: 5, PreferenceAfter: 6, GuardBefore: 6, GuardAfter: 6},
		"frozen ta ":             {Pairs: 33},
		"frozen student ":        {Pairs: 33, PreferenceBefore: 3, PreferenceAfter: 3, GuardBefore: 33, GuardAfter: 33},
	} {
		o := got[key]
		want.Arm, want.Persona, want.Teacher = o.Arm, o.Persona, o.Teacher
		if o != want {
			t.Errorf("%q: %+v, want %+v", key, o, want)
		}
		delete(got, key)
	}
	if len(got) != 0 {
		t.Errorf("more than there is: %v", got)
	}
}

func checkRest(t *testing.T, r *Report) {
	t.Helper()
	// The base model: frozen, 3 seeds x 12 sessions, the student satisfied in one of each; and 3 x 4 held-out controls.
	if c := r.Chance; len(c) != 3 || c[0].Persona != "student" || c[0].Satisfied != 3 || c[0].Replies != 48 || c[1].Satisfied != 0 || c[1].Aligned != 0 || c[2].Persona != joint {
		t.Errorf("chance: %+v", r.Chance)
	}
	if s := r.Seconds["hybrid"]; s.Runs != 3 || !close2(s.Sessions, 5) || !close2(s.Parts["decode"], 50) || !close2(s.Parts["training"], 5) || r.Bars[5].Verdict != met || !strings.HasPrefix(r.Bars[5].Found, "slowest arm hybrid: 11.6 s, 95 %") {
		t.Errorf("seconds: %+v, %+v", r.Seconds, r.Bars[5])
	}
	count := map[string]int{}
	for _, s := range r.Samples {
		count[s.Arm+" "+s.Persona+" "+s.Moment]++
	}
	for _, key := range []string{"hybrid student before", "hybrid student after", "hybrid ta before", "hybrid ta after", "frozen student before", "frozen ta after"} {
		if count[key] != 3 {
			t.Errorf("%d samples of %s, want 3", count[key], key)
		}
	}
	for _, s := range r.Sameness {
		// "the answer to number b is what it is": of 7 3-grams, 4 are without the letter that tells the replies apart, and so in the other persona's reply. The
		// controls of the student differ in a number only.
		want, ok := map[string]float64{"hybrid student held out": 4.0 / 7, "hybrid ta held out": 4.0 / 7, "hybrid student held out, base": 1}[s.Arm+" "+s.Persona+" "+s.Part]
		if ok && (s.Same == nil || !close2(*s.Same, want) || s.Replies != 12) {
			t.Errorf("sameness of %+v, want %g", s, want)
		}
	}
	if d := r.Drift[0]; r.Arms[0] != "hybrid" || d.BaseLogprob == nil || !slices.ContainsFunc(r.Drift, func(d Drift) bool {
		return d.Arm == "frozen" && d.Session == 12 && close2(*d.BaseLogprob, -0.62) && close2(d.Tokens, 32) && d.Replies == 6
	}) {
		t.Errorf("drift: %+v", r.Drift)
	}
}

// checkPage reads the page as XML, which its template keeps to, and looks for what it may not have.
func checkPage(t *testing.T, page string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Entity = xml.HTMLEntity
	svgs, tables := 0, 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the page is not well formed: %v", err)
		}
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch element.Name.Local {
		case "script", "link", "img", "iframe", "object":
			t.Errorf("the page has an element %s", element.Name.Local)
		case "svg":
			svgs++
		case "table":
			tables++
		}
		for _, a := range element.Attr {
			if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "src" || a.Name.Local == "href" && !strings.HasPrefix(a.Value, "#") {
				t.Errorf("%s has an attribute %s=%q", element.Name.Local, a.Name.Local, a.Value)
			}
		}
	}
	if svgs < 10 || tables < 10 {
		t.Errorf("the page has %d drawings and %d tables", svgs, tables)
	}
	if found := regexp.MustCompile(`https?://|url\(|@import|NaN|Inf\b|ZgotmplZ`).FindString(page); found != "" {
		t.Errorf("the page holds %q", found)
	}
	if !strings.Contains(page, "&lt;script&gt;alert(") {
		t.Error("the hostile reply is not among the samples")
	}
}

// Goal: a report of what is incomplete says so and drops nothing. Method: arms without a seed in common, one session, a run without an end, no update, no
// held-out check, and a run that says something else than its replies.
func TestIncomplete(t *testing.T) {
	one := begin("evaluative", 11, 12, "student")
	one.reply("student", schemas.ReplyPhase_REPLY_PHASE_LIVE, 1, "x", "", "")
	one.end("time", 1, 0, map[string]uint32{"student": 1})
	open := begin("directive", 12, 12, "student")
	r, markdown, page := written(t, one, open)
	checkPageIncomplete(t, page)
	for _, want := range []string{
		"One seed only, so there is no interval and a difference proves nothing: evaluative.", "There is no arm hybrid", "There is no arm frozen", "1 of 1 runs were ended by the limit of time", "Not ended, and left out", "eval-directive-12",
		"Not one update came of these arms", "No held-out check: evaluative, directive", "says that student was aligned in session 1", "1 of 1 runs did not align jointly",
	} {
		if !slices.ContainsFunc(r.Caveats, func(c string) bool { return strings.Contains(c, want) }) {
			t.Errorf("no caveat says %q: %q", want, r.Caveats)
		}
	}
	e := r.alignmentOf("evaluative", joint).Sessions
	if e == nil || e.Mean != 12 || e.Low != nil || e.Censored != 1 {
		t.Errorf("one seed: %+v", e)
	}
	if r.alignmentOf("directive", joint).Sessions != nil || !strings.Contains(markdown, "n = 1: no interval") {
		t.Error("a run that has not ended counts, or one seed has an interval")
	}
	if r.Bars[2].Verdict != unmeasured || len(r.Chance) != 0 {
		t.Errorf("bars %+v, chance %+v", r.Bars, r.Chance)
	}
}

func checkPageIncomplete(t *testing.T, page string) {
	t.Helper()
	if !strings.Contains(page, "nothing measured") || !strings.Contains(page, "There was no update.") {
		t.Error("the page does not say that nothing was measured")
	}
}

// Goal: what cannot be reported is an error that says what to do. Method: an input without anything, a tenant that is not there, one arm and seed
// twice, a ClickHouse that is not there.
func TestRefused(t *testing.T) {
	if err := Write(t.Context(), Input{}); err == nil || !strings.Contains(err.Error(), "no runs") || !strings.Contains(err.Error(), "no folder") {
		t.Errorf("nothing: %v", err)
	}
	in := Input{ClickHouseHTTP: filled(t, nil), Tenants: []string{"no'body"}, Dir: t.TempDir()}
	if err := Write(t.Context(), in); err == nil || !strings.Contains(err.Error(), "no'body") || !strings.Contains(err.Error(), "nextstate status") {
		t.Errorf("an unknown tenant: %v", err)
	}
	first, again := begin("ppo", 21, 12, "student"), begin("ppo", 21, 12, "student")
	again.tenant += "-2"
	again.events = nil
	again.add("started", first.events[0].Payload)
	twice := Input{ClickHouseHTTP: filled(t, append(first.events, again.events...)), Tenants: []string{first.tenant, again.tenant}, Dir: in.Dir}
	if err := Write(t.Context(), twice); err == nil || !strings.Contains(err.Error(), "--label") {
		t.Errorf("one arm and seed twice: %v", err)
	}
	in.ClickHouseHTTP = "http://user:secret@127.0.0.1:1/"
	if err := Write(t.Context(), in); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("no ClickHouse: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(in.Dir, "*"))
	if err != nil || len(files) != 0 {
		t.Errorf("files of a report that failed: %v, %v", files, err)
	}
}

// Goal: a text of any kind stays a text in Markdown. Method: hostile words in a cell, in a line, in a fence.
func TestMarkdownEscapes(t *testing.T) {
	var b strings.Builder
	tab := table{Caption: "c", Head: []string{"a|b"}, Rows: [][]string{{hostile}}}
	tab.markdown(&b)
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 5 || strings.Contains(b.String(), "<script>") || bytes.Count([]byte(lines[4]), []byte("|"))-strings.Count(lines[4], `\|`) != 2 {
		t.Errorf("the table became:\n%s", b.String())
	}
	b.Reset()
	fenced(&b, hostile)
	if !strings.HasPrefix(b.String(), "````\n") || !strings.HasSuffix(b.String(), "\n````\n") {
		t.Errorf("the fence became:\n%s", b.String())
	}
}
