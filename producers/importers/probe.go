package importers

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
)

// Sizes of a probe.
const (
	probeObjects = 5    // objects of a JSONL file that are looked at
	probeLines   = 1000 // lines that are searched for them
	probeDepth   = 4
	probeItems   = 5
	probeText    = 200
	probeKeys    = 200
	probeNodes   = 20_000 // in all: a hostile file must not fill the memory with keys
)

// Probe is what detection looks at: the shape of a file's beginning.
type Probe struct {
	// Objects are the first five objects of a JSONL file, or the one value of a document.
	Objects []*Shape
	// Document: the file is one JSON value, on however many lines. A file of one line is a document.
	Document bool
	// first is the beginning of the file, for messages.
	first string
}

// Shape is a JSON value with its long parts left out: the keys of objects to a depth of four, the first five elements of arrays, and short
// strings. Methods are safe on nil, so that paths can be followed without checks.
type Shape struct {
	// Type is '{', '[', '"', or the first byte of another literal.
	Type byte
	// Text is the beginning of a string, or a literal.
	Text string
	// Offset of the value in the source. Zero for a shape inside a line.
	Offset int64
	// Line of the value, from 1.
	Line int64

	keys  map[string]*Shape
	items []*Shape
}

// Key returns the value of a key, nil when there is none.
func (s *Shape) Key(name string) *Shape {
	if s == nil {
		return nil
	}
	return s.keys[name]
}

// Has reports whether all the keys are there.
func (s *Shape) Has(names ...string) bool {
	for _, n := range names {
		if s.Key(n) == nil {
			return false
		}
	}
	return true
}

// Items returns the first elements of an array.
func (s *Shape) Items() []*Shape {
	if s == nil {
		return nil
	}
	return s.items
}

// String returns the text of a string value, "" for anything else.
func (s *Shape) String() string {
	if s == nil || s.Type != '"' {
		return ""
	}
	return s.Text
}

// Names lists the keys, sorted.
func (s *Shape) Names() []string {
	if s == nil {
		return nil
	}
	names := make([]string, 0, len(s.keys))
	for k := range s.keys {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

// Any reports whether one of the objects satisfies ok.
func (p Probe) Any(ok func(*Shape) bool) bool { return slices.ContainsFunc(p.Objects, ok) }

// Root returns the value of a document, or the first object.
func (p Probe) Root() *Shape {
	if len(p.Objects) == 0 {
		return nil
	}
	return p.Objects[0]
}

func (p Probe) describe() string {
	root := p.Root()
	switch {
	case root == nil && p.first == "":
		return "the file is empty"
	case root == nil || root.Type != '[' && root.Type != '{':
		return "the file holds no JSON object; it begins " + p.first
	case root.Type == '[' && len(root.items) > 0:
		return "an array whose first element has the keys " + strings.Join(root.items[0].Names(), ", ")
	case p.Document:
		return "a JSON document with the keys " + strings.Join(root.Names(), ", ")
	default:
		return "lines of JSON, the first with the keys " + strings.Join(root.Names(), ", ")
	}
}

// shape takes the next value. On an error it returns what it saw before.
func (d *document) shape(depth int) (*Shape, error) {
	c, err := d.peek()
	if err != nil {
		return nil, torn(err)
	}
	s := &Shape{Type: c, Offset: d.offset, Line: d.line}
	switch {
	case c == '{' && depth > 0:
		s.keys = map[string]*Shape{}
		return s, d.object(func(key string) error {
			if d.nodes++; len(s.keys) >= probeKeys || len(key) > probeText || d.nodes > probeNodes {
				return d.skip()
			}
			v, err := d.shape(depth - 1)
			if v != nil {
				s.keys[key] = v
			}
			return err
		})
	case c == '[' && depth > 0:
		return s, d.array(func(i int) error {
			if d.nodes++; i >= probeItems || d.nodes > probeNodes {
				return d.skip()
			}
			v, err := d.shape(depth - 1)
			if v != nil {
				s.items = append(s.items, v)
			}
			return err
		})
	case c == '{' || c == '[':
		return s, d.skip()
	}
	limit := d.limit
	d.limit = probeText
	raw, err := d.raw()
	d.limit = limit
	if err != nil && !errors.Is(err, errTooLong) {
		return s, err
	}
	s.Text = string(raw)
	if c == '"' {
		if decode(raw, &s.Text) != nil {
			s.Text = strings.ToValidUTF8(strings.Trim(s.Text, `"`), "\uFFFD")
		}
	}
	return s, nil
}

// probe looks at the source: is it one value or lines, and what are its keys.
func (s *Source) probe() (Probe, error) {
	head := make([]byte, 120)
	n, err := s.at.ReadAt(head, s.start)
	if err != nil && !errors.Is(err, io.EOF) {
		return Probe{}, err
	}
	p := Probe{first: printable(head[:n])}
	d := s.Document(s.start, s.line)
	whole, err := d.shape(probeDepth)
	if err == nil {
		if _, err := d.peek(); errors.Is(err, io.EOF) {
			p.Document, p.Objects = true, []*Shape{whole}
			return p, nil
		} else if err != nil {
			return Probe{}, err
		}
	} else if s.failed != nil {
		return Probe{}, s.failed
	}
	lines, err := s.probeLines()
	if err != nil {
		return Probe{}, err
	}
	// A document that was cut off is still worth its complete steps. Its first line is an opening bracket only, or it has no other line.
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	opening := string(bytes.TrimSpace(line))
	if len(lines) == 0 && whole != nil && (whole.Type == '{' || whole.Type == '[') || opening == "{" || opening == "[" {
		p.Document, p.Objects = true, []*Shape{whole}
		return p, nil
	}
	p.Objects = lines
	return p, nil
}

// probeLines collects the shapes of the first objects among the first lines.
func (s *Source) probeLines() ([]*Shape, error) {
	var objects []*Shape
	lines := s.Lines()
	for range probeLines {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		data := line.Data
		if rest, ok := bytes.CutPrefix(data, []byte("data:")); ok { // a stream as it came over the wire
			data = bytes.TrimSpace(rest)
		}
		if line.Err != nil || len(data) == 0 || data[0] != '{' {
			continue
		}
		d := newDocument(bytes.NewReader(data), 0, line.Number)
		if o, err := d.shape(probeDepth); err == nil {
			if objects = append(objects, o); len(objects) == probeObjects {
				break
			}
		}
	}
	return objects, nil
}

// printable quotes the beginning of a file for a message.
func printable(b []byte) string {
	b = b[:min(len(b), 60)]
	if len(b) == 0 {
		return ""
	}
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, string(b)), "\uFFFD")
}
