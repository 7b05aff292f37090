package gguf

import (
	"fmt"
	"io"
	"math"
	"math/bits"
)

// Type is how a tensor's numbers are stored.
type Type uint32

// Types that can be read as float32, by the format's own names.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q8_0 Type = 8
	Q4_K Type = 12
	Q5_K Type = 13
	Q6_K Type = 14
	BF16 Type = 30
)

// layout of a type: blocks of so many numbers in so many bytes, and how to read whole blocks. A further type is one line here.
type layout struct {
	name           string
	numbers, bytes int
	dequantise     func(dst []float32, src []byte)
}

var layouts = map[Type]layout{
	F32:  {"F32", 1, 4, fromF32},
	F16:  {"F16", 1, 2, fromF16},
	BF16: {"BF16", 1, 2, fromBF16},
	Q4_0: {"Q4_0", 32, 18, fromQ40},
	Q4_1: {"Q4_1", 32, 20, fromQ41},
	Q8_0: {"Q8_0", 32, 34, fromQ80},
	Q4_K: {"Q4_K", 256, 144, fromQ4K},
	Q5_K: {"Q5_K", 256, 176, fromQ5K},
	Q6_K: {"Q6_K", 256, 210, fromQ6K},
	// Formats that only the serving engine reads: their sizes, to check that a file is whole.
	6:  {"Q5_0", 32, 22, nil},
	7:  {"Q5_1", 32, 24, nil},
	10: {"Q2_K", 256, 84, nil},
	11: {"Q3_K", 256, 110, nil},
	16: {"IQ2_XXS", 256, 66, nil},
	17: {"IQ2_XS", 256, 74, nil},
	18: {"IQ3_XXS", 256, 98, nil},
	19: {"IQ1_S", 256, 50, nil},
	20: {"IQ4_NL", 32, 18, nil},
	21: {"IQ3_S", 256, 110, nil},
	22: {"IQ2_S", 256, 82, nil},
	23: {"IQ4_XS", 256, 136, nil},
	29: {"IQ1_M", 256, 56, nil},
}

// String is the format's name for the type.
func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Tensor is one entry of the list of tensors.
type Tensor struct {
	Name string
	// Shape, the contiguous dimension first: a matrix that maps in to out numbers is [in, out].
	Shape []int
	Type  Type
	// Offset from the beginning of the file, and length.
	Offset, Bytes int64
}

// Numbers in the tensor.
func (t *Tensor) Numbers() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// tensor reads one entry. Offset is still relative to the data.
func (d *decoder) tensor() *Tensor {
	t := &Tensor{Name: d.name()}
	dims := d.u32()
	if d.err == nil && (dims == 0 || dims > dimensionsMax) {
		d.err = fmt.Errorf("the tensor %q has %d dimensions; 1 to %d are possible: the file is damaged", t.Name, dims, dimensionsMax)
	}
	if d.err != nil {
		return t
	}
	numbers := uint64(1)
	for range dims {
		n := d.u64()
		high, low := bits.Mul64(numbers, n)
		if d.err == nil && (n == 0 || high != 0 || low > math.MaxInt64/256) {
			d.err = fmt.Errorf("the tensor %q has a dimension of %d: the file is damaged", t.Name, n)
		}
		numbers = low
		t.Shape = append(t.Shape, int(n))
	}
	t.Type = Type(d.u32())
	offset := d.u64()
	if d.err != nil {
		return t
	}
	l, known := layouts[t.Type]
	switch {
	case !known:
		d.err = fmt.Errorf("the tensor %q is stored as %s, which is not known here; take the model in Q8_0, Q4_1, Q4_K or F16", t.Name, t.Type)
		return t
	case t.Shape[0]%l.numbers != 0:
		d.err = fmt.Errorf("the tensor %q has rows of %d numbers, which %s cannot hold: the file is damaged", t.Name, t.Shape[0], t.Type)
	case offset > math.MaxInt64/2:
		d.err = fmt.Errorf("the tensor %q starts at %d: the file is damaged", t.Name, offset)
	}
	t.Offset = int64(offset)
	t.Bytes = int64(numbers) / int64(l.numbers) * int64(l.bytes)
	return t
}

// Tensor by its name; nil when there is none.
func (f *File) Tensor(name string) *Tensor { return f.tensors[name] }

// chunkBytes is how much is read at once when a tensor is dequantised.
const chunkBytes = 1 << 20

// Float32 reads a whole tensor as float32: [Numbers], the contiguous dimension innermost.
func (f *File) Float32(t *Tensor) ([]float32, error) {
	out := make([]float32, 0, t.Numbers())
	err := f.Chunks(t, func(part []float32) error {
		out = append(out, part...)
		return nil
	})
	return out, err
}

// Chunks reads a tensor as float32 piece by piece, in order. A part is valid during the call only.
func (f *File) Chunks(t *Tensor, each func(part []float32) error) error {
	l := layouts[t.Type]
	if l.dequantise == nil {
		return fmt.Errorf("the tensor %q is stored as %s, which only the serving engine reads; take the model in Q8_0, Q4_1, Q4_K or F16", t.Name, t.Type)
	}
	step := int64(chunkBytes / l.bytes * l.bytes)
	raw := make([]byte, min(step, t.Bytes))
	part := make([]float32, len(raw)/l.bytes*l.numbers)
	for at := int64(0); at < t.Bytes; at += step {
		raw = raw[:min(step, t.Bytes-at)]
		if _, err := f.r.ReadAt(raw, t.Offset+at); err != nil {
			return fmt.Errorf("read the tensor %q: %w", t.Name, noEOF(err))
		}
		part = part[:len(raw)/l.bytes*l.numbers]
		l.dequantise(part, raw)
		if err := each(part); err != nil {
			return err
		}
	}
	return nil
}

func noEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // ReaderAt returns it bare
		return io.ErrUnexpectedEOF
	}
	return err
}
