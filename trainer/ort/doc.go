// Package ort runs ONNX graphs in ONNX Runtime, without cgo.
//
// In: the bytes of a model, named tensors over memory that the caller owns. Out: named tensors, written into memory that the caller owns.
// Nothing is copied on the way.
//
// ONNX Runtime's C API is a table of functions that only grows at its end, so a function is found by its number in onnxruntime_c_api.h.
// The library is loaded into this process: an abort in it ends the process. Engines therefore run in a child of ours.
//
// Read first: session.go (what callers use), api.go (the table).
package ort
