package ops

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/keys"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/producers/spool"
	"github.com/nextstate-rl/nextstate/schemas"
)

// NoPolicy as policy.Config.Engine: this process answers no chat completions and has no teacher.
const NoPolicy = "none"

// Memory of a process that serves: collecting garbage less often costs memory and saves a sixth of the processor's time for a request. Near the limit
// it is collected as often as needed.
const (
	gcPercent   = 300
	memoryLimit = 1 << 30
)

// ServeMemory sets the collector for a process that serves. The variables GOGC and GOMEMLIMIT of the Go runtime win over it.
func ServeMemory() {
	if before := debug.SetGCPercent(gcPercent); before != 100 {
		debug.SetGCPercent(before)
	}
	if before := debug.SetMemoryLimit(memoryLimit); before != math.MaxInt64 {
		debug.SetMemoryLimit(before)
	}
}

// restoreWait bounds the wait at the start for the log to have what the journal of a former gateway holds. Without it the gateway starts too, and knows
// fewer of the open sessions.
const restoreWait = 10 * time.Second

// runGateway serves: its turns go into the journal, and from there to the log.
func runGateway(ctx context.Context, s *System) error {
	store, err := keys.New(s.Postgres, keys.Config{})
	if err != nil {
		return err
	}
	log := s.gatewayLog()
	journal, err := spool.Open(s.Config.spool(), log, spool.Instruments{Logger: s.Telemetry.Logger, Registerer: s.Telemetry.Registry})
	if err != nil {
		return err
	}
	content, err := s.OpenBlobs()
	if err != nil {
		return errors.Join(err, journal.Close())
	}
	deps := gateway.Deps{Log: log, Keys: store, Journal: journal, History: log, Blobs: content}
	var versions *follower
	if s.Policy != nil && s.Config.Gateway.Upstream.URL == "" {
		deps.Policy = s.Policy
		if versions, err = s.newFollower(content); err != nil {
			return errors.Join(err, journal.Close())
		}
		if _, err := s.Policy.Versions(ctx); err != nil { // a model that cannot be served is an error now, not at the first request
			return errors.Join(err, journal.Close())
		}
	}
	draining, stop := context.WithCancel(context.WithoutCancel(ctx)) // the journal outlives the last request
	defer stop()
	running, serving := errgroup.WithContext(ctx)
	running.Go(func() error { return journal.Run(draining) })
	if versions != nil {
		running.Go(func() error { return versions.run(serving) })
	}
	running.Go(func() error {
		defer stop()
		if err := restorable(serving, log, journal); err != nil {
			s.Telemetry.Logger.Warn("the log does not have all turns of the journal yet; sessions begin anew", "error", err)
			deps.History = nil
		}
		if versions != nil {
			versions.wait(serving)
		}
		return s.serveGateway(serving, deps)
	})
	return errors.Join(running.Wait(), journal.Close())
}

// restorable waits until the log has what the journal of a former gateway holds; an error at once when it cannot be reached.
func restorable(ctx context.Context, log schemas.Reader, journal *spool.Spool) error {
	ctx, cancel := context.WithTimeout(ctx, restoreWait)
	defer cancel()
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := log.Bounds(asking, schemas.TopicInteractions); err != nil {
		return err
	}
	return journal.Drained(ctx)
}

func (s *System) serveGateway(ctx context.Context, deps gateway.Deps) error {
	g, err := gateway.New(s.Config.gateway(), deps, gateway.Instruments{
		Logger: s.Telemetry.Logger, Registerer: s.Telemetry.Registry, TracerProvider: s.Telemetry.TracerProvider, Checks: s.checks(),
	})
	if err != nil {
		return err
	}
	listener, err := g.Listen(ctx)
	if err != nil {
		return err
	}
	s.serving(listener.Addr().String())
	return g.Serve(ctx, listener)
}

// gateway is the gateway's configuration: on a loopback address, requests without a key of ours belong to the process's tenant.
func (c Config) gateway() gateway.Config {
	g := c.Gateway
	if c.OpenToThisMachine() {
		g.Anonymous = c.Tenant
	}
	g.Sessions.EndIdle = true // pair ends a silent session only when other records come in its partition
	if g.Sessions.Idle == 0 {
		g.Sessions.Idle = c.Pair.Idle
	}
	return g
}

// OpenToThisMachine says that chat requests need no key of ours: the gateway listens on a loopback address only.
func (c Config) OpenToThisMachine() bool { return c.Anonymous && loopback(c.Gateway.Addr) }

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// lazyEngine starts the policy engine when it is first asked for anything: commands that only derive old turns need none. A start that failed is tried again.
type lazyEngine struct {
	open func(ctx context.Context) (policy.Engine, error)

	mu     sync.Mutex
	engine policy.Engine
}

func (l *lazyEngine) get(ctx context.Context) (policy.Engine, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.engine != nil {
		return l.engine, nil
	}
	e, err := l.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("policy engine: %w", err)
	}
	l.engine = e
	return e, nil
}

// Sample implements policy.Engine.
func (l *lazyEngine) Sample(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
	e, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return e.Sample(ctx, r, emit)
}

// Versions implements policy.Engine.
func (l *lazyEngine) Versions(ctx context.Context) ([]gateway.Version, error) {
	e, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return e.Versions(ctx)
}

// Score implements policy.Engine.
func (l *lazyEngine) Score(ctx context.Context, r *policy.ScoreRequest) (*policy.Scored, error) {
	e, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return e.Score(ctx, r)
}

// Swap implements policy.Engine.
func (l *lazyEngine) Swap(ctx context.Context, version, adapter string) error {
	e, err := l.get(ctx)
	if err != nil {
		return err
	}
	return e.Swap(ctx, version, adapter)
}

// Close implements policy.Engine.
func (l *lazyEngine) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.engine == nil {
		return nil
	}
	return l.engine.Close()
}

// openPolicy gives the process its policy engine, which starts when it is first used.
func (s *System) openPolicy(store func() (*assets.Store, error)) {
	if s.Config.Policy.Engine == NoPolicy || s.Config.Gateway.Upstream.URL != "" {
		return
	}
	lazy := &lazyEngine{open: func(ctx context.Context) (policy.Engine, error) {
		cfg := s.Config.Policy
		if cfg.Engine == "" || cfg.Engine == policy.Engines[0].Name {
			if err := s.policyAssets(ctx, &cfg, store); err != nil {
				return nil, err
			}
		}
		// The engine's life is the process's, not that of the request that needed it first.
		return policy.Open(context.WithoutCancel(ctx), cfg, s.Telemetry.Logger, s.Telemetry.Registry, s.HTTPClient)
	}}
	s.Policy = lazy
	s.closers = append(s.closers, lazy.Close)
}

// policyAssets fetches the native library, and the default model unless another is given.
func (s *System) policyAssets(ctx context.Context, cfg *policy.Config, open func() (*assets.Store, error)) error {
	store, err := open()
	if err != nil {
		return err
	}
	var wanted []string
	if cfg.Library == "" {
		wanted = append(wanted, assets.Llama)
	}
	if cfg.Model == "" {
		wanted = append(wanted, assets.SmolLM2)
	}
	if len(wanted) == 0 {
		return nil
	}
	if err := store.Ensure(ctx, wanted...); err != nil {
		return err
	}
	if cfg.Library == "" {
		cfg.Library = store.Dir(assets.Llama)
	}
	if cfg.Model == "" {
		cfg.Model = filepath.Join(store.Dir(assets.SmolLM2), assets.SmolLM2File)
	}
	return nil
}
