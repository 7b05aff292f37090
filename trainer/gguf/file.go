package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
)

// Bounds of what Read takes. The largest models known have some 3,000 tensors, 100 keys and metadata of 20 MB.
const (
	pairsMax         = 1 << 16
	tensorsMax       = 1 << 18
	dimensionsMax    = 4
	nameBytesMax     = 1 << 12
	metadataBytesMax = 1 << 29
	alignmentDefault = 32
	alignmentMax     = 1 << 20
)

const magic = "GGUF"

// Pair is one entry of the metadata. Value is a bool, a string, an int or uint of 8 to 64 bits, a float32 or float64, or a slice of one of these.
type Pair struct {
	Key   string
	Value any
}

// File is an open model file. Its methods may be called concurrently; what they return is shared and read-only.
type File struct {
	// Version of the format: 2 or 3.
	Version uint32
	// Pairs of the metadata in the file's order.
	Pairs []Pair
	// Tensors in the file's order.
	Tensors []*Tensor

	r       io.ReaderAt
	close   func() error
	at      map[string]int // index into Pairs
	tensors map[string]*Tensor
}

// Open opens a model file. The caller closes it. An error names the file and says what is wrong with it.
func Open(path string) (*File, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("model file: %w", err)
	}
	var f *File
	info, err := r.Stat()
	if err == nil {
		f, err = Read(r, info.Size())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("model file %s: %w", path, err), r.Close())
	}
	f.close = r.Close
	return f, nil
}

// Read takes a file of so many bytes from r, which has to stay readable as long as the File is used.
func Read(r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, at: map[string]int{}, tensors: map[string]*Tensor{}}
	d := &decoder{r: bufio.NewReaderSize(io.NewSectionReader(r, 0, min(size, metadataBytesMax)), 1<<18), left: min(size, metadataBytesMax), size: size}
	if err := f.header(d); err != nil {
		if d.err != nil { // the first thing that went wrong
			err = d.err
		}
		return nil, err
	}
	return f, nil
}

// Close ends the use of the file.
func (f *File) Close() error {
	if f.close == nil {
		return nil
	}
	return f.close()
}

func (f *File) header(d *decoder) error {
	if got := string(d.bytes(4)); got != magic || d.err != nil {
		d.err = nil
		return fmt.Errorf("it is not a GGUF file (it begins with %q); give the path of a model in GGUF", got)
	}
	f.Version = d.u32()
	if d.err == nil && f.Version != 2 && f.Version != 3 {
		return fmt.Errorf("GGUF version %d is not supported; versions 2 and 3 are (big-endian files are not)", f.Version)
	}
	tensors, pairs := d.u64(), d.u64()
	if d.err == nil && (tensors > tensorsMax || pairs > pairsMax) {
		return fmt.Errorf("it claims %d tensors and %d keys; at most %d and %d are taken", tensors, pairs, tensorsMax, pairsMax)
	}
	for range pairs {
		p := Pair{Key: d.name()}
		p.Value = d.value(d.u32())
		if d.err != nil {
			return d.err
		}
		if _, twice := f.at[p.Key]; twice {
			return fmt.Errorf("the key %q stands in it twice", p.Key)
		}
		f.at[p.Key] = len(f.Pairs)
		f.Pairs = append(f.Pairs, p)
	}
	alignment, err := f.alignment()
	if err != nil {
		return err
	}
	for range tensors {
		t := d.tensor()
		if d.err != nil {
			return d.err
		}
		if f.tensors[t.Name] != nil {
			return fmt.Errorf("the tensor %q stands in it twice", t.Name)
		}
		f.tensors[t.Name] = t
		f.Tensors = append(f.Tensors, t)
	}
	if d.err != nil {
		return d.err
	}
	return f.place(roundUp(d.read, alignment), alignment, d.size)
}

func (f *File) alignment() (int64, error) {
	v, ok := f.Uint("general.alignment")
	if !ok {
		return alignmentDefault, nil
	}
	if v == 0 || v > alignmentMax || v&(v-1) != 0 {
		return 0, fmt.Errorf("general.alignment is %d: not a power of two up to %d", v, alignmentMax)
	}
	return int64(v), nil
}

// place turns the tensors' offsets into places in the file and checks that all bytes are there.
func (f *File) place(data, alignment, size int64) error {
	for _, t := range f.Tensors {
		if t.Offset < 0 || t.Offset%alignment != 0 || t.Offset > size || data > size-t.Offset || t.Bytes > size-t.Offset-data {
			return fmt.Errorf("the file is truncated or damaged: the tensor %q (%d bytes at %d) ends after the file's %d bytes; download it again",
				t.Name, t.Bytes, data+t.Offset, size)
		}
		t.Offset += data
	}
	return nil
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Value of a key, as in Pair; nil when there is none.
func (f *File) Value(key string) any {
	if i, ok := f.at[key]; ok {
		return f.Pairs[i].Value
	}
	return nil
}

// String is the value of a key that holds text.
func (f *File) String(key string) (string, bool) { return get[string](f, key) }

// Bool is the value of a key that holds a bool.
func (f *File) Bool(key string) (value, ok bool) { return get[bool](f, key) }

// Strings is the value of a key that holds a list of texts.
func (f *File) Strings(key string) ([]string, bool) { return get[[]string](f, key) }

// Floats is the value of a key that holds a list of float32.
func (f *File) Floats(key string) ([]float32, bool) { return get[[]float32](f, key) }

// Ints is the value of a key that holds a list of int32, or of uint32 that fit.
func (f *File) Ints(key string) ([]int32, bool) {
	if u, ok := get[[]uint32](f, key); ok && (len(u) == 0 || slices.Max(u) <= math.MaxInt32) {
		list := make([]int32, len(u))
		for i, v := range u {
			list[i] = int32(v)
		}
		return list, true
	}
	return get[[]int32](f, key)
}

// Uint is the value of a key that holds a whole number >= 0, of whatever width.
func (f *File) Uint(key string) (uint64, bool) {
	var n int64
	switch v := f.Value(key).(type) {
	case uint8:
		return uint64(v), true
	case uint16:
		return uint64(v), true
	case uint32:
		return uint64(v), true
	case uint64:
		return v, true
	case int8:
		n = int64(v)
	case int16:
		n = int64(v)
	case int32:
		n = int64(v)
	case int64:
		n = v
	default:
		return 0, false
	}
	return uint64(n), n >= 0
}

// Float is the value of a key that holds a float of either width.
func (f *File) Float(key string) (float64, bool) {
	if v, ok := get[float32](f, key); ok {
		return float64(v), true
	}
	return get[float64](f, key)
}

func get[T any](f *File, key string) (T, bool) {
	v, ok := f.Value(key).(T)
	return v, ok
}

// decoder reads the header. After an error it gives zeros, so that only the ends of loops need to look at err.
type decoder struct {
	r    *bufio.Reader
	read int64 // bytes so far
	left int64 // bytes that may still be read
	size int64 // of the file
	err  error
}

// bytes returns the next n bytes. They are read in steps, so that a false n costs no more memory than the file has bytes.
func (d *decoder) bytes(n uint64) []byte {
	if d.err != nil {
		return nil
	}
	if n > uint64(d.left) {
		d.err = fmt.Errorf("the file is truncated or damaged: %d bytes are needed at %d of %d; download it again", n, d.read, d.size)
		return nil
	}
	out := make([]byte, n)
	if _, err := io.ReadFull(d.r, out); err != nil {
		d.err = fmt.Errorf("read at %d of %d bytes: %w", d.read, d.size, err)
		return nil
	}
	d.read += int64(n)
	d.left -= int64(n)
	return out
}

func (d *decoder) u32() uint32 {
	if b := d.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) str() string { return string(d.bytes(d.u64())) }

func (d *decoder) name() string {
	n := d.u64()
	if d.err == nil && (n == 0 || n > nameBytesMax) {
		d.err = fmt.Errorf("the file is damaged: a name of %d bytes at %d; download it again", n, d.read)
	}
	return string(d.bytes(n))
}

// Kinds of metadata values in the file.
const (
	kindUint8 = iota
	kindInt8
	kindUint16
	kindInt16
	kindUint32
	kindInt32
	kindFloat32
	kindBool
	kindString
	kindArray
	kindUint64
	kindInt64
	kindFloat64
)

func (d *decoder) value(kind uint32) any {
	if kind == kindArray {
		kind, n := d.u32(), d.u64()
		return d.array(kind, n)
	}
	if kind == kindString {
		return d.str()
	}
	switch kind {
	case kindUint8:
		return first(fixed[uint8](d, 1))
	case kindInt8:
		return first(fixed[int8](d, 1))
	case kindUint16:
		return first(fixed[uint16](d, 1))
	case kindInt16:
		return first(fixed[int16](d, 1))
	case kindUint32:
		return first(fixed[uint32](d, 1))
	case kindInt32:
		return first(fixed[int32](d, 1))
	case kindFloat32:
		return first(fixed[float32](d, 1))
	case kindBool:
		return first(d.bools(1))
	case kindUint64:
		return first(fixed[uint64](d, 1))
	case kindInt64:
		return first(fixed[int64](d, 1))
	case kindFloat64:
		return first(fixed[float64](d, 1))
	}
	return d.unknown(kind)
}

func (d *decoder) array(kind uint32, n uint64) any {
	switch kind {
	case kindUint8:
		return fixed[uint8](d, n)
	case kindInt8:
		return fixed[int8](d, n)
	case kindUint16:
		return fixed[uint16](d, n)
	case kindInt16:
		return fixed[int16](d, n)
	case kindUint32:
		return fixed[uint32](d, n)
	case kindInt32:
		return fixed[int32](d, n)
	case kindFloat32:
		return fixed[float32](d, n)
	case kindBool:
		return d.bools(n)
	case kindString:
		return d.strings(n)
	case kindUint64:
		return fixed[uint64](d, n)
	case kindInt64:
		return fixed[int64](d, n)
	case kindFloat64:
		return fixed[float64](d, n)
	}
	return d.unknown(kind) // a list of lists is nothing that a model file has
}

func (d *decoder) unknown(kind uint32) any {
	if d.err == nil {
		d.err = fmt.Errorf("the file is damaged: a metadata value of kind %d at %d; download it again", kind, d.read)
	}
	return nil
}

func (d *decoder) bools(n uint64) []bool {
	raw := d.bytes(n)
	list := make([]bool, len(raw))
	for i, b := range raw {
		list[i] = b != 0
	}
	return list
}

// strings grows its list as it reads: n is only a claim.
func (d *decoder) strings(n uint64) []string {
	if d.err == nil && n > uint64(d.left)/8 {
		d.bytes(uint64(d.left) + 1) // sets the error
		return nil
	}
	list := make([]string, 0, min(n, 1<<12))
	for uint64(len(list)) < n && d.err == nil {
		list = append(list, d.str())
	}
	return list
}

func fixed[T uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64 | float32 | float64](d *decoder, n uint64) []T {
	var one T
	width := uint64(binary.Size(one))
	if n > math.MaxInt64/width {
		n = math.MaxInt64 / width // more than any file has
	}
	raw := d.bytes(n * width)
	if raw == nil {
		return nil
	}
	list := make([]T, n)
	if _, err := binary.Decode(raw, binary.LittleEndian, list); err != nil && d.err == nil {
		d.err = err
	}
	return list
}

// first is the one value of a list, or zero after an error.
func first[T any](list []T) T {
	if len(list) == 0 {
		var zero T
		return zero
	}
	return list[0]
}
