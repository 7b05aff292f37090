package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/eval"
	"github.com/nextstate-rl/nextstate/ops/personas"
)

// Eval measures whether the policy learns.
type Eval struct {
	Arms     []string `help:"What is compared: ${arms}." default:"hybrid,evaluative,directive,frozen"`
	Seeds    int      `help:"Runs of each arm, with the seeds 1 to N." default:"5"`
	Out      string   `help:"Folder of the results; the data is in its folder data, unless --data says otherwise." required:"" type:"path" placeholder:"DIR"`
	Sessions int      `help:"Most joint sessions of a run (the cap)." default:"72"`
	Half     string   `help:"Half of the problems: settings are tuned on one and reported on the other." enum:"tuning,reporting" default:"reporting"`
	Personas []string `help:"Who talks to the policy at the same time: ${personas}." default:"${personas}"`
	Turns    int      `help:"Most judged replies in a session." default:"8"`
	HeldOut  int      `help:"New problems put to each persona's policy after the last session. 0: none." default:"30"`

	Temperature float64       `help:"Sampling temperature." default:"0.6"`
	MaxTokens   int           `help:"Most tokens of a reply." default:"80"`
	TimeLimit   time.Duration `help:"After so long a run holds no further session and counts as not aligned. 0: none." default:"0"`
	Batch       int           `help:"Samples of an update in all arms. 0: the preset's."`
	Set         []string      `help:"A setting of the training in all arms, as --train-set takes it (objective.kl_coef=0.1); repeat it." placeholder:"KEY=VALUE"`
	Label       string        `help:"Added to the names of the arms: tells the same arms with other settings apart."`

	Phrasing Phrasing `embed:"" prefix:"persona-"`
}

// Help explains the command.
func (Eval) Help() string {
	return `Personas talk to one policy at the same time, session by session, each about homework problems of its own. They correct what they do not like, and the
policy learns from that between the sessions. What counts is the session of the first of three satisfied first replies in a row, for each
persona and for all of them (joint). A guard keeps replies from counting that are short, repeated, refusals, beside the point, or not fluent.

Each arm is run with each seed; the same seed gives every arm the same problems, words and draws. All runs are events (topic evaluations; tables
evaluation_started, reply_evaluated, evaluation_ended). The folder gets index.html (the report), report.md, report.json, results.json and
sessions.parquet; every figure in the report stands beside the query that gives it.

An evaluation takes long: a joint session up to a minute, a run up to the cap. Stop it with Ctrl-C: the same command goes on after the last
complete run. Settings are tuned with --half tuning, and reported with --half reporting.

  nextstate eval --arms hybrid,frozen --seeds 2 --sessions 24 --out results
  nextstate eval --arms hybrid --set objective.kl_coef=0.1 --label kl --half tuning --seeds 2 --out tuning
  nextstate --data results/data sql "SELECT arm, seed, persona, aligned_at FROM evaluation_alignment"
  nextstate --data results/data policies list

Arms:
` + eval.About() + `
The figures of this machine's model and what they mean: docs/eval.md, docs/learning.md.`
}

// Run holds the evaluation, or what is left of it.
func (v Eval) Run(ctx context.Context, g *Globals) error {
	if g.Data == DefaultData() {
		g.Data = filepath.Join(v.Out, "data")
	}
	g.HTTP.Addr = "127.0.0.1:0" // an evaluation must not collide with what runs already
	if v.Batch != 0 {
		g.Train.Batch = v.Batch
	}
	g.Train.Set = append(slices.Clip(g.Train.Set), v.Set...)
	cfg := eval.Config{
		Arms: v.Arms, Seeds: v.Seeds, Personas: v.Personas, Half: personas.Halves[v.Half], Sessions: v.Sessions, Turns: v.Turns, HeldOut: v.HeldOut,
		Temperature: v.Temperature, MaxTokens: v.MaxTokens, TimeLimit: v.TimeLimit, Label: v.Label, Phrased: v.Phrasing.phrased(nil), Dir: v.Out, Command: v.command(g),
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(v.Out, 0o750); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		results, err := eval.Evaluate(ctx, cfg, s, g.errOut)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(results)
		}
		for _, r := range results.Runs {
			g.printf("%s\n", r)
		}
		for _, f := range results.Files {
			g.printf("%s\n", f)
		}
		return nil
	})
}

// command is how the evaluation is repeated: its own flags, and of the others those that change what is learned.
func (v Eval) command(g *Globals) string {
	words := []string{
		"nextstate eval", "--arms " + strings.Join(v.Arms, ","), fmt.Sprintf("--seeds %d --sessions %d", v.Seeds, v.Sessions), "--half " + v.Half,
		"--personas " + strings.Join(v.Personas, ","), fmt.Sprintf("--turns %d --held-out %d --temperature %g --max-tokens %d", v.Turns, v.HeldOut, v.Temperature, v.MaxTokens),
	}
	for _, f := range []struct {
		flag           string
		value, without any
	}{
		{"time-limit", v.TimeLimit, time.Duration(0)},
		{"train-preset", g.Train.Preset, "default"},
		{"batch", g.Train.Batch, 0},
		{"train-rank", g.Train.Rank, 0},
		{"train-alpha", g.Train.Alpha, 0.0},
		{"train-learning-rate", g.Train.LearningRate, 0.0},
		{"direct-teacher", g.Direct.Teacher, "reference"},
		{"direct-finders", strings.Join(g.Direct.Finders, ","), "rules"},
		{"evaluate-judges", strings.Join(g.Evaluate.Judges, ","), "rules"},
		{"policy-model", filepath.Base(g.Policy.Model), "."},
		{"rehearse-updates", g.Rehearsal.Updates, 6},
		{"rehearse-seconds", g.Rehearsal.Seconds, 300},
		{"label", v.Label, ""},
	} {
		if f.value != f.without {
			words = append(words, fmt.Sprintf("--%s %v", f.flag, f.value))
		}
	}
	for _, s := range g.Train.Set {
		words = append(words, "--set "+s)
	}
	return strings.Join(append(words, "--out DIR"), " ")
}
