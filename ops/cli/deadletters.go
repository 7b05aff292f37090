package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"text/tabwriter"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nextstate-rl/nextstate/ops"
)

// DeadLettersList lists dead letters.
type DeadLettersList struct {
	Stage   string `help:"Only those of this stage."`
	Session string `help:"Only those of this session."`
	Limit   int    `help:"At most so many, the newest first." default:"50"`
}

// Run lists them.
func (l DeadLettersList) Run(ctx context.Context, g *Globals) error {
	return g.with(ctx, ops.NeedClickHouse, func(ctx context.Context, s *ops.System) error {
		letters, err := ops.DeadLetters(ctx, s, ops.DeadLetterFilter{Stage: l.Stage, Session: l.Session, Limit: l.Limit})
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(letters)
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "ID\tTIME\tSTAGE\tFROM\tREASON")
		for _, d := range letters {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", d.ID, d.Time.UTC().Format("2006-01-02 15:04:05"), d.Stage, clip(d.Origin, 50), clip(d.Reason, 100))
		}
		return w.Flush()
	})
}

// DeadLettersShow shows one.
type DeadLettersShow struct {
	ID string `arg:"" help:"Id of the dead letter (deadletters list)."`
}

// Run shows the reason, the headers and the bytes.
func (d DeadLettersShow) Run(ctx context.Context, g *Globals) error {
	return g.with(ctx, ops.NeedClickHouse, func(ctx context.Context, s *ops.System) error {
		letters, err := ops.DeadLetters(ctx, s, ops.DeadLetterFilter{IDs: []string{d.ID}, Limit: 1})
		if err != nil {
			return err
		}
		if len(letters) == 0 {
			return fmt.Errorf("there is no dead letter %s in the history", d.ID)
		}
		l := letters[0]
		if g.JSON {
			b, err := protojson.Marshal(l.Letter)
			if err != nil {
				return err
			}
			g.printf("%s\n", b)
			return nil
		}
		g.printf("stage   %s\nreason  %s\nfrom    %s\nkey     %q\n", l.Stage, l.Reason, l.Origin, l.Letter.GetKey())
		for _, h := range l.Letter.GetHeaders() {
			g.printf("header  %s: %q\n", h.GetKey(), h.GetValue())
		}
		g.printf("value   %d bytes\n", len(l.Letter.GetValue()))
		if v := l.Letter.GetValue(); utf8.Valid(v) {
			g.printf("%s\n", v)
		} else {
			g.printf("%s", hex.Dump(v))
		}
		return nil
	})
}

// DeadLettersRetry appends records again.
type DeadLettersRetry struct {
	IDs   []string `arg:"" optional:"" help:"Ids of the dead letters."`
	Stage string   `help:"All of this stage."`
}

// Help explains the command.
func (DeadLettersRetry) Help() string {
	return `Appends the records to their topics again, as they were: after a newer version, or an event that came late, made them acceptable. What is
already there is not counted twice: ids are deduplicated.`
}

// Run appends them, and says which cannot be.
func (r DeadLettersRetry) Run(ctx context.Context, g *Globals) error {
	if len(r.IDs) == 0 && r.Stage == "" {
		return errors.New("name dead letters by id, or a --stage")
	}
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		letters, err := ops.DeadLetters(ctx, s, ops.DeadLetterFilter{IDs: r.IDs, Stage: r.Stage})
		if err != nil {
			return err
		}
		retried, failed := 0, []string{}
		err = s.While(ctx, func(ctx context.Context) error {
			for i := len(letters) - 1; i >= 0; i-- { // the oldest first: that was their order
				if err := ops.Retry(ctx, s.Log, letters[i]); err != nil {
					failed = append(failed, err.Error())
					continue
				}
				retried++
			}
			return ops.WaitCaughtUp(ctx, s.Log, nil)
		})
		if g.JSON {
			err = errors.Join(err, g.printJSON(map[string]any{"retried": retried, "failed": failed}))
		} else {
			g.printf("%d records were appended again\n", retried)
			for _, f := range failed {
				g.note("%s", f)
			}
		}
		if err == nil && (len(failed) > 0 || retried == 0) {
			return ErrPartly
		}
		return err
	})
}
