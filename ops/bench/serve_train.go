package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

// Sizes of serve-train.
const (
	besideStreams = 4
	besidePrompt  = 200 // tokens, about
	besideTokens  = 64  // of a reply, at most
	besideReplies = 6   // of each stream in a phase; Env.Events is about the tokens of them all, prompts included
	besideBatch   = 8   // samples of an update
)

// ServeTrain measures what training takes from serving: the gateway and the trainer as one process runs them, four streams of chat while updates of 8 samples of 256 tokens are
// computed one after the other, beside the same chat while nothing is trained. Tokens a second, the time to the first token, how soon a published version is served, how long the
// trainer takes to start, and how much of the cores training got.
func ServeTrain(ctx context.Context, e *Env) (results []Result, err error) {
	started, err := e.startTrainer(ctx)
	if err != nil {
		return nil, err
	}
	b := &besideRun{env: e, rand: rand.New(rand.NewPCG(e.Seed, 9))} //nolint:gosec // reproducible on purpose
	cfg := e.config("serve-train")
	cfg.Anonymous, cfg.Policy.Llama.Parallel = true, besideStreams
	cfg.Train = ops.TrainConfig{Engine: ops.TrainONNX, Preset: "default", Batch: besideBatch, Wait: time.Hour, Seed: 1, MaxStaleness: 1 << 30, Threads: e.Config.Train.Threads}
	if b.system, err = ops.Open(ctx, cfg, ops.NeedLog|ops.NeedPostgres, e.Progress); err != nil {
		return nil, err
	}
	defer func() { err = closing(err, b.system.Close) }()
	working, stop := context.WithCancel(ctx)
	running, working := errgroup.WithContext(working)
	running.Go(func() error { return ops.RunStages(working, b.system, "gateway", "train") })
	err = b.measure(working)
	stop()
	if err := errors.Join(running.Wait(), err); err != nil {
		return nil, err
	}
	results, err = b.results()
	return append(results, Result{Name: "serve_train_start", Unit: "s", Value: started, Extra: map[string]any{"goal_s": 5}}), err
}

// startTrainer is how long the trainer's engine takes until it is ready.
func (e *Env) startTrainer(ctx context.Context) (seconds float64, err error) {
	store, err := assets.Open(assets.Options{Cache: e.Config.Assets.Cache, Prefetched: e.Config.Assets.Prefetched, Progress: e.Progress})
	if err != nil {
		return 0, err
	}
	if err := store.Ensure(ctx, assets.ONNXRuntime, assets.SmolLM2); err != nil {
		return 0, err
	}
	var figures []float64
	for range e.runs() {
		start := time.Now()
		engine, err := onnx.Start(ctx, onnx.ChildConfig{
			Library: filepath.Join(store.Dir(assets.ONNXRuntime), assets.ONNXRuntimeFile), Model: filepath.Join(store.Dir(assets.SmolLM2), assets.SmolLM2File),
			Config: onnx.Config{Rank: trainRank, Alpha: trainAlpha, Threads: or(e.Config.Train.Threads, runtime.NumCPU())},
		}, e.Logger)
		if err != nil {
			return 0, err
		}
		figures = append(figures, time.Since(start).Seconds())
		engine.Close()
	}
	return median(figures), nil
}

// besideRun is one run on its way.
type besideRun struct {
	env    *Env
	rand   *rand.Rand
	system *ops.System
	fed    int // samples
	rates  rounds
	// first are the times to first tokens of all rounds in ms, prompts the tokens a second of the prompts until then; of the chat beside training, and alone.
	first, firstAlone, prompts, promptsAlone []float64
	// cores that the training engine had beside the chat.
	cores []float64
}

// measure alternates the two phases.
func (b *besideRun) measure(ctx context.Context) error {
	select {
	case <-b.system.Listening():
	case <-ctx.Done():
		return ctx.Err()
	}
	// The first update warms the engine up, and shows that it trains before anything is measured.
	if err := b.feed(ctx, besideBatch); err != nil {
		return err
	}
	if err := b.trained(ctx); err != nil {
		return err
	}
	var err error
	b.rates, err = b.env.compare(ctx, "serve-train", "tokens/s", b.beside, b.alone)
	if err == nil { // the first round of each side warms up
		b.first, b.prompts = warm(b.first, b.env.runs()), warm(b.prompts, b.env.runs())
		b.firstAlone, b.promptsAlone = warm(b.firstAlone, b.env.runs()), warm(b.promptsAlone, b.env.runs())
		b.cores = warm(b.cores, b.env.runs())
	}
	return err
}

// warm leaves out the first of the rounds, which have as many figures each.
func warm(figures []float64, rounds int) []float64 { return figures[len(figures)/(rounds+1):] }

// alone is the chat without training.
func (b *besideRun) alone(ctx context.Context) (float64, error) {
	c, err := b.chat(ctx)
	b.firstAlone, b.promptsAlone = append(b.firstAlone, c.first...), append(b.promptsAlone, c.prompts...)
	return c.rate(), err
}

// beside is the chat while updates are computed without a pause. It returns when the last of them has ended, so that the other side has the cores for itself.
func (b *besideRun) beside(ctx context.Context) (float64, error) {
	if err := b.feed(ctx, besideBatch); err != nil {
		return 0, err
	}
	feeding, enough := context.WithCancel(ctx)
	defer enough()
	var feeder errgroup.Group
	feeder.Go(func() error { return b.keepFeeding(feeding) })
	before, start, err := b.trainerCPU()
	if err != nil {
		return 0, err
	}
	c, err := b.chat(ctx)
	if err != nil {
		return 0, err
	}
	after, end, err := b.trainerCPU()
	if err != nil {
		return 0, err
	}
	b.cores = append(b.cores, (after-before)/end.Sub(start).Seconds())
	b.first, b.prompts = append(b.first, c.first...), append(b.prompts, c.prompts...)
	enough()
	if err := feeder.Wait(); err != nil {
		return 0, err
	}
	return c.rate(), b.trained(ctx)
}

// trainerCPU is the processor time that the training engine has had.
func (b *besideRun) trainerCPU() (seconds float64, at time.Time, err error) {
	processes, err := tree(os.Getpid())
	for _, p := range processes {
		if p.label == "nextstate-train" {
			return p.cpuSeconds, time.Now(), nil
		}
	}
	return 0, time.Now(), errors.Join(err, errors.New("the training engine does not run"))
}

func (b *besideRun) results() ([]Result, error) {
	threads := or(b.env.Config.Train.Threads, runtime.NumCPU())
	main := b.rates.higher("serve_train", "tokens/s", map[string]any{
		"streams": besideStreams, "prompt_tokens": besidePrompt, "reply_tokens": besideTokens, "samples": besideBatch, "sample_tokens": b.sampleTokens(), "train_threads": threads,
		"serve_threads": or(b.env.Config.Policy.Llama.Threads, runtime.NumCPU()), "replies": len(b.first), "goal_ratio": 0.6, "updates": b.fed / besideBatch, "training_cores": median(b.cores),
	})
	first := func(name string, p float64) Result {
		return lower(name, "ms", percentile(b.first, p), percentile(b.firstAlone, p), map[string]any{"goal_ratio": 0.5, "replies": len(b.first)})
	}
	prefill := Result{Name: "serve_train_prefill", Unit: "tokens/s", Value: median(b.prompts), Baseline: median(b.promptsAlone)}
	prefill.Ratio = prefill.Value / prefill.Baseline
	served, versions, err := b.publishedToServed()
	return []Result{
		main, first("serve_train_first_token_p99", 99), first("serve_train_first_token_p50", 50), prefill,
		{Name: "serve_train_published_to_served", Unit: "s", Value: served, Extra: map[string]any{"versions": versions, "goal_s": 1}},
	}, err
}

// publishedToServed is the mean time from a version's record in the log to the switch, and of how many versions.
func (b *besideRun) publishedToServed() (seconds float64, versions uint64, err error) {
	families, err := b.system.Telemetry.Registry.Gather()
	if err != nil {
		return 0, 0, err
	}
	for _, f := range families {
		if f.GetName() == "policy_publish_to_served_seconds" {
			h := f.GetMetric()[0].GetHistogram()
			return h.GetSampleSum() / float64(max(h.GetSampleCount(), 1)), h.GetSampleCount(), nil
		}
	}
	return 0, 0, errors.New("no published version was served")
}

// updates is how many the trainer has ended; one that was skipped is an error, as the figures would be of something else.
func (b *besideRun) updates() (n int, err error) {
	families, err := b.system.Telemetry.Registry.Gather()
	if err != nil {
		return 0, err
	}
	for _, f := range families {
		if f.GetName() != "trainer_updates_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if outcome := m.GetLabel()[0].GetValue(); outcome != "published" && m.GetCounter().GetValue() > 0 {
				return 0, fmt.Errorf("%g updates ended as %s", m.GetCounter().GetValue(), outcome)
			}
			n += int(m.GetCounter().GetValue())
		}
	}
	return n, nil
}
