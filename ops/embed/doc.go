// Package embed turns short texts into vectors whose inner product tells how near they are in meaning, with all-MiniLM-L6-v2 on the CPU.
//
// In: texts, the model (ONNX) and its tokenizer.json from the asset store. Out: 384 numbers a text, of length 1.
//
// The tokenizer is Go (BERT's: clean, lower case, WordPiece) and reads every text as plain text: "[CLS]" in it is five characters. The graph runs in ONNX
// Runtime in a child process, which is given token ids only: an abort in native code fails one call, and the next one starts it again.
//
// Invariant: a text's vector depends on that text alone. The model's activations are quantised with the range of the whole tensor, so a batch, or padding, would
// change the vectors; texts therefore go through the graph one by one.
//
// Read first: child.go (what callers use), tokenizer.go, model.go (in the child).
package embed
