package files

import (
	"bufio"
	"io"

	"github.com/nextstate-rl/nextstate/schemas"
)

// jsonl writes one CloudEvents object a line.
type jsonl struct{ w *bufio.Writer }

func newJSONL(w io.Writer) *jsonl { return &jsonl{w: bufio.NewWriterSize(w, 1<<16)} }

func (j *jsonl) write(e schemas.Event) error {
	line, err := schemas.EncodeJSON(e)
	if err != nil {
		return err
	}
	if _, err := j.w.Write(line); err != nil {
		return err
	}
	return j.w.WriteByte('\n')
}

func (j *jsonl) close() error { return j.w.Flush() }
