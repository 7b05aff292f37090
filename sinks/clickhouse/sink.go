package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/nextstate-rl/nextstate/schemas"
)

// stage names the sink in dead letters, logs and metrics.
const stage = "sink"

// Stores is what a sink works with. All of it stays the caller's, who closes it after Run has returned.
type Stores struct {
	Log        schemas.Log
	ClickHouse driver.Conn
	Postgres   *pgxpool.Pool
	Logger     *slog.Logger
	// Metrics and Tracer may be nil.
	Metrics prometheus.Registerer
	Tracer  trace.Tracer
}

// Sink writes the log into ClickHouse. Any number of sinks with one name share the partitions.
type Sink struct {
	cfg     Config
	log     schemas.Log
	conn    driver.Conn
	ranges  ranges
	logger  *slog.Logger
	tracer  trace.Tracer
	metrics *metrics
	memory  *semaphore.Weighted
	writers *semaphore.Weighted
	// fault stands at each step of a batch in tests of crashes; nil otherwise.
	fault func(step string) error
}

// New checks the configuration. It does not connect.
func New(cfg Config, s Stores) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if s.Log == nil || s.ClickHouse == nil || s.Postgres == nil {
		return nil, errors.New("clickhouse sink: a log, a ClickHouse connection and a Postgres pool are needed")
	}
	m, err := newMetrics(s.Metrics)
	if err != nil {
		return nil, err
	}
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	if s.Tracer == nil {
		s.Tracer = noop.NewTracerProvider().Tracer(stage)
	}
	return &Sink{
		cfg: cfg, log: s.Log, conn: s.ClickHouse, ranges: ranges{pool: s.Postgres, sink: cfg.Name}, logger: s.Logger.With("stage", stage),
		tracer: s.Tracer, metrics: m, memory: semaphore.NewWeighted(cfg.MemoryBytes), writers: semaphore.NewWeighted(int64(cfg.Writers)),
		fault: func(string) error { return nil },
	}, nil
}

// Run writes until ctx ends, and returns nil then. Errors of single partitions are retried inside; what it returns is that the log itself
// gave up on a topic.
func (s *Sink) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, topic := range s.cfg.Topics {
		g.Go(func() error {
			err := s.log.Own(ctx, s.cfg.Group(topic), topic, func(ctx context.Context, claim schemas.Claim) error {
				err := s.own(ctx, claim)
				if err != nil && ctx.Err() == nil {
					s.logger.LogAttrs(ctx, slog.LevelError, "the partition stopped and will start again",
						slog.String("topic", claim.Topic()), slog.Int("partition", claim.Partition()), slog.String("error", err.Error()))
				}
				return err
			})
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("clickhouse sink: %s: %w", topic, err)
			}
			return nil
		})
	}
	return g.Wait()
}
