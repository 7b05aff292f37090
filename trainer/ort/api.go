package ort

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// apiVersion is the oldest version of the C API that has every function below.
const apiVersion = 17

// The numbers of the functions in OrtApi, from onnxruntime_c_api.h.
const (
	fnGetErrorMessage                = 2
	fnCreateEnv                      = 3
	fnCreateSessionFromArray         = 8
	fnRun                            = 9
	fnCreateSessionOptions           = 10
	fnDisableMemPattern              = 17
	fnSetSessionGraphOptimization    = 23
	fnSetIntraOpNumThreads           = 24
	fnSetInterOpNumThreads           = 25
	fnCreateRunOptions               = 39
	fnRunOptionsSetTerminate         = 46
	fnCreateTensorWithDataAsOrtValue = 49
	fnCreateCPUMemoryInfo            = 69
	fnReleaseEnv                     = 92
	fnReleaseStatus                  = 93
	fnReleaseMemoryInfo              = 94
	fnReleaseSession                 = 95
	fnReleaseValue                   = 96
	fnReleaseRunOptions              = 97
	fnReleaseSessionOptions          = 100
	fnAddSessionConfigEntry          = 130
	functions                        = fnAddSessionConfigEntry + 1
)

// Values of enums in the header.
const (
	logFatal       = 4
	optimizeAll    = 99
	arenaAllocator = 1
	memTypeDefault = 0
)

// Library is a loaded ONNX Runtime with its environment. Safe for concurrent use.
type Library struct {
	api    [functions]uintptr
	env    uintptr
	memory uintptr // describes CPU memory
}

// Load loads the library. It stays loaded until the process ends.
func Load(path string) (*Library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("ONNX Runtime: %w", err)
	}
	symbol, err := purego.Dlsym(handle, "OrtGetApiBase")
	if err != nil {
		return nil, fmt.Errorf("ONNX Runtime: %w", err)
	}
	// struct OrtApiBase { const OrtApi* (*GetApi)(uint32_t); const char* (*GetVersionString)(void); }
	base, _, _ := purego.SyscallN(symbol)
	getAPI := *(*uintptr)(pointer(base))
	table, _, _ := purego.SyscallN(getAPI, apiVersion)
	if table == 0 {
		return nil, fmt.Errorf("ONNX Runtime: %s is older than API version %d", path, apiVersion)
	}
	l := &Library{api: *(*[functions]uintptr)(pointer(table))}
	name := cstring("nextstate")
	if err := l.call(fnCreateEnv, logFatal, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&l.env))); err != nil {
		return nil, err
	}
	if err := l.call(fnCreateCPUMemoryInfo, arenaAllocator, memTypeDefault, uintptr(unsafe.Pointer(&l.memory))); err != nil {
		return nil, err
	}
	return l, nil
}

// call calls a function that returns an OrtStatus*: null is success. Addresses that are converted in its argument list stay valid during the call.
//
//go:uintptrescapes
func (l *Library) call(function int, args ...uintptr) error {
	status, _, _ := purego.SyscallN(l.api[function], args...)
	if status == 0 {
		return nil
	}
	text, _, _ := purego.SyscallN(l.api[fnGetErrorMessage], status)
	err := errors.New("ONNX Runtime: " + gostring(text))
	l.release(fnReleaseStatus, status)
	return err
}

// release calls a function that returns nothing.
func (l *Library) release(function int, object uintptr) {
	if object != 0 {
		_, _, _ = purego.SyscallN(l.api[function], object)
	}
}

// pointer turns an address that C returned into a pointer. The memory is C's: the collector does not move it.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

func cstring(s string) *byte {
	b := append([]byte(s), 0)
	return &b[0]
}

func gostring(address uintptr) string {
	if address == 0 {
		return ""
	}
	p := pointer(address)
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}
