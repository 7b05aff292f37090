package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/embedded/broker"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
	"github.com/nextstate-rl/nextstate/ops/embedded/postgres"
)

// Config says which servers are wanted, and where.
type Config struct {
	// Dir is the data folder: made when it is missing, mode 0711, since PostgreSQL may have to run as another user below it.
	Dir string
	// Broker, ClickHouse, Postgres: start this one.
	Broker, ClickHouse, Postgres bool
	// Partitions, Retention and Fsync are the broker's.
	Partitions int
	Retention  time.Duration
	Fsync      bool
}

// Servers are those that run. Safe for concurrent use.
type Servers struct {
	log    *slog.Logger
	lock   *os.File
	broker *broker.Broker
	clicks *keeper[*clickhouse.Server]
	posts  *keeper[*postgres.Server]
	cancel context.CancelFunc
	keep   *errgroup.Group
}

// Start starts the wanted servers side by side and returns when all of them answer. It fetches their assets on first need. A *folder.LockedError
// says that another process owns the folder. Close them; ctx only bounds the start.
func Start(ctx context.Context, cfg Config, store *assets.Store, log *slog.Logger) (_ *Servers, err error) {
	if err := os.MkdirAll(cfg.Dir, 0o711); err != nil { //nolint:gosec // the PostgreSQL user must be able to pass through
		return nil, fmt.Errorf("data folder: %w", err)
	}
	s := &Servers{log: log}
	if s.lock, err = folder.Lock(ctx, cfg.Dir, 10*time.Second); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	p, err := loadPorts(cfg.Dir)
	if err != nil {
		return nil, err
	}
	var wanted []string
	if cfg.ClickHouse {
		wanted = append(wanted, "clickhouse")
	}
	if cfg.Postgres {
		wanted = append(wanted, "postgres")
	}
	if len(wanted) > 0 { // Ensure without a name means all assets
		if err := store.Ensure(ctx, wanted...); err != nil {
			return nil, err
		}
	}
	if err := s.start(ctx, cfg, store, p); err != nil {
		return nil, err
	}
	if err := savePorts(cfg.Dir, p); err != nil {
		return nil, err
	}
	keeping, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	s.keep = new(errgroup.Group)
	if s.clicks != nil {
		s.keep.Go(func() error { s.clicks.keep(keeping, log); return nil })
	}
	if s.posts != nil {
		s.keep.Go(func() error { s.posts.keep(keeping, log); return nil })
	}
	return s, nil
}

func (s *Servers) start(ctx context.Context, cfg Config, store *assets.Store, p *ports) error {
	starting, sctx := errgroup.WithContext(ctx)
	if cfg.Broker {
		starting.Go(func() (err error) {
			s.broker, err = broker.Start(sctx, broker.Config{
				Dir: filepath.Join(cfg.Dir, "broker"), Partitions: cfg.Partitions, Retention: cfg.Retention, Fsync: cfg.Fsync,
			}, s.log)
			return err
		})
	}
	if cfg.ClickHouse {
		s.clicks = &keeper[*clickhouse.Server]{name: "clickhouse", start: func(ctx context.Context) (*clickhouse.Server, error) {
			return clickhouse.Start(ctx, clickhouse.Config{
				Dir: filepath.Join(cfg.Dir, "clickhouse"), Lib: store.Dir("clickhouse"), TCPPort: p.ClickHouseTCP, HTTPPort: p.ClickHouseHTTP,
			}, s.log)
		}}
		starting.Go(func() error {
			return p.retry(func() error { return s.clicks.begin(sctx) }, clickhouse.ErrPortTaken, &p.ClickHouseTCP, &p.ClickHouseHTTP)
		})
	}
	if cfg.Postgres {
		s.posts = &keeper[*postgres.Server]{name: "postgres", start: func(ctx context.Context) (*postgres.Server, error) {
			return postgres.Start(ctx, postgres.Config{Dir: filepath.Join(cfg.Dir, "postgres"), Bin: store.Dir("postgres"), Port: p.Postgres}, s.log)
		}}
		starting.Go(func() error {
			return p.retry(func() error { return s.posts.begin(sctx) }, postgres.ErrPortTaken, &p.Postgres)
		})
	}
	return starting.Wait()
}

// Broker is the broker's host:port.
func (s *Servers) Broker() string { return s.broker.Addr() }

// ClickHouseDSN is the native address with user and password.
func (s *Servers) ClickHouseDSN() string { return s.clicks.current().DSN() }

// ClickHouseHTTP is the HTTP address with user and password.
func (s *Servers) ClickHouseHTTP() string { return s.clicks.current().HTTP() }

// PostgresDSN is PostgreSQL's address with user and password.
func (s *Servers) PostgresDSN() string { return s.posts.current().DSN() }

// Pids are the process ids of the children, by name.
func (s *Servers) Pids() map[string]int {
	pids := map[string]int{}
	if s.clicks != nil {
		pids["clickhouse"] = s.clicks.current().Pid()
	}
	if s.posts != nil {
		pids["postgres"] = s.posts.current().Pid()
	}
	return pids
}

// Close stops the servers, the stores first, and gives the folder free.
func (s *Servers) Close() error {
	var errs []error
	if s.cancel != nil {
		s.cancel()
		errs = append(errs, s.keep.Wait())
	}
	stopping := new(errgroup.Group)
	if s.clicks != nil {
		stopping.Go(s.clicks.close)
	}
	if s.posts != nil {
		stopping.Go(s.posts.close)
	}
	errs = append(errs, stopping.Wait())
	if s.broker != nil {
		errs = append(errs, s.broker.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// server is what a keeper keeps.
type server interface {
	comparable
	Done() <-chan struct{}
	Close() error
}

// keeper starts a server again when it dies.
type keeper[S server] struct {
	name  string
	start func(context.Context) (S, error)
	mu    sync.Mutex
	now   S
}

func (k *keeper[S]) begin(ctx context.Context) error {
	s, err := k.start(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", k.name, err)
	}
	k.mu.Lock()
	k.now = s
	k.mu.Unlock()
	return nil
}

func (k *keeper[S]) current() S {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// keep restarts the server until ctx ends.
func (k *keeper[S]) keep(ctx context.Context, log *slog.Logger) {
	pause := 100 * time.Millisecond
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.current().Done():
		}
		log.Warn("an embedded server ended and is started again", "server", k.name)
		begin := time.Now()
		err := k.begin(ctx)
		if err == nil {
			log.Info("the embedded server is back", "server", k.name, "seconds", time.Since(begin).Seconds())
			pause = 100 * time.Millisecond
			continue
		}
		if ctx.Err() != nil {
			return
		}
		log.Error("the embedded server did not start; it is tried again", "server", k.name, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, 5*time.Second)
	}
}

func (k *keeper[S]) close() error {
	var none S
	s := k.current()
	if s == none {
		return nil
	}
	return s.Close()
}
