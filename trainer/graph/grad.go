package graph

import "slices"

// Elementwise operators without gradient: for gradients themselves, and for what is constant.

func (g *Graph) add(a, b *Tensor) *Tensor {
	return g.op("Add", broadcast(a.shape, b.shape), []*Tensor{a, b})
}

func (g *Graph) sub(a, b *Tensor) *Tensor {
	return g.op("Sub", broadcast(a.shape, b.shape), []*Tensor{a, b})
}

func (g *Graph) mul(a, b *Tensor) *Tensor {
	return g.op("Mul", broadcast(a.shape, b.shape), []*Tensor{a, b})
}

func (g *Graph) reduceLast(op string, a *Tensor) *Tensor {
	shape := slices.Clone(a.shape)
	shape[len(shape)-1] = 1
	return g.op(op, shape, []*Tensor{a, g.ints(-1)}, attr{"keepdims", 1})
}

func (g *Graph) gemm(a, b *Tensor, transA, transB int, alpha float32, c *Tensor) *Tensor {
	m, n := a.shape[transA], b.shape[1-transB]
	in, attrs := []*Tensor{a, b}, []attr{{"transA", transA}, {"transB", transB}, {"alpha", alpha}}
	if c != nil {
		in, attrs = append(in, c), append(attrs, attr{"beta", float32(1)})
	}
	return g.op("Gemm", []int{m, n}, in, attrs...)
}

// Add is a + b of one shape, or with b broadcast when nothing that is trained is behind it (a mask, a bias).
func (g *Graph) Add(a, b *Tensor) *Tensor {
	out := g.add(a, b)
	g.later(out, func(d *Tensor) {
		g.accumulate(a, d)
		g.accumulate(b, d)
	})
	return out
}

// Linear is x[N, in] * w, with w[in, out], or w[out, in] when transposed is 1.
func (g *Graph) Linear(x, w *Tensor, transposed int) *Tensor {
	out := g.gemm(x, w, 0, transposed, 1, nil)
	g.later(out, func(d *Tensor) {
		g.accumulateGemm(x, d, w, 0, 1-transposed, 1)
		if transposed == 0 {
			g.accumulateGemm(w, x, d, 1, 0, 1)
		} else {
			g.accumulateGemm(w, d, x, 1, 0, 1)
		}
	})
	return out
}

// LoRA is c + x*wᵀ + scale*(x*aᵀ)*bᵀ: w[out, in] is frozen, a[r, in] and b[out, r] the adapter of x[N, in] (Hu et al., LoRA, equation 3), c is nil or goes around the
// layer. known is its value when there is one from before, so that only the gradient is computed; else nil.
func (g *Graph) LoRA(c, x, w, a, b *Tensor, scale float32, known *Tensor) *Tensor {
	down, out := g.Linear(x, a, 1), known
	if known == nil {
		out = g.gemm(down, b, 0, 1, scale, g.gemm(x, w, 0, 1, 1, c))
	}
	out.depends = true
	g.later(out, func(d *Tensor) {
		if c != nil {
			g.accumulate(c, d)
		}
		g.accumulateGemm(x, d, w, 0, 0, 1)
		g.accumulateGemm(down, d, b, 0, 0, scale)
		g.accumulateGemm(b, d, down, 1, 0, scale)
	})
	return out
}

// matMul is alpha*op(a)*op(b) over the last two dimensions, without gradient (ONNX Runtime's FusedMatMul: no transposed copies).
func (g *Graph) matMul(a, b *Tensor, transA, transB int, alpha float32) *Tensor {
	n := len(a.shape)
	shape := slices.Clone(a.shape)
	shape[n-2], shape[n-1] = a.shape[n-2+transA], b.shape[n-1-transB]
	return g.opIn(microsoft, "FusedMatMul", shape, []*Tensor{a, b}, attr{"transA", transA}, attr{"transB", transB}, attr{"alpha", alpha})
}

// MatMul is a[.., M, K] * b[.., K, N]; the other dimensions are equal.
func (g *Graph) MatMul(a, b *Tensor) *Tensor {
	out := g.matMul(a, b, 0, 0, 1)
	g.later(out, func(d *Tensor) {
		if a.depends {
			g.accumulate(a, g.matMul(d, b, 0, 1, 1))
		}
		if b.depends {
			g.accumulate(b, g.matMul(a, d, 1, 0, 1))
		}
	})
	return out
}

// MatMulT is alpha * a[.., M, K] * b[.., N, K]ᵀ.
func (g *Graph) MatMulT(a, b *Tensor, alpha float32) *Tensor {
	out := g.matMul(a, b, 0, 1, alpha)
	g.later(out, func(d *Tensor) {
		if a.depends {
			g.accumulate(a, g.matMul(d, b, 0, 0, alpha))
		}
		if b.depends {
			g.accumulate(b, g.matMul(d, a, 1, 0, alpha))
		}
	})
	return out
}

// Reshape changes the shape; one size at most may be -1, of both the old and the new one.
func (g *Graph) Reshape(a *Tensor, shape ...int) *Tensor {
	out := g.op("Reshape", shape, []*Tensor{a, g.ints(shape...)})
	g.later(out, func(d *Tensor) { g.accumulate(a, g.op("Reshape", a.shape, []*Tensor{d, g.ints(a.shape...)})) })
	return out
}

// Transpose permutes the dimensions.
func (g *Graph) Transpose(a *Tensor, perm ...int) *Tensor {
	shape, inverse := make([]int, len(perm)), make([]int, len(perm))
	for i, p := range perm {
		shape[i], inverse[p] = a.shape[p], i
	}
	out := g.op("Transpose", shape, []*Tensor{a}, attr{"perm", perm})
	g.later(out, func(d *Tensor) { g.accumulate(a, g.op("Transpose", a.shape, []*Tensor{d}, attr{"perm", inverse})) })
	return out
}

// Softmax is over the last dimension.
func (g *Graph) Softmax(a *Tensor) *Tensor {
	out := g.op("Softmax", a.shape, []*Tensor{a}, attr{"axis", -1})
	g.later(out, func(d *Tensor) {
		weighted := g.mul(d, out)
		g.accumulate(a, g.sub(weighted, g.mul(out, g.reduceLast("ReduceSum", weighted))))
	})
	return out
}

// RMSNorm is x / sqrt(mean(x²) + eps) * w over the last dimension (Zhang and Sennrich); w is frozen.
func (g *Graph) RMSNorm(x, w *Tensor, eps float32) *Tensor {
	shape := slices.Clone(x.shape)
	shape[len(shape)-1] = 1
	out := &Tensor{name: g.fresh("t"), typ: Float32, shape: x.shape, depends: x.depends}
	inverse := &Tensor{name: g.fresh("t"), typ: Float32, shape: shape}
	g.node("SimplifiedLayerNormalization", "", []*Tensor{x, w}, []string{out.name, inverse.name}, attr{"axis", -1}, attr{"epsilon", eps}, attr{"stash_type", 1})
	g.later(out, func(d *Tensor) {
		scaled, normal := g.mul(d, w), g.mul(x, inverse)
		mean := g.reduceLast("ReduceMean", g.mul(scaled, normal))
		g.accumulate(x, g.mul(inverse, g.sub(scaled, g.mul(normal, mean))))
	})
	return out
}

// RoPE turns the pairs (i, i+D/2) of the last dimension by the angles whose cosine and sine are given [.., N, D/2] (Su et al.; the half-split order).
func (g *Graph) RoPE(x, cos, sin *Tensor) *Tensor {
	out := g.rotate(x, cos, sin, "Sub", "Add")
	g.later(out, func(d *Tensor) { g.accumulate(x, g.rotate(d, cos, sin, "Add", "Sub")) }) // the inverse turn
	return out
}

func (g *Graph) rotate(x, cos, sin *Tensor, first, second string) *Tensor {
	last := len(x.shape) - 1
	shape := slices.Clone(x.shape)
	shape[last] /= 2
	a := &Tensor{name: g.fresh("t"), typ: Float32, shape: shape, depends: x.depends}
	b := &Tensor{name: g.fresh("t"), typ: Float32, shape: shape, depends: x.depends}
	g.node("Split", "", []*Tensor{x}, []string{a.name, b.name}, attr{"axis", last}, attr{"num_outputs", 2})
	low := g.op(first, shape, []*Tensor{g.mul(a, cos), g.mul(b, sin)})
	high := g.op(second, shape, []*Tensor{g.mul(b, cos), g.mul(a, sin)})
	return g.op("Concat", x.shape, []*Tensor{low, high}, attr{"axis", last})
}

// SwiGLU is silu(gate) * up (Shazeer).
func (g *Graph) SwiGLU(gate, up *Tensor) *Tensor {
	s := g.op("Sigmoid", gate.shape, []*Tensor{gate})
	silu := g.mul(gate, s)
	out := g.mul(silu, up)
	g.later(out, func(d *Tensor) {
		g.accumulate(up, g.mul(d, silu))
		slope := g.sub(g.add(s, silu), g.mul(silu, s)) // d silu/d gate = s + silu*(1-s)
		g.accumulate(gate, g.mul(g.mul(d, up), slope))
	})
	return out
}

// LogSoftmax is log softmax(scale * x[R, H] * w[V, H]ᵀ) over the vocabulary: [R, V], nats; scale[R, 1] is 1/temperature. Its gradient by x is LogprobGradient's.
func (g *Graph) LogSoftmax(x, w, scale *Tensor) *Tensor {
	logits := g.gemm(g.mul(x, scale), w, 0, 1, 1, nil) // x is the smaller one to scale
	return g.op("LogSoftmax", logits.shape, []*Tensor{logits}, attr{"axis", -1})
}

// Pick takes the columns tokens[R, K] of all[R, V].
func (g *Graph) Pick(all, tokens *Tensor) *Tensor {
	return g.op("GatherElements", tokens.shape, []*Tensor{all, tokens}, attr{"axis", 1})
}

// Entropy of each row of log-probs: [R, 1], nats.
func (g *Graph) Entropy(all *Tensor) *Tensor {
	p := g.op("Exp", all.shape, []*Tensor{all})
	return g.op("Neg", []int{all.shape[0], 1}, []*Tensor{g.reduceLast("ReduceSum", g.mul(p, all))})
}

// LogprobGradient is d loss/d x[R, H] for a loss that depends on x through the log-probs of tokens[R, K] only, with derivatives coef[R, K]. Since
// d log p(v)/d logit(u) = 1[u=v] - p(u), it is scale * (sum_k coef_k*w[token_k] - (sum_k coef_k) * p*w): no gradient over the vocabulary is ever stored.
func (g *Graph) LogprobGradient(all, w, tokens, coef, scale *Tensor) *Tensor {
	rows := g.op("Gather", []int{-1, -1, w.shape[1]}, []*Tensor{w, tokens}, attr{"axis", 0}) // [R, K, H]
	one := g.op("Unsqueeze", []int{-1, 1, -1}, []*Tensor{coef, g.ints(1)})                   // [R, 1, K]
	direct := g.op("Squeeze", []int{-1, w.shape[1]}, []*Tensor{g.matMul(one, rows, 0, 0, 1), g.ints(1)})
	p := g.op("Exp", all.shape, []*Tensor{all})
	through := g.mul(g.gemm(p, w, 0, 0, 1, nil), g.reduceLast("ReduceSum", coef))
	return g.mul(g.sub(direct, through), scale)
}
