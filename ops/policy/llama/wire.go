package llama

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"io"
	"net/http"

	"github.com/nextstate-rl/nextstate/producers/gateway"
)

// frameBytesMax bounds what one side makes the other hold. The largest is a Scored: entriesMax log-probs with their ids.
const (
	frameBytesMax = 128 << 20
	entriesMax    = 4 << 20
)

// command is what the parent asks of the child: one of its fields is set.
type command struct {
	ID       uint64
	Generate *generation
	Score    *ScoreRequest
	Swap     *swap
	Cancel   bool
}

// generation is a Request on the wire: gob drops pointers to zero, and 0 is a good seed.
type generation struct {
	Request Request
	Seeded  bool
	Seed    int64
}

type swap struct{ Version, Adapter string }

// report is what the child says after a step.
type report struct {
	// Ready is the first report's, Versions (newest first) the report's after they changed.
	Ready    *Info
	Versions []string
	Events   []event
}

// event concerns one command; Token and Started are followed by others, the rest is the last.
type event struct {
	ID      uint64
	Started *Result
	Token   *Token
	Done    *Result
	Scored  *Scored
	Swapped bool
	Failed  *failure
}

// failure is a gateway.PolicyError on the wire.
type failure struct {
	Status               int
	Code, Param, Message string
}

func (f *failure) policy() *gateway.PolicyError {
	return &gateway.PolicyError{Status: f.Status, Code: f.Code, Param: f.Param, Message: f.Message}
}

func invalid(format string, args ...any) *failure {
	return &failure{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}

// frameWriter sends values: four bytes of length, then gob. Its types are described once, so both ends keep their state. For one goroutine.
type frameWriter struct {
	to  io.Writer
	buf bytes.Buffer
	enc *gob.Encoder
}

func newFrameWriter(to io.Writer) *frameWriter {
	w := &frameWriter{to: to}
	w.enc = gob.NewEncoder(&w.buf)
	return w
}

func (w *frameWriter) write(v any) error {
	w.buf.Reset()
	w.buf.Write(make([]byte, 4))
	if err := w.enc.Encode(v); err != nil {
		return err
	}
	n := w.buf.Len() - 4
	if n > frameBytesMax {
		return fmt.Errorf("a frame of %d bytes is more than %d", n, frameBytesMax)
	}
	binary.LittleEndian.PutUint32(w.buf.Bytes(), uint32(n))
	_, err := w.to.Write(w.buf.Bytes())
	return err
}

// frameReader is the other end. For one goroutine.
type frameReader struct {
	from io.Reader
	buf  bytes.Buffer
	dec  *gob.Decoder
}

func newFrameReader(from io.Reader) *frameReader {
	r := &frameReader{from: bufio.NewReaderSize(from, 1<<16)}
	r.dec = gob.NewDecoder(&r.buf)
	return r
}

// read returns io.EOF when the other end has gone between two frames.
func (r *frameReader) read(v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r.from, head[:]); err != nil {
		return err
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n > frameBytesMax {
		return fmt.Errorf("a frame of %d bytes is more than %d", n, frameBytesMax)
	}
	r.buf.Reset()
	if _, err := io.CopyN(&r.buf, r.from, n); err != nil {
		return err
	}
	return r.dec.Decode(v)
}
