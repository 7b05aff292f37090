package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/nextstate-rl/nextstate/ops"
)

// Status shows how the pipeline, the sessions and the policy are doing.
type Status struct {
	Watch bool          `short:"w" help:"Show it again and again, in place, until Ctrl-C."`
	Every time.Duration `help:"Pause between two looks with --watch." default:"2s"`
	Key   string        `help:"API key to ask the gateway which version it serves, where it needs one (nextstate keys create)." secret:""`
}

// Help explains the command.
func (Status) Help() string {
	return `Shows for each stage how many records of its topic it has not processed, what the history holds, dead letters, sessions, the reward of each
policy version and which one is served, and the updates of the trainer. --json for programs: the same, and with --watch one document after another.

  nextstate status
  nextstate status --watch --every 5s`
}

// statusTimeout bounds one look: stores that do not answer are reported, and not waited for.
const statusTimeout = 30 * time.Second

// Run asks the log, the history and the gateway.
func (c Status) Run(ctx context.Context, g *Globals) error {
	if c.Every < 100*time.Millisecond {
		return errors.New("--every: at least 100ms")
	}
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		read := func(ctx context.Context) (ops.Status, error) { return c.read(ctx, s) }
		if c.Watch {
			return watch(ctx, g, c.Every, read)
		}
		st, err := read(ctx)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(st)
		}
		g.printf("%s", statusText(st, time.Now()))
		return nil
	})
}

func (c Status) read(ctx context.Context, s *ops.System) (ops.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, statusTimeout, fmt.Errorf("no answer within %s: does 'nextstate up' still run?", statusTimeout))
	defer cancel()
	st, err := ops.ReadStatus(ctx, s)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		return st, err
	}
	serving, err := ops.ReadServing(ctx, s, c.Key)
	if err != nil {
		return st, err
	}
	st.Serve(serving)
	return st, nil
}

// watch shows what read finds until ctx ends, which is no error.
func watch(ctx context.Context, g *Globals, every time.Duration, read func(context.Context) (ops.Status, error)) error {
	screen := newScreen(g)
	defer screen.done()
	for {
		began := time.Now()
		st, err := read(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case g.JSON:
			if err := g.printJSON(st); err != nil {
				return err
			}
		default:
			if err := screen.show(watchText(st, time.Now())); err != nil {
				return err
			}
		}
		// A long history takes its time to count: watching may cost half of it at most.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(every, time.Since(began))):
		}
	}
}

// newScreen is the terminal that standard output is, or plain blocks.
func newScreen(g *Globals) *screen {
	f, ok := g.out.(*os.File)
	if !ok || g.JSON || !term.IsTerminal(int(f.Fd())) {
		return &screen{out: g.out}
	}
	return &screen{out: g.out, size: func() (int, int) {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil { // a terminal that does not know its size
			return 80, 24
		}
		return width, height
	}}
}
