package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"go.opentelemetry.io/otel/attribute"
)

// Config of a process's telemetry. The zero value logs to stderr as text from level info, and serves the private port on a free one.
type Config struct {
	// LogLevel is debug, info, warn or error. Default info.
	LogLevel string `json:"log_level"`
	// LogFormat is text or json. Default text.
	LogFormat string `json:"log_format"`
	// MetricsAddr is the private port's host:port. Default "127.0.0.1:0", a free port; "none" opens none.
	MetricsAddr string `json:"metrics_addr"`
	// OTLPEndpoint is the URL of a collector that takes OTLP over HTTP, such as http://127.0.0.1:4318. Empty: no spans.
	OTLPEndpoint string `json:"otlp_endpoint"`
	// TraceRatio is the share of new traces that are recorded, 0 to 1; traces that a producer began follow its choice. Default 1.
	TraceRatio *float64 `json:"trace_ratio,omitempty"`
	// Service names the process in spans. Default "nextstate".
	Service string `json:"service"`
	// Output receives the log. Default os.Stderr.
	Output io.Writer `json:"-"`
}

// Validate reports the first setting that cannot work, and what to do about it.
func (c Config) Validate() error {
	if _, err := c.level(); err != nil {
		return err
	}
	if c.LogFormat != "" && c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("telemetry: log_format %q: use text or json", c.LogFormat)
	}
	if c.MetricsAddr != "" && c.MetricsAddr != noPort {
		if _, _, err := net.SplitHostPort(c.MetricsAddr); err != nil {
			return fmt.Errorf("telemetry: metrics_addr %q: use host:port, or none: %w", c.MetricsAddr, err)
		}
	}
	if c.OTLPEndpoint != "" {
		u, err := url.Parse(c.OTLPEndpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("telemetry: otlp_endpoint %q: use a URL such as http://127.0.0.1:4318", c.OTLPEndpoint)
		}
	}
	if c.TraceRatio != nil && !(*c.TraceRatio >= 0 && *c.TraceRatio <= 1) {
		return errors.New("telemetry: trace_ratio: use 0 to 1")
	}
	return nil
}

func (c Config) level() (slog.Level, error) {
	var l slog.Level
	switch c.LogLevel {
	case "", "info":
		return slog.LevelInfo, nil
	case "debug", "warn", "error":
		return l, l.UnmarshalText([]byte(c.LogLevel))
	}
	return l, fmt.Errorf("telemetry: log_level %q: use debug, info, warn or error", c.LogLevel)
}

// Telemetry is handed to the parts of a process, which use its fields; the fields do not change. Safe for concurrent use.
type Telemetry struct {
	Logger         *slog.Logger
	Registry       *prometheus.Registry
	TracerProvider trace.TracerProvider

	flush func(context.Context) error // ends the tracer provider
	port  *port

	mu     sync.Mutex
	checks map[string]Check
}

// Check says whether something that the process needs is there. It must heed ctx, which ends after two seconds.
type Check func(ctx context.Context) error

// Start makes the logger, registry and tracer provider and opens the private port. Close ends it; ctx only bounds the start.
func Start(ctx context.Context, cfg Config) (*Telemetry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	logger, err := newLogger(cfg)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{
		Logger: logger, Registry: prometheus.NewRegistry(), TracerProvider: noop.NewTracerProvider(),
		flush: func(context.Context) error { return nil }, checks: map[string]Check{},
	}
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := t.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("telemetry: %w", err)
		}
	}
	if cfg.OTLPEndpoint != "" {
		provider, err := newTracerProvider(ctx, cfg)
		if err != nil {
			return nil, err
		}
		t.TracerProvider, t.flush = provider, provider.Shutdown
	}
	if cfg.MetricsAddr != noPort {
		if t.port, err = t.openPort(ctx, cfg.MetricsAddr); err != nil {
			return nil, errors.Join(err, t.flush(ctx))
		}
	}
	return t, nil
}

// Handle adds a check to /readyz; a later one with the same name replaces it.
func (t *Telemetry) Handle(name string, check Check) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checks[name] = check
}

// Addr is the private port's address, or "" when none was wanted.
func (t *Telemetry) Addr() string {
	if t.port == nil {
		return ""
	}
	return t.port.listener.Addr().String()
}

// Close sends the spans that are left and closes the port, as far as ctx allows.
func (t *Telemetry) Close(ctx context.Context) error {
	err := t.flush(ctx)
	if t.port != nil {
		err = errors.Join(err, t.port.close(ctx))
	}
	if err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	return nil
}

func newLogger(cfg Config) (*slog.Logger, error) {
	level, err := cfg.level()
	if err != nil {
		return nil, err
	}
	out := cfg.Output
	if out == nil {
		out = os.Stderr
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, options)), nil
	}
	return slog.New(slog.NewTextHandler(out, options)), nil
}

func newTracerProvider(ctx context.Context, cfg Config) (*sdk.TracerProvider, error) {
	endpoint := strings.TrimRight(cfg.OTLPEndpoint, "/")
	if !strings.HasSuffix(endpoint, "/v1/traces") {
		endpoint += "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint))
	if err != nil {
		return nil, fmt.Errorf("telemetry: otlp_endpoint %s: %w", cfg.OTLPEndpoint, err)
	}
	service, ratio := cfg.Service, 1.0
	if service == "" {
		service = "nextstate"
	}
	if cfg.TraceRatio != nil {
		ratio = *cfg.TraceRatio
	}
	return sdk.NewTracerProvider(
		sdk.WithBatcher(exporter), // its queue is bounded (2048 spans) and drops when the collector is slow: telemetry never blocks a stage
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(ratio))),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", service))),
	), nil
}
