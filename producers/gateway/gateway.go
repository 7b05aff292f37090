package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/nextstate-rl/nextstate/schemas"
)

// ErrUnknownKey is what Keys returns (wrapped or not) for a secret that opens nothing: unknown, or revoked.
var ErrUnknownKey = errors.New("the API key is unknown or revoked")

// Keys finds the tenant that an API key opens. Called once a request, concurrently. ErrUnknownKey answers 401, any other error 503.
type Keys interface {
	Tenant(ctx context.Context, secret string) (tenant string, err error)
}

// Config of a Gateway. The zero value of a field means its default.
type Config struct {
	// Addr is where Serve's caller listens. Default "127.0.0.1:8484".
	Addr string `json:"addr"`
	// MaxBodyBytes bounds one request. Default 32 MiB.
	MaxBodyBytes int64 `json:"max_body_bytes"`
	// MaxEventBytes bounds the JSON of one event. Default 24 MiB, which holds any event that the log takes.
	MaxEventBytes int `json:"max_event_bytes"`
	// MaxEvents bounds the events of one request. Default 10,000.
	MaxEvents int `json:"max_events"`
	// MaxInFlightBytes bounds the bodies of all requests in work. Default 256 MiB.
	MaxInFlightBytes int64 `json:"max_in_flight_bytes"`
	// ReadTimeout bounds the reading of one request, AppendTimeout the wait for the log, DrainTimeout the shutdown.
	// Defaults 60 s, 30 s and 10 s.
	ReadTimeout   time.Duration `json:"read_timeout"`
	AppendTimeout time.Duration `json:"append_timeout"`
	DrainTimeout  time.Duration `json:"drain_timeout"`
	// Upstream answers instead of Deps.Policy, when it has a URL.
	Upstream UpstreamConfig `json:"upstream"`
}

// Validate reports the first setting that cannot work, and what to do about it.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.MaxBodyBytes < 1024 || c.MaxEventBytes < 1024 || c.MaxEvents < 1:
		return errors.New("gateway: max_body_bytes and max_event_bytes must be at least 1024, max_events at least 1")
	case c.MaxInFlightBytes < c.MaxBodyBytes:
		return fmt.Errorf("gateway: max_in_flight_bytes %d must be at least max_body_bytes %d, or the largest request never fits", c.MaxInFlightBytes, c.MaxBodyBytes)
	case c.ReadTimeout < 0 || c.AppendTimeout < 0 || c.DrainTimeout < 0:
		return errors.New("gateway: timeouts must not be negative")
	}
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return fmt.Errorf("gateway: addr %q is not host:port: %w", c.Addr, err)
	}
	return c.Upstream.Validate()
}

func (c Config) withDefaults() Config {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	setTime := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Addr == "" {
		c.Addr = "127.0.0.1:8484"
	}
	set(&c.MaxBodyBytes, 32<<20)
	set(&c.MaxInFlightBytes, 256<<20)
	if c.MaxEventBytes == 0 {
		c.MaxEventBytes = 24 << 20
	}
	if c.MaxEvents == 0 {
		c.MaxEvents = 10_000
	}
	setTime(&c.ReadTimeout, 60*time.Second)
	setTime(&c.AppendTimeout, 30*time.Second)
	setTime(&c.DrainTimeout, 10*time.Second)
	c.Upstream = c.Upstream.withDefaults()
	return c
}

// Gateway serves producers over HTTP. Safe for concurrent use.
type Gateway struct {
	cfg      Config
	log      schemas.Appender
	keys     Keys
	checks   map[string]Check
	logger   *slog.Logger
	tracer   trace.Tracer
	inFlight *semaphore.Weighted
	metrics  metrics
}

// Deps are what a Gateway works with.
type Deps struct {
	// Log takes the events of POST /v1/events, each acknowledged only when the log has it.
	Log schemas.Appender
	// Keys opens tenants.
	Keys Keys
	// Policy answers chat completions; nil: there are none (404), unless Config names an upstream.
	Policy Policy
	// Journal takes the events of chat completions. It returns as soon as they survive the death of the process; ErrJournalFull when it can
	// take no more. Nil: the Log.
	Journal schemas.Appender
	// History is read once at the start, to know again the sessions that were open when the last gateway ended; nil: it starts with none.
	History schemas.Reader
	// Blobs keeps content that is not text; nil: such content is recorded by its hash and size only.
	Blobs Blobs
}

// Blobs is a content-addressed store.
type Blobs interface {
	Put(ctx context.Context, content []byte) (sum [32]byte, err error)
}

// Instruments are what a Gateway reports to, and the checks of /readyz by name. TracerProvider and Checks may be nil.
type Instruments struct {
	Logger         *slog.Logger
	Registerer     prometheus.Registerer
	TracerProvider trace.TracerProvider
	Checks         map[string]Check
}

// New makes a gateway; it listens to nothing until Serve.
func New(cfg Config, deps Deps, in Instruments) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if in.TracerProvider == nil {
		in.TracerProvider = noop.NewTracerProvider()
	}
	m, err := newMetrics(in.Registerer)
	if err != nil {
		return nil, err
	}
	return &Gateway{
		cfg: cfg, log: deps.Log, keys: deps.Keys, checks: in.Checks, logger: in.Logger, metrics: m,
		tracer:   in.TracerProvider.Tracer("nextstate/gateway"),
		inFlight: semaphore.NewWeighted(cfg.MaxInFlightBytes),
	}, nil
}

// Handler returns the gateway's routes.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/events", g.postEvents)
	mux.HandleFunc("GET /healthz", g.healthz)
	mux.HandleFunc("GET /readyz", g.readyz)
	return mux
}

// Listen opens Config.Addr for Serve.
func (g *Gateway) Listen(ctx context.Context) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", g.cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w: choose another HTTP address", err)
	}
	return l, nil
}

// Serve answers requests until ctx ends, then takes no new ones and lets those in work finish within DrainTimeout. It closes l.
func (g *Gateway) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           g.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       g.cfg.ReadTimeout,
		WriteTimeout:      g.cfg.ReadTimeout + g.cfg.AppendTimeout + 10*time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(g.logger.Handler(), slog.LevelWarn),
	}
	group, serving := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("gateway: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-serving.Done()
		// The requests in work may outlive ctx: that is what draining means.
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.DrainTimeout)
		defer cancel()
		if err := srv.Shutdown(drain); err != nil {
			return errors.Join(fmt.Errorf("gateway: requests were cut off after %s: %w", g.cfg.DrainTimeout, err), srv.Close())
		}
		return nil
	})
	return group.Wait()
}

type metrics struct {
	requests *prometheus.CounterVec
	events   *prometheus.CounterVec
	seconds  prometheus.Histogram
	bytes    prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (metrics, error) {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_requests_total", Help: "Requests by HTTP status.",
		}, []string{"code"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_events_total", Help: "Events posted, by what became of them: ok, refused, failed.",
		}, []string{"status"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gateway_request_seconds", Help: "Time from the first byte of a request to its answer.", Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 12),
		}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gateway_in_flight_bytes", Help: "Bytes of the requests in work.",
		}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.events, m.seconds, m.bytes} {
		if err := r.Register(c); err != nil {
			return metrics{}, fmt.Errorf("gateway: %w", err)
		}
	}
	return m, nil
}
