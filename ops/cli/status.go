package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/nextstate-rl/nextstate/ops"
)

// Status shows how the pipeline is doing.
type Status struct{}

// Help explains the command.
func (Status) Help() string {
	return `Shows for each stage how many records of its topic it has not processed, what the history holds, and the dead letters. --json for programs.`
}

// Run asks the log and the history.
func (Status) Run(ctx context.Context, g *Globals) error {
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		st, err := ops.ReadStatus(ctx, s)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(st)
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "STAGE\tTOPIC\tRECORDS\tLAG")
		for _, l := range st.Stages {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\n", l.Stage, l.Topic, l.Records, l.Lag)
		}
		fmt.Fprintln(w, "\nEVENTS IN THE HISTORY\tCOUNT\t\t")
		for _, c := range st.Events {
			fmt.Fprintf(w, "%s\t%d\t\t\n", c.Name, c.Count)
		}
		if len(st.DeadLetters) > 0 {
			fmt.Fprintln(w, "\nDEAD LETTERS OF\tCOUNT\t\t")
			for _, c := range st.DeadLetters {
				fmt.Fprintf(w, "%s\t%d\t\t\n", c.Name, c.Count)
			}
		}
		t := st.Turns
		fmt.Fprintf(w, "\nturns %d: %d good, %d bad, %d with a hint; samples %d, skipped %d\n", t.Closed, t.Good, t.Bad, t.Hinted, t.Samples, t.Skipped)
		return w.Flush()
	})
}
