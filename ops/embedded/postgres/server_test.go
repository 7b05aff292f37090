package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
	"github.com/nextstate-rl/nextstate/ops/embedded/postgres"
)

// TestMain also is the parent that a test kills.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "hold" {
		s, err := postgres.Start(context.Background(), postgres.Config{Dir: os.Args[2], Bin: os.Args[3]}, slog.New(slog.DiscardHandler))
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

func start(t *testing.T, c postgres.Config) *postgres.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := postgres.Start(ctx, c, slog.New(slog.DiscardHandler))
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

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return c
}

func exec1(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func rows(t *testing.T, c *pgx.Conn) (n int) {
	t.Helper()
	if err := c.QueryRow(t.Context(), "SELECT count(*) FROM t").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Goal: the server serves, says what is wrong with a start, keeps strangers out, and survives every way of ending with its committed rows: an orderly
// one, SIGKILL of the postmaster, SIGKILL of the parent, SIGKILL of both. Method: one data folder (initdb takes seconds) taken through all of it.
func TestLife(t *testing.T) {
	bin, dir := assets.ForTest(t, assets.Postgres), t.TempDir()
	c := postgres.Config{Dir: dir, Bin: bin}
	s := start(t, c)
	conn := connect(t, s.DSN())
	exec1(t, conn, "CREATE TABLE t (n int)")
	exec1(t, conn, "INSERT INTO t VALUES (1)")
	var fsync, user string
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('fsync'), current_user").Scan(&fsync, &user); err != nil || fsync != "on" || user != postgres.User {
		t.Errorf("fsync %s, user %s: %v", fsync, user, err)
	}

	t.Run("strangers", func(t *testing.T) {
		for _, dsn := range []string{
			fmt.Sprintf("postgres://nextstate@127.0.0.1:%d/nextstate?sslmode=disable", s.Port()),
			fmt.Sprintf("postgres://nextstate:x@127.0.0.1:%d/nextstate?sslmode=disable", s.Port()),
			fmt.Sprintf("postgres://postgres:x@127.0.0.1:%d/postgres?sslmode=disable", s.Port()),
		} {
			if c, err := pgx.Connect(t.Context(), dsn); err == nil {
				t.Errorf("%s got in", dsn)
				_ = c.Close(t.Context())
			}
		}
		if info, err := os.Stat(filepath.Join(dir, "password")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("password: %v, mode %v", err, info.Mode())
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(status), "Uid:\t0") {
			t.Error("the server runs as root")
		}
	})
	t.Run("wrong starts", func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		if _, err := postgres.Start(t.Context(), c, log); !errors.As(err, new(*folder.LockedError)) {
			t.Errorf("second server on one folder: %v, want LockedError", err)
		}
		if _, err := postgres.Start(t.Context(), postgres.Config{Dir: t.TempDir(), Bin: t.TempDir()}, log); err == nil || !strings.Contains(err.Error(), "assets fetch") {
			t.Errorf("no binaries: %v, want the remedy", err)
		}
	})

	dsn := s.DSN()
	if err := s.Close(); err != nil { // with a client still connected
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.Port()))
	if err != nil {
		t.Fatal(err)
	}
	c.Port = s.Port()
	if _, err := postgres.Start(t.Context(), c, slog.New(slog.DiscardHandler)); !errors.Is(err, postgres.ErrPortTaken) {
		t.Errorf("taken port: %v, want ErrPortTaken", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s = start(t, c)
	if s.DSN() != dsn {
		t.Errorf("DSN %s became %s: port or password changed", dsn, s.DSN())
	}

	conn = connect(t, s.DSN())
	exec1(t, conn, "INSERT INTO t VALUES (2)")
	if err := syscall.Kill(s.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Close(); err != nil {
		t.Errorf("Close after the postmaster was killed: %v", err)
	}
	s = start(t, c)
	if n := rows(t, connect(t, s.DSN())); n != 2 {
		t.Errorf("%d rows after the postmaster was killed, want 2", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	for _, both := range []bool{false, true} {
		killParent(t, dir, bin, both)
		s = start(t, c)
		conn = connect(t, s.DSN())
		if n := rows(t, conn); n != 3 {
			t.Errorf("%d rows after the parent was killed (postmaster too: %t), want 3", n, both)
		}
		exec1(t, conn, "DELETE FROM t WHERE n = 3")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killParent has a parent of its own hold a server, commits a row, and kills the parent, and the postmaster as well when both is set.
func killParent(t *testing.T, dir, bin string, both bool) {
	t.Helper()
	parent := exec.CommandContext(t.Context(), os.Args[0], "hold", dir, bin)
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
	exec1(t, connect(t, dsn), "INSERT INTO t VALUES (3)")
	if both {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	for range 600 {
		if !folder.Alive(pid) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("postmaster %d is an orphan", pid)
}

// Goal: an initdb that was interrupted is not taken for a data folder. Method: kill the parent during it, look that the folder is not there, and start.
func TestInterruptedInitdb(t *testing.T) {
	bin, dir := assets.ForTest(t, assets.Postgres), t.TempDir()
	parent := exec.CommandContext(t.Context(), os.Args[0], "hold", dir, bin)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	for range 600 {
		if _, err := os.Stat(filepath.Join(dir, "data.new", "base")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	if _, err := os.Stat(filepath.Join(dir, "data")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("half a data folder carries the name: %v", err)
	}
	s := start(t, postgres.Config{Dir: dir, Bin: bin})
	exec1(t, connect(t, s.DSN()), "CREATE TABLE t (n int)")
}

// Goal: a user who is not root gets a server too. Method: as root, run this test binary's holder as nobody in a folder of nobody's, with the binaries
// where nobody finds them; not as root, TestLife shows it already.
func TestNotRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("not root: TestLife is this test")
		return
	}
	dir, err := os.MkdirTemp("", "nextstate-postgres-test-") // TempDir's parent is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, bin, data := filepath.Join(dir, "holder"), filepath.Join(dir, "bin"), filepath.Join(dir, "data")
	if err := os.CopyFS(bin, os.DirFS(assets.ForTest(t, assets.Postgres))); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(self, program, 0o755), os.Mkdir(data, 0o700), os.Chown(data, 65534, 65534), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	holder := exec.CommandContext(t.Context(), self, "hold", data, bin)
	holder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	holder.Dir = dir
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, dsn, _ := strings.Cut(strings.TrimSpace(line), " ")
	var user string
	if err := connect(t, dsn).QueryRow(t.Context(), "SELECT current_user").Scan(&user); err != nil || user != postgres.User {
		t.Errorf("%q: user %s: %v", line, user, err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	lock, err := folder.Lock(t.Context(), data, 30*time.Second)
	if err != nil {
		t.Fatalf("the server outlives its parent: %v", err)
	}
	_ = lock.Close()
}
