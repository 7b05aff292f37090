package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	chgo "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/nextstate-rl/nextstate/schemas"
)

// refusals are the server's errors that the data causes. Everything else (a server that is down, too many parts, no memory) passes.
var refusals = map[int32]bool{
	6:   true, // CANNOT_PARSE_TEXT
	27:  true, // CANNOT_PARSE_INPUT_ASSERTION_FAILED
	53:  true, // TYPE_MISMATCH
	69:  true, // ARGUMENT_OUT_OF_BOUND
	70:  true, // CANNOT_CONVERT_TYPE
	117: true, // INCORRECT_DATA
	128: true, // TOO_LARGE_ARRAY_SIZE
	131: true, // TOO_LARGE_STRING_SIZE
	190: true, // SIZES_OF_ARRAYS_DONT_MATCH
	349: true, // CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN
	407: true, // DECIMAL_OVERFLOW
	469: true, // VIOLATED_CONSTRAINT
}

// classify marks the errors that trying again cannot cure.
func classify(err error) error {
	var e *chgo.Exception
	if errors.As(err, &e) && refusals[e.Code] {
		return fmt.Errorf("%w: %w", err, errRefused)
	}
	return err
}

// retry tries f until it succeeds, is refused, is fenced, or ctx ends. The pause doubles from 50 ms up to max. A store that is down makes the
// partition wait: nothing is read further, so nothing is lost and memory does not grow.
func (s *Sink) retry(ctx context.Context, what string, f func() error) error {
	pause := 50 * time.Millisecond
	for {
		err := f()
		if err == nil || errors.Is(err, errRefused) || errors.Is(err, schemas.ErrFenced) || ctx.Err() != nil {
			return err
		}
		s.metrics.retries.WithLabelValues(what).Inc()
		s.logger.LogAttrs(ctx, slog.LevelWarn, "the store did not take it; trying again",
			slog.String("what", what), slog.Duration("pause", pause), slog.String("error", err.Error()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, s.cfg.RetryMax)
	}
}
