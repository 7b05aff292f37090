package onnx

import (
	"context"
	"fmt"
	"slices"

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
	// Threads are the packs that are computed at once. The result does not depend on it, the memory does.
	Threads int
	// PackTokens bounds the tokens of one run, and with them the memory; a longer sequence runs alone, and those that begin alike may be three times as many. Default 256: more
	// is no faster, as attention looks at all pairs of a pack.
	PackTokens int
	// KeepBytes bounds what Logprobs keeps for a Gradient of the same sequences with the same adapter, which then spares a forward pass: for SmolLM2-135M 0.6 MB a token.
	// What does not fit is computed again. Default 768 MiB.
	KeepBytes int
}

const (
	packTokens = 256
	keepBytes  = 768 << 20
	// headRows of [R, vocabulary] are computed at once: the largest matrices are these.
	headRows = 128
)

// Engine computes log-probs and gradients of one model. For one goroutine.
//
// Its memory: the weights as float32, KeepBytes, and for each thread the workspace of one block (about 30 numbers of the feed-forward size a token, and 6 of each pair of
// tokens a head) or of the head (3 numbers of headRows times the vocabulary).
type Engine struct {
	cfg       Config
	model     *gguf.Llama
	embedding []float32      // [vocabulary, hidden]
	blocks    [][]ort.Tensor // the weights of each block
	head      []ort.Tensor   // norm and output matrix
	kept      kept
	scratch   [][]float32 // of each thread: the states of a pack that is not kept

	forward, backward         *ort.Session // of a block
	headForward, headBackward *ort.Session
}

// Layers implements trainer.Engine.
func (e *Engine) Layers() []trainer.Layer { return layersOf(e.model) }

// Open reads the model and makes its graphs. Close it.
func Open(lib *ort.Library, file *gguf.File, cfg Config) (*Engine, error) {
	m, err := file.Llama()
	if err != nil {
		return nil, err
	}
	if cfg.Rank < 1 || cfg.Threads < 1 {
		return nil, fmt.Errorf("rank %d and threads %d must be at least 1", cfg.Rank, cfg.Threads)
	}
	if cfg.PackTokens == 0 {
		cfg.PackTokens = packTokens
	}
	if cfg.KeepBytes == 0 {
		cfg.KeepBytes = keepBytes
	}
	e := &Engine{cfg: cfg, model: m, scratch: make([][]float32, cfg.Threads)}
	if err := e.load(file); err != nil {
		return nil, err
	}
	for _, s := range []struct {
		session **ort.Session
		graph   *graph.Graph
	}{
		{&e.forward, forwardBlock(m, cfg.Rank, e.scale())},
		{&e.backward, backwardBlock(m, cfg.Rank, e.scale())},
		{&e.headForward, forwardHead(m)},
		{&e.headBackward, backwardHead(m)},
	} {
		if *s.session, err = lib.NewSession(s.graph.Model(), ort.Options{Threads: 1}); err != nil {
			e.Close()
			return nil, err
		}
	}
	return e, nil
}

func (e *Engine) scale() float32 { return float32(e.cfg.Alpha / float64(e.cfg.Rank)) }

// load dequantises the model; the rows of q and k go into the half-split order.
func (e *Engine) load(file *gguf.File) (err error) {
	m := e.model
	read := func(name string) (data []float32) {
		if err == nil {
			data, err = file.Float32(file.Tensor(name))
		}
		return data
	}
	e.embedding = read("token_embd.weight")
	output := e.embedding
	if !m.TiedOutput {
		output = read("output.weight")
	}
	norm := read("output_norm.weight")
	for b := range m.Blocks {
		var list []ort.Tensor
		for _, p := range m.Parts() {
			data := read(fmt.Sprintf("blk.%d.%s", b, p.Name))
			if err != nil {
				return err
			}
			shape := slices.Clone(p.Shape)
			slices.Reverse(shape) // [in, out] in GGUF is [out, in] in the graph
			if p.Heads > 0 {
				data = gguf.Unpermute(data, p.Heads, len(data)/shape[0])
			}
			list = append(list, ort.Float32(p.Name, data, shape...))
		}
		e.blocks = append(e.blocks, list)
	}
	if err == nil {
		e.head = []ort.Tensor{ort.Float32(headNorm, norm, m.Hidden), ort.Float32(headOutput, output, m.Vocabulary, m.Hidden)}
	}
	return err
}

// adapter are the inputs of each block (or, with a prefix, outputs) of an adapter.
func (e *Engine) adapter(a *trainer.Adapter, prefix string) ([][]ort.Tensor, error) {
	if err := trainer.NewAdapter(e.Layers(), e.cfg.Rank, e.cfg.Alpha).Fits(a); err != nil {
		return nil, err
	}
	list := make([][]ort.Tensor, e.model.Blocks)
	for i, l := range a.Layers {
		b, name := i/len(linears), linears[i%len(linears)].gguf
		list[b] = append(list[b], ort.Float32(prefix+inputA(name), a.A[i], a.Rank, l.In), ort.Float32(prefix+inputB(name), a.B[i], l.Out, a.Rank))
	}
	return list, nil
}

// Logprobs implements trainer.Engine.
func (e *Engine) Logprobs(ctx context.Context, a *trainer.Adapter, sequences []trainer.Sequence) (logprobs [][][]float32, entropy [][]float32, err error) {
	lora, err := e.adapter(a, "")
	if err != nil {
		return nil, nil, err
	}
	runs, err := e.runs(sequences)
	if err != nil {
		return nil, nil, err
	}
	e.kept.begin(a)
	rooms := e.rooms(runs, e.cfg.KeepBytes)
	packs := make([]*packed, len(runs))
	logprobs, entropy = make([][][]float32, len(sequences)), make([][]float32, len(sequences))
	err = e.parallel(ctx, len(runs), func(ctx context.Context, worker, i int) error {
		r := runs[i]
		p := pack(e.model, r.sequences)
		s := e.cut(rooms[i].memory(&e.scratch[worker]), p.tokens)
		if err := e.pass(ctx, p, lora, s); err != nil {
			return err
		}
		lp, h, err := e.score(ctx, p, s.x[e.model.Blocks])
		if err != nil {
			return err
		}
		packs[i] = p
		copy(logprobs[r.at:], split(lp, p.wanted, r.sequences))
		for k, rows := range split(h, 1, r.sequences) {
			for _, row := range rows {
				entropy[r.at+k] = append(entropy[r.at+k], row[0])
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for i, p := range packs {
		if rooms[i].keep {
			e.kept.add(p, rooms[i].x)
		}
	}
	return logprobs, entropy, nil
}

// Gradient implements trainer.Engine. Right after Logprobs of the same sequences with the same adapter it begins where that one ended.
func (e *Engine) Gradient(ctx context.Context, a *trainer.Adapter, sequences []trainer.Sequence, coef [][][]float64, grad *trainer.Adapter) error {
	lora, err := e.adapter(a, "")
	if err != nil {
		return err
	}
	runs, err := e.runs(sequences)
	if err != nil {
		return err
	}
	parts := make([]part, min(len(runs), e.cfg.Threads))
	for w := range parts {
		parts[w].adapter = grad.Zero()
		if parts[w].tensors, err = e.adapter(parts[w].adapter, gradient); err != nil {
			return err
		}
	}
	if !e.kept.of(a) {
		e.kept.begin(a)
	}
	turns := newQueue(len(runs))
	return e.parallel(ctx, len(runs), func(ctx context.Context, worker, i int) error {
		r := runs[i]
		if err := e.gradient(ctx, lora, r, coef[r.at:], worker, parts[worker].tensors); err != nil {
			return err
		}
		if err := turns.wait(ctx, i); err != nil { // the sum has the same bits in whatever order the packs are done
			return err
		}
		grad.Add(parts[worker].adapter)
		turns.done(i)
		return nil
	})
}

// part is a gradient of one pack: the adapter, and the same memory as outputs of the blocks.
type part struct {
	adapter *trainer.Adapter
	tensors [][]ort.Tensor
}

// gradient fills in outs, the gradients of a pack.
func (e *Engine) gradient(ctx context.Context, lora [][]ort.Tensor, r run, coef [][][]float64, worker int, outs [][]ort.Tensor) error {
	p := pack(e.model, r.sequences)
	flat, err := flattenCoef(coef, r.sequences)
	if err != nil {
		return err
	}
	memory, ok := e.kept.find(p)
	if !ok {
		memory = sized(&e.scratch[worker], e.size(p.tokens))
	}
	s := e.cut(memory, p.tokens)
	if !ok {
		if err := e.pass(ctx, p, lora, s); err != nil {
			return err
		}
	}
	d, err := e.scoreBack(ctx, p, s.x[e.model.Blocks], flat)
	if err != nil {
		return err
	}
	return e.passBack(ctx, p, lora, s, d, outs)
}

// flattenCoef lays the coefficients of packed sequences out as [R, K].
func flattenCoef(coef [][][]float64, sequences []trainer.Sequence) ([]float32, error) {
	var flat []float32
	for i, s := range sequences {
		if len(coef[i]) != s.Response() {
			return nil, fmt.Errorf("%d positions have coefficients, of %d", len(coef[i]), s.Response())
		}
		for t, row := range coef[i] {
			if len(row) != len(s.Wanted[t]) {
				return nil, fmt.Errorf("position %d has %d coefficients for %d tokens", t, len(row), len(s.Wanted[t]))
			}
			for _, c := range row {
				flat = append(flat, float32(c))
			}
		}
	}
	return flat, nil
}

// Close frees the sessions.
func (e *Engine) Close() {
	for _, s := range []*ort.Session{e.forward, e.backward, e.headForward, e.headBackward} {
		if s != nil {
			s.Close()
		}
	}
}
