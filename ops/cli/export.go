package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
	"github.com/nextstate-rl/nextstate/sinks/files"
)

// Export writes events to files.
type Export struct {
	Dir    string    `arg:"" optional:"" help:"Folder for the files, one a topic (JSONL) or kind (Parquet). Empty or -: JSONL on standard output."`
	Format string    `help:"jsonl (CloudEvents, as POST /v1/events takes them) or parquet (typed columns)." enum:"jsonl,parquet" default:"jsonl"`
	Topics []string  `help:"Only these topics."`
	Kinds  []string  `help:"Only these kinds, as in TurnJudged."`
	From   time.Time `help:"Only events of this time and later (RFC 3339)." placeholder:"TIME"`
	To     time.Time `help:"Only events before this time (RFC 3339)." placeholder:"TIME"`
}

// Help explains the command.
func (Export) Help() string {
	return `Exports the history. The same history gives the same bytes; an interrupted export leaves no file. Whole turns in one row: nextstate sql -o Parquet
"SELECT * FROM turns".

  nextstate export --format parquet out/
  nextstate export --kinds SampleAssembled > samples.jsonl`
}

// Run exports from ClickHouse, which keeps everything.
func (e Export) Run(ctx context.Context, g *Globals) error {
	o := files.Options{Format: files.Format(e.Format), Topics: e.Topics, Kinds: e.Kinds, From: e.From, To: e.To}
	if e.Dir != "" && e.Dir != "-" {
		o.Dir = e.Dir
	} else {
		o.Writer = g.out
	}
	if err := o.Validate(); err != nil {
		return err
	}
	return g.with(ctx, ops.NeedClickHouse, func(ctx context.Context, s *ops.System) error {
		bar := newProgress(g)
		o.Progress = func(r files.Report) { bar.show("%d of %d records", r.Read, r.Total) }
		report, err := files.Export(ctx, o, sink.NewHistory(s.ClickHouse))
		bar.done()
		if err != nil {
			return err
		}
		switch {
		case o.Writer != nil:
			return nil
		case g.JSON:
			err = g.printJSON(report)
		default:
			for _, f := range report.Files {
				g.printf("%s\n", f)
			}
			g.note("%d events in %d files", report.Events, len(report.Files))
		}
		if report.Undecodable > 0 {
			err = errors.Join(err, fmt.Errorf("%d records of the history cannot be decoded; see the view dead_letters", report.Undecodable))
		}
		return err
	})
}
