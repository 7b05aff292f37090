package ops

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// Stage is one line of the pipeline: what it reads, what it writes, and how it runs.
type Stage struct {
	Name string
	// Group names the consumer group whose commits tell the stage's progress in a topic that it reads.
	Group   func(topic string) string
	In, Out []string
	// Run works until ctx ends. More replicas are more processes.
	Run func(ctx context.Context, s *System) error
}

// Stages is the pipeline, in the order of the data.
func Stages() []Stage {
	return []Stage{
		{"gateway", nil, nil, []string{schemas.TopicInteractions}, runGateway},
		{"pair", group("pair"), []string{schemas.TopicInteractions}, []string{schemas.TopicTurns}, runPair},
		{"evaluate", group("evaluate"), []string{schemas.TopicTurns}, []string{schemas.TopicVerdicts}, runEvaluate},
		{"direct", group("direct"), []string{schemas.TopicTurns}, []string{schemas.TopicHints}, runDirect},
		{"assemble", group("assemble"), []string{schemas.TopicTurns}, []string{schemas.TopicSamples}, runAssemble},
		{"clickhouse", clickHouseConfig(sink.DefaultConfig()).Group, schemas.Topics(), nil, runClickHouse},
		// The trainer keeps its place in samples in its ledger and not in a group: a sample waits there until its minibatch is full, which is no lag.
		{"train", nil, nil, []string{schemas.TopicPolicies}, runTrain},
		// Off unless asked for, so nobody waits for their progress: stand reads samples (WaitStanding), rehearse what stands.
		{"stand", nil, nil, []string{schemas.TopicStanding}, runStand},
		{"rehearse", nil, nil, []string{schemas.TopicSamples, schemas.TopicStanding}, runRehearse},
	}
}

func group(stage string) func(string) string {
	return func(string) string { return processors.GroupPrefix + stage }
}

func clickHouseConfig(c sink.Config) sink.Config {
	c.Name = processors.GroupPrefix + "clickhouse"
	return c
}

// StageNames lists the pipeline.
func StageNames() []string {
	names := make([]string, 0, len(Stages()))
	for _, s := range Stages() {
		names = append(names, s.Name)
	}
	return names
}

// RunStages runs the named stages (all when none is named) until ctx ends or one of them fails for good.
func RunStages(ctx context.Context, s *System, names ...string) error {
	for _, n := range names {
		if !slices.Contains(StageNames(), n) {
			return fmt.Errorf("there is no stage %q; stages are %s", n, strings.Join(StageNames(), ", "))
		}
	}
	running, ctx := errgroup.WithContext(ctx)
	for _, stage := range Stages() {
		if len(names) > 0 && !slices.Contains(names, stage.Name) {
			continue
		}
		running.Go(func() error {
			if err := stage.Run(ctx, s); err != nil && ctx.Err() == nil {
				return fmt.Errorf("stage %s: %w", stage.Name, err)
			}
			return nil
		})
	}
	return running.Wait()
}

func runPair(ctx context.Context, s *System) error {
	cfg := s.Config.Pair
	cfg.Ignored = s.stageMetrics.Ignored(processors.StagePair)
	return s.process(ctx, processors.PairStage(cfg))
}

func runEvaluate(ctx context.Context, s *System) error {
	judges, err := s.Config.judges(s.HTTPClient)
	if err != nil {
		return err
	}
	return s.process(ctx, processors.EvaluateStage(processors.EvaluateConfig{Judges: judges, Workers: s.Config.workers(s.Config.Evaluate.Judges)}))
}

func runDirect(ctx context.Context, s *System) error {
	finders, err := s.Config.finders(s.HTTPClient)
	if err != nil {
		return err
	}
	cfg, err := s.direct(finders)
	if err != nil {
		return err
	}
	if s.Config.Direct.Standing {
		cfg.Standing = processors.LiveStanding{Hints: s.newStandingReader().hints}
	}
	if cfg.Teacher == nil && s.Config.Direct.Teacher != NoTeacher {
		s.Telemetry.Logger.Info("no policy engine runs in this process, so hints are selected without a teacher: run direct beside the engine, or give it a remote one")
	}
	return s.process(ctx, processors.DirectStage(cfg))
}

// direct is the configuration of the stage. The teacher is the policy engine of this process; without one there is none.
func (s *System) direct(finders []processors.Finder) (processors.DirectConfig, error) {
	cfg := processors.DirectConfig{
		Finders: finders, Selection: s.Config.Direct.Selection, Workers: s.Config.workers(s.Config.Direct.Finders),
		Contexts: processors.ContextsConfig{Turns: s.Log},
	}
	if s.Policy == nil || s.Config.Direct.Teacher == NoTeacher {
		return cfg, nil
	}
	teacher, err := policy.NewTeacher(s.Policy, policy.TeacherConfig{Version: policy.TeacherVersion(s.Config.Direct.Teacher), Concurrency: teacherQueries})
	if err != nil {
		return cfg, fmt.Errorf("--direct-teacher: %w", err)
	}
	cfg.Teacher, cfg.Workers = teacher, max(cfg.Workers, teacherQueries)
	return cfg, nil
}

// teacherQueries are asked of the teacher at once.
const teacherQueries = 4

// workers is how many turns wait for a model at once; rules need no more than one.
func (c Config) workers(asked []string) int {
	if slices.Contains(asked, "openai") {
		return c.Model.Concurrency
	}
	return 1
}

func runAssemble(ctx context.Context, s *System) error {
	return s.process(ctx, processors.AssembleStage(s.Log))
}

func (s *System) process(ctx context.Context, stage processors.Stage) error {
	return processors.Run(ctx, stage, s.Log, processors.RunOptions{
		Logger: s.Telemetry.Logger, Metrics: s.stageMetrics, Tracer: s.Telemetry.TracerProvider.Tracer("nextstate/" + stage.Name),
	})
}

func runClickHouse(ctx context.Context, s *System) error {
	k, err := s.clickHouseSink()
	if err != nil {
		return err
	}
	return k.Run(ctx)
}

// clickHouseSink makes the sink once: its metrics have a name each in the process.
func (s *System) clickHouseSink() (*sink.Sink, error) {
	s.sinkMu.Lock()
	defer s.sinkMu.Unlock()
	if s.sink != nil {
		return s.sink, nil
	}
	k, err := sink.New(clickHouseConfig(s.Config.Sink), sink.Stores{
		Log: s.Log, ClickHouse: s.ClickHouse, Postgres: s.Postgres, Logger: s.Telemetry.Logger, Metrics: s.Telemetry.Registry,
		Tracer: s.Telemetry.TracerProvider.Tracer("nextstate/clickhouse"),
	})
	if err == nil {
		s.sink = k
	}
	return k, err
}

// While runs the derivation and the sinks for as long as do works, unless the process that it is attached to does.
func (s *System) While(ctx context.Context, do func(context.Context) error) error {
	if s.Attached {
		return do(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	running, stages := errgroup.WithContext(ctx)
	running.Go(func() error {
		err := RunStages(stages, s, slices.DeleteFunc(StageNames(), func(n string) bool { return n == "gateway" })...)
		if err != nil {
			cancel(err) // do must not wait for stages that are gone
		}
		return err
	})
	err := do(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	if stopped := running.Wait(); err == nil {
		err = stopped
	}
	return err
}
