package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
)

// ErrUnknownKey is what Keys returns (wrapped or not) for a secret that opens nothing: unknown, or revoked.
var ErrUnknownKey = errors.New("the API key is unknown or revoked")

// Keys finds the tenant that an API key opens. Called once a request, concurrently. ErrUnknownKey answers 401, any other error 503.
type Keys interface {
	Tenant(ctx context.Context, secret string) (tenant string, err error)
}

// Gateway serves producers over HTTP. Safe for concurrent use.
type Gateway struct {
	cfg      Config
	log      schemas.Appender
	keys     Keys
	checks   map[string]Check
	logger   *slog.Logger
	tracer   trace.Tracer
	inFlight *semaphore.Weighted // bytes of bodies
	metrics  metrics

	policy   Policy
	book     *sessions.Book
	history  schemas.Reader
	fullAt   atomic.Int64 // when the journal was last full, nanoseconds since 1970
	blobs    Blobs
	work     *semaphore.Weighted // chat requests
	limiters limiters
	relay    *relay // nil: the policy answers
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
	if deps.Journal == nil {
		deps.Journal = deps.Log
	}
	book, err := sessions.New(cfg.Sessions, deps.Journal, sessions.Instruments{Logger: in.Logger, Registerer: in.Registerer})
	if err != nil {
		return nil, err
	}
	var up *relay
	if cfg.Upstream.URL != "" {
		if up, err = newRelay(cfg.Upstream, cfg.WriteTimeout, in.Logger); err != nil {
			return nil, err
		}
	}
	return &Gateway{
		cfg: cfg, log: deps.Log, keys: deps.Keys, checks: in.Checks, logger: in.Logger, metrics: m,
		tracer:   in.TracerProvider.Tracer("nextstate/gateway"),
		inFlight: semaphore.NewWeighted(cfg.MaxInFlightBytes),
		policy:   deps.Policy, book: book, history: deps.History, blobs: deps.Blobs,
		work:     semaphore.NewWeighted(int64(cfg.MaxRequests)),
		limiters: limiters{rate: rate.Limit(cfg.Rate), burst: cfg.Burst, per: map[string]*rate.Limiter{}},
		relay:    up,
	}, nil
}

// Handler returns the gateway's routes.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/events", g.postEvents)
	mux.HandleFunc("GET /healthz", g.healthz)
	mux.HandleFunc("GET /readyz", g.readyz)
	for _, api := range []string{"/v1", "/s/{session}/v1"} {
		for _, route := range g.routes() {
			mux.HandleFunc(route.method+" "+api+route.path, g.door(route.method+" "+api+route.path, route.serve))
		}
		if g.relay != nil {
			mux.HandleFunc(api+"/", g.door(api+"/", g.relayOther))
		} else {
			mux.HandleFunc(api+"/", g.nowhere)
		}
	}
	mux.HandleFunc("POST /v1/sessions/{session}/end", g.door("POST /v1/sessions/{session}/end", g.postEnd))
	return mux
}

// route is one endpoint of the chat APIs, under /v1 and /s/{session}/v1. A further API is a line in routes.
type route struct {
	method, path string
	serve        endpoint
}

func (g *Gateway) routes() []route {
	if g.relay != nil {
		return []route{
			{http.MethodPost, "/chat/completions", g.relayCompletion},
			{http.MethodPost, "/feedback", g.postFeedback},
		}
	}
	return []route{
		{http.MethodPost, "/chat/completions", g.postChat},
		{http.MethodGet, "/models", g.getModels},
		{http.MethodGet, "/models/{model}", g.getModel},
		{http.MethodPost, "/feedback", g.postFeedback},
	}
}

// Listen opens Config.Addr for Serve.
func (g *Gateway) Listen(ctx context.Context) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", g.cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w: choose another HTTP address", err)
	}
	if g.cfg.TLSCert == "" {
		return l, nil
	}
	cert, err := tls.LoadX509KeyPair(g.cfg.TLSCert, g.cfg.TLSKey)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("gateway: tls_cert and tls_key: %w", err), l.Close())
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}), nil
}

// settleTimeout bounds the wait for the turns of requests that were cut off to be recorded.
const settleTimeout = 5 * time.Second

// Serve answers requests until ctx ends, then takes no new ones and lets those in work finish within DrainTimeout. It closes l. Before it
// answers, it reads which sessions were open.
func (g *Gateway) Serve(ctx context.Context, l net.Listener) error {
	if g.history != nil {
		if err := g.book.Restore(ctx, g.history); err != nil {
			return errors.Join(fmt.Errorf("gateway: open sessions cannot be read from the log: %w", err), l.Close())
		}
	}
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
	group.Go(func() error { return g.book.Run(serving) })
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
			err = errors.Join(fmt.Errorf("gateway: requests were cut off after %s: %w", g.cfg.DrainTimeout, err), srv.Close())
			settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
			defer cancel()
			return errors.Join(err, g.settle(settle))
		}
		return nil
	})
	return group.Wait()
}
