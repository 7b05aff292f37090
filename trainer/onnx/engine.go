package onnx

import (
	"context"
	"fmt"

	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/graph"
	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// Config of an Engine.
type Config struct {
	// Rank and Alpha of the adapters: y = W x + Alpha/Rank * B A x.
	Rank  int
	Alpha float64
	// Threads of one operator. The result depends on it in the last bits, and on nothing else of the machine's load.
	Threads int
	// PackTokens bounds the tokens of one run, and with them the memory; a longer sequence runs alone. Default 512.
	PackTokens int
}

// Engine computes log-probs and gradients of one model. For one goroutine.
type Engine struct {
	cfg      Config
	model    *gguf.Llama
	forward  *ort.Session
	backward *ort.Session
}

// Layers implements trainer.Engine.
func (e *Engine) Layers() []trainer.Layer { return layersOf(e.model) }

// Open reads the model and makes its graphs. Close it.
func Open(lib *ort.Library, file *gguf.File, cfg Config) (*Engine, error) {
	m, err := file.Llama()
	if err != nil {
		return nil, err
	}
	if m.RopeSize != m.HeadSize {
		return nil, fmt.Errorf("%d of %d numbers of a head are rotated: the training engine needs all of them", m.RopeSize, m.HeadSize)
	}
	if cfg.Rank < 1 || cfg.Threads < 1 {
		return nil, fmt.Errorf("rank %d and threads %d must be at least 1", cfg.Rank, cfg.Threads)
	}
	if cfg.PackTokens == 0 {
		cfg.PackTokens = 512
	}
	e := &Engine{cfg: cfg, model: m}
	weights, err := weights(file, m)
	if err != nil {
		return nil, err
	}
	for _, s := range []struct {
		session **ort.Session
		graph   *graph.Graph
	}{
		{&e.forward, forwardGraph(m, cfg.Rank, e.scale())},
		{&e.backward, backwardGraph(m, cfg.Rank, e.scale())},
	} {
		if *s.session, err = lib.NewSession(s.graph.Model(), ort.Options{Threads: cfg.Threads, Initializers: weights}); err != nil {
			e.Close()
			return nil, err
		}
	}
	return e, nil
}

func (e *Engine) scale() float32 { return float32(e.cfg.Alpha / float64(e.cfg.Rank)) }

// weights dequantises the model; the rows of q and k go into the half-split order.
func weights(file *gguf.File, m *gguf.Llama) ([]ort.Tensor, error) {
	var list []ort.Tensor
	add := func(name string, heads int, shape ...int) error {
		data, err := file.Float32(file.Tensor(name))
		if err != nil {
			return err
		}
		if heads > 0 {
			data = gguf.Unpermute(data, heads, m.Hidden)
		}
		list = append(list, ort.Float32(name, data, shape...))
		return nil
	}
	if err := add("token_embd.weight", 0, m.Vocabulary, m.Hidden); err != nil {
		return nil, err
	}
	if !m.TiedOutput {
		if err := add("output.weight", 0, m.Vocabulary, m.Hidden); err != nil {
			return nil, err
		}
	}
	if err := add("output_norm.weight", 0, m.Hidden); err != nil {
		return nil, err
	}
	for block := range m.Blocks {
		for _, norm := range []string{"attn_norm", "ffn_norm"} {
			if err := add(fmt.Sprintf("blk.%d.%s.weight", block, norm), 0, m.Hidden); err != nil {
				return nil, err
			}
		}
	}
	for _, l := range layersOf(m) {
		if err := add(l.GGUF+".weight", l.Heads, l.Out, l.In); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// adapter are the graph's inputs (or, with a prefix, outputs) of an adapter.
func (e *Engine) adapter(a *trainer.Adapter, prefix string) ([]ort.Tensor, error) {
	if err := trainer.NewAdapter(e.Layers(), e.cfg.Rank, e.cfg.Alpha).Fits(a); err != nil {
		return nil, err
	}
	var list []ort.Tensor
	for i, l := range a.Layers {
		list = append(list, ort.Float32(prefix+inputA(l), a.A[i], a.Rank, l.In), ort.Float32(prefix+inputB(l), a.B[i], l.Out, a.Rank))
	}
	return list, nil
}

// Logprobs implements trainer.Engine.
func (e *Engine) Logprobs(ctx context.Context, a *trainer.Adapter, sequences []trainer.Sequence) (logprobs [][][]float32, entropy [][]float32, err error) {
	lora, err := e.adapter(a, "")
	if err != nil {
		return nil, nil, err
	}
	err = e.each(sequences, func(_ int, part []trainer.Sequence) error {
		p := pack(e.model, part)
		lp, h := make([]float32, p.rows*p.wanted), make([]float32, p.rows)
		if err := e.forward.Run(ctx, append(p.inputs(e.model), lora...), []ort.Tensor{
			ort.Float32(outLogprobs, lp, p.rows, p.wanted), ort.Float32(outEntropy, h, p.rows, 1),
		}); err != nil {
			return err
		}
		logprobs = append(logprobs, split(lp, p.wanted, part)...)
		for _, rows := range split(h, 1, part) {
			var flat []float32
			for _, r := range rows {
				flat = append(flat, r[0])
			}
			entropy = append(entropy, flat)
		}
		return nil
	})
	return logprobs, entropy, err
}

// Gradient implements trainer.Engine.
func (e *Engine) Gradient(ctx context.Context, a *trainer.Adapter, sequences []trainer.Sequence, coef [][][]float64, grad *trainer.Adapter) error {
	lora, err := e.adapter(a, "")
	if err != nil {
		return err
	}
	part := grad.Zero() // of one run
	outs, err := e.adapter(part, gradient)
	if err != nil {
		return err
	}
	return e.each(sequences, func(at int, some []trainer.Sequence) error {
		p := pack(e.model, some)
		var flat []float32
		for i, s := range some {
			if len(coef[at+i]) != s.Response() {
				return fmt.Errorf("sequence %d has coefficients at %d positions of %d", at+i, len(coef[at+i]), s.Response())
			}
			for _, row := range coef[at+i] {
				for _, c := range row {
					flat = append(flat, float32(c))
				}
			}
		}
		lp := make([]float32, p.rows*p.wanted)
		in := append(p.inputs(e.model), ort.Float32(inCoef, flat, p.rows, p.wanted))
		if err := e.backward.Run(ctx, append(in, lora...), append([]ort.Tensor{ort.Float32(outLogprobs, lp, p.rows, p.wanted)}, outs...)); err != nil {
			return err
		}
		grad.Add(part)
		return nil
	})
}

// each checks the sequences and calls run for as many at once as PackTokens allows, in order; at is the index of the first of them.
func (e *Engine) each(sequences []trainer.Sequence, run func(at int, some []trainer.Sequence) error) error {
	for i, s := range sequences {
		if err := check(s, e.model, len(sequences[0].Wanted[0])); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
	}
	for at := 0; at < len(sequences); {
		n, tokens := 1, len(sequences[at].Tokens)
		for at+n < len(sequences) && tokens+len(sequences[at+n].Tokens) <= e.cfg.PackTokens {
			tokens += len(sequences[at+n].Tokens)
			n++
		}
		if err := run(at, sequences[at:at+n]); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// Close frees the sessions.
func (e *Engine) Close() {
	for _, s := range []*ort.Session{e.forward, e.backward} {
		if s != nil {
			s.Close()
		}
	}
}
