package llama

import (
	"fmt"
	"math/rand/v2"

	"github.com/hybridgroup/yzma/pkg/llama"
)

// probeTokens is how long the prompt is that a new adapter is tried with.
const probeTokens = 8

// probe samples one token with an adapter in a small context of its own, on the goroutine that loads: an adapter that gives no numbers never
// becomes a version, and no request waits for the trial. The model itself is only read.
func (n *native) probe(a llama.AdapterLora) error {
	p := llama.ContextDefaultParams()
	p.NSeqMax, p.NCtx, p.NBatch, p.NUbatch, p.NOutputsMax = 1, probeTokens, probeTokens, probeTokens, 1
	p.NThreads, p.NThreadsBatch, p.NoPerf = 1, 1, 1
	ctx, err := llama.InitFromModel(n.model, p)
	if err != nil {
		return fmt.Errorf("make a context to try the adapter in: %w", n.said.reason("memory is short"))
	}
	defer func() { _ = llama.Free(ctx) }() // fails for a library that is not loaded only
	if code := llama.SetAdaptersLora(ctx, []llama.AdapterLora{a}, []float32{1}); code != 0 {
		return fmt.Errorf("llama_set_adapters_lora gave %d: %w", code, n.said.reason("no reason was given"))
	}
	batch := llama.BatchInit(probeTokens, 0, 1)
	defer func() { _ = llama.BatchFree(batch) }()
	for i := range probeTokens { // tokens of all parts of the vocabulary
		token := llama.Token(i * n.info.Vocabulary / probeTokens)
		if err := batch.Add(token, llama.Pos(i), []llama.SeqId{0}, i == probeTokens-1); err != nil {
			return err
		}
	}
	if code, err := llama.Decode(ctx, batch); err != nil || code != 0 {
		return fmt.Errorf("llama_decode gave %d: %w", code, n.said.reason("no reason was given"))
	}
	logits, err := llama.GetLogitsIth(ctx, probeTokens-1, n.info.Vocabulary)
	if err != nil || logits == nil {
		return fmt.Errorf("llama.cpp has no logits of the adapter's first token: %w", n.said.reason("no reason was given"))
	}
	s := &sampler{}
	if err := s.read(logits, 1, 1); err != nil {
		return err
	}
	s.draw(logits, &Request{Temperature: 1}, rand.New(rand.NewPCG(0, 0))) //nolint:gosec // not for secrets
	return nil
}
