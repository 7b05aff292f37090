package ort

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Element types with their ONNX numbers.
const (
	typeFloat32 = 1
	typeInt64   = 7
)

// Tensor is memory of the caller with a shape. The memory is used in place: it must not change while a session runs.
type Tensor struct {
	name  string
	typ   int
	shape []int64
	data  unsafe.Pointer
	size  int // bytes
}

// Float32 is a tensor over data, whose length is the product of the sizes.
func Float32(name string, data []float32, shape ...int) Tensor {
	return Tensor{name, typeFloat32, check(name, len(data), shape), unsafe.Pointer(unsafe.SliceData(data)), 4 * len(data)}
}

// Int64 is a tensor over data, whose length is the product of the sizes.
func Int64(name string, data []int64, shape ...int) Tensor {
	return Tensor{name, typeInt64, check(name, len(data), shape), unsafe.Pointer(unsafe.SliceData(data)), 8 * len(data)}
}

// check panics on a length that does not fit: that is a bug of the caller and would let C write elsewhere.
func check(name string, length int, shape []int) []int64 {
	n, sizes := 1, make([]int64, len(shape))
	for i, d := range shape {
		n *= d
		sizes[i] = int64(d)
	}
	if n != length {
		panic(fmt.Sprintf("ort: tensor %s of shape %v over %d elements", name, shape, length))
	}
	return sizes
}

// Options of a session.
type Options struct {
	// Threads that one operator uses.
	Threads int
}

// Session is a loaded graph. Runs may overlap.
type Session struct {
	lib     *Library
	session uintptr
}

// NewSession loads a model. Close it.
func (l *Library) NewSession(model []byte, o Options) (_ *Session, err error) {
	s := &Session{lib: l}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	var options uintptr
	if err := l.call(fnCreateSessionOptions, uintptr(unsafe.Pointer(&options))); err != nil {
		return nil, err
	}
	defer l.release(fnReleaseSessionOptions, options)
	configure := []func() error{
		func() error { return l.call(fnSetIntraOpNumThreads, options, uintptr(o.Threads)) },
		func() error { return l.call(fnSetInterOpNumThreads, options, 1) },
		func() error { return l.call(fnSetSessionGraphOptimization, options, optimizeAll) },
		func() error { return l.call(fnDisableMemPattern, options) },                     // patterns keep the largest sizes allocated
		func() error { return l.entry(options, "session.intra_op.allow_spinning", "0") }, // serving shares the cores
		func() error { return l.entry(options, "session.set_denormal_as_zero", "0") },    // the same numbers on every processor
		func() error { return l.entry(options, "session.x64quantprecision", "1") },       // nor may sums of 8 bit products saturate on some
	}
	for _, do := range configure {
		if err := do(); err != nil {
			return nil, err
		}
	}
	if len(model) == 0 {
		return nil, errors.New("ONNX Runtime: the model is empty")
	}
	err = l.call(fnCreateSessionFromArray, l.env, uintptr(unsafe.Pointer(&model[0])), uintptr(len(model)), options, uintptr(unsafe.Pointer(&s.session)))
	runtime.KeepAlive(model)
	return s, err
}

func (l *Library) entry(options uintptr, key, value string) error {
	k, v := cstring(key), cstring(value)
	return l.call(fnAddSessionConfigEntry, options, uintptr(unsafe.Pointer(k)), uintptr(unsafe.Pointer(v)))
}

// value wraps a tensor's memory. Release it.
func (l *Library) value(t Tensor, pin *runtime.Pinner) (uintptr, error) {
	if t.data != nil {
		pin.Pin(t.data)
	}
	var value uintptr
	err := l.call(
		fnCreateTensorWithDataAsOrtValue, l.memory, uintptr(t.data), uintptr(t.size), uintptr(unsafe.Pointer(unsafe.SliceData(t.shape))), uintptr(len(t.shape)),
		uintptr(t.typ), uintptr(unsafe.Pointer(&value)),
	)
	if err != nil {
		return 0, fmt.Errorf("tensor %s: %w", t.name, err)
	}
	return value, nil
}

// Run computes the outputs from the inputs. ctx ends it between two operators, with its error.
func (s *Session) Run(ctx context.Context, inputs, outputs []Tensor) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	in, err := s.lib.arguments(inputs, &pin)
	defer s.lib.releaseAll(in.values)
	if err != nil {
		return err
	}
	out, err := s.lib.arguments(outputs, &pin)
	defer s.lib.releaseAll(out.values)
	if err != nil {
		return err
	}
	var options uintptr
	if err := s.lib.call(fnCreateRunOptions, uintptr(unsafe.Pointer(&options))); err != nil {
		return err
	}
	defer s.lib.release(fnReleaseRunOptions, options)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = s.lib.call(fnRunOptionsSetTerminate, options)
	})
	err = s.lib.call(
		fnRun, s.session, options, uintptr(unsafe.Pointer(&in.names[0])), uintptr(unsafe.Pointer(&in.values[0])), uintptr(len(inputs)),
		uintptr(unsafe.Pointer(&out.names[0])), uintptr(len(outputs)), uintptr(unsafe.Pointer(&out.values[0])),
	)
	if !stop() {
		<-ended // the options must outlive the call that ends the run
		err = ctx.Err()
	}
	runtime.KeepAlive(inputs)
	runtime.KeepAlive(outputs)
	return err
}

// arguments are the names and values of tensors as C arrays. Both have an element at least, so that they have an address.
type arguments struct {
	names  []*byte
	values []uintptr
}

func (l *Library) arguments(tensors []Tensor, pin *runtime.Pinner) (arguments, error) {
	a := arguments{make([]*byte, 0, len(tensors)+1), make([]uintptr, 0, len(tensors)+1)}
	for _, t := range tensors {
		value, err := l.value(t, pin)
		if err != nil {
			return a, err
		}
		name := cstring(t.name)
		pin.Pin(name)
		a.names, a.values = append(a.names, name), append(a.values, value)
	}
	a.names, a.values = append(a.names, nil), append(a.values, 0)
	return a, nil
}

func (l *Library) releaseAll(values []uintptr) {
	for _, v := range values {
		l.release(fnReleaseValue, v)
	}
}

// Close frees the session.
func (s *Session) Close() {
	s.lib.release(fnReleaseSession, s.session)
	s.session = 0
}
