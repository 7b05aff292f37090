package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/producers/importers"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Import imports transcripts.
type Import struct {
	Paths  []string `arg:"" help:"Files, folders (searched through) or globs." type:"path"`
	Format string   `help:"auto, or one of ${formats}." default:"auto"`
	DryRun bool     `help:"Count and check only; nothing is written and no server is needed."`
	End    bool     `help:"End the sessions of formats that record no end (Claude Code, pi): the files will not grow any more." name:"end-sessions"`
	NoWait bool     `help:"Do not wait until the signals are derived and queryable."`
}

// Help explains the command.
func (Import) Help() string {
	return `Reads transcripts, tells their format by their content, and appends their actions and next states to the log. Importing a file again adds
nothing. A bad record is reported with file and line, dead-lettered, and the rest goes on; the exit status is then 3. Without a running 'up', the
servers and stages run for as long as the import takes.

  nextstate import --dry-run --json transcripts/
  nextstate import ~/.claude/projects --end-sessions
  nextstate import runs/*.traj --format sweagent`
}

// importReport is what --json prints.
type importReport struct {
	Files     []importers.Report `json:"files"`
	Refused   []refusedFile      `json:"refused,omitempty"`
	Events    int                `json:"events"`
	Seconds   float64            `json:"seconds"`
	Malformed int                `json:"malformed"`
}

type refusedFile struct {
	File  string `json:"file"`
	Error string `json:"error"`
}

// Run imports every file.
func (i Import) Run(ctx context.Context, g *Globals) error {
	files, err := importers.Files(i.Paths)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("no files in %s", strings.Join(i.Paths, ", "))
	}
	options := importers.Options{Tenant: g.Tenant, Format: i.Format, DryRun: i.DryRun, EndSessions: i.End}
	if err := options.Validate(); err != nil {
		return err
	}
	if i.DryRun {
		report, err := importFiles(ctx, g, options, files, nil)
		return i.finish(g, report, err)
	}
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		store, err := s.OpenBlobs()
		if err != nil {
			return err
		}
		options.Blobs = store
		var report importReport
		err = s.While(ctx, func(ctx context.Context) error {
			report, err = importFiles(ctx, g, options, files, s.Log)
			if err != nil || i.NoWait {
				return err
			}
			return ops.WaitCaughtUp(ctx, s.Log, nil)
		})
		return i.finish(g, report, err)
	})
}

// importFiles goes on after a file that cannot be imported, and stops at an error of the log.
func importFiles(ctx context.Context, g *Globals, o importers.Options, files []string, to schemas.Appender) (importReport, error) {
	report := importReport{Files: []importers.Report{}}
	start := time.Now()
	bar := newProgress(g)
	defer bar.done()
	for n, f := range files {
		o.Progress = func(done, total int64) { bar.show("%d/%d %s %s", n+1, len(files), f, percent(done, total)) }
		r, err := importers.Import(ctx, o, f, to)
		var unknown *importers.UnknownFormatError
		switch {
		case errors.As(err, &unknown):
			report.Refused = append(report.Refused, refusedFile{f, err.Error()})
			continue
		case err != nil:
			report.Seconds = time.Since(start).Seconds()
			return report, fmt.Errorf("%s: %w", f, err)
		}
		report.Files = append(report.Files, r)
		report.Events += r.Events
		report.Malformed += r.Malformed
	}
	report.Seconds = time.Since(start).Seconds()
	return report, nil
}

// printable keeps what a file holds from playing with the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '.'
	}, s)
}

// finish prints the report and chooses the exit status.
func (i Import) finish(g *Globals, report importReport, err error) error {
	if g.JSON {
		if e := g.printJSON(report); e != nil {
			return errors.Join(err, e)
		}
	} else {
		for _, r := range report.Files {
			g.printf("%s: %s, %d sessions, %d actions (+%d side), next states %v, %d outcomes, %d branches, %d malformed, %d unknown\n",
				r.File, r.Format, r.Sessions, r.Actions, r.SideTurns, r.NextStates, r.Outcomes, r.Branches, r.Malformed, r.Unknown)
			for _, w := range r.Warnings {
				g.printf("  %s\n", printable(w))
			}
		}
		for _, r := range report.Refused {
			g.printf("%s\n", printable(r.Error))
		}
		g.printf("%d events from %d files in %.1f s\n", report.Events, len(report.Files), report.Seconds)
	}
	if err == nil && (report.Malformed > 0 || len(report.Refused) > 0) {
		return ErrPartly
	}
	return err
}
