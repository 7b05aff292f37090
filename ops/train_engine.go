package ops

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

// defaultBaseModel is the name of the default model where PEFT looks for it.
const defaultBaseModel = "HuggingFaceTB/SmolLM2-135M-Instruct"

// trainEngine is the embedded training engine for a recipe. Its process starts when it is first asked to compute, and when that failed, the next time. For one
// goroutine; close it.
type trainEngine struct {
	layers     []trainer.Layer
	vocabulary int
	start      func(ctx context.Context) (*onnx.Child, error)
	child      *onnx.Child // nil: not started
}

var _ trainer.Engine = (*trainEngine)(nil)

// newTrainEngine reads the shape of the recipe's model, and no more.
func (s *System) newTrainEngine(ctx context.Context, r trainer.Recipe) (*trainEngine, error) {
	if own := s.Config.BaseModel(); own != r.BaseModel {
		return nil, fmt.Errorf("the model is %s and not %s: name its file with --policy-model, which the default model does not need", r.BaseModel, own)
	}
	model, err := s.ModelFile(ctx)
	if err != nil {
		return nil, err
	}
	e := &trainEngine{start: func(ctx context.Context) (*onnx.Child, error) {
		store, err := s.assets(nil)
		if err != nil {
			return nil, err
		}
		if err := store.Ensure(ctx, assets.ONNXRuntime); err != nil {
			return nil, err
		}
		return onnx.Start(ctx, onnx.ChildConfig{
			Library: filepath.Join(store.Dir(assets.ONNXRuntime), assets.ONNXRuntimeFile), Model: model,
			Config: onnx.Config{Rank: r.Rank, Alpha: r.Alpha, Threads: s.Config.Train.threads()},
		}, s.Telemetry.Logger)
	}}
	if e.layers, e.vocabulary, err = onnx.Shape(model); err != nil {
		return nil, fmt.Errorf("%w (--train-engine none serves it without training)", err)
	}
	// Nearly all of what was read is the vocabulary's texts. A process that serves collects seldom, and waits long for its first minibatch.
	debug.FreeOSMemory()
	return e, nil
}

func (e *trainEngine) started(ctx context.Context) (_ *onnx.Child, err error) {
	if e.child == nil {
		e.child, err = e.start(ctx)
	}
	return e.child, err
}

// Layers implements trainer.Engine.
func (e *trainEngine) Layers() []trainer.Layer { return e.layers }

// Logprobs implements trainer.Engine.
func (e *trainEngine) Logprobs(ctx context.Context, a *trainer.Adapter, sequences []trainer.Sequence) (logprobs [][][]float32, entropy [][]float32, err error) {
	c, err := e.started(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c.Logprobs(ctx, a, sequences)
}

// Gradient implements trainer.Engine.
func (e *trainEngine) Gradient(ctx context.Context, a *trainer.Adapter, sequences []trainer.Sequence, coef [][][]float64, grad *trainer.Adapter) error {
	c, err := e.started(ctx)
	if err != nil {
		return err
	}
	return c.Gradient(ctx, a, sequences, coef, grad)
}

// Close ends the process.
func (e *trainEngine) Close() {
	if e.child != nil {
		e.child.Close()
	}
}

// threads of the engine.
func (c TrainConfig) threads() int {
	if c.Threads == 0 {
		return runtime.NumCPU()
	}
	return c.Threads
}
