package clickhouse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
)

// User and Database that a server has.
const (
	User     = "nextstate"
	Database = "nextstate"
)

// ErrPortTaken says that a fixed port is in use. Take others and start again.
var ErrPortTaken = errors.New("port is in use")

// Config of a server.
type Config struct {
	// Dir is the data folder: made on first start, never shared by two servers.
	Dir string
	// Lib is libchdb.so, or the folder that holds it.
	Lib string
	// TCPPort and HTTPPort on 127.0.0.1; 0: the system chooses.
	TCPPort, HTTPPort int
	// MemoryBytes bounds the server's memory; 0: 2 GiB.
	MemoryBytes int64
	// CloseTimeout bounds the wait for an orderly end before the child is killed; 0: 30 s.
	CloseTimeout time.Duration
}

// Validate fills in the defaults and refuses what cannot work.
func (c *Config) Validate() error {
	if c.Dir == "" || c.Lib == "" {
		return errors.New("clickhouse: dir and lib are needed; the asset `clickhouse` holds the library")
	}
	for _, p := range []int{c.TCPPort, c.HTTPPort} {
		if p < 0 || p > 65535 {
			return fmt.Errorf("clickhouse: port %d is not one", p)
		}
	}
	if c.MemoryBytes == 0 {
		c.MemoryBytes = 2 << 30
	}
	if c.MemoryBytes < 512<<20 {
		return fmt.Errorf("clickhouse: memory of %d bytes is too little; give it at least 512 MiB", c.MemoryBytes)
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = 30 * time.Second
	}
	return nil
}

// Server is a running ClickHouse. Safe for concurrent use.
type Server struct {
	cmd      *exec.Cmd
	life     io.Closer // the parent's end of the pipe: closing it asks the child to end
	done     chan struct{}
	err      error // of Wait; read after done
	timeout  time.Duration
	tcp      int
	http     int
	password string
}

// Start runs a server and returns when it answers and has its database. main and TestMain must have called MaybeChild before. ctx bounds the start only;
// the server runs until Close. The caller watches Done.
// *folder.LockedError: another one works in Dir.
func Start(ctx context.Context, c Config, log *slog.Logger) (*Server, error) {
	if os.Args[0] == childName {
		return nil, errors.New("clickhouse: this is the child; main (TestMain in tests) has to call clickhouse.MaybeChild first")
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	began := time.Now()
	lock, err := folder.Lock(ctx, c.Dir, endTimeout+5*time.Second)
	if err != nil {
		return nil, fmt.Errorf("clickhouse: %w", err)
	}
	defer lock.Close() // the child has it too, and holds the lock for as long as it lives
	spec, password, err := prepare(c)
	if err != nil {
		return nil, fmt.Errorf("clickhouse: %w", err)
	}
	s := &Server{done: make(chan struct{}), timeout: c.CloseTimeout, password: password}
	if err := s.spawn(spec, lock); err != nil {
		return nil, fmt.Errorf("clickhouse: start the child: %w", err)
	}
	err = s.ready(ctx, spec)
	if err != nil {
		_ = s.cmd.Process.Kill() // it may have gone already
		_ = s.life.Close()
		<-s.done
		return nil, fmt.Errorf("clickhouse: %w", err)
	}
	log.InfoContext(ctx, "clickhouse is ready", "pid", s.Pid(), "tcp_port", s.tcp, "http_port", s.http, "took_ms", time.Since(began).Milliseconds())
	return s, nil
}

// spawn executes our own binary as the child. The pipe's far end is the child's standard input.
func (s *Server) spawn(spec childSpec, lock *os.File) error {
	arg, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	out, err := folder.NewLog(spec.logFile())
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd = exec.Command("/proc/self/exe") //nolint:noctx // outlives the start's ctx; Close ends it
	s.cmd.Args = []string{childName, string(arg)}
	s.cmd.Dir = spec.Dir // so that a stray config.xml of the user's folder is not read
	s.cmd.Stdout, s.cmd.Stderr = out, out
	s.cmd.ExtraFiles = []*os.File{lock}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C at the terminal is ours, not the engine's
	if s.life, err = s.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return errors.Join(err, s.life.Close())
	}
	go func() { // ends with the child, which Close or the caller's death ends
		s.err = s.cmd.Wait()
		close(s.done)
	}()
	if err := folder.Note(lock, s.Pid()); err != nil {
		err = errors.Join(err, s.cmd.Process.Kill())
		<-s.done
		return err
	}
	return nil
}

// ready waits for the ports file, then makes the database, which shows that the password works.
func (s *Server) ready(ctx context.Context, spec childSpec) error {
	for {
		ports, err := os.ReadFile(spec.portsFile())
		if err == nil && strings.HasSuffix(string(ports), "\n") {
			if _, err := fmt.Sscan(string(ports), &s.tcp, &s.http); err != nil {
				return fmt.Errorf("read the ports: %w", err)
			}
			break
		}
		// The prompt stays after a statement that failed, so its words have to be read.
		if said, err := os.ReadFile(spec.logFile()); err == nil && bytes.Contains(said, []byte("Received exception")) {
			return failure(spec, nil)
		}
		select {
		case <-s.done:
			return failure(spec, s.err)
		case <-ctx.Done():
			return fmt.Errorf("it was not ready in time: %w; see %s", ctx.Err(), spec.logFile())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return s.query(ctx, "CREATE DATABASE IF NOT EXISTS "+Database)
}

// query runs one statement over HTTP.
func (s *Server) query(ctx context.Context, sql string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/?database=default", s.http), strings.NewReader(sql))
	if err != nil {
		return err
	}
	req.SetBasicAuth(User, s.password)
	req.Close = true // an open connection would slow the server's end down
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", sql, res.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

// failure says why a child ended before it was ready.
func failure(spec childSpec, exit error) error {
	text := folder.LogTail(spec.logFile())
	switch {
	case strings.Contains(text, "Code: 76"): // not one of ours: that would have held the lock
		return fmt.Errorf("a ClickHouse works in %s; stop it first, or choose another folder", spec.Dir)
	case strings.Contains(text, "Address already in use"):
		return fmt.Errorf("%w: %d or %d on 127.0.0.1", ErrPortTaken, spec.TCPPort, spec.HTTPPort)
	}
	if exit == nil {
		exit = errors.New("it did not open its ports")
	}
	return fmt.Errorf("the child failed: %w: %s", exit, text)
}

// DSN is the address for clickhouse-go, native protocol, password included.
func (s *Server) DSN() string {
	u := url.URL{Scheme: "clickhouse", User: url.UserPassword(User, s.password), Host: fmt.Sprintf("127.0.0.1:%d", s.tcp), Path: "/" + Database}
	return u.String()
}

// HTTP is the address for HTTP clients, password included, without a path.
func (s *Server) HTTP() string {
	u := url.URL{Scheme: "http", User: url.UserPassword(User, s.password), Host: fmt.Sprintf("127.0.0.1:%d", s.http)}
	return u.String()
}

// Ports are those that the server listens on, for a restart on the same ones.
func (s *Server) Ports() (tcp, http int) { return s.tcp, s.http }

// Pid of the child.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Done is closed when the child has ended, for whatever reason.
func (s *Server) Done() <-chan struct{} { return s.done }

// Close ends the server in order and waits for it. Close clients before: an open connection delays the end by seconds. It may be called again.
func (s *Server) Close() error {
	_ = s.life.Close() // a second Close finds it closed
	select {
	case <-s.done:
		return nil // how a child ended that was killed before is Done's matter
	case <-time.After(s.timeout):
		err := s.cmd.Process.Kill()
		<-s.done
		return errors.Join(fmt.Errorf("clickhouse: did not end within %s and was killed; its data is safe", s.timeout), err)
	}
}

// DataDir is where the engine keeps its tables.
func DataDir(dir string) string { return filepath.Join(dir, "data") }
