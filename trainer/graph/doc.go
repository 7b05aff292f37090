// Package graph emits ONNX graphs with their own gradients: a small reverse-mode differentiation over ONNX operators.
//
// In: Go calls that describe a computation over tensors (New, Input, Param, then Gemm, RMSNorm, Softmax, ...). Out: the bytes of an ONNX model that
// ONNX Runtime loads (Model). A tensor that depends on no Param is constant: no gradient flows through it.
//
// A dimension of -1 is not known when the graph is built: sequence lengths are such, so one graph serves all of them. An operator that needs
// a size says so in its comment.
//
// Read first: graph.go (tensors, inputs, Backward), then grad.go (each operator beside its gradient), onnx.go (the wire format).
package graph
