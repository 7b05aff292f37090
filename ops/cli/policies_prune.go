package cli

import (
	"cmp"
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/nextstate-rl/nextstate/ops"
)

// PoliciesPrune deletes weights of old versions.
type PoliciesPrune struct {
	Keep    int  `help:"How many of the newest versions keep their weights. Default: --policies-keep, or 8 where that keeps all." placeholder:"N"`
	Rebuilt bool `help:"Also those that 'policies rebuild --store' put back."`
	DryRun  bool `help:"Show what would be deleted, and delete nothing."`
}

// Help explains the command.
func (PoliciesPrune) Help() string {
	return `A version's weights are about 98 MB of the default model, most of them the optimizer's state. They are deleted from the blob store unless the version is one of the
newest, the one to be served, pinned, one that was rolled back to or computed again, or an update starts from it. A file that a version of another tenant needs stays, too.
The trainer does the same after each publication (--policies-keep). The events stay, so that 'policies rebuild VERSION --store' can compute the same bytes again.`
}

// keptByDefault are the versions that prune keeps where the trainer keeps all.
const keptByDefault = 8

// Run prunes.
func (c PoliciesPrune) Run(ctx context.Context, g *Globals) error {
	if c.Keep < 0 {
		return fmt.Errorf("--keep is %d; keep 1 or more", c.Keep)
	}
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		store, err := s.OpenBlobs()
		if err != nil {
			return err
		}
		keep := cmp.Or(c.Keep, g.Policies.Keep, keptByDefault)
		do := ops.PrunePolicies
		if c.DryRun {
			do = ops.PlanPruning
		} else if c.Rebuilt {
			if err := ops.ReleaseRebuilt(ctx, s); err != nil {
				return err
			}
		}
		done, err := do(ctx, s, store, keep)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(done)
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "VERSION\tUPDATE\tMB\tWEIGHTS")
		word := "deleted"
		if c.DryRun {
			word = "would be deleted"
		}
		for _, v := range done.Pruned {
			fmt.Fprintf(w, "%s\t%d\t%.1f\t%s\n", v.Version, v.Update, float64(v.Bytes)/1e6, word)
		}
		for _, v := range done.Kept {
			fmt.Fprintf(w, "%s\t%d\t\tkept: %s\n", v.Version, v.Update, v.Why)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		g.printf("%.1f MB %s\n", float64(done.Bytes)/1e6, word)
		return nil
	})
}
