package assets

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// tracker is the progress of one asset. Safe for concurrent use.
type tracker struct {
	mu    sync.Mutex
	name  string
	total int64
	state string // empty: nothing had to be done
	bytes int64
	done  bool
	err   error
	said  string // the last line about it, for a writer that is no terminal
}

func (t *tracker) phase(state string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state = state
}

func (t *tracker) add(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes = min(t.bytes+n, t.total)
}

// atLeast never goes back: a client moves its files about.
func (t *tracker) atLeast(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bytes = min(max(t.bytes, n), t.total)
}

func (t *tracker) finish(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done, t.err = true, err
}

// text returns what to show, and "" for an asset that was there all along.
func (t *tracker) text(width int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	const mb = 1e6
	switch {
	case t.err != nil:
		return t.name + " failed"
	case t.state == "":
		return ""
	case t.done:
		return t.name + " ready"
	case t.state != "fetching":
		return t.name + " " + t.state
	}
	part := float64(t.bytes) / float64(max(t.total, 1))
	if width == 0 { // lines: one every tenth, or a slow download would fill a log
		part = float64(int(part*10)) / 10
		return fmt.Sprintf("%s fetching %.0f%% of %.1f MB", t.name, part*100, float64(t.total)/mb)
	}
	full := int(part * float64(width))
	return fmt.Sprintf("%s [%s%s] %.1f/%.1f MB", t.name, strings.Repeat("#", full), strings.Repeat(".", width-full), float64(t.bytes)/mb, float64(t.total)/mb)
}

// report shows the trackers: one bar line that is rewritten on a terminal, else a line whenever a text changes.
type report struct {
	w        io.Writer
	terminal int // columns; 0: none
	trackers []*tracker
	shown    bool
}

func newReport(w io.Writer, list []Asset) *report {
	r := &report{w: w}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		r.terminal = 80
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			r.terminal = width
		}
	}
	for _, a := range list {
		r.trackers = append(r.trackers, &tracker{name: a.Name, total: a.Bytes()})
	}
	return r
}

// start shows progress until stop is called, which shows the last state.
func (r *report) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				r.show()
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
		r.show()
		if r.terminal > 0 && r.shown {
			fmt.Fprintln(r.w)
		}
	}
}

func (r *report) show() {
	if r.terminal > 0 {
		var parts []string
		for _, t := range r.trackers {
			if s := t.text(12); s != "" {
				parts = append(parts, s)
			}
		}
		line := strings.Join(parts, "  ")
		if len(line) >= r.terminal {
			line = line[:r.terminal-1]
		}
		if line != "" {
			r.shown = true
			fmt.Fprintf(r.w, "\r\x1b[K%s", line)
		}
		return
	}
	for _, t := range r.trackers {
		if s := t.text(0); s != "" && s != t.said {
			t.said = s
			fmt.Fprintln(r.w, s)
		}
	}
}
