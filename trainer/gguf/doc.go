// Package gguf reads model files in the GGUF format (versions 2 and 3), and writes them.
//
// In: a file that may be truncated or hostile. Out: typed metadata (the tokenizer and the chat template are there), the list of tensors, tensors
// as float32 whatever their quantisation, and new files. The policy engine and the trainer both read their model through it.
//
// Invariants:
//   - A file that was opened is whole: every tensor lies inside of it, with a size that agrees with its type and shape.
//   - Memory stays in proportion to the bytes that the file really has; a count in the file is never trusted.
//   - Shapes are in GGUF's order: the first dimension is the contiguous one. A matrix of shape [in, out] is row-major [out][in].
//
// Read first: file.go (Open, File), then tensor.go (Tensor, Float32), dequantise.go (the block formats), model.go (the llama family), write.go.
package gguf
