// Package onnx is the embedded training engine: the training graph of the llama family, emitted by Go and run by ONNX Runtime.
//
// In: a GGUF (dequantised to float32), LoRA adapters, token sequences, and for each response position the derivative of the loss by the
// log-probs of a few tokens. Out: log-probs of those tokens, and the gradients of the adapters.
//
// The losses are not in the graph. A loss depends on the model through log-probs of a few tokens at each position only, so its derivative by them is all
// that the graph needs: the losses are Go code, in float64, in package trainer, and a new one changes nothing here. The price is a second
// forward pass; the first one recomputes the old log-probs, which is done anyway.
//
// Sequences are packed: one run holds several, one after the other, and the mask keeps them apart. One graph serves every length.
//
// Read first: model.go (the graph), pack.go (sequences to inputs), engine.go (forward and backward).
package onnx
