package cli

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/term"
)

// progress shows what long work is at: one line that is rewritten on a terminal, a line every few seconds elsewhere, nothing with --json.
type progress struct {
	g        *Globals
	terminal bool
	quiet    bool
	last     time.Time
	shown    bool
}

func newProgress(g *Globals) *progress {
	f, ok := g.errOut.(*os.File)
	return &progress{g: g, terminal: ok && term.IsTerminal(int(f.Fd())), quiet: g.JSON, last: time.Now()}
}

func (p *progress) show(format string, args ...any) {
	every := 5 * time.Second
	if p.terminal {
		every = 100 * time.Millisecond
	}
	if p.quiet || time.Since(p.last) < every {
		return
	}
	p.last, p.shown = time.Now(), true
	if p.terminal {
		fmt.Fprintf(p.g.errOut, "\r\x1b[K"+format, args...)
		return
	}
	p.g.note(format, args...)
}

func (p *progress) done() {
	if p.terminal && p.shown {
		fmt.Fprint(p.g.errOut, "\r\x1b[K")
	}
}

func percent(done, total int64) string {
	if total <= 0 {
		return fmt.Sprintf("%d MB", done>>20)
	}
	return fmt.Sprintf("%d%%", 100*done/total)
}
