package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

// Sizes of train.
const (
	trainSamples     = 16
	trainTokens      = 256 // of a sample, half of them the response
	trainPrompt      = trainTokens / 2
	trainTopK        = 20
	trainRank        = 16
	trainAlpha       = 32
	trainTemperature = 0.7
	trainPart        = 4 // samples that go through either engine at once
	// trainTolerance bounds the difference of a log-prob, in nats, between Python's PEFT with a published adapter and the engine: both compute in float32, in another order.
	trainTolerance = 1e-3
)

// Train measures whole updates of the policy: 16 samples of 256 tokens, of which half are the response, the hybrid loss, LoRA of rank 16 on all linear layers, AdamW; tokens a
// second and peak memory, beside PyTorch with PEFT doing the same in float32 with as many threads, on the same weights, samples and adapter. That adapter is one that the
// trainer wrote: PEFT's log-probs with it must be the engine's.
func Train(ctx context.Context, e *Env) (results []Result, err error) {
	store, err := assets.Open(assets.Options{Cache: e.Config.Assets.Cache, Prefetched: e.Config.Assets.Prefetched, Progress: e.Progress})
	if err != nil {
		return nil, err
	}
	if err := store.Ensure(ctx, assets.ONNXRuntime, assets.SmolLM2); err != nil {
		return nil, err
	}
	w := &trainWork{env: e, model: filepath.Join(store.Dir(assets.SmolLM2), assets.SmolLM2File)}
	start := time.Now()
	if w.engine, err = onnx.Start(ctx, onnx.ChildConfig{
		Library: filepath.Join(store.Dir(assets.ONNXRuntime), assets.ONNXRuntimeFile), Model: w.model,
		Config: onnx.Config{Rank: trainRank, Alpha: trainAlpha, Threads: w.threads()},
	}, e.Logger); err != nil {
		return nil, err
	}
	defer w.engine.Close()
	ready := time.Since(start).Seconds()
	if err := w.prepare(); err != nil {
		return nil, err
	}
	t, err := e.startTorch(ctx, w, "float32")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	difference, err := w.difference(ctx, t.first)
	if err != nil {
		return nil, err
	}
	if err := w.same(ctx, t); err != nil {
		return nil, err
	}
	r, err := e.compare(ctx, "train", "tokens/s", w.update, func(context.Context) (float64, error) { return w.torchUpdate(t) })
	if err != nil {
		return nil, err
	}
	tokens := len(w.samples) * trainTokens
	memory, err := peakMemory(w.engine.PID())
	if err != nil {
		return nil, err
	}
	results = []Result{
		r.higher("train", "tokens/s", map[string]any{
			"samples": len(w.samples), "tokens": tokens, "threads": w.threads(), "rank": trainRank, "torch": t.first.Version,
			"loss": w.loss, "baseline_loss": w.torchLoss, "grad_norm": w.norm, "baseline_grad_norm": w.torchNorm, // of the first update
		}),
		lower("train_peak_memory", "MB", megabytes(memory), float64(t.last.PeakKB)/1000, map[string]any{
			"baseline_libraries_mb": float64(t.first.LibrariesKB) / 1000,
		}),
		{Name: "train_start", Unit: "s", Value: ready},
		{Name: "train_peft_difference", Unit: "nats", Value: difference, Extra: map[string]any{"tolerance": trainTolerance}},
	}
	if difference > trainTolerance {
		return results, fmt.Errorf("PEFT's log-probs with the published adapter differ by %g nats, more than %g", difference, trainTolerance)
	}
	more, err := w.half(ctx, results[0].Value)
	return append(results, more...), err
}

// trainWork is what both sides do.
type trainWork struct {
	env     *Env
	model   string
	engine  *onnx.Child
	samples []*schemas.SampleAssembled
	adapter *trainer.Adapter
	recipe  trainer.Preset
	metrics map[string]float64 // of the last update

	loss, norm, torchLoss, torchNorm float64 // of the first update
}

// threads of either side.
func (w *trainWork) threads() int { return runtime.NumCPU() }

// prepare makes the samples and the adapter.
func (w *trainWork) prepare() (err error) {
	if w.recipe, err = trainer.PresetByName("paper"); err != nil {
		return err
	}
	w.recipe.Optimizer.LearningRate = 1e-4
	rng := rand.New(rand.NewPCG(w.env.Seed, 5))
	for range w.env.events(trainSamples) {
		w.samples = append(w.samples, randomSample(rng, w.engine.Vocabulary(), trainTokens))
	}
	w.adapter = trainer.NewAdapter(w.engine.Layers(), trainRank, trainAlpha)
	w.adapter.Initialise(w.env.Seed)
	for _, b := range w.adapter.B { // as if it had been trained
		for i := range b {
			b[i] = float32(rng.NormFloat64()) * 0.01
		}
	}
	return nil
}

// randomSample is a turn of so many tokens, half of them the response, with a reward, and a teacher that disagrees here and there.
func randomSample(rng *rand.Rand, vocabulary, tokens int) *schemas.SampleAssembled {
	ids := randomPrompts(rng, 1, tokens, vocabulary)[0]
	n := tokens / 2
	s := &schemas.SampleAssembled{
		Reward: float64(2*rng.IntN(2) - 1), Sampling: &schemas.Sampling{Temperature: proto.Float64(trainTemperature)},
		Tokens:  &schemas.Tokens{PromptIds: ids[:tokens-n], ResponseIds: ids[tokens-n:], TopK: &schemas.TopK{K: trainTopK}},
		Teacher: &schemas.TeacherScored{TopK: &schemas.TopK{K: trainTopK}, Temperature: trainTemperature},
	}
	for range n {
		first := rng.Uint32N(uint32(vocabulary) - trainTopK)
		s.Teacher.Logprobs = append(s.Teacher.Logprobs, -1)
		for k := range uint32(trainTopK) {
			s.Tokens.TopK.Ids = append(s.Tokens.TopK.Ids, first+k)
			s.Tokens.TopK.Logprobs = append(s.Tokens.TopK.Logprobs, -10)
			s.Teacher.LogprobsAtStudent = append(s.Teacher.LogprobsAtStudent, -8-4*rng.Float32())
		}
	}
	s.Teacher.TopK.Ids, s.Teacher.TopK.Logprobs = s.Tokens.TopK.Ids, s.Teacher.LogprobsAtStudent
	return s
}

// update is one of ours.
func (w *trainWork) update(ctx context.Context) (float64, error) {
	start := time.Now()
	updated, err := trainer.Update{
		Objective: w.recipe.Objective, Optimizer: w.recipe.Optimizer, Admission: trainer.Admission{Vocabulary: w.engine.Vocabulary(), MaxTokens: trainTokens},
		Parent: w.adapter, Moments: trainer.NewMoments(w.adapter), Samples: w.samples,
	}.Run(ctx, w.engine)
	if err != nil {
		return 0, err
	}
	w.metrics = updated.Metrics
	return float64(len(w.samples)*trainTokens) / time.Since(start).Seconds(), nil
}

func (w *trainWork) torchUpdate(t *torch) (float64, error) {
	seconds, err := t.update()
	return float64(len(w.samples)*trainTokens) / seconds, err
}

// same makes the first update on both sides, and refuses to compare what is not the same.
func (w *trainWork) same(ctx context.Context, t *torch) error {
	if _, err := w.update(ctx); err != nil {
		return err
	}
	if _, err := w.torchUpdate(t); err != nil {
		return err
	}
	w.loss, w.norm, w.torchLoss, w.torchNorm = w.metrics["loss"], w.metrics["grad_norm"], t.last.Loss, t.last.Norm
	if math.Abs(w.loss-w.torchLoss) > trainTolerance*math.Abs(w.torchLoss) || math.Abs(w.norm-w.torchNorm) > trainTolerance*w.torchNorm {
		return fmt.Errorf("the first update has loss %g and gradient norm %g; PyTorch's has %g and %g", w.loss, w.norm, w.torchLoss, w.torchNorm)
	}
	return nil
}

// difference is the largest one between PEFT's log-probs with the adapter and the engine's, in nats.
func (w *trainWork) difference(ctx context.Context, said torchReady) (float64, error) {
	var sequences []trainer.Sequence
	for _, s := range w.samples {
		q := trainer.Sequence{Tokens: append(append([]uint32{}, s.Tokens.PromptIds...), s.Tokens.ResponseIds...), Prompt: trainPrompt, Temperature: trainTemperature}
		for i, id := range s.Tokens.ResponseIds {
			q.Wanted = append(q.Wanted, append([]uint32{id}, s.Tokens.TopK.Ids[i*trainTopK:(i+1)*trainTopK]...))
		}
		sequences = append(sequences, q)
	}
	logprobs, _, err := w.engine.Logprobs(ctx, w.adapter, sequences)
	if err != nil {
		return 0, err
	}
	worst, at := 0.0, 0
	for _, rows := range logprobs {
		for _, row := range rows {
			for _, v := range row {
				if at == len(said.Logprobs) {
					return 0, fmt.Errorf("PEFT gave %d log-probs only", at)
				}
				worst = math.Max(worst, math.Abs(float64(v)-said.Logprobs[at]))
				at++
			}
		}
	}
	return worst, nil
}

// half gives PyTorch's figure in bfloat16 where the processor has units for it, beside ours in float32.
func (w *trainWork) half(ctx context.Context, ours float64) (_ []Result, err error) {
	flags, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !strings.Contains(string(flags), "amx_bf16") {
		return nil, err
	}
	t, err := w.env.startTorch(ctx, w, "bfloat16")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	var figures []float64
	for i := range w.env.runs() + 1 {
		v, err := w.torchUpdate(t)
		if err != nil {
			return nil, err
		}
		w.env.note("round %d/%d  PyTorch in bfloat16 %.2f tokens/s", i, w.env.runs(), v)
		if i > 0 { // the first one warms up
			figures = append(figures, v)
		}
	}
	return []Result{{
		Name: "train_beside_bfloat16", Unit: "tokens/s", Value: ours, Baseline: median(figures), Ratio: ours / median(figures),
		Extra: map[string]any{"baseline_rounds": rounded(figures), "baseline_peak_mb": float64(t.last.PeakKB) / 1000},
	}}, nil
}

// peakMemory of a process so far, in bytes.
func peakMemory(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
			return kb << 10, nil
		}
	}
	return 0, fmt.Errorf("process %d does not say its peak memory", pid)
}
