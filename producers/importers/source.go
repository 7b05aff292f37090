package importers

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// maxSpill bounds what a compressed file or a pipe may grow to on disk.
const maxSpill = 64 << 30

// Source is a file being imported: any part of it can be read at any time, as often as needed. Readers made from it are for one goroutine.
type Source struct {
	// Name is the file as the user named it.
	Name string
	// Probe is what detection saw: Root().Key("steps").Offset is where a reader can start.
	Probe Probe

	at       io.ReaderAt
	start    int64 // behind a byte order mark
	line     int64 // number of the first line
	size     int64
	dir      fs.FS // of the file, nil for a reader
	closers  []func() error
	progress func(done, total int64)
	done     int64
	failed   error
}

// sized is what a reader needs so that it is read in place.
type sized interface {
	io.ReaderAt
	Size() int64
}

// openSource prepares r. Compressed data and readers that cannot seek are first copied to a temporary file, which is deleted by close.
func openSource(name string, r io.Reader, dir fs.FS) (*Source, error) {
	s := &Source{Name: name, dir: dir, line: 1}
	at, size, ok := inPlace(r)
	if !ok {
		head := bufio.NewReader(r)
		magic, err := head.Peek(4)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if err := s.spill(magic, head); err != nil {
			return nil, errors.Join(err, s.close())
		}
	} else {
		s.at, s.size = at, size
		magic := make([]byte, 4)
		n, err := at.ReadAt(magic, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if compressed(magic[:n]) {
			if err := s.spill(magic[:n], io.NewSectionReader(at, 0, size)); err != nil {
				return nil, errors.Join(err, s.close())
			}
		}
	}
	bom := make([]byte, 3)
	if n, err := s.at.ReadAt(bom, 0); n == 3 && string(bom) == "\xef\xbb\xbf" {
		s.start = 3
	} else if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, s.close())
	}
	p, err := s.probe()
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.Probe = p
	return s, nil
}

func inPlace(r io.Reader) (io.ReaderAt, int64, bool) {
	if s, ok := r.(sized); ok {
		return s, s.Size(), true
	}
	at, okAt := r.(io.ReaderAt)
	f, okStat := r.(fs.File)
	if !okAt || !okStat {
		return nil, 0, false
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, 0, false
	}
	return at, info.Size(), true
}

func compressed(magic []byte) bool {
	return bytes.HasPrefix(magic, []byte("\x1f\x8b")) || bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd"))
}

// spill copies r, decompressed, to a temporary file, and makes that the source.
func (s *Source) spill(magic []byte, r io.Reader) error {
	switch {
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")):
		z, err := gzip.NewReader(r)
		if err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
		r = z
	case bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd")):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(32<<20), zstd.WithDecoderLowmem(true))
		if err != nil {
			return fmt.Errorf("zstd: %w", err)
		}
		defer z.Close()
		r = z
	}
	f, err := os.CreateTemp("", "nextstate-import-*")
	if err != nil {
		return fmt.Errorf("a temporary file is needed for compressed or piped input: %w", err)
	}
	s.closers = append(s.closers, f.Close, func() error { return os.Remove(f.Name()) })
	n, err := io.Copy(f, io.LimitReader(r, maxSpill+1))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) && n > 0:
		// A compressed file that was cut off is worth what came out of it; its last record will be torn.
	case err != nil:
		return fmt.Errorf("copying to a temporary file: %w", err)
	case n > maxSpill:
		return fmt.Errorf("the input is over %d GiB unpacked: split it", maxSpill>>30)
	}
	s.at, s.size = f, n
	return nil
}

func (s *Source) close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// Base is the file's name without its folders: ids that need the file's name use it, so that a moved file imports to the same ids.
func (s *Source) Base() string { return path.Base(filepath.ToSlash(s.Name)) }

// Size in bytes, unpacked.
func (s *Source) Size() int64 { return s.size }

// Start is the offset of the first byte behind a byte order mark.
func (s *Source) Start() int64 { return s.start }

// ReadAt reads any part; readers that keep an index of a large file use it.
func (s *Source) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.at.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	if s.done = max(s.done, off+int64(n)); s.progress != nil {
		s.progress(s.done, s.size)
	}
	return n, err
}

// Document starts a walk at the value at offset, such as a Shape's; line is the number of its line.
func (s *Source) Document(offset, line int64) *document {
	return newDocument(io.NewSectionReader(s, offset, s.size-offset), offset, line)
}

// Sibling opens a file beside this one, by a relative slash-separated path that stays inside the folder. fs.ErrNotExist when there is none,
// or when the source is no file.
func (s *Source) Sibling(name string) (fs.File, error) {
	name = path.Clean(name)
	if s.dir == nil || !fs.ValidPath(name) {
		return nil, fmt.Errorf("%.200q: %w", name, fs.ErrNotExist)
	}
	return s.dir.Open(name)
}

// Siblings is the folder of the file, nil when the source is no file.
func (s *Source) Siblings() fs.FS { return s.dir }

// value returns the bytes of the value that a shape stands for; nil when it is absent. Errors are those of a document.
func (s *Source) value(shape *Shape) ([]byte, error) {
	if shape == nil {
		return nil, nil
	}
	return s.Document(shape.Offset, shape.Line).raw()
}

// inner is a source of one record of this one, which is a document of its own. It is read like the file, from memory.
func (s *Source) inner(raw []byte, line int64) (*Source, error) {
	in := &Source{Name: s.Name, at: bytes.NewReader(raw), size: int64(len(raw)), dir: s.dir, line: line}
	p, err := in.probe()
	in.Probe = p
	return in, err
}

// documents calls read for each document of the source: the file itself, the elements of an array, or the lines of a JSONL file.
func (s *Source) documents(ctx context.Context, out *Emitter, read func(doc *Source) error) error {
	root := s.Probe.Root()
	if s.Probe.Document && (root == nil || root.Type != '[') {
		return read(s)
	}
	one := func(raw []byte, line int64) error {
		out.At(line)
		if err := checkObject(raw); err != nil {
			return out.Malformed(ctx, line, err.Error(), raw)
		}
		doc, err := s.inner(raw, line)
		if err != nil {
			return err
		}
		return read(doc)
	}
	if s.Probe.Document {
		list := &elements{d: s.Document(root.Offset, root.Line)}
		_, err := list.each(ctx, out, one)
		return err
	}
	return s.eachLine(ctx, out, one)
}

// eachLine calls do for every line that is not blank; lines that are too long or cut off go to out.Malformed.
func (s *Source) eachLine(ctx context.Context, out *Emitter, do func(raw []byte, line int64) error) error {
	lines := s.Lines()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out.At(line.Number)
		if line.Err != nil {
			err = out.Malformed(ctx, line.Number, line.Err.Error(), line.Data)
		} else {
			err = do(line.Data, line.Number)
		}
		if err != nil {
			return err
		}
	}
}

// decodeObject decodes a record that is to be a JSON object. It looks at the bytes once, where checkObject and decode would do it twice.
func decodeObject(raw []byte, into any) error {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '{' {
		return cmp.Or(checkObject(raw), errors.New("not an object"))
	}
	err := decode(raw, into)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("not JSON: %w", err)
	}
	return err
}

// checkObject reports why a record is no JSON object.
func checkObject(raw []byte) error {
	if !valid(raw) {
		return errors.New("not JSON")
	}
	if raw = bytes.TrimSpace(raw); raw[0] != '{' {
		return fmt.Errorf("not an object: %s", printable(raw))
	}
	return nil
}

// Line is one line of a JSONL file.
type Line struct {
	// Number from 1.
	Number int64
	// Offset of the line's first byte in the source.
	Offset int64
	// Data without white space around it; valid until the next call. At most MaxRecord bytes.
	Data []byte
	// Err: the line is too long (Data is its beginning) or the file is cut off inside it. To be reported by Malformed.
	Err error
}

// Lines walks the lines. For one goroutine.
type Lines struct {
	r      *bufio.Reader
	buf    []byte
	number int64
	offset int64
	limit  int
}

// Lines starts at the first line.
func (s *Source) Lines() *Lines {
	return &Lines{r: bufio.NewReaderSize(io.NewSectionReader(s, s.start, s.size-s.start), 256<<10), offset: s.start, limit: MaxRecord}
}

// Next returns the next line that is not blank; io.EOF behind the last one. Other errors are the disk's.
func (l *Lines) Next() (Line, error) {
	for {
		line, err := l.next()
		if err != nil || len(line.Data) > 0 || line.Err != nil {
			return line, err
		}
	}
}

func (l *Lines) next() (Line, error) {
	if cap(l.buf) > 4<<20 { // one huge line must not keep its memory for the rest of the file
		l.buf = nil
	}
	l.buf = l.buf[:0]
	l.number++
	line := Line{Number: l.number, Offset: l.offset}
	for {
		part, err := l.r.ReadSlice('\n')
		l.offset += int64(len(part))
		room := l.limit - len(l.buf)
		if len(part) > room+2 {
			line.Err = errTooLong
		}
		l.buf = append(l.buf, part[:min(len(part), max(room, 0))]...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return Line{}, err
		}
		if err != nil && l.offset == line.Offset {
			return Line{}, io.EOF
		}
		line.Data = bytes.TrimSpace(l.buf)
		if err != nil && line.Err == nil && len(line.Data) > 0 && !valid(line.Data) {
			line.Err = errTorn
		}
		return line, nil
	}
}
