package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
)

// Source is a tensor to be written: its numbers come from Chunks, in order, and are stored as F32.
type Source struct {
	Name  string
	Shape []int
	// Chunks gives all numbers of the tensor, piece by piece, to each. A part need not outlive the call.
	Chunks func(each func(part []float32) error) error
}

// Numbers makes the Chunks of a tensor that is in memory.
func Numbers(x []float32) func(each func(part []float32) error) error {
	return func(each func(part []float32) error) error { return each(x) }
}

// Write writes a GGUF file of version 3 with float32 tensors: models for checks, LoRA adapters. The caller owns w and syncs it.
func Write(w io.Writer, pairs []Pair, tensors []Source) error {
	e := &encoder{w: bufio.NewWriterSize(w, 1<<20)}
	e.raw([]byte(magic))
	e.fixed(uint32(3), uint64(len(tensors)), uint64(len(pairs)))
	for _, p := range pairs {
		e.str(p.Key)
		e.value(p.Value)
	}
	var offset uint64
	for _, t := range tensors {
		e.str(t.Name)
		e.fixed(uint32(len(t.Shape)))
		n := uint64(1)
		for _, d := range t.Shape {
			e.fixed(uint64(d))
			n *= uint64(d)
		}
		e.fixed(uint32(F32), offset)
		offset += uint64(roundUp(int64(4*n), alignmentDefault))
	}
	for _, t := range tensors {
		e.pad()
		if err := e.tensor(t); err != nil {
			return err
		}
	}
	e.pad()
	if e.err != nil {
		return e.err
	}
	return e.w.Flush()
}

// fileTypeF32 is general.file_type of a model whose matrices are all F32.
const fileTypeF32 = uint32(0)

// WriteFloat32 copies the model as F32: the same weights and metadata, so that another engine can compute with exactly the numbers that Float32 gives.
func (f *File) WriteFloat32(w io.Writer) error {
	var pairs []Pair
	for _, p := range f.Pairs {
		switch p.Key {
		case "general.alignment", "general.quantization_version": // of the old file
			continue
		case "general.file_type":
			p.Value = fileTypeF32
		}
		pairs = append(pairs, p)
	}
	var tensors []Source
	for _, t := range f.Tensors {
		tensors = append(tensors, Source{t.Name, t.Shape, func(each func([]float32) error) error { return f.Chunks(t, each) }})
	}
	return Write(w, pairs, tensors)
}

// encoder counts what it writes; after an error it writes nothing.
type encoder struct {
	w   *bufio.Writer
	n   int64
	buf []byte
	err error
}

func (e *encoder) raw(b []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(b)
		e.n += int64(len(b))
	}
}

func (e *encoder) fixed(values ...any) {
	for _, v := range values {
		b, err := binary.Append(e.buf[:0], binary.LittleEndian, v)
		if err != nil && e.err == nil {
			e.err = err
		}
		e.buf = b
		e.raw(b)
	}
}

func (e *encoder) str(s string) {
	e.fixed(uint64(len(s)))
	e.raw([]byte(s))
}

func (e *encoder) pad() { e.raw(make([]byte, roundUp(e.n, alignmentDefault)-e.n)) }

func (e *encoder) value(v any) {
	switch v := v.(type) {
	case string:
		e.fixed(uint32(kindString))
		e.str(v)
	case []string:
		e.fixed(uint32(kindArray), uint32(kindString), uint64(len(v)))
		for _, s := range v {
			e.str(s)
		}
	default:
		kind, list, n := numberKind(v)
		switch {
		case kind < 0:
			if e.err == nil {
				e.err = fmt.Errorf("metadata of the Go type %T has no form in GGUF", v)
			}
		case list:
			e.fixed(uint32(kindArray), uint32(kind), uint64(n), v)
		default:
			e.fixed(uint32(kind), v)
		}
	}
}

func numberKind(v any) (kind int, list bool, n int) {
	switch v := v.(type) {
	case uint8:
		return kindUint8, false, 1
	case int8:
		return kindInt8, false, 1
	case uint16:
		return kindUint16, false, 1
	case int16:
		return kindInt16, false, 1
	case uint32:
		return kindUint32, false, 1
	case int32:
		return kindInt32, false, 1
	case float32:
		return kindFloat32, false, 1
	case bool:
		return kindBool, false, 1
	case uint64:
		return kindUint64, false, 1
	case int64:
		return kindInt64, false, 1
	case float64:
		return kindFloat64, false, 1
	case []uint8:
		return kindUint8, true, len(v)
	case []int8:
		return kindInt8, true, len(v)
	case []uint16:
		return kindUint16, true, len(v)
	case []int16:
		return kindInt16, true, len(v)
	case []uint32:
		return kindUint32, true, len(v)
	case []int32:
		return kindInt32, true, len(v)
	case []float32:
		return kindFloat32, true, len(v)
	case []bool:
		return kindBool, true, len(v)
	case []uint64:
		return kindUint64, true, len(v)
	case []int64:
		return kindInt64, true, len(v)
	case []float64:
		return kindFloat64, true, len(v)
	}
	return -1, false, 0
}

func (e *encoder) tensor(t Source) error {
	want := 1
	for _, d := range t.Shape {
		want *= d
	}
	err := t.Chunks(func(part []float32) error {
		want -= len(part)
		e.buf = slices.Grow(e.buf[:0], 4*len(part))
		for _, v := range part {
			e.buf = binary.LittleEndian.AppendUint32(e.buf, math.Float32bits(v))
		}
		e.raw(e.buf)
		return e.err
	})
	if err == nil && want != 0 {
		err = fmt.Errorf("the tensor %s has %d numbers more or fewer than its shape %v", t.Name, want, t.Shape)
	}
	return err
}
