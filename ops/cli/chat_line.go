package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// lineReader reads what the user types. ReadLine is io.EOF at the end of the input and when the user wants to leave.
type lineReader interface {
	ReadLine() (string, error)
	// Terminal: somebody sits there.
	Terminal() bool
	// Close leaves the terminal as it was.
	Close()
}

// newLineReader edits lines on a terminal, echoing to out, and reads plain ones from anything else.
func newLineReader(in io.Reader, out io.Writer) lineReader {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if state, err := term.GetState(int(f.Fd())); err == nil {
			return &terminalLines{fd: int(f.Fd()), before: state, editor: term.NewTerminal(readWriter{f, out}, "> ")}
		}
	}
	return &pipeLines{in: bufio.NewReaderSize(in, 64<<10)}
}

// Most bytes of one line of a pipe.
const pipeLineBytes = 1 << 20

type pipeLines struct{ in *bufio.Reader }

func (p *pipeLines) Terminal() bool { return false }
func (p *pipeLines) Close()         {}

// ReadLine reads a line; the last one may lack its end.
func (p *pipeLines) ReadLine() (string, error) {
	var line []byte
	for {
		part, err := p.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > pipeLineBytes:
			return "", fmt.Errorf("a line of the input has more than %d bytes: a message is one line", pipeLineBytes)
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return string(line), nil
		default:
			return string(line), err
		}
	}
}

type readWriter struct {
	io.Reader
	io.Writer
}

// terminalLines edits lines in a terminal. It is raw only while a line is typed, so that Ctrl-C is a signal while a reply comes.
type terminalLines struct {
	fd     int
	editor *term.Terminal
	before *term.State
}

func (l *terminalLines) Terminal() bool { return true }

func (l *terminalLines) ReadLine() (string, error) {
	state, err := term.MakeRaw(l.fd)
	if err != nil {
		return "", err
	}
	defer func() { _ = term.Restore(l.fd, state) }() // it was a terminal a moment ago
	if width, height, err := term.GetSize(l.fd); err == nil {
		_ = l.editor.SetSize(width, height) // only a guess at the width is lost
	}
	line, err := l.editor.ReadLine()
	if errors.Is(err, term.ErrPasteIndicator) {
		err = nil
	}
	return line, err
}

func (l *terminalLines) Close() {
	_ = term.Restore(l.fd, l.before) // a signal may have come while a line was typed
}
