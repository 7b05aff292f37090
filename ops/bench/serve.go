package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// Sizes of serve.
const (
	serveSequences = 16
	serveContext   = 1024
	serveBatch     = 512
	servePrompt    = 16  // tokens before what is decoded
	serveTokens    = 48  // decoded of each sequence
	servePrefill   = 448 // tokens of a long prompt
	serveStreams   = 4   // while versions are swapped
	serveRank      = 16  // of the swapped adapters
)

// Serve measures the policy engine: tokens a second at 16 sequences and at one, prompts, all recorded with log-probs at two temperatures and the
// likeliest tokens, beside node-llama-cpp on the same file, threads and batch, which records nothing; and what a swap under load does to the tokens.
func Serve(ctx context.Context, e *Env) (results []Result, err error) {
	cfg, err := e.policy(ctx)
	if err != nil {
		return nil, err
	}
	s, err := llama.Start(ctx, cfg, e.Logger, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	baseline, err := e.startNode(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, baseline.stop()) }()
	rng := rand.New(rand.NewPCG(e.Seed, 1))
	for _, n := range []int{serveSequences, 1} {
		unit := "tokens/s"
		var prompts [][]uint32
		r, err := e.compare(ctx, fmt.Sprintf("decode_%d", n), unit, func(ctx context.Context) (float64, error) {
			prompts = randomPrompts(rng, n, servePrompt, s.Info().Vocabulary)
			return decodeRate(ctx, s, prompts)
		}, func(context.Context) (float64, error) {
			prompts = randomPrompts(rng, n, servePrompt, s.Info().Vocabulary)
			return baseline.do(nodeCommand{Verb: "decode", Prompts: prompts, Tokens: serveTokens})
		})
		if err != nil {
			return nil, err
		}
		name := "serve"
		if n == 1 {
			name = "serve_decode_1"
		}
		results = append(results, r.higher(name, unit, map[string]any{"sequences": n, "threads": cfg.Threads, "batch_tokens": cfg.Batch}))
	}
	r, err := e.compare(ctx, "prefill", "tokens/s", func(ctx context.Context) (float64, error) {
		return prefillRate(ctx, s, randomPrompts(rng, 3, servePrefill, s.Info().Vocabulary))
	}, func(context.Context) (float64, error) {
		return baseline.do(nodeCommand{Verb: "prefill", Prompts: randomPrompts(rng, 3, servePrefill, s.Info().Vocabulary)})
	})
	if err != nil {
		return nil, err
	}
	results = append(results, r.higher("serve_prefill", "tokens/s", map[string]any{"prompt_tokens": servePrefill}))
	swaps, err := e.swapDelay(ctx, s, cfg.Model)
	return append(results, swaps), err
}

// policy finds the default policy and its library.
func (e *Env) policy(ctx context.Context) (llama.Config, error) {
	store, err := assets.Open(assets.Options{Cache: e.Config.Assets.Cache, Prefetched: e.Config.Assets.Prefetched, Progress: e.Progress})
	if err != nil {
		return llama.Config{}, err
	}
	if err := store.Ensure(ctx, assets.Llama, assets.SmolLM2); err != nil {
		return llama.Config{}, err
	}
	return llama.Config{
		Library: store.Dir(assets.Llama), Model: filepath.Join(store.Dir(assets.SmolLM2), assets.SmolLM2File),
		Threads: runtime.NumCPU(), Parallel: serveSequences, Context: serveContext, Batch: serveBatch,
	}, nil
}

// randomPrompts have no common beginning, so that no cache helps.
func randomPrompts(rng *rand.Rand, n, tokens, vocabulary int) [][]uint32 {
	list := make([][]uint32, n)
	for i := range list {
		list[i] = make([]uint32, tokens)
		for k := range list[i] {
			list[i][k] = 1000 + rng.Uint32N(uint32(vocabulary)-1000)
		}
	}
	return list
}

// decodeRate decodes all prompts at once, greedily, and returns tokens a second.
func decodeRate(ctx context.Context, s *llama.Server, prompts [][]uint32) (float64, error) {
	start := time.Now()
	var all sync.WaitGroup
	counts, errs := make([]int, len(prompts)), make([]error, len(prompts))
	for i, p := range prompts {
		all.Go(func() {
			r := &llama.Request{Prompt: p, MaxTokens: serveTokens, RecordTopK: 4}
			_, errs[i] = s.Generate(ctx, r, func(llama.Token) error {
				counts[i]++
				return nil
			})
		})
	}
	all.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return float64(sum) / time.Since(start).Seconds(), errors.Join(errs...)
}

// prefillRate computes prompts one after the other, each to its first token, and returns their tokens a second.
func prefillRate(ctx context.Context, s *llama.Server, prompts [][]uint32) (float64, error) {
	start, sum := time.Now(), 0
	for _, p := range prompts {
		if _, err := s.Generate(ctx, &llama.Request{Prompt: p, MaxTokens: 1}, func(llama.Token) error { return nil }); err != nil {
			return 0, err
		}
		sum += len(p)
	}
	return float64(sum) / time.Since(start).Seconds(), nil
}

// swapDelay lets streams run while versions come, and without: the largest time between two tokens of a stream, in the median over rounds, and how many
// requests were dropped.
func (e *Env) swapDelay(ctx context.Context, s *llama.Server, model string) (Result, error) {
	var with, without, loads []float64
	dropped := 0
	for i := range e.runs() {
		quiet, failed, _, err := e.streams(ctx, s, "", "")
		if err != nil {
			return Result{}, err
		}
		without, dropped = append(without, quiet), dropped+failed
		adapter := filepath.Join(e.Dir, fmt.Sprintf("adapter-%d.gguf", i))
		if err := randomAdapter(adapter, model, uint64(i)); err != nil {
			return Result{}, err
		}
		delay, failed, load, err := e.streams(ctx, s, fmt.Sprintf("v%d", i), adapter)
		if err != nil {
			return Result{}, err
		}
		with, loads, dropped = append(with, delay), append(loads, load), dropped+failed
		e.note("round %d/%d  largest time between tokens: %.1f ms with a swap of %.1f ms, %.1f ms without", i+1, e.runs(), delay, load, quiet)
	}
	r := lower("serve_swap_token_delay", "ms", median(with), median(without), map[string]any{
		"added_ms": median(with) - median(without), "dropped_requests": dropped, "streams": serveStreams, "swap_ms": median(loads),
		"rounds": rounded(with), "baseline_rounds": rounded(without),
	})
	if dropped > 0 {
		return r, fmt.Errorf("%d requests were dropped", dropped)
	}
	return r, nil
}

// streams runs some requests of one version, swaps in the middle of them where a version is named, and returns the largest time between two tokens,
// how many requests failed, and how long the swap took, in ms.
func (e *Env) streams(ctx context.Context, s *llama.Server, version, adapter string) (largest float64, failed int, swap float64, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	middle := make(chan struct{})
	tokens := 0
	for i := range serveStreams {
		all.Go(func() {
			var last time.Time
			r := &llama.Request{Version: llama.Base, Prompt: randomPrompts(rand.New(rand.NewPCG(e.Seed, uint64(i))), 1, servePrompt, s.Info().Vocabulary)[0], MaxTokens: serveTokens}
			_, err := s.Generate(ctx, r, func(llama.Token) error {
				mu.Lock()
				defer mu.Unlock()
				now := time.Now()
				if !last.IsZero() {
					largest = max(largest, now.Sub(last).Seconds()*1000)
				}
				last = now
				if tokens++; tokens == serveStreams*serveTokens/2 {
					close(middle)
				}
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
			}
		})
	}
	if version != "" {
		select {
		case <-middle:
			start := time.Now()
			err = s.Swap(ctx, version, adapter)
			swap = time.Since(start).Seconds() * 1000
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	all.Wait()
	return largest, failed, swap, err
}

// randomAdapter writes a LoRA for all linears of a llama model.
func randomAdapter(path, model string, seed uint64) (err error) {
	m, err := gguf.Open(model)
	if err != nil {
		return err
	}
	defer m.Close()
	rng := rand.New(rand.NewPCG(seed, 2))
	var tensors []gguf.Source
	for _, t := range m.Tensors {
		if !strings.HasPrefix(t.Name, "blk.") || len(t.Shape) != 2 {
			continue
		}
		for suffix, shape := range map[string][]int{"a": {t.Shape[0], serveRank}, "b": {serveRank, t.Shape[1]}} {
			values := make([]float32, shape[0]*shape[1])
			for i := range values {
				values[i] = float32(rng.NormFloat64()) * 0.02
			}
			tensors = append(tensors, gguf.Source{Name: t.Name + ".lora_" + suffix, Shape: shape, Chunks: gguf.Numbers(values)})
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return gguf.Write(f, []gguf.Pair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "general.type", Value: "adapter"},
		{Key: "adapter.type", Value: "lora"},
		{Key: "adapter.lora.alpha", Value: float32(serveRank)},
	}, tensors)
}
