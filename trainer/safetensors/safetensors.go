// Package safetensors reads and writes files of named float32 tensors in the safetensors format.
//
// In: tensors, or a file that may be damaged or hostile. Out: the same tensors give the same bytes; a file is read only as far as it is consistent.
// Only float32 is written and read: adapters and optimizer state are nothing else here.
package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
)

// Tensor is a named row-major array.
type Tensor struct {
	Name  string
	Shape []int
	Data  []float32
}

// entry is a tensor in the header.
type entry struct {
	Type    string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

const (
	float32Type    = "F32"
	metadataKey    = "__metadata__"
	headerBytesMax = 64 << 20
	align          = 8 // the data begin at a multiple, as the format's own writers do
)

// Write writes the tensors in the order of their names.
func Write(w io.Writer, metadata map[string]string, tensors []Tensor) error {
	sorted := slices.Clone(tensors)
	slices.SortFunc(sorted, func(a, b Tensor) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	header := map[string]any{metadataKey: metadata} // encoding/json sorts keys
	at := int64(0)
	for _, t := range sorted {
		n := numbers(t.Shape)
		if n != int64(len(t.Data)) {
			return fmt.Errorf("tensor %s of shape %v over %d numbers", t.Name, t.Shape, len(t.Data))
		}
		header[t.Name] = entry{float32Type, t.Shape, [2]int64{at, at + 4*n}}
		at += 4 * n
	}
	if len(header) != len(sorted)+1 {
		return fmt.Errorf("two of the %d tensors have one name", len(sorted))
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for len(text)%align != 0 {
		text = append(text, ' ')
	}
	if _, err := w.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)); err != nil {
		return err
	}
	var buf []byte
	for _, t := range sorted {
		buf = buf[:0]
		for _, v := range t.Data {
			buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(v))
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// numbers is the product of the sizes, or -1 for a shape that no file can hold.
func numbers(shape []int) int64 {
	const most = 1 << 40
	n := int64(1)
	for _, d := range shape {
		if d < 0 || n > 0 && int64(d) > most/n {
			return -1
		}
		n *= int64(d)
	}
	return n
}

// File is an opened file.
type File struct {
	Metadata map[string]string
	tensors  map[string]entry
	r        io.ReaderAt
	data     int64 // where the data begin
}

// Read reads the header and checks that every tensor lies inside of the file.
func Read(r io.ReaderAt, size int64) (*File, error) {
	var prefix [8]byte
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, fmt.Errorf("safetensors: the file is too short: %w", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > headerBytesMax || int64(n) > size-8 { //nolint:gosec // n is below headerBytesMax where it is converted
		return nil, fmt.Errorf("safetensors: a header of %d bytes in a file of %d: it is truncated, or no safetensors file", n, size)
	}
	text := make([]byte, n)
	if _, err := r.ReadAt(text, 8); err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("safetensors: the header: %w", err)
	}
	f := &File{Metadata: map[string]string{}, tensors: map[string]entry{}, r: r, data: 8 + int64(n)} //nolint:gosec // n is below headerBytesMax
	for name, v := range raw {
		if name == metadataKey {
			if err := json.Unmarshal(v, &f.Metadata); err != nil {
				return nil, fmt.Errorf("safetensors: the metadata: %w", err)
			}
			continue
		}
		var e entry
		if err := json.Unmarshal(v, &e); err != nil {
			return nil, fmt.Errorf("safetensors: tensor %q: %w", name, err)
		}
		if e.Offsets[0] < 0 || e.Offsets[1] < e.Offsets[0] || e.Offsets[1] > size-f.data {
			return nil, fmt.Errorf("safetensors: tensor %q lies outside of the file: it is truncated or damaged", name)
		}
		f.tensors[name] = e
	}
	return f, nil
}

// Float32 reads a tensor, which must have the given shape and hold finite numbers only.
func (f *File) Float32(name string, shape ...int) ([]float32, error) {
	e, ok := f.tensors[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("safetensors: there is no tensor %q", name)
	case e.Type != float32Type:
		return nil, fmt.Errorf("safetensors: tensor %q is of type %q: float32 is needed", name, e.Type)
	case !slices.Equal(e.Shape, shape):
		return nil, fmt.Errorf("safetensors: tensor %q has the shape %v, not %v", name, e.Shape, shape)
	case e.Offsets[1]-e.Offsets[0] != 4*numbers(shape):
		return nil, fmt.Errorf("safetensors: tensor %q of shape %v has %d bytes", name, shape, e.Offsets[1]-e.Offsets[0])
	}
	raw := make([]byte, e.Offsets[1]-e.Offsets[0])
	if _, err := f.r.ReadAt(raw, f.data+e.Offsets[0]); err != nil {
		return nil, fmt.Errorf("safetensors: tensor %q: %w", name, err)
	}
	out := make([]float32, len(raw)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		if v := float64(out[i]); math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("safetensors: tensor %q holds %v", name, v)
		}
	}
	return out, nil
}
