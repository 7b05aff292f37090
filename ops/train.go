package ops

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/trainer"
)

// Training engines.
const (
	// NoTraining as TrainConfig.Engine (and ""): the policy stays as it is.
	NoTraining = "none"
	// TrainAuto is TrainONNX in a process that serves the embedded policy, else NoTraining.
	TrainAuto = "auto"
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
	// Threads of the engine; 0: one a processor. The weights do not depend on it.
	Threads int
	Seed    uint64
	// MaxTokens of one sample, prompt included. Default 1,024.
	MaxTokens int
	// PerSession, PerUser and MaxStaleness as in trainer.LoopConfig.
	PerSession, PerUser, MaxStaleness int
	// Keep is how many of the newest versions keep their weights in the blob store; 0: all.
	Keep int
	// Set replaces single settings of the recipe, last of all (trainer.Recipe.Set).
	Set []string
}

// maxTokens is the default of TrainConfig.MaxTokens: memory grows with it.
const maxTokens = 1024

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
	r := p.Recipe(baseModel, maxTokens)
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
	if r, err = r.Set(c.Set...); err != nil {
		return trainer.LoopConfig{}, fmt.Errorf("--train-set: %w", err)
	}
	l := trainer.LoopConfig{
		Tenant: tenant, Recipe: r, EngineName: TrainONNX, Seed: c.Seed, Batch: batch, Wait: c.Wait, Schedule: schedule,
		PerSession: c.PerSession, PerUser: c.PerUser, MaxStaleness: c.MaxStaleness,
	}
	return l, l.Validate()
}

// On says whether anything is trained where the policy is served.
func (c TrainConfig) On() bool { return c.Engine != "" && c.Engine != NoTraining }

// Validate reports the first setting that cannot work.
func (c TrainConfig) Validate() error {
	if !c.On() {
		return nil
	}
	if c.Engine != TrainONNX && c.Engine != TrainAuto {
		return fmt.Errorf("--train-engine: %q is not known; use %s, %s or %s", c.Engine, TrainAuto, TrainONNX, NoTraining)
	}
	if c.Keep < 0 {
		return errors.New("--policies-keep must not be negative; 0 keeps the weights of all versions")
	}
	if c.Threads < 0 {
		return errors.New("--train-threads must not be negative; 0 means one a processor")
	}
	_, err := c.Loop("any", "any")
	return err
}

// trains waits until it is clear whether this process trains.
func (s *System) trains(ctx context.Context) bool {
	if s.Config.Train.Engine != TrainAuto {
		return s.Config.Train.On()
	}
	if s.Policy == nil || !s.Config.Embedded() {
		return false
	}
	select {
	case <-s.Listening(): // the gateway serves first, and in a process without one nothing is trained
		return true
	case <-ctx.Done():
		return false
	}
}

// runTrain is the trainer, when there is a training engine.
func runTrain(ctx context.Context, s *System) error {
	if !s.trains(ctx) {
		return nil
	}
	cfg, err := s.trainLoop()
	if err != nil {
		return err
	}
	engine, err := s.newTrainEngine(ctx, cfg.Recipe)
	if err != nil {
		return err
	}
	defer engine.Close()
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
		Log: s.Log, Ledger: ledger, Blobs: weights, Engine: engine, Vocabulary: engine.vocabulary, Logger: s.Telemetry.Logger.With("stage", "train"), Metrics: metrics,
	}
	if a, ok := s.Policy.(*attended); ok {
		deps.Idle = a.idle
	}
	loop, err := trainer.NewLoop(cfg, deps)
	if err != nil {
		return err
	}
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return loop.Run(ctx) })
	if keep := s.Config.Train.Keep; keep > 0 {
		running.Go(func() error { return s.pruneAlong(ctx, weights, keep) })
	}
	return running.Wait()
}

// trainLoop is the loop's configuration for the model that is served.
func (s *System) trainLoop() (trainer.LoopConfig, error) {
	return s.Config.Train.Loop(s.Config.Tenant, s.Config.BaseModel())
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
