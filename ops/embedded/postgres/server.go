package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
)

// User and Database that a server has.
const (
	User     = "nextstate"
	Database = "nextstate"
)

const (
	goneTimeout = 30 * time.Second // for what is left of a killed server to go
	logBytesMax = 32 << 20
)

// ErrPortTaken says that the fixed port is in use. Take another and start again.
var ErrPortTaken = errors.New("port is in use")

// Config of a server.
type Config struct {
	// Dir is the data folder: made on first start, never shared by two servers.
	Dir string
	// Bin is the folder that holds bin, lib and share.
	Bin string
	// Port on 127.0.0.1; 0: a free one.
	Port int
	// CloseTimeout bounds the wait for a fast shutdown before a harder one; 0: 30 s.
	CloseTimeout time.Duration
}

// Validate fills in the defaults and refuses what cannot work.
func (c *Config) Validate() error {
	if c.Dir == "" || c.Bin == "" {
		return errors.New("postgres: dir and bin are needed; the asset `postgres` holds the binaries")
	}
	if c.Port < 0 || c.Port > 65535 {
		return fmt.Errorf("postgres: port %d is not one", c.Port)
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = 30 * time.Second
	}
	var err error
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return err
	}
	if c.Bin, err = filepath.Abs(c.Bin); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(c.Bin, "bin", "postgres")); err != nil {
		return fmt.Errorf("postgres: %w; `nextstate assets fetch postgres` fetches it", err)
	}
	return nil
}

// Server is a running PostgreSQL. Safe for concurrent use.
type Server struct {
	config   Config
	account  account
	password string
	port     int
	cmd      *exec.Cmd
	done     chan struct{}
	err      error // of Wait; read after done
}

// Start runs a server and returns when it answers and has its database. ctx bounds the start only (the first one runs initdb: seconds); the server runs
// until Close. The caller watches Done. *folder.LockedError: another one works in Dir.
func Start(ctx context.Context, c Config, log *slog.Logger) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	began := time.Now()
	s := &Server{config: c, port: c.Port}
	if err := s.start(ctx, log); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	log.InfoContext(ctx, "postgres is ready", "pid", s.Pid(), "port", s.port, "took_ms", time.Since(began).Milliseconds())
	return s, nil
}

func (s *Server) start(ctx context.Context, log *slog.Logger) error {
	lock, err := folder.Lock(ctx, s.config.Dir, goneTimeout)
	if err != nil {
		return err
	}
	defer lock.Close()     // every process of the server has it too
	if os.Geteuid() == 0 { // another account passes through, to its data; nothing else in the folder is readable for it
		if err := os.Chmod(s.config.Dir, 0o711); err != nil {
			return err
		}
	}
	if s.account, err = accountFor(ctx, s.data(), s.config.Bin, log); err != nil {
		return err
	}
	if s.password, err = folder.Secret(filepath.Join(s.config.Dir, "password")); err != nil {
		return err
	}
	if err := s.initialise(ctx, lock); err != nil {
		return err
	}
	if err := s.removeStalePID(); err != nil {
		return err
	}
	for deadline := time.Now().Add(goneTimeout); ; {
		err := s.attempt(ctx, lock)
		if err == nil {
			break
		}
		var again *retryError
		if !errors.As(err, &again) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
	if err := s.makeDatabase(ctx); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// retryError: the server did not start, for a reason that goes away.
type retryError struct{ error }

func (e *retryError) Unwrap() error { return e.error }

// attempt starts the postmaster once and waits until it answers.
func (s *Server) attempt(ctx context.Context, lock *os.File) error {
	if s.config.Port == 0 {
		port, err := freePort(ctx)
		if err != nil {
			return err
		}
		s.port = port
	}
	if err := s.spawn(ctx, lock); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	for !s.ready() {
		select {
		case <-s.done:
			return s.failure()
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("it was not ready in time: %w; see %s", ctx.Err(), s.logFile()), s.Close())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// ready reads what the postmaster notes in its pid file: its number first, its state in the eighth line. Trying to connect instead could reach a
// stranger who has the port.
func (s *Server) ready() bool {
	text, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	return err == nil && len(lines) > 7 && lines[0] == strconv.Itoa(s.Pid()) && strings.TrimSpace(lines[7]) == "ready"
}

// freePort: PostgreSQL cannot bind port 0. Whoever takes the port in between makes the attempt fail, and the next one takes another.
func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // of a TCP listener
	return port, l.Close()
}

func (s *Server) spawn(ctx context.Context, lock *os.File) error {
	out, err := folder.NewLog(s.logFile())
	if err != nil {
		return err
	}
	defer out.Close()
	// Without the start's ctx: the server outlives it, and Close ends it.
	s.cmd = s.account.command(context.WithoutCancel(ctx), filepath.Join(s.config.Bin, "bin", "postgres"), append([]string{"-D", s.data()}, s.settings()...)...)
	s.cmd.Env = s.environment()
	s.cmd.Stdout, s.cmd.Stderr = out, out
	s.cmd.ExtraFiles = []*os.File{lock}
	s.done = make(chan struct{})
	started := make(chan error)
	done, cmd := s.done, s.cmd
	go func() { // ends with the server
		// The parent death signal follows the thread that forked, so that thread stays until the child has gone.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		s.err = cmd.Wait()
		close(done)
	}()
	if err := <-started; err != nil {
		return err
	}
	go folder.BoundLog(done, s.logFile(), logBytesMax) // every failed statement writes a line
	if err := folder.Note(lock, s.Pid()); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// settings of a server for one machine: little memory, no helpers that only replication or parallel plans need.
func (s *Server) settings() []string {
	var args []string
	for _, kv := range []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(s.port), "unix_socket_directories=",
		"shared_buffers=32MB", "max_connections=100", "dynamic_shared_memory_type=mmap", "huge_pages=off",
		"wal_level=minimal", "max_wal_senders=0", "max_wal_size=256MB", "io_method=sync", "jit=off",
		"max_parallel_workers_per_gather=0", "log_checkpoints=off", "logging_collector=off", "timezone=UTC",
	} {
		args = append(args, "-c", kv)
	}
	return args
}

// failure says why the server ended before it answered.
func (s *Server) failure() error {
	said := folder.LogTail(s.logFile())
	switch {
	case strings.Contains(said, "could not bind") || strings.Contains(said, "could not create any TCP/IP sockets"):
		err := fmt.Errorf("%w: %d on 127.0.0.1", ErrPortTaken, s.port)
		if s.config.Port == 0 {
			return &retryError{err}
		}
		return err
	case strings.Contains(said, "lock file") && strings.Contains(said, "already exists"),
		strings.Contains(said, "pre-existing shared memory block"):
		// What is left of a killed server goes within seconds. A server that somebody else started on the data does not.
		return &retryError{fmt.Errorf("a PostgreSQL works in %s; stop it first, or choose another folder: %s", s.data(), said)}
	}
	return fmt.Errorf("the server ended: %w: %s", s.err, said)
}

// removeStalePID removes the file of a server that was killed, when its number is nobody's by now, or that of another program. With the folder's lock
// held no process of a server that we started is left; a server that somebody else started is seen here.
func (s *Server) removeStalePID() error {
	file := filepath.Join(s.data(), "postmaster.pid")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err == nil && folder.Alive(pid) {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || strings.HasPrefix(string(name), "postgres") {
			return nil //nolint:nilerr // without a name, let the server judge
		}
	}
	return os.Remove(file)
}

func (s *Server) makeDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.dsn("postgres"))
	if err != nil {
		return err
	}
	var there bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", Database).Scan(&there)
	if err == nil && !there {
		_, err = conn.Exec(ctx, "CREATE DATABASE "+Database)
	}
	return errors.Join(err, conn.Close(ctx))
}

func (s *Server) data() string    { return filepath.Join(s.config.Dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.config.Dir, "server.log") }

func (s *Server) dsn(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(User, s.password), Host: fmt.Sprintf("127.0.0.1:%d", s.port), Path: "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// DSN is the address for pgx, password included.
func (s *Server) DSN() string { return s.dsn(Database) }

// Port that the server listens on, for a restart on the same one.
func (s *Server) Port() int { return s.port }

// Pid of the postmaster.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Done is closed when the server has ended, for whatever reason.
func (s *Server) Done() <-chan struct{} { return s.done }

// Close ends the server in order (a fast shutdown: sessions are cut off) and waits for it. It may be called again.
func (s *Server) Close() error {
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGINT, s.config.CloseTimeout}, {syscall.SIGQUIT, 5 * time.Second}} {
		_ = s.cmd.Process.Signal(step.signal) // it may have ended
		select {
		case <-s.done:
			return nil
		case <-time.After(step.wait):
		}
	}
	err := s.cmd.Process.Kill()
	<-s.done
	return errors.Join(fmt.Errorf("postgres: did not end within %s and was killed; it recovers at the next start", s.config.CloseTimeout), err)
}
