package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// LoopConfig of a Loop. Zero values have the defaults.
type LoopConfig struct {
	// Tenant whose samples are trained.
	Tenant string
	// Recipe of every update that is begun from now on.
	Recipe Recipe
	// EngineName stands in UpdateStarted: all of the engine on which the bytes of an update depend.
	EngineName string
	// Seed of the adapter before the first update.
	Seed uint64
	// Batch is the number of samples of an update, or fewer once the oldest of them has waited for Wait. Defaults 16 and 60 s.
	Batch int
	Wait  time.Duration
	// Schedule says when updates are allowed.
	Schedule Schedule
	// PerSession and PerUser bound the samples of one session and of one user in an update; the rest waits for the next. 0: no bound.
	PerSession, PerUser int
	// MaxStaleness bounds the policy versions that were published since the sample's was sampled. Default 8.
	MaxStaleness int
	// Waiting bounds the samples in memory; further ones wait in the log. Default 1,024.
	Waiting int
	// Attempts bounds how often an update is tried when its engine fails; then it is skipped, so that one that ends every engine does not end the training.
	// Default 10.
	Attempts int
	// BackoffMin and BackoffMax bound the doubling pause between attempts. Defaults 100 ms and 15 s.
	BackoffMin, BackoffMax time.Duration
}

func (c LoopConfig) withDefaults() LoopConfig {
	c.Batch = or(c.Batch, 16)
	c.Wait = or(c.Wait, time.Minute)
	c.MaxStaleness = or(c.MaxStaleness, 8)
	c.Waiting = max(or(c.Waiting, 1024), c.Batch)
	c.Attempts = or(c.Attempts, 10)
	c.BackoffMin = or(c.BackoffMin, 100*time.Millisecond)
	c.BackoffMax = max(or(c.BackoffMax, 15*time.Second), c.BackoffMin)
	return c
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Validate reports the first setting that cannot work, and what to do about it.
func (c LoopConfig) Validate() error {
	if err := schemas.CheckTenant(c.Tenant); err != nil {
		return fmt.Errorf("train: %w", err)
	}
	if c.Batch < 0 || c.Wait < 0 || c.PerSession < 0 || c.PerUser < 0 || c.MaxStaleness < 0 || c.Waiting < 0 || c.Attempts < 0 || c.BackoffMin < 0 || c.BackoffMax < 0 {
		return errors.New("train: batch, wait, per_session, per_user, max_staleness, waiting, attempts and backoff must not be negative; 0 means the default")
	}
	if c.Batch > 4096 {
		return fmt.Errorf("train: a batch of %d samples: at most 4096 are allowed", c.Batch)
	}
	return c.Recipe.Validate()
}

// Blobs keeps the weights by their SHA-256. Put returns nil once they are durable; putting again what is there changes nothing.
type Blobs interface {
	Put(ctx context.Context, data []byte) ([32]byte, error)
	Open(ctx context.Context, sum [32]byte) (io.ReadCloser, error)
}

// LoopDeps are what a Loop works with. All stay the caller's; Engine and Ledger are used by the loop alone while it runs.
type LoopDeps struct {
	Log interface {
		schemas.Appender
		schemas.Reader
	}
	Ledger Ledger
	Blobs  Blobs
	// Engine has adapters of the recipe's rank and alpha; Vocabulary is its model's number of tokens.
	Engine     Engine
	Vocabulary int
	// Idle reports whether nobody is served just now; needed by the schedule "idle" only.
	Idle    func() bool
	Logger  *slog.Logger
	Metrics *LoopMetrics
}

func (d LoopDeps) validate(c LoopConfig) error {
	switch {
	case d.Log == nil || d.Ledger == nil || d.Blobs == nil || d.Engine == nil || d.Metrics == nil || d.Logger == nil:
		return errors.New("train: log, ledger, blobs, engine, logger and metrics are needed")
	case d.Vocabulary < 1:
		return errors.New("train: the vocabulary of the engine's model is needed")
	case c.Schedule.kind == scheduleIdle && d.Idle == nil:
		return errors.New("train: the schedule 'idle' needs the policy engine in the same process: run both in one, or use 'always' or a CRON expression")
	}
	return nil
}

// SetupError is an error that trying again cannot cure: Run returns it.
type SetupError struct{ Err error }

func (e *SetupError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *SetupError) Unwrap() error { return e.Err }
