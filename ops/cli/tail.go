package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Tail prints the events of a topic as they come.
type Tail struct {
	Topic  string `arg:"" help:"interactions, turns, verdicts, hints, samples, policies or deadletters."`
	Last   int64  `short:"n" help:"Begin with the last N records of each partition." default:"10"`
	All    bool   `help:"Begin with the first record that the log retains."`
	Follow bool   `short:"f" help:"Wait for more events instead of ending at the end of the topic."`
}

// Help explains the command.
func (Tail) Help() string {
	return `Prints one event a line: time, kind, session, what it says. With --json each line is CloudEvents JSON, as POST /v1/events takes it.

  nextstate tail verdicts -f
  nextstate tail interactions --all --json > events.jsonl`
}

// Run reads every partition.
func (t Tail) Run(ctx context.Context, g *Globals) error {
	if !slices.Contains(schemas.Topics(), t.Topic) {
		return fmt.Errorf("there is no topic %q; topics are %s", t.Topic, strings.Join(schemas.Topics(), ", "))
	}
	return g.with(ctx, ops.NeedLog, func(ctx context.Context, s *ops.System) error {
		bounds, err := s.Log.Bounds(ctx, t.Topic)
		if err != nil {
			return err
		}
		lines := make(chan []byte, 256)
		readers, rctx := errgroup.WithContext(ctx)
		for p, b := range bounds {
			readers.Go(func() error { return t.readPartition(rctx, g, s.Log, p, b, lines) })
		}
		done := make(chan error, 1)
		go func() { done <- readers.Wait(); close(lines) }()
		for line := range lines {
			if _, err := g.out.Write(line); err != nil {
				return err
			}
		}
		return <-done
	})
}

func (t Tail) readPartition(ctx context.Context, g *Globals, log schemas.Reader, partition int, b schemas.Bounds, lines chan<- []byte) error {
	from := max(b.First, b.Next-t.Last)
	if t.All {
		from = b.First
	}
	if from >= b.Next && !t.Follow {
		return nil
	}
	cursor, err := log.Open(ctx, t.Topic, partition, from)
	if err != nil {
		return err
	}
	defer cursor.Close()
	for {
		records, err := cursor.Next(ctx, 500)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, r := range records {
			select {
			case lines <- line(g, r):
			case <-ctx.Done():
				return nil
			}
			if !t.Follow && r.Offset+1 >= b.Next {
				return nil
			}
		}
	}
}

// line renders one record; a record that is no event is shown as such, never hidden.
func line(g *Globals, r schemas.Record) []byte {
	e, err := schemas.Decode(r)
	if err != nil {
		return fmt.Appendf(nil, "%s %d:%d undecodable: %v\n", r.Topic, r.Partition, r.Offset, err)
	}
	if g.JSON {
		b, err := schemas.EncodeJSON(e)
		if err != nil {
			return fmt.Appendf(nil, "%s %d:%d: %v\n", r.Topic, r.Partition, r.Offset, err)
		}
		return append(b, '\n')
	}
	at := "                    "
	if !e.Time.IsZero() {
		at = e.Time.Format("2006-01-02T15:04:05Z")
	}
	return fmt.Appendf(nil, "%s  %-17s %-24s %s\n", at, e.Kind(), clip(e.Session, 24), clip(ops.Summary(e), 120))
}

// clip shortens a text for a column, marking the cut.
func clip(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
