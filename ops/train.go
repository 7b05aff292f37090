package ops

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

// Training engines.
const (
	// NoTraining as TrainConfig.Engine (and ""): the policy stays as it is.
	NoTraining = "none"
	// TrainONNX is the embedded engine.
	TrainONNX = "onnx"
)

// TrainConfig of the stage train. Zero values of numbers mean the preset's, or the loop's default.
type TrainConfig struct {
	Engine string
	// Preset names a line of trainer.Presets.
	Preset string
	Batch  int
	Wait   time.Duration
	// Schedule is what trainer.ParseSchedule reads.
	Schedule     string
	Rank         int
	Alpha        float64
	LearningRate float64
	// Threads of the engine; 0: one a processor. The weights depend on it in their last bits.
	Threads int
	Seed    uint64
	// MaxTokens of one sample, prompt included. Default 1,024.
	MaxTokens int
	// PerSession, PerUser and MaxStaleness as in trainer.LoopConfig.
	PerSession, PerUser, MaxStaleness int
}

// maxTokens is the default of TrainConfig.MaxTokens: memory grows with it.
const maxTokens = 1024

// defaultBaseModel is the name of the default model where PEFT looks for it.
const defaultBaseModel = "HuggingFaceTB/SmolLM2-135M-Instruct"

// Loop is the configuration of the trainer's loop for a base model and a tenant.
func (c TrainConfig) Loop(tenant, baseModel string) (trainer.LoopConfig, error) {
	p, err := trainer.PresetByName(c.Preset)
	if err != nil {
		return trainer.LoopConfig{}, fmt.Errorf("--train-preset: %w", err)
	}
	schedule, err := trainer.ParseSchedule(c.Schedule)
	if err != nil {
		return trainer.LoopConfig{}, fmt.Errorf("--train-schedule: %w", err)
	}
	r := trainer.Recipe{Objective: p.Objective, Optimizer: p.Optimizer, Rank: p.Rank, Alpha: p.Alpha, MaxTokens: maxTokens, BaseModel: baseModel}
	batch := p.Batch
	if c.Rank != 0 {
		r.Rank = c.Rank
	}
	if c.Alpha != 0 {
		r.Alpha = c.Alpha
	}
	if c.LearningRate != 0 {
		r.Optimizer.LearningRate = c.LearningRate
	}
	if c.MaxTokens != 0 {
		r.MaxTokens = c.MaxTokens
	}
	if c.Batch != 0 {
		batch = c.Batch
	}
	l := trainer.LoopConfig{
		Tenant: tenant, Recipe: r, EngineName: c.Engine, Seed: c.Seed, Batch: batch, Wait: c.Wait, Schedule: schedule,
		PerSession: c.PerSession, PerUser: c.PerUser, MaxStaleness: c.MaxStaleness,
	}
	return l, l.Validate()
}

// On says whether anything is trained.
func (c TrainConfig) On() bool { return c.Engine != "" && c.Engine != NoTraining }

// Validate reports the first setting that cannot work.
func (c TrainConfig) Validate() error {
	if !c.On() {
		return nil
	}
	if c.Engine != TrainONNX {
		return fmt.Errorf("--train-engine: %q is not known; use %s or %s", c.Engine, NoTraining, TrainONNX)
	}
	if c.Threads < 0 {
		return errors.New("--train-threads must not be negative; 0 means one a processor")
	}
	_, err := c.Loop("any", "any")
	return err
}

// runTrain is the trainer, when there is a training engine.
func runTrain(ctx context.Context, s *System) error {
	if !s.Config.Train.On() {
		return nil
	}
	cfg, err := s.trainLoop()
	if err != nil {
		return err
	}
	child, err := s.trainEngine(ctx, cfg.Recipe)
	if err != nil {
		return err
	}
	defer child.Close()
	metrics, err := trainer.NewLoopMetrics(s.Telemetry.Registry)
	if err != nil {
		return err
	}
	weights, err := s.OpenBlobs()
	if err != nil {
		return err
	}
	ledger, err := trainer.NewLedgerPostgres(s.Postgres, cfg.Tenant)
	if err != nil {
		return err
	}
	deps := trainer.LoopDeps{
		Log: s.Log, Ledger: ledger, Blobs: weights, Engine: child, Vocabulary: child.Vocabulary(), Logger: s.Telemetry.Logger.With("stage", "train"), Metrics: metrics,
	}
	if a, ok := s.Policy.(*attended); ok {
		deps.Idle = a.idle
	}
	loop, err := trainer.NewLoop(cfg, deps)
	if err != nil {
		return err
	}
	return loop.Run(ctx)
}

// trainLoop is the loop's configuration for the model that is served.
func (s *System) trainLoop() (trainer.LoopConfig, error) {
	base := defaultBaseModel
	if s.Config.Policy.Model != "" {
		base = filepath.Base(s.Config.Policy.Model)
	}
	return s.Config.Train.Loop(s.Config.Tenant, base)
}

// trainEngine starts the embedded training engine on the model of the policy engine.
func (s *System) trainEngine(ctx context.Context, r trainer.Recipe) (*onnx.Child, error) {
	store, err := s.assets(nil)
	if err != nil {
		return nil, err
	}
	if err := store.Ensure(ctx, assets.ONNXRuntime); err != nil {
		return nil, err
	}
	model := s.Config.Policy.Model
	if model == "" {
		if err := store.Ensure(ctx, assets.SmolLM2); err != nil {
			return nil, err
		}
		model = filepath.Join(store.Dir(assets.SmolLM2), assets.SmolLM2File)
	}
	threads := s.Config.Train.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	return onnx.Start(ctx, onnx.ChildConfig{
		Library: filepath.Join(store.Dir(assets.ONNXRuntime), assets.ONNXRuntimeFile), Model: model,
		Config: onnx.Config{Rank: r.Rank, Alpha: r.Alpha, Threads: threads},
	}, s.Telemetry.Logger)
}

// attended is the policy engine of the process, with a count of the requests that it serves: the schedule "idle" trains while there are none.
type attended struct {
	policy.Engine
	serving atomic.Int64
}

// attend counts the requests of the process's engine, if it has one.
func (s *System) attend() {
	if s.Policy != nil {
		s.Policy = &attended{Engine: s.Policy}
	}
}

// Sample implements policy.Engine.
func (a *attended) Sample(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
	a.serving.Add(1)
	defer a.serving.Add(-1)
	return a.Engine.Sample(ctx, r, emit)
}

func (a *attended) idle() bool { return a.serving.Load() == 0 }
