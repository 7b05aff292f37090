package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
)

// framing is how events follow each other in a body.
type framing int

const (
	// framingJSON: one object, an array of objects, or objects one after the other.
	framingJSON framing = iota + 1
	// framingLines: one object a line; a bad line spoils itself only.
	framingLines
)

// framingOf chooses by the request's headers, or answers 415.
func framingOf(h http.Header) (framing, *refusal) {
	if enc := h.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return 0, &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Encoding %.40q is not supported: send the body as it is", enc)}
	}
	typ := h.Get("Content-Type")
	if typ == "" {
		return framingJSON, nil
	}
	media, _, err := mime.ParseMediaType(typ)
	if err != nil {
		return 0, &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type %.80q cannot be parsed: use application/cloudevents+json or application/x-ndjson", typ)}
	}
	switch media {
	case "application/json", "application/cloudevents+json", "application/cloudevents-batch+json":
		return framingJSON, nil
	case "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines", "application/jsonlines":
		return framingLines, nil
	}
	return 0, &refusal{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type %.80q is not supported: use application/cloudevents+json, application/cloudevents-batch+json or application/x-ndjson", media)}
}

// errLine marks an event that cannot be read while its neighbours can.
var errLine = errors.New("line")

// split cuts a body into events and calls each once with the JSON of one event, or with an error for a line that cannot be read; raw is
// valid during the call only. It returns the first error of each, of the reader, or of the framing: then nothing of the body counts.
func split(body io.Reader, f framing, maxEvent int, each func(raw []byte, err error) error) error {
	r := bufio.NewReaderSize(body, 64<<10)
	if bom, err := r.Peek(3); err == nil && bytes.Equal(bom, []byte("\xef\xbb\xbf")) {
		if _, err := r.Discard(3); err != nil {
			return err
		}
	}
	if f == framingLines {
		return splitLines(r, maxEvent, each)
	}
	return splitJSON(r, maxEvent, each)
}

func splitLines(r *bufio.Reader, maxEvent int, each func(raw []byte, err error) error) error {
	var line []byte
	size := 0
	for {
		part, err := r.ReadSlice('\n')
		size += len(part)
		if size <= maxEvent+1 { // beyond the bound a line is only counted
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		last := errors.Is(err, io.EOF)
		if err != nil && !last {
			return err
		}
		raw := bytes.TrimSpace(line)
		switch {
		case size > maxEvent+1:
			if cause := each(nil, fmt.Errorf("%w: %d bytes, at most %d are allowed: put large content into the blob store", errLine, size, maxEvent)); cause != nil {
				return cause
			}
		case len(raw) > 0:
			if cause := each(raw, nil); cause != nil {
				return cause
			}
		}
		if last {
			return nil
		}
		line, size = line[:0], 0
	}
}

func splitJSON(r *bufio.Reader, maxEvent int, each func(raw []byte, err error) error) error {
	dec := json.NewDecoder(r)
	one := func() error {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		if len(raw) > maxEvent {
			return each(nil, fmt.Errorf("%w: %d bytes, at most %d are allowed: put large content into the blob store", errLine, len(raw), maxEvent))
		}
		return each(raw, nil)
	}
	if first, err := firstByte(r); err != nil || first != '[' {
		for err == nil {
			err = one()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		if err := one(); err != nil {
			return torn(err)
		}
	}
	if _, err := dec.Token(); err != nil { // the closing bracket
		return torn(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the array")
	}
	return nil
}

// torn makes the end of input inside an array an error of its own: it must not look like the end of the body.
func torn(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// firstByte skips white space and returns the first byte after it without consuming it.
func firstByte(r *bufio.Reader) (byte, error) {
	for {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		if b != ' ' && b != '\t' && b != '\r' && b != '\n' {
			return b, r.UnreadByte()
		}
	}
}
