package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/producers/blobs"
)

// PoliciesTrace shows what a version was made of.
type PoliciesTrace struct {
	Version string `arg:"" help:"The version, or its first characters."`
	Width   int    `help:"Most characters of a text that are shown." default:"90"`
}

// Help explains the command.
func (PoliciesTrace) Help() string {
	return `Asks the history for every update from the base model to the version, the newest first: its samples, and for each the turn (what the policy said,
what the world answered), the verdict with its reason, and the hint. --json has the whole texts.`
}

// Run shows it.
func (c PoliciesTrace) Run(ctx context.Context, g *Globals) error {
	return g.withPolicy(ctx, c.Version, func(ctx context.Context, s *ops.System, p *ops.Policies, v *ops.PolicyVersion) error {
		t, err := ops.TracePolicy(ctx, s, p, v)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(t)
		}
		for _, u := range t.Updates {
			g.printf("update %d of %s: version %s, %d samples, reward %s, loss %s\n", u.Update, short(u.Parent), u.Version, len(u.SampleIDs),
				metric(u.Metrics, "reward_mean"), metric(u.Metrics, "loss"))
			for _, r := range u.Samples {
				c.print(g, r)
			}
		}
		g.printf("base\n")
		if t.Missing > 0 {
			g.note("%d samples are not in the history (yet)", t.Missing)
		}
		return nil
	})
}

func (c PoliciesTrace) print(g *Globals, r ops.TraceSample) {
	g.printf("  session %s turn %d, sampled by %s: %s, reward %+g\n", r.Session, r.Index, or(short(r.PolicyVersion), "an unknown version"), r.Kind, r.Reward)
	score := "nobody could be asked"
	if r.Score != nil {
		score = fmt.Sprintf("%+d by %s: %s", *r.Score, or(r.Judge, "nobody"), clip(r.Reason, c.Width))
	}
	lines := [][2]string{{"policy", clip(strings.Join(append([]string{r.Response}, r.Calls...), " "), c.Width)}, {"world", clip(r.NextState, c.Width)}, {"verdict", score}, {"hint", clip(r.Hint, c.Width)}}
	for _, line := range lines {
		if line[1] != "" {
			g.printf("    %-8s %s\n", line[0], line[1])
		}
	}
}

// PoliciesRebuild computes a version again.
type PoliciesRebuild struct {
	Version string `arg:"" help:"The version, or its first characters."`
	Store   bool   `help:"Put its weights back into the blob store, where they were pruned or are lost."`
}

// Help explains the command.
func (PoliciesRebuild) Help() string {
	return `Computes every update from the base model to the version again, from the samples, recipes and seeds in the log and the history, and compares each file
byte for byte with what was published. With --store the version's files go back into the blob store, where they were pruned or are lost, and pruning leaves them alone from
then on (policies prune --rebuilt). Each update runs on as many threads as it was computed on first. A model other than the default is named with --policy-model. Exit
status 3: a file differs.`
}

// Run computes it.
func (c PoliciesRebuild) Run(ctx context.Context, g *Globals) error {
	return g.withPolicy(ctx, c.Version, func(ctx context.Context, s *ops.System, p *ops.Policies, v *ops.PolicyVersion) error {
		all, same := []ops.RebuiltVersion{}, true
		do := ops.RebuildPolicy
		if c.Store {
			do = ops.RestorePolicy
		}
		err := do(ctx, s, p, v, func(r ops.RebuiltVersion) {
			all, same = append(all, r), same && r.Same()
			if !g.JSON {
				words := "the same bytes"
				if !r.Same() {
					words = fmt.Sprintf("other bytes (same: %v)", r.Files)
				}
				g.printf("update %d of %d samples: version %s: %s\n", r.Update, r.Samples, r.Version, words)
			}
		})
		if err != nil {
			return err
		}
		if g.JSON {
			if err := g.printJSON(map[string]any{"same": same, "versions": all}); err != nil {
				return err
			}
		}
		if !same {
			return ErrPartly
		}
		return nil
	})
}

// PoliciesExport writes a version into a folder.
type PoliciesExport struct {
	Version string `arg:"" help:"The version, or its first characters."`
	Dir     string `arg:"" help:"The folder; it is made when it is missing." type:"path"`
}

// Help explains the command.
func (PoliciesExport) Help() string {
	return `Writes adapter_model.safetensors and adapter_config.json, which Python's peft loads, and adapter.gguf for llama.cpp (--lora).`
}

// Run writes it.
func (c PoliciesExport) Run(ctx context.Context, g *Globals) error {
	return g.withPolicy(ctx, c.Version, func(ctx context.Context, s *ops.System, _ *ops.Policies, v *ops.PolicyVersion) error {
		store, err := blobs.Open(blobs.Config{Dir: s.Blobs()})
		if err != nil {
			return err
		}
		if err := v.Export(ctx, store, c.Dir); err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(map[string]string{"version": v.Version, "dir": c.Dir})
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		fmt.Fprintf(w, "version\t%s\nfolder\t%s\nbase model\t%s\n", v.Version, c.Dir, v.BaseModel)
		return w.Flush()
	})
}
