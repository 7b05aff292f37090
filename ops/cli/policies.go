package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/blobs"
)

// Policies are the commands about policy versions.
type Policies struct {
	List     PoliciesList     `cmd:"" help:"List versions, and which one is served."`
	Show     PoliciesShow     `cmd:"" help:"Show one: metrics, recipe, hashes."`
	Diff     PoliciesDiff     `cmd:"" help:"Compare the metrics and weights of two."`
	Rollback PoliciesRollback `cmd:"" help:"Serve an older version again; what came after it is served no more."`
	Pin      PoliciesPin      `cmd:"" help:"Serve one version whatever is published."`
	Trace    PoliciesTrace    `cmd:"" help:"Show every update, sample, verdict, hint and turn behind a version."`
	Rebuild  PoliciesRebuild  `cmd:"" help:"Compute a version again from the log, and compare the bytes."`
	Prune    PoliciesPrune    `cmd:"" help:"Delete the weights of old versions; their events stay."`
	Export   PoliciesExport   `cmd:"" help:"Write the adapter into a folder: PEFT and GGUF."`
}

// withPolicies opens the system and reads what there is of versions.
func (g *Globals) withPolicies(ctx context.Context, do func(context.Context, *ops.System, *ops.Policies) error) error {
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		p, err := ops.ReadPolicies(ctx, s)
		if err != nil {
			return err
		}
		return do(ctx, s, p)
	})
}

// withPolicy does the same for a command about one version, which is not the base model.
func (g *Globals) withPolicy(ctx context.Context, version string, do func(context.Context, *ops.System, *ops.Policies, *ops.PolicyVersion) error) error {
	return g.withPolicies(ctx, func(ctx context.Context, s *ops.System, p *ops.Policies) error {
		v, err := p.Find(version)
		if err != nil {
			return err
		}
		if v == nil {
			return errors.New("base is the model without an adapter: nothing was trained to get it")
		}
		return do(ctx, s, p, v)
	})
}

// listedPolicy is a line of the list.
type listedPolicy struct {
	*ops.PolicyVersion
	// State is served, to be served, pinned, loaded, rolled back, pruned, or empty.
	State string `json:"state"`
}

// PoliciesList lists versions.
type PoliciesList struct {
	Limit int    `help:"At most so many, the newest first. 0: all." default:"50"`
	Key   string `help:"API key, where the gateway needs one to say what it serves (keys create)." secret:""`
}

// Help explains the command.
func (PoliciesList) Help() string {
	return `The state is what the running gateway says: served (what the model "policy" is now) or loaded (can be asked for by its id). Without a
gateway it is what would be served. The weights of one that is pruned were deleted to save room (policies prune), and can be computed again (policies
rebuild --store). A version may be named by its first characters in all commands; base is the model without an adapter.`
}

// Run lists them, the newest first.
func (l PoliciesList) Run(ctx context.Context, g *Globals) error {
	return g.withPolicies(ctx, func(ctx context.Context, s *ops.System, p *ops.Policies) error {
		serving, err := ops.ReadServing(ctx, s, l.Key)
		if err != nil {
			return err
		}
		pin, err := ops.Pin(ctx, s)
		if err != nil {
			return err
		}
		store, err := blobs.Open(blobs.Config{Dir: s.Blobs()})
		if err != nil {
			return err
		}
		state := stateOf(p, serving, pin)
		list := []listedPolicy{}
		for _, v := range slices.Backward(p.All()) {
			if l.Limit != 0 && len(list) == l.Limit {
				break
			}
			line := listedPolicy{v, state(v.Version)}
			if stored, err := v.Stored(ctx, store); err != nil {
				return err
			} else if !stored {
				line.State = strings.TrimPrefix(line.State+", pruned", ", ")
			}
			list = append(list, line)
		}
		base := listedPolicy{&ops.PolicyVersion{Version: policy.Base, BaseModel: serving.Model, SampleIDs: []string{}}, state(policy.Base)}
		list = append(list, base)
		if g.JSON {
			return g.printJSON(list)
		}
		if serving.Error != "" {
			g.note("%s", serving.Error)
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "VERSION\tUPDATE\tPARENT\tPUBLISHED\tSAMPLES\tREWARD\tLOSS\tSTATE")
		for _, v := range list {
			if v.Version == policy.Base {
				fmt.Fprintf(w, "%s\t-\t-\t-\t-\t-\t-\t%s\n", v.Version, v.State)
				continue
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\n", v.Version, v.Update, short(v.Parent), v.Published.Format("2006-01-02 15:04:05"), len(v.SampleIDs),
				metric(v.Metrics, "reward_mean"), metric(v.Metrics, "loss"), v.State)
		}
		return w.Flush()
	})
}

// stateOf says of each version what is known.
func stateOf(p *ops.Policies, serving ops.Serving, pin string) func(version string) string {
	wanted := p.Serve()[0]
	if pin != "" {
		wanted = pin
	}
	return func(version string) string {
		state := ""
		switch v, _ := p.Version(version); {
		case version == serving.Version:
			state = "served"
		case version == wanted:
			state = "to be served"
		case v != nil && v.RolledBack != "":
			state = "rolled back: " + v.RolledBack
		case slices.Contains(serving.Loaded, version):
			state = "loaded"
		}
		if version == pin {
			state += ", pinned"
		}
		return state
	}
}

func metric(metrics map[string]float64, name string) string {
	if v, known := metrics[name]; known {
		return fmt.Sprintf("%.4g", v)
	}
	return "-"
}

// PoliciesShow shows one.
type PoliciesShow struct {
	Version string `arg:"" help:"The version, or its first characters."`
}

// Run shows it.
func (c PoliciesShow) Run(ctx context.Context, g *Globals) error {
	return g.withPolicy(ctx, c.Version, func(_ context.Context, _ *ops.System, _ *ops.Policies, v *ops.PolicyVersion) error {
		if g.JSON {
			return g.printJSON(v)
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		for _, line := range [][2]string{
			{"version", v.Version},
			{"update", fmt.Sprint(v.Update)},
			{"update id", v.UpdateID},
			{"parent", v.Parent},
			{"published", v.Published.Format("2006-01-02 15:04:05.000")},
			{"base model", v.BaseModel},
			{"engine", v.Engine},
			{"seed", fmt.Sprint(v.Seed)},
			{"recipe", string(v.Objective)},
			{"samples", fmt.Sprint(len(v.SampleIDs))},
			{"peft", v.PEFT},
			{"gguf", v.GGUF},
			{"checkpoint", v.Checkpoint},
			{"rolled back", v.RolledBack},
		} {
			if line[1] != "" {
				fmt.Fprintf(w, "%s\t%s\n", line[0], line[1])
			}
		}
		fmt.Fprintln(w, "\nMETRIC\tVALUE")
		for _, name := range slices.Sorted(maps.Keys(v.Metrics)) {
			fmt.Fprintf(w, "%s\t%.6g\n", name, v.Metrics[name])
		}
		return w.Flush()
	})
}

// PoliciesDiff compares two.
type PoliciesDiff struct {
	A string `arg:"" help:"A version, its first characters, or base."`
	B string `arg:"" help:"Another."`
}

// Help explains the command.
func (PoliciesDiff) Help() string {
	return `Shows the metrics of both updates side by side, and the L2 norm over all layers of what each version changes in the weights of the base model, and of
the difference.`
}

// Run compares them.
func (c PoliciesDiff) Run(ctx context.Context, g *Globals) error {
	return g.withPolicies(ctx, func(ctx context.Context, s *ops.System, p *ops.Policies) error {
		a, errA := p.Find(c.A)
		b, errB := p.Find(c.B)
		if err := errors.Join(errA, errB); err != nil {
			return err
		}
		store, err := blobs.Open(blobs.Config{Dir: s.Blobs()})
		if err != nil {
			return err
		}
		d, err := ops.DiffPolicies(ctx, store, a, b)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(d)
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		fmt.Fprintf(w, "\t%s\t%s\t\n", short(d.A), short(d.B))
		for _, name := range d.MetricNames() {
			both, cells := d.Metrics[name], [2]string{"-", "-"}
			for i, v := range both {
				if v != nil {
					cells[i] = fmt.Sprintf("%.6g", *v)
				}
			}
			change := ""
			if both[0] != nil && both[1] != nil {
				change = fmt.Sprintf("%+.6g", *both[1]-*both[0])
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, cells[0], cells[1], change)
		}
		fmt.Fprintf(w, "norm of the change of the weights\t%.6g\t%.6g\t\n", d.NormA, d.NormB)
		fmt.Fprintf(w, "norm of the difference\t\t\t%.6g\n", d.Distance)
		return w.Flush()
	})
}

// PoliciesRollback puts an older version back.
type PoliciesRollback struct {
	Version string `arg:"" help:"The version to go back to, its first characters, or base."`
	Reason  string `help:"Why; it is kept in the log." required:""`
	By      string `help:"Who does it. Default: the user of this machine."`
}

// Help explains the command.
func (PoliciesRollback) Help() string {
	return `Appends PolicyRolledBack. Every engine serves the version again at once, the trainer goes on from it, and the versions between, with all that descend
from them, are served no more. Going back to one of those makes it good again.`
}

// Run appends the event.
func (c PoliciesRollback) Run(ctx context.Context, g *Globals) error {
	return g.withPolicies(ctx, func(ctx context.Context, s *ops.System, p *ops.Policies) error {
		version, err := idOf(p, c.Version)
		if err != nil {
			return err
		}
		by := c.By
		if by == "" {
			if u, err := user.Current(); err == nil {
				by = u.Username
			}
		}
		from, err := ops.RollBack(ctx, s, p, version, c.Reason, by)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(map[string]string{"from_version": from, "to_version": version, "reason": c.Reason, "by": by})
		}
		g.printf("rolled back from %s to %s\n", from, version)
		if pin, err := ops.Pin(ctx, s); err != nil || pin != "" && pin != version {
			g.note("version %s is pinned and is served until 'policies pin --none'", pin)
			return err
		}
		return nil
	})
}

// idOf is the whole id of a version.
func idOf(p *ops.Policies, version string) (string, error) {
	v, err := p.Find(version)
	if err != nil || v == nil {
		return policy.Base, err
	}
	return v.Version, nil
}

// PoliciesPin pins one.
type PoliciesPin struct {
	Version string `arg:"" optional:"" help:"The version, its first characters, or base."`
	None    bool   `help:"Serve the newest version again."`
}

// Help explains the command.
func (PoliciesPin) Help() string {
	return `Engines serve the pinned version whatever is published, within a second, until another is pinned or none. Training goes on.`
}

// Run pins it.
func (c PoliciesPin) Run(ctx context.Context, g *Globals) error {
	if c.None == (c.Version != "") {
		return errors.New("name the version to pin, or give --none to serve the newest again")
	}
	return g.withPolicies(ctx, func(ctx context.Context, s *ops.System, p *ops.Policies) error {
		version := ""
		var err error
		if c.None {
			err = ops.Unpin(ctx, s)
		} else if version, err = idOf(p, c.Version); err == nil {
			err = ops.SetPin(ctx, s, version)
		}
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(map[string]string{"pinned": version})
		}
		if c.None {
			g.printf("no version is pinned; %s is to be served\n", p.Serve()[0])
		} else {
			g.printf("pinned %s\n", version)
		}
		return nil
	})
}
