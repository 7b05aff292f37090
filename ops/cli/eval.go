package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/alecthomas/kong"

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

	ReportOnly bool `help:"Hold no run: write the report of those that are complete."`

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
complete run, and with --report-only it writes the report of the complete ones. Settings are tuned with --half tuning, and reported with --half reporting.

  nextstate eval --arms hybrid,frozen --seeds 2 --sessions 24 --out results
  nextstate eval --arms hybrid --set objective.kl_coef=0.1 --label kl --half tuning --seeds 2 --out tuning
  nextstate --data results/data sql "SELECT arm, seed, persona, aligned_at FROM evaluation_alignment"
  nextstate --data results/data policies list

Arms:
` + eval.About() + `
The figures of this machine's model and what they mean: docs/eval.md, docs/learning.md.`
}

// Run holds the evaluation, or what is left of it.
func (v Eval) Run(ctx context.Context, g *Globals, k *kong.Context) error {
	if g.Data == DefaultData() {
		g.Data = filepath.Join(v.Out, "data")
	}
	command := v.command(k)
	g.HTTP.Addr = "127.0.0.1:0" // an evaluation must not collide with what runs already
	if v.Batch != 0 {
		g.Train.Batch = v.Batch
	}
	g.Train.Set = append(slices.Clip(g.Train.Set), v.Set...)
	cfg := eval.Config{
		Arms: v.Arms, Seeds: v.Seeds, Personas: v.Personas, Half: personas.Halves[v.Half], Sessions: v.Sessions, Turns: v.Turns, HeldOut: v.HeldOut,
		Temperature: v.Temperature, MaxTokens: v.MaxTokens, TimeLimit: v.TimeLimit, Label: v.Label, ReportOnly: v.ReportOnly, Phrased: v.Phrasing.phrased(nil), Dir: v.Out, Command: command,
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

// repeated begins the names of the general flags that change what an evaluation finds. Others only say where it runs, and how fast.
var repeated = []string{"evaluate-", "direct-", "judge-", "standing-", "train-", "rehearse", "policy-"}

// notRepeated do not change it, or are nobody's business.
var notRepeated = []string{"out", "report-only", "persona-url", "judge-url", "policy-url", "policy-threads", "train-threads", "policy-parallel", "policy-queue", "policy-versions"}

// command is how the evaluation is repeated: its own flags, and of the general ones that count those that are not at their defaults, wherever they were set.
func (v Eval) command(k *kong.Context) string {
	words := []string{"nextstate eval", "--arms " + strings.Join(v.Arms, ",")}
	own := map[string]bool{}
	for _, f := range k.Selected().Flags {
		own[f.Name] = true
	}
	for _, f := range k.Flags() {
		general := slices.ContainsFunc(repeated, func(prefix string) bool { return strings.HasPrefix(f.Name, prefix) })
		if f.Tag.Has("secret") || f.Name == "arms" || f.Name == "help" || slices.Contains(notRepeated, f.Name) || !own[f.Name] && !general {
			continue
		}
		if word := flagWord(f, own[f.Name]); word != "" {
			words = append(words, word)
		}
	}
	return strings.Join(append(words, "--out DIR"), " ")
}

// flagWord is a flag as it is given. Empty: it has no value, or, unless always, that of its default.
func flagWord(f *kong.Flag, always bool) string {
	otherwise := reflect.New(f.Target.Type()).Elem()
	if f.Default != "" && !always {
		if err := f.Parse(kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: f.Default}), otherwise); err != nil {
			return "" // a default that cannot be read fails long before
		}
	}
	text := valueText(f.Target)
	switch {
	case text == valueText(otherwise):
		return ""
	case f.IsBool():
		return "--" + f.Name
	case f.Tag.Type == "path":
		text = filepath.Base(text) // where a file lies is this machine's business
	}
	return "--" + f.Name + " " + shellWord(text)
}

func valueText(v reflect.Value) string {
	if list, ok := v.Interface().([]string); ok {
		return strings.Join(list, ",")
	}
	return fmt.Sprint(v.Interface())
}

// shellWord quotes a word that a shell would not take as it is.
func shellWord(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-.,:=/@%+", r)
	}) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
