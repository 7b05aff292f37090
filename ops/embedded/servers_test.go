package embedded_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	driver "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/embedded"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
)

// TestMain also is the engine's child, and the parent that a test kills.
func TestMain(m *testing.M) {
	clickhouse.MaybeChild()
	if len(os.Args) == 3 && os.Args[1] == "hold" {
		store, err := assets.Open(assets.Options{})
		if err == nil {
			var s *embedded.Servers
			if s, err = embedded.Start(context.Background(), all(os.Args[2]), store, slog.New(slog.DiscardHandler)); err == nil {
				err = json.NewEncoder(os.Stdout).Encode(s.Pids())
			}
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		select {} // until it is killed
	}
	os.Exit(m.Run())
}

func all(dir string) embedded.Config {
	return embedded.Config{Dir: dir, Broker: true, ClickHouse: true, Postgres: true, Partitions: 2, Retention: time.Hour}
}

func store(t *testing.T) *assets.Store {
	t.Helper()
	assets.ForTest(t, assets.ClickHouse)
	assets.ForTest(t, assets.Postgres)
	s, err := assets.Open(assets.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start(t *testing.T, c embedded.Config) *embedded.Servers {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := embedded.Start(ctx, c, store(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answers asks each server something, once.
func answers(ctx context.Context, s *embedded.Servers) error {
	o, err := driver.ParseDSN(s.ClickHouseDSN())
	if err != nil {
		return err
	}
	click, err := driver.Open(o)
	if err != nil {
		return err
	}
	clickErr := errors.Join(click.Ping(ctx), click.Close())
	post, err := pgx.Connect(ctx, s.PostgresDSN())
	if err == nil {
		err = errors.Join(post.Ping(ctx), post.Close(ctx))
	}
	kafka, kafkaErr := kgo.NewClient(kgo.SeedBrokers(s.Broker()))
	if kafkaErr == nil {
		kafkaErr = kafka.Ping(ctx)
		kafka.Close()
	}
	return errors.Join(clickErr, err, kafkaErr)
}

// Goal: all servers start together, a killed one comes back at the same address, a second process is told who has the folder, and a port that somebody
// took meanwhile is replaced at the next start. Method: real servers in one folder, SIGKILL, and a listener on a port that was theirs.
func TestSupervises(t *testing.T) {
	c := all(t.TempDir())
	s := start(t, c)
	if err := answers(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	var locked *folder.LockedError
	if _, err := embedded.Start(t.Context(), c, store(t), slog.New(slog.DiscardHandler)); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Errorf("second start on one folder: %v, want LockedError of %d", err, os.Getpid())
	}
	before := []string{s.ClickHouseDSN(), s.ClickHouseHTTP(), s.PostgresDSN()}
	pids := s.Pids()
	for name, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatalf("kill %s: %v", name, err)
		}
	}
	back := func() bool {
		now := s.Pids()
		return now["clickhouse"] != pids["clickhouse"] && now["postgres"] != pids["postgres"]
	}
	for range 600 {
		if back() {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err := answers(t.Context(), s); !back() || err != nil {
		t.Errorf("after the kills: back %t: %v", back(), err)
	}
	for i, now := range []string{s.ClickHouseDSN(), s.ClickHouseHTTP(), s.PostgresDSN()} {
		if now != before[i] {
			t.Errorf("%s became %s", before[i], now)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	u, err := url.Parse(before[0])
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s = start(t, c)
	if s.ClickHouseDSN() == before[0] || s.PostgresDSN() != before[2] {
		t.Errorf("after a port was taken: %s, %s; want another ClickHouse and the same PostgreSQL", s.ClickHouseDSN(), s.PostgresDSN())
	}
	if err := errors.Join(answers(t.Context(), s), s.Close()); err != nil {
		t.Error(err)
	}
}

// Goal: kill -9 of the process that runs everything leaves no orphan, and the next start has the folder. Method: a process of its own holds the servers.
func TestNoOrphans(t *testing.T) {
	store(t)
	dir := t.TempDir()
	parent := exec.CommandContext(t.Context(), os.Args[0], "hold", dir)
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
	var pids map[string]int
	if err := json.Unmarshal([]byte(line), &pids); err != nil || len(pids) != 2 {
		t.Fatalf("%s: %v", strings.TrimSpace(line), err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	s := start(t, all(dir)) // while the old servers are on their way out
	if err := errors.Join(answers(t.Context(), s), s.Close()); err != nil {
		t.Error(err)
	}
	for name, pid := range pids {
		if folder.Alive(pid) {
			t.Errorf("%s %d is an orphan", name, pid)
		}
	}
}

// Goal: what is not wanted is neither started nor fetched. Method: a store whose cache is empty and whose clients cannot be found; only the broker.
func TestOnlyWhatIsWanted(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	empty, err := assets.Open(assets.Options{Cache: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Broker: true, Partitions: 2}, empty, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Pids()); n != 0 {
		t.Errorf("%d servers that nobody wants", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
