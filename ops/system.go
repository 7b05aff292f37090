package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/embedded"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
	"github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/ops/migrations"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/telemetry"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/blobs"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// Need says which parts of the system a command uses.
type Need uint8

// The parts. A command that only asks SQL starts no broker.
const (
	NeedLog Need = 1 << iota
	NeedClickHouse
	NeedPostgres
	NeedAll = NeedLog | NeedClickHouse | NeedPostgres

	// LogLater: a Kafka that cannot be reached at the start is waited for by the gateway's journal.
	LogLater Need = 1 << 6
	// AttachOnly: servers without an address are those of a running up, which is waited for; none is started.
	AttachOnly Need = 1 << 7
)

// System is what a process works with: the log, the stores, telemetry. Servers are embedded (started here), those of a running `up` with
// the same data folder (attached), or the operator's own, each on its own.
type System struct {
	Config     Config
	Telemetry  *telemetry.Telemetry
	HTTPClient *http.Client

	Log            *kafka.Log
	ClickHouse     driver.Conn
	ClickHouseHTTP string
	Postgres       *pgxpool.Pool
	// Policy is the policy engine of this process, nil when it has none: direct's teacher.
	Policy policy.Engine

	// Attached: the servers belong to another process.
	Attached bool

	late         *lateLog      // instead of Log, see LogLater
	listening    chan struct{} // closed when the HTTP endpoint listens
	endpointsMu  sync.Mutex
	endpoints    Endpoints
	owner        bool
	servers      *embedded.Servers
	stageMetrics *processors.Metrics
	sinkMu       sync.Mutex
	sink         *sink.Sink
	closers      []func() error
}

// Open makes the needed parts ready: it starts or attaches, waits until they answer, and applies migrations. Close it.
func Open(ctx context.Context, cfg Config, need Need, progress io.Writer) (*System, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &System{Config: cfg, HTTPClient: &http.Client{}, listening: make(chan struct{})}
	if err := s.open(ctx, need, progress); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *System) open(ctx context.Context, need Need, progress io.Writer) (err error) {
	if s.Telemetry, err = telemetry.Start(ctx, s.Config.Telemetry); err != nil {
		return err
	}
	s.closers = append(s.closers, func() error { return s.Telemetry.Close(context.WithoutCancel(ctx)) })
	if s.stageMetrics, err = processors.NewMetrics(s.Telemetry.Registry); err != nil {
		return err
	}
	if err := s.findServers(ctx, need, progress); err != nil {
		return err
	}
	if err := s.connect(ctx, need); err != nil {
		return err
	}
	s.openPolicy(func() (*assets.Store, error) { return s.assets(progress) })
	s.attend()
	for name, check := range s.checks() {
		s.Telemetry.Handle(name, telemetry.Check(check))
	}
	return nil
}

// findServers fills in the endpoints: the configured ones, those of a running process, or of servers that it starts.
func (s *System) findServers(ctx context.Context, need Need, progress io.Writer) error {
	s.endpoints = Endpoints{
		PID: os.Getpid(), Brokers: s.Config.Kafka.Brokers, ClickHouse: s.Config.ClickHouseDSN, Postgres: s.Config.PostgresDSN,
		ClickHouseHTTP: s.Config.clickHouseHTTP(),
	}
	var missing Need
	if need&NeedLog != 0 && len(s.endpoints.Brokers) == 0 {
		missing |= NeedLog
	}
	if need&NeedClickHouse != 0 && s.endpoints.ClickHouse == "" {
		missing |= NeedClickHouse
	}
	if need&NeedPostgres != 0 && s.endpoints.Postgres == "" {
		missing |= NeedPostgres
	}
	if missing == 0 {
		return nil
	}
	for deadline := time.Now().Add(attachWait); ; {
		err := s.startServers(ctx, missing, need, progress)
		var locked *folder.LockedError
		switch {
		case errors.As(err, &locked):
			var attached bool
			if attached, err = s.attach(missing, locked.PID); err != nil || attached {
				return err
			}
			err = fmt.Errorf("process %d is starting or stopping with the data folder %s: try again in a moment, or use another --data", locked.PID, s.Config.Dir)
		case errors.Is(err, errNotRunning):
			err = fmt.Errorf("no servers: give the addresses of yours (--kafka-brokers, --clickhouse-dsn, --postgres-dsn), or start 'nextstate up' with --data %s", s.Config.Dir)
		default:
			return err
		}
		if time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// attachWait is how long a process that is starting is waited for.
const attachWait = 30 * time.Second

var errNotRunning = errors.New("no running servers")

// startServers starts the missing servers in the data folder, whose owner this process becomes.
func (s *System) startServers(ctx context.Context, missing, need Need, progress io.Writer) error {
	if need&AttachOnly != 0 {
		return folderOwner(s.Config.Dir)
	}
	store, err := s.assets(progress)
	if err != nil {
		return err
	}
	s.servers, err = embedded.Start(ctx, embedded.Config{
		Dir: s.Config.Dir, Partitions: s.Config.Kafka.Partitions, Retention: s.Config.Kafka.Retention, Fsync: s.Config.Fsync,
		Broker: missing&NeedLog != 0, ClickHouse: missing&NeedClickHouse != 0, Postgres: missing&NeedPostgres != 0,
	}, store, s.Telemetry.Logger)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, s.servers.Close)
	if missing&NeedLog != 0 {
		s.endpoints.Brokers = []string{s.servers.Broker()}
	}
	if missing&NeedClickHouse != 0 {
		s.endpoints.ClickHouse = s.servers.ClickHouseDSN()
		s.endpoints.ClickHouseHTTP = s.servers.ClickHouseHTTP() + "/?database=" + clickhouse.Database
	}
	if missing&NeedPostgres != 0 {
		s.endpoints.Postgres = s.servers.PostgresDSN()
	}
	s.owner = true
	s.closers = append(s.closers, func() error { removeEndpoints(s.Config.Dir); return nil })
	return s.publish()
}

func (s *System) assets(progress io.Writer) (*assets.Store, error) {
	return assets.Open(assets.Options{Cache: s.Config.Assets.Cache, Prefetched: s.Config.Assets.Prefetched, Progress: progress})
}

// attach takes the endpoints of the process that holds the data folder's lock, once it has published them.
func (s *System) attach(missing Need, pid int) (bool, error) {
	e, ok, err := ReadEndpoints(s.Config.Dir)
	if err != nil {
		return false, err
	}
	if !ok || e.PID != pid {
		return false, nil
	}
	s.Attached = true
	if missing&NeedLog != 0 {
		s.endpoints.Brokers, s.Config.Kafka.TopicPrefix, s.Config.Kafka.Partitions = e.Brokers, e.TopicPrefix, e.Partitions
	}
	if missing&NeedClickHouse != 0 {
		s.endpoints.ClickHouse, s.endpoints.ClickHouseHTTP = e.ClickHouse, e.ClickHouseHTTP
	}
	if missing&NeedPostgres != 0 {
		s.endpoints.Postgres = e.Postgres
	}
	for part, have := range map[string]bool{
		"log": missing&NeedLog == 0 || len(s.endpoints.Brokers) > 0, "ClickHouse": missing&NeedClickHouse == 0 || s.endpoints.ClickHouse != "",
		"Postgres": missing&NeedPostgres == 0 || s.endpoints.Postgres != "",
	} {
		if !have {
			return false, fmt.Errorf("process %d holds the data folder %s and does not run the %s: wait until it ends, or use another --data", e.PID, s.Config.Dir, part)
		}
	}
	return true, nil
}

// connect opens the clients of the needed parts.
func (s *System) connect(ctx context.Context, need Need) (err error) {
	if need&NeedLog != 0 {
		cfg := s.Config.Kafka
		cfg.Brokers = s.endpoints.Brokers
		open := func(ctx context.Context) (*kafka.Log, error) {
			return kafka.Open(ctx, cfg, s.Telemetry.Logger, s.Telemetry.Registry)
		}
		first, cancel := ctx, context.CancelFunc(func() {})
		if need&LogLater != 0 {
			first, cancel = context.WithTimeout(ctx, lateOpenTimeout)
		}
		s.Log, err = open(first)
		cancel()
		switch {
		case err == nil:
			s.closers = append(s.closers, s.Log.Close)
		case need&LogLater != 0 && ctx.Err() == nil:
			s.Telemetry.Logger.Warn("Kafka cannot be reached: turns wait in the journal until it can", "error", err)
			s.late = &lateLog{open: open}
			s.closers = append(s.closers, s.late.close)
		default:
			return err
		}
	}
	if need&NeedPostgres != 0 {
		if s.Postgres, err = pgxpool.New(ctx, s.endpoints.Postgres); err != nil {
			return fmt.Errorf("PostgreSQL: %w", err)
		}
		s.closers = append(s.closers, func() error { s.Postgres.Close(); return nil })
		if err := patiently(ctx, func() error { return migrations.Postgres(ctx, s.Postgres) }); err != nil {
			return err
		}
	}
	if need&NeedClickHouse != 0 {
		if s.ClickHouse, err = sink.Open(s.endpoints.ClickHouse); err != nil {
			return err
		}
		s.closers = append(s.closers, s.ClickHouse.Close)
		s.ClickHouseHTTP = s.endpoints.ClickHouseHTTP
		if err := patiently(ctx, func() error { return migrations.ClickHouse(ctx, s.ClickHouse) }); err != nil {
			return err
		}
	}
	return nil
}

// patiently tries again for a while: a store that restarts just now is no reason to end.
func patiently(ctx context.Context, migrate func() error) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := migrate()
		if err == nil || errors.Is(err, migrations.ErrNewer) || errors.Is(err, migrations.ErrChanged) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// publish writes the endpoints file, once a process owns the data folder and whenever an address becomes known.
func (s *System) publish() error {
	s.endpointsMu.Lock()
	defer s.endpointsMu.Unlock()
	if !s.owner {
		return nil
	}
	s.endpoints.TopicPrefix, s.endpoints.Partitions, s.endpoints.Telemetry = s.Config.Kafka.TopicPrefix, s.Config.Kafka.Partitions, s.Telemetry.Addr()
	return writeEndpoints(s.Config.Dir, s.endpoints)
}

// serving notes where the HTTP endpoint listens.
func (s *System) serving(addr string) {
	s.endpointsMu.Lock()
	s.endpoints.HTTP = addr
	s.endpointsMu.Unlock()
	close(s.listening)
	if err := s.publish(); err != nil {
		s.Telemetry.Logger.Warn("the endpoints file was not written; other commands cannot see the HTTP address", "error", err)
	}
}

// Listening is closed once the HTTP endpoint of this process listens.
func (s *System) Listening() <-chan struct{} { return s.listening }

// Endpoints returns where everything listens.
func (s *System) Endpoints() Endpoints {
	s.endpointsMu.Lock()
	defer s.endpointsMu.Unlock()
	return s.endpoints
}

// gatewayLog is the log as the gateway uses it.
func (s *System) gatewayLog() interface {
	schemas.Appender
	schemas.Reader
} {
	if s.Log == nil {
		return s.late
	}
	return s.Log
}

// checks are what readiness means.
func (s *System) checks() map[string]gateway.Check {
	checks := map[string]gateway.Check{}
	if s.Log != nil || s.late != nil {
		checks["log"] = func(ctx context.Context) error {
			_, err := s.gatewayLog().Bounds(ctx, schemas.TopicInteractions)
			return err
		}
	}
	if s.ClickHouse != nil {
		checks["clickhouse"] = s.ClickHouse.Ping
	}
	if s.Postgres != nil {
		checks["postgres"] = s.Postgres.Ping
	}
	return checks
}

// Blobs is the folder of the content-addressed blob store.
func (s *System) Blobs() string { return filepath.Join(s.Config.Dir, "blobs") }

// Bounds of the blob store. A checkpoint of a large rank is larger than what agents send, and every policy version takes three blobs, which must not take the
// room of the agents' content.
const (
	blobBytesMax  = 2 << 30
	blobsBytesMax = 100 << 30
)

// OpenBlobs opens the blob store for writing.
func (s *System) OpenBlobs() (*blobs.Directory, error) {
	return blobs.Open(blobs.Config{Dir: s.Blobs(), MaxBlobBytes: blobBytesMax, MaxBytes: blobsBytesMax})
}

// Close stops what Open started, last first: clients, then servers.
func (s *System) Close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// folderOwner reports who owns a data folder, as the error that Start gives: a LockedError, or errNotRunning.
func folderOwner(dir string) error {
	e, ok, err := ReadEndpoints(dir)
	switch {
	case err != nil:
		return err
	case !ok || !folder.Alive(e.PID):
		return errNotRunning
	}
	return &folder.LockedError{Dir: dir, PID: e.PID}
}
