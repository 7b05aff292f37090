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

// retriedLetter is what became of one dead letter.
type retriedLetter struct {
	DeadLetter string `json:"dead_letter"`
	// NewID is that of the event that was appended; empty: it kept its id.
	NewID string `json:"new_id,omitempty"`
}

// DeadLettersRetry appends records again.
type DeadLettersRetry struct {
	IDs   []string `arg:"" optional:"" help:"Ids of the dead letters."`
	Stage string   `help:"All of this stage."`
}

// Help explains the command.
func (DeadLettersRetry) Help() string {
	return `Appends the records to their topics again: after a newer version, or an event that came late, made them acceptable. A source event gets a new id
(the old one stays in the history, and the first event with an id wins); retrying twice has one effect. An action that is retried is a new turn:
events that name its old id do not find it. Records of files are not retried: mend the file and import it again.`
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
		retried, failed := []retriedLetter{}, []string{}
		err = s.While(ctx, func(ctx context.Context) error {
			for i := len(letters) - 1; i >= 0; i-- { // the oldest first: that was their order
				id, err := ops.Retry(ctx, s.Log, letters[i])
				if err != nil {
					failed = append(failed, err.Error())
					continue
				}
				retried = append(retried, retriedLetter{letters[i].ID, id})
			}
			return ops.WaitCaughtUp(ctx, s.Log, nil)
		})
		if g.JSON {
			err = errors.Join(err, g.printJSON(map[string]any{"retried": retried, "failed": failed}))
		} else {
			for _, r := range retried {
				g.printf("%s appended again %s\n", r.DeadLetter, r.NewID)
			}
			for _, f := range failed {
				g.note("%s", f)
			}
		}
		if err == nil && (len(failed) > 0 || len(retried) == 0) {
			return ErrPartly
		}
		return err
	})
}
