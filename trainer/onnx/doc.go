// Package onnx is the embedded training engine: the training graph of the llama family, emitted by Go and run by ONNX Runtime.
//
// In: a GGUF (dequantised to float32), LoRA adapters, token sequences, and for each response position the derivative of the loss by the
// log-probs of a few tokens. Out: log-probs of those tokens, and the gradients of the adapters.
//
// The losses are not in the graph. A loss depends on the model through log-probs of a few tokens at each position only, so its derivative by them is all
// that the graph needs: the losses are Go code, in float64, in package trainer, and a new one changes nothing here.
//
// The graph is that of one block, run once for each: weights and adapters are its inputs. What the forward pass hands to the backward pass lies in our memory,
// so Gradient after Logprobs of the same sequences computes no linear layer twice. The head, whose logits are the largest matrix, takes some rows at a time.
//
// Sequences are packed: one run holds several, one after the other, and the mask keeps them apart; what several begin with is there once. One graph serves every length.
//
// The engine runs in a child process of low priority, which holds the weights: an abort in native code fails one call.
//
// Invariants: the same inputs give the same bytes, whatever is kept, on any number of threads, in the process and in the child. Memory is bounded (Engine says by what).
//
// Read first: process.go (the parent's side), child.go, engine.go (log-probs and gradient), pass.go (block after block), model.go (the graphs), pack.go
// (sequences to inputs), parallel.go (several packs at once).
package onnx
