// Package gguftest makes small models of the llama family with random weights, for tests and benchmarks: an update of one takes milliseconds.
//
// In: the sizes and what the model has beyond the plain family (Model). Out: a GGUF with float32 weights, the same bytes for the same Model; on disk, or open in memory.
//
// Read first: model.go.
package gguftest
