package clickhouse_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	driver "github.com/ClickHouse/clickhouse-go/v2"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
)

// TestMain also is the engine's child, and the parent that a test kills.
func TestMain(m *testing.M) {
	clickhouse.MaybeChild()
	if len(os.Args) == 4 && os.Args[1] == "hold" {
		s, err := clickhouse.Start(context.Background(), clickhouse.Config{Dir: os.Args[2], Lib: os.Args[3]}, slog.New(slog.DiscardHandler))
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(s.Pid(), s.DSN())
		<-s.Done()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func start(t *testing.T, c clickhouse.Config) *clickhouse.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := clickhouse.Start(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func open(t *testing.T, dsn string) driver.Conn {
	t.Helper()
	o, err := driver.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c, err := driver.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func count(t *testing.T, dsn, table string) (n uint64) {
	t.Helper()
	c := open(t, dsn)
	if err := c.QueryRow(t.Context(), "SELECT count() FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// get runs a query over HTTP with the given user and returns the status and the body.
func get(t *testing.T, base, user, password, sql string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base, strings.NewReader(sql))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(user, password)
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(body))
}

// Goal: the server is a ClickHouse that clients of both protocols use, that keeps its data and its password over an orderly restart, and that bounds its
// memory. Method: insert natively, read over HTTP, ask for too much memory, restart on the same ports, read again.
func TestServesAndKeeps(t *testing.T) {
	c := clickhouse.Config{Dir: t.TempDir(), Lib: assets.ForTest(t, assets.ClickHouse), MemoryBytes: 1 << 30}
	s := start(t, c)
	conn := open(t, s.DSN())
	if err := conn.Exec(t.Context(), "CREATE TABLE t (n UInt64) ENGINE = MergeTree ORDER BY n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Exec(t.Context(), "INSERT INTO t SELECT number FROM numbers(100000)"); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(s.HTTP())
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	base := "http://" + u.Host
	if status, body := get(t, base, clickhouse.User, password, "SELECT sum(n) FROM nextstate.t"); status != 200 || body != "4999950000" {
		t.Errorf("over HTTP: %d %s", status, body)
	}
	if status, body := get(t, base, clickhouse.User, password, "SELECT groupArray(toString(number)) FROM numbers(100000000) FORMAT Null"); status == 200 || !strings.Contains(body, "MEMORY_LIMIT_EXCEEDED") {
		t.Errorf("a query beyond the memory bound: %d %s", status, body)
	}
	dsn := s.DSN()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The prompt's line editor sets the mode of its history file: never that of a device.
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%s: %v, mode %v", os.DevNull, err, info.Mode())
	}
	c.TCPPort, c.HTTPPort = s.Ports()
	again := start(t, c)
	if again.DSN() != dsn {
		t.Errorf("DSN %s became %s: ports or password changed", dsn, again.DSN())
	}
	if n := count(t, again.DSN(), "t"); n != 100000 {
		t.Errorf("%d rows after a restart", n)
	}
}

// Goal: nobody enters without the password. Method: try no password, a wrong one, and the engine's own user, over both protocols; look at the modes of the
// files that tell it, and at the child's arguments, which everybody on the machine can read.
func TestRefusesStrangers(t *testing.T) {
	dir := t.TempDir()
	s := start(t, clickhouse.Config{Dir: dir, Lib: assets.ForTest(t, assets.ClickHouse)})
	u, err := url.Parse(s.HTTP())
	if err != nil {
		t.Fatal(err)
	}
	tcp, _ := s.Ports()
	for _, who := range []struct{ user, password string }{{"default", ""}, {"default", "x"}, {clickhouse.User, ""}, {clickhouse.User, "x"}} {
		if status, body := get(t, "http://"+u.Host, who.user, who.password, "SELECT 1"); status == 200 {
			t.Errorf("HTTP let %v in: %s", who, body)
		}
		c := open(t, fmt.Sprintf("clickhouse://%s:%s@127.0.0.1:%d/default", who.user, who.password, tcp))
		if err := c.Ping(t.Context()); err == nil {
			t.Errorf("native let %v in", who)
		}
	}
	for _, f := range []string{"password", "users.xml", "config.xml"} {
		if info, err := os.Stat(filepath.Join(dir, f)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, mode %v", f, err, info.Mode())
		}
	}
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	if password, _ := u.User.Password(); len(password) < 20 || strings.Contains(string(args), password) {
		t.Errorf("the password %q is short, or in the child's arguments %q", password, args)
	}
}

// Goal: what can go wrong at the start is said in words that help. Method: a second server on the folder, a taken port, a missing library.
func TestStartSaysWhatIsWrong(t *testing.T) {
	lib := assets.ForTest(t, assets.ClickHouse)
	dir := t.TempDir()
	start(t, clickhouse.Config{Dir: dir, Lib: lib})
	log := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := clickhouse.Start(ctx, clickhouse.Config{Dir: dir, Lib: lib}, log); !errors.As(err, new(*folder.LockedError)) {
		t.Errorf("second server on one folder: %v, want LockedError", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	if _, err := clickhouse.Start(ctx, clickhouse.Config{Dir: t.TempDir(), Lib: lib, TCPPort: taken}, log); !errors.Is(err, clickhouse.ErrPortTaken) {
		t.Errorf("taken port: %v, want ErrPortTaken", err)
	}
	if _, err := clickhouse.Start(ctx, clickhouse.Config{Dir: t.TempDir(), Lib: t.TempDir()}, log); err == nil || !strings.Contains(err.Error(), "assets fetch") {
		t.Errorf("missing library: %v, want the remedy", err)
	}
}

// Goal: kill -9 of the parent leaves no orphan, loses no acknowledged row, and the next start works; kill -9 of the engine is seen by Done, and the
// next start works as well. Method: a parent of its own holds a server; rows are inserted from here, then it is killed in the middle of work.
func TestKill(t *testing.T) {
	lib, dir := assets.ForTest(t, assets.ClickHouse), t.TempDir()
	parent := exec.CommandContext(t.Context(), os.Args[0], "hold", dir, lib)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pidText, dsn, _ := strings.Cut(strings.TrimSpace(line), " ")
	pid, err := strconv.Atoi(pidText)
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	conn := open(t, dsn)
	if err := conn.Exec(t.Context(), "CREATE TABLE t (n UInt64) ENGINE = MergeTree ORDER BY n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Exec(t.Context(), "INSERT INTO t SELECT number FROM numbers(1000)"); err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	waitGone(t, pid)

	s := start(t, clickhouse.Config{Dir: dir, Lib: lib})
	if n := count(t, s.DSN(), "t"); n != 1000 {
		t.Errorf("%d rows after the parent was killed, want 1000", n)
	}
	conn = open(t, s.DSN())
	if err := conn.Exec(t.Context(), "INSERT INTO t SELECT number FROM numbers(1000)"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(s.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	case <-t.Context().Done():
		t.Fatal("Done is open although the engine was killed")
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close after the engine was killed: %v", err)
	}
	again := start(t, clickhouse.Config{Dir: dir, Lib: lib})
	if n := count(t, again.DSN(), "t"); n != 2000 {
		t.Errorf("%d rows after the engine was killed, want 2000", n)
	}
}

// waitGone waits until the process has ended. A zombie that nobody has reaped yet has ended.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for range 600 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return
		}
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "Z") {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("process %d is an orphan", pid)
}

// Goal: a parent that ends before the engine is up leaves no orphan either. Method: kill it at several moments of the start, then look for children.
func TestKillDuringStart(t *testing.T) {
	lib := assets.ForTest(t, assets.ClickHouse)
	for _, after := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond} {
		dir := t.TempDir()
		parent := exec.CommandContext(t.Context(), os.Args[0], "hold", dir, lib)
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		if err := parent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = parent.Wait()
		for _, pid := range processesWith(t, dir) {
			waitGone(t, pid)
		}
	}
}

func processesWith(t *testing.T, argument string) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if args, err := os.ReadFile(filepath.Join(d, "cmdline")); err == nil && strings.Contains(string(args), argument) {
			pid, err := strconv.Atoi(filepath.Base(d))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}
