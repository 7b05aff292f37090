package importers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// MaxRecord bounds one record in bytes: a line of a JSONL file, or one element of a document (a step, a message).
const MaxRecord = 64 << 20

// maxDepth bounds nesting. encoding/json stops at 10,000 by itself; transcripts stay below 50.
const maxDepth = 1000

// structureError says what is wrong with the JSON of a file; other errors are the disk's.
type structureError string

func (e structureError) Error() string { return string(e) }

func structuref(format string, args ...any) error {
	return structureError(fmt.Sprintf(format, args...))
}

const (
	// errTooLong: the record is over MaxRecord. It was skipped, and the walk can go on behind it.
	errTooLong = structureError("the record is over 64 MiB")
	// errTorn: the file ends inside the value.
	errTorn = structureError("the file ends inside this record: it is cut off")
)

// document walks one JSON value as it streams by, element by element, so that a file of any size needs the memory of one element. It checks
// structure only; the caller decodes (and so validates) the elements that it takes. For one goroutine.
type document struct {
	r      *bufio.Reader
	offset int64 // of the next byte, in the source
	line   int64 // of the next byte, from 1; 0 when the walk began in the middle
	limit  int
	nodes  int // of the shape so far
}

func newDocument(r io.Reader, offset, line int64) *document {
	return &document{r: bufio.NewReaderSize(r, 64<<10), offset: offset, line: line, limit: MaxRecord}
}

func (d *document) byte() (byte, error) {
	c, err := d.r.ReadByte()
	if err != nil {
		return 0, err
	}
	d.offset++
	if c == '\n' {
		d.line++
	}
	return c, nil
}

func (d *document) unread(c byte) {
	// UnreadByte fails only when the last call was no read: every caller has just read c.
	_ = d.r.UnreadByte()
	d.offset--
	if c == '\n' {
		d.line--
	}
}

// peek skips white space and returns the next byte without taking it. io.EOF at the end.
func (d *document) peek() (byte, error) {
	for {
		c, err := d.byte()
		if err != nil {
			return 0, err
		}
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			d.unread(c)
			return c, nil
		}
	}
}

func (d *document) expect(want byte) error {
	c, err := d.peek()
	if err != nil {
		return torn(err)
	}
	if c != want {
		return structuref("%q where %q is expected", c, want)
	}
	_, err = d.byte()
	return err
}

// torn turns the end of the file inside a value into errTorn.
func torn(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errTorn
	}
	return err
}

// object calls field for each key with the walk before the key's value; field takes the value with raw, skip, object or array.
func (d *document) object(field func(key string) error) error {
	if err := d.expect('{'); err != nil {
		return err
	}
	if c, err := d.peek(); err != nil {
		return torn(err)
	} else if c == '}' {
		_, err = d.byte()
		return err
	}
	for {
		key, err := d.key()
		if err != nil {
			return err
		}
		if err := field(key); err != nil {
			return err
		}
		more, err := d.next('}')
		if err != nil || !more {
			return err
		}
	}
}

func (d *document) key() (string, error) {
	c, err := d.peek()
	if err != nil {
		return "", torn(err)
	}
	if c != '"' {
		return "", structuref("%q where a key is expected", c)
	}
	raw, err := d.raw()
	if err != nil {
		return "", err
	}
	var key string
	if err := decode(raw, &key); err != nil {
		return "", structuref("key: %v", err)
	}
	return key, d.expect(':')
}

// array calls element for each element with the walk before it.
func (d *document) array(element func(i int) error) error {
	if err := d.expect('['); err != nil {
		return err
	}
	if c, err := d.peek(); err != nil {
		return torn(err)
	} else if c == ']' {
		_, err = d.byte()
		return err
	}
	for i := 0; ; i++ {
		if _, err := d.peek(); err != nil {
			return torn(err)
		}
		if err := element(i); err != nil {
			return err
		}
		more, err := d.next(']')
		if err != nil || !more {
			return err
		}
	}
}

// elements pulls the elements of an array one by one. For one goroutine.
type elements struct {
	d     *document
	begun bool
	over  bool
}

// Next returns the next element and its line; io.EOF behind the last one. After errTooLong the walk can go on, after any other error it is over.
func (e *elements) Next() (raw []byte, line int64, err error) {
	if e.over {
		return nil, 0, io.EOF
	}
	more := true
	if !e.begun {
		e.begun = true
		var c byte
		if err = e.d.expect('['); err == nil {
			c, err = e.d.peek()
		}
		if err == nil && c == ']' {
			more = false
			_, err = e.d.byte()
		}
	} else {
		more, err = e.d.next(']')
	}
	if err != nil || !more {
		e.over = true
		if err == nil {
			err = io.EOF
		} else {
			err = torn(err)
		}
		return nil, e.d.line, err
	}
	if _, err = e.d.peek(); err != nil {
		e.over = true
		return nil, e.d.line, torn(err)
	}
	line = e.d.line
	raw, err = e.d.raw()
	if err != nil && !errors.Is(err, errTooLong) {
		e.over = true
	}
	return raw, line, err
}

// each calls do for every element; what is wrong with the file goes to out.Malformed. It returns the error of do, of the disk or of ctx.
// whole is false when the array was cut off.
func (e *elements) each(ctx context.Context, out *Emitter, do func(raw []byte, line int64) error) (whole bool, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		raw, line, err := e.Next()
		var broken structureError
		switch {
		case errors.Is(err, io.EOF):
			return true, nil
		case errors.As(err, &broken):
			if err := out.Malformed(ctx, line, err.Error(), raw); err != nil {
				return false, err
			}
			if e.over {
				return false, nil
			}
			continue
		case err != nil:
			return false, err
		}
		out.At(line)
		if err := do(raw, line); err != nil {
			return false, err
		}
	}
}

// next takes the comma between elements, or the closing byte.
func (d *document) next(closing byte) (more bool, err error) {
	c, err := d.peek()
	if err != nil {
		return false, torn(err)
	}
	if c != ',' && c != closing {
		return false, structuref("%q where ',' or %q is expected", c, closing)
	}
	_, err = d.byte()
	return c == ',', err
}

// raw takes the next value and returns its bytes, which are the caller's. errTooLong when it is over the limit: it was skipped.
func (d *document) raw() ([]byte, error) {
	var b bytes.Buffer
	n, err := d.value(&b)
	if err != nil {
		return b.Bytes(), err
	}
	if n > int64(d.limit) {
		return b.Bytes(), errTooLong
	}
	return b.Bytes(), nil
}

// skip takes the next value and forgets it.
func (d *document) skip() error {
	_, err := d.value(nil)
	return err
}

// value takes one value and writes at most limit bytes of it to keep.
func (d *document) value(keep *bytes.Buffer) (n int64, err error) {
	first, err := d.peek()
	if err != nil {
		return 0, torn(err)
	}
	scan := valueScan{scalar: first != '{' && first != '[' && first != '"'}
	for {
		if _, err := d.r.Peek(1); err != nil {
			if scan.scalar && errors.Is(err, io.EOF) && n > 0 {
				return n, nil
			}
			return n, torn(err)
		}
		chunk, err := d.r.Peek(d.r.Buffered())
		if err != nil {
			return n, torn(err)
		}
		taken, done, err := scan.take(chunk)
		if keep != nil {
			keep.Write(chunk[:min(taken, max(0, d.limit-keep.Len()))])
		}
		d.line += int64(bytes.Count(chunk[:taken], []byte{'\n'}))
		d.offset += int64(taken)
		n += int64(taken)
		if _, discardErr := d.r.Discard(taken); discardErr != nil {
			return n, torn(discardErr)
		}
		switch {
		case err != nil:
			return n, err
		case done && n == 0:
			return 0, structuref("%q where a value is expected", first)
		case done:
			return n, nil
		}
	}
}

// valueScan finds the end of a value in chunks of bytes.
type valueScan struct {
	scalar, inString, escaped bool
	depth                     int
}

// take returns how many bytes of the chunk belong to the value, and whether it ends there.
func (s *valueScan) take(chunk []byte) (n int, done bool, err error) {
	if s.scalar {
		if i := bytes.IndexAny(chunk, ",}] \t\r\n"); i >= 0 {
			return i, true, nil
		}
		return len(chunk), false, nil
	}
	for i := 0; i < len(chunk); i++ {
		c := chunk[i]
		switch {
		case s.escaped:
			s.escaped = false
		case s.inString:
			if c == '\\' {
				s.escaped = true
			} else if c == '"' {
				s.inString = false
				if s.depth == 0 {
					return i + 1, true, nil
				}
			} else if quote := bytes.IndexAny(chunk[i:], "\"\\"); quote > 0 {
				i += quote - 1 // nothing in between matters
			} else if quote < 0 {
				return len(chunk), false, nil
			}
		case c == '"':
			s.inString = true
		case c == '{' || c == '[':
			if s.depth++; s.depth > maxDepth {
				return i + 1, false, structuref("nested deeper than %d", maxDepth)
			}
		case c == '}' || c == ']':
			if s.depth--; s.depth <= 0 {
				return i + 1, true, nil
			}
		}
	}
	return len(chunk), false, nil
}
