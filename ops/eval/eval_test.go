package eval

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
)

// whole is a configuration with every arm and persona.
func whole() Config {
	return Config{
		Arms: ArmNames(), Seeds: 2, Personas: personas.Names(), Half: personas.Tuning, Sessions: 24, Turns: 8, HeldOut: 4, Temperature: 0.6, MaxTokens: 80, Dir: "out",
	}
}

// base is what the command line gives by default, as far as arms look at it.
func base() ops.Config {
	c := ops.Config{Dir: "data", Direct: ops.DirectConfig{Teacher: "reference", Selection: processors.SequenceOptimal}}
	c.Train.Preset, c.Policy.RecordTopK = "default", 4
	return c
}

// TestArms: every arm is a run that can be started, differs from the others by what its name says, and has a tenant of its own. Method: the runs of all arms with
// two seeds; their settings as recorded.
func TestArms(t *testing.T) {
	runs, err := whole().runs(base())
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 2*len(Arms()) {
		t.Fatalf("%d runs", len(runs))
	}
	tenants, settings := map[string]bool{}, map[string]map[string]any{}
	for _, r := range runs {
		if err := schemas.CheckTenant(r.Tenant); err != nil || tenants[r.Tenant] {
			t.Errorf("tenant %s: %v, twice %v", r.Tenant, err, tenants[r.Tenant])
		}
		tenants[r.Tenant] = true
		if err := r.settings.Train.Validate(); err != nil {
			t.Errorf("%s: %v", r.Arm, err)
		}
		var s map[string]any
		if err := json.Unmarshal([]byte(r.Settings), &s); err != nil {
			t.Fatal(err)
		}
		settings[r.Arm] = s
	}
	train := func(arm, group, name string) any {
		return settings[arm]["train"].(map[string]any)[group].(map[string]any)[name]
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"hybrid learns from rewards", train("hybrid", "objective", "w_eval"), 1.0},
		{"hybrid learns from hints", train("hybrid", "objective", "w_dir"), 1.0},
		{"evaluative has no hints", train("evaluative", "objective", "directive"), "none"},
		{"directive has no rewards", train("directive", "objective", "w_eval"), 0.0},
		{"ppo has a baseline", train("ppo", "objective", "baseline"), "batch"},
		{"token is token-level", train("token", "objective", "directive"), "token"},
		{"frozen", settings["frozen"]["train"], nil},
		{"memory is frozen", settings["memory"]["train"], nil},
		{"memory", settings["memory"]["memory"], true},
		{"memory-hybrid", settings["memory-hybrid"]["memory"], true},
		{"k2", settings["k2"]["top_k"], 2.0},
		{"k8", settings["k8"]["top_k"], 8.0},
		{"random-hint", settings["random-hint"]["selection"], "random"},
		{"token-optimal", settings["token-optimal"]["selection"], "token_optimal"},
		{"paper", settings["paper"]["teacher"], "newest"},
		{"standing", settings["standing"]["standing"], true},
		{"standing does not rehearse", settings["standing"]["rehearse"], nil},
		{"rehearse", settings["rehearse"]["standing"], true},
		{"rehearse learns from nothing else", train("rehearse", "objective", "w_eval"), 0.0},
		{"rehearse-hybrid learns from hints", train("rehearse-hybrid", "objective", "w_dir"), 1.0},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
	}
	if settings["memory-hybrid"]["train"] == nil || settings["rehearse"]["rehearse"] == nil {
		t.Error("memory-hybrid trains nothing, or rehearse does not rehearse")
	}
}

// TestSettingsNameTheRun: the same settings are the same run wherever its data is, and other settings are another one. Method: runs of one arm whose
// configurations differ in one thing.
func TestSettingsNameTheRun(t *testing.T) {
	tenant := func(change func(*Config, *ops.Config)) string {
		t.Helper()
		c, b := whole(), base()
		c.Arms, c.Seeds = []string{"rehearse"}, 1
		change(&c, &b)
		runs, err := c.runs(b)
		if err != nil {
			t.Fatal(err)
		}
		return runs[0].Tenant
	}
	plain := tenant(func(*Config, *ops.Config) {})
	if moved := tenant(func(c *Config, b *ops.Config) { c.Dir, b.Dir, c.Seeds = "elsewhere", "other", 1 }); moved != plain {
		t.Errorf("%s and elsewhere %s", plain, moved)
	}
	seen := map[string]string{plain: "plain"}
	for name, change := range map[string]func(*Config, *ops.Config){
		"set":         func(_ *Config, b *ops.Config) { b.Train.Set = []string{"objective.kl_coef=0.1"} },
		"batch":       func(_ *Config, b *ops.Config) { b.Train.Batch = 4 },
		"label":       func(c *Config, _ *ops.Config) { c.Label = "x" },
		"half":        func(c *Config, _ *ops.Config) { c.Half = personas.Reporting },
		"temperature": func(c *Config, _ *ops.Config) { c.Temperature = 0.7 },
		"teacher":     func(_ *Config, b *ops.Config) { b.Direct.Teacher = "newest" },
		"sessions":    func(c *Config, _ *ops.Config) { c.Sessions = 72 },
		"model":       func(_ *Config, b *ops.Config) { b.Policy.Model = "other.gguf" },
		"rehearsal":   func(_ *Config, b *ops.Config) { b.Rehearse.Updates = 2 },
	} {
		got := tenant(change)
		if other := seen[got]; other != "" {
			t.Errorf("%s is the same run as %s", name, other)
		}
		seen[got] = name
	}
}

// TestConfig: what cannot be run is refused before anything starts, and the refusal names the flag. Method: one wrong value at a time.
func TestConfig(t *testing.T) {
	if err := whole().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		`--arms: there is no arm "hybird"`:     func(c *Config) { c.Arms = []string{"hybird"} },
		"--arms: name at least one":            func(c *Config) { c.Arms = nil },
		"--seeds 0":                            func(c *Config) { c.Seeds = 0 },
		"--personas: there is no persona":      func(c *Config) { c.Personas = []string{"poet"} },
		"--personas: name at least one":        func(c *Config) { c.Personas = nil },
		"--held-out and --time-limit":          func(c *Config) { c.HeldOut = -1 },
		`--label "Ü"`:                          func(c *Config) { c.Label = "Ü" },
		"--out":                                func(c *Config) { c.Dir = "" },
		"0 sessions":                           func(c *Config) { c.Sessions = 0 },
		"9 turns a session":                    func(c *Config) { c.Turns = 9 },
		"there is no half 0 of the problems":   func(c *Config) { c.Half = 0 },
		"temperature -1 and 80 tokens a reply": func(c *Config) { c.Temperature = -1 },
	} {
		c := whole()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := whole().runs(func() ops.Config { b := base(); b.Train.Set = []string{"objective.w_dri=0"}; return b }()); err == nil || !strings.Contains(err.Error(), "w_dri") {
		t.Errorf("a setting that is not known: %v", err)
	}
}

// TestStreak: alignment is the session of the FIRST of three satisfied first replies in a row, the first time it comes to that. Method: sequences of first
// replies, + satisfied and - not.
func TestStreak(t *testing.T) {
	for replies, want := range map[string]int{"": 0, "++": 0, "+++": 1, "-+++": 2, "++-++": 0, "++-+++": 4, "+++---+++": 1, "-+-+-+": 0, "--++++": 3} {
		s := streak{}
		for i, r := range replies {
			s.add(i+1, r == '+')
		}
		if s.from != want {
			t.Errorf("%q: aligned at %d, want %d", replies, s.from, want)
		}
	}
}

// TestAlignedAt: joint is the largest of the personas' sessions, and is there only when all are aligned. Method: two personas' streaks.
func TestAlignedAt(t *testing.T) {
	l := live{plans: []personas.Plan{{Persona: personas.Persona{Name: "a"}}, {Persona: personas.Persona{Name: "b"}}}, streaks: []streak{{from: 2}, {}}}
	if at := l.alignedAt(); !maps.Equal(at, map[string]uint32{"a": 2}) || l.aligned() {
		t.Errorf("one of two: %v", at)
	}
	l.streaks[1].from = 5
	if at := l.alignedAt(); !maps.Equal(at, map[string]uint32{"a": 2, "b": 5, "joint": 5}) || !l.aligned() {
		t.Errorf("both: %v", at)
	}
}

// TestAttempts: a completed run is found whichever attempt it was, and what was interrupted is begun under a new tenant. Method: histories of one run's tenant.
func TestAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		held            held
		completed, next string
	}{
		"never begun":          {held{}, "", "r"},
		"interrupted":          {held{"r": false}, "", "r-2"},
		"interrupted twice":    {held{"r": false, "r-2": false}, "", "r-3"},
		"complete":             {held{"r": true}, "r", "r-2"},
		"complete at the last": {held{"r": false, "r-2": true}, "r-2", "r-3"},
		"another run":          {held{"r1": true}, "", "r"},
	} {
		if got := c.held.completed("r"); got != c.completed {
			t.Errorf("%s: completed %q, want %q", name, got, c.completed)
		}
		if got := c.held.attempt("r"); got != c.next {
			t.Errorf("%s: attempt %q, want %q", name, got, c.next)
		}
	}
}

// TestSpent: the parts of a run's time add up to its whole. Method: a joint session of two personas that talked for 10 s, the slower of whom waited 7 s for replies.
func TestSpent(t *testing.T) {
	s := spent{}
	s.talked(10*time.Second, []*personas.Session{{Turns: []personas.Turn{{Seconds: 3}, {Seconds: 4}}}, {Turns: []personas.Turn{{Seconds: 5}}}})
	s[partTraining] = 2 * time.Second
	s.rest(15 * time.Second)
	want := map[string]float64{"decode": 7, "talk": 3, "training": 2, "other": 3, "total": 15}
	if got := s.seconds(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := s.String(); got != "decode 7.0, talk 3.0, training 2.0, other 3.0" {
		t.Errorf("%s", got)
	}
	if !slices.Contains(parts, partHeldOut) {
		t.Error("a part is not shown")
	}
}

// TestETA: what is left is told at most, by this run's pace and that of the runs before. Method: times as they may be.
func TestETA(t *testing.T) {
	e := &evaluation{}
	if got := e.eta(30*time.Second, 0); got != "" {
		t.Errorf("at the end: %q", got)
	}
	if got := e.eta(30*time.Second, 10); got != "at most 5 min more for this run" {
		t.Errorf("first run: %q", got)
	}
	e.times, e.left = []time.Duration{time.Hour, 3 * time.Hour}, 4
	if got := e.eta(10*time.Second, 2); got != "at most 20 s more for this run; about 8.0 h for the 4 after it" {
		t.Errorf("later: %q", got)
	}
}
