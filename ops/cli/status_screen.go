package cli

import (
	"fmt"
	"io"
	"strings"
)

// screen shows a text that is shown again and again. On a terminal each takes the place of the last; elsewhere they follow one another as blocks.
type screen struct {
	out io.Writer
	// size is that of the terminal in columns and lines, asked each time because the user may change it; nil: no terminal.
	size  func() (width, height int)
	shown bool
}

// ANSI control sequences (ECMA-48).
const (
	ansiHome      = "\x1b[H"
	ansiClear     = "\x1b[2J"
	ansiClearLine = "\x1b[K"
	ansiClearRest = "\x1b[J"
)

// show replaces what was shown by text, which ends with a newline.
func (s *screen) show(text string) error {
	first := !s.shown
	s.shown = true
	if s.size == nil {
		if !first {
			text = "\n" + text
		}
		_, err := io.WriteString(s.out, text)
		return err
	}
	var b strings.Builder
	if first {
		b.WriteString(ansiClear)
	}
	b.WriteString(ansiHome)
	// One write, and no clearing before it: a terminal that is cleared first flickers.
	for i, line := range fit(text, s.size) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line)
		b.WriteString(ansiClearLine)
	}
	b.WriteString(ansiClearRest)
	_, err := io.WriteString(s.out, b.String())
	return err
}

// done leaves the cursor below what was shown.
func (s *screen) done() {
	if s.size != nil && s.shown {
		fmt.Fprint(s.out, "\r\n")
	}
}

// fit cuts a text to the terminal: a line that wraps, or a text that scrolls, could not be replaced in place. The last column stays empty, because clearing
// to the end of a full line takes its last character away on some terminals.
func fit(text string, size func() (int, int)) []string {
	width, height := size()
	width, height = max(width-1, 1), max(height, 2)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > height {
		more := len(lines) - height + 1
		lines = append(lines[:height-1], fmt.Sprintf("… %d more lines: make the terminal taller", more))
	}
	for i, line := range lines {
		if r := []rune(line); len(r) > width {
			lines[i] = string(r[:width-1]) + "…"
		}
	}
	return lines
}
