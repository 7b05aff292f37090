package clickhouse_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nextstate-rl/nextstate/ops/assets"
	embedded "github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/embedded/postgres"
	"github.com/nextstate-rl/nextstate/ops/migrations"
	"github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// servers are the real ClickHouse and Postgres that all tests of the package share, each test in databases of its own. the first test starts them.
var servers struct {
	mu                   sync.Mutex
	clickhouse, postgres string // DSN
	stop                 []func() error
	pid                  int // of ClickHouse
	databases            atomic.Int64
}

// TestMain is the engine's child as well. It stops the servers that the first test started.
func TestMain(m *testing.M) {
	embedded.MaybeChild()
	code := m.Run()
	for _, stop := range servers.stop {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// shared starts the servers for the first test that needs them.
func shared(t testing.TB) {
	t.Helper()
	servers.mu.Lock()
	defer servers.mu.Unlock()
	if servers.clickhouse != "" {
		return
	}
	dir, err := os.MkdirTemp("", "sink-test-") // not t.TempDir: the servers outlive the test
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // Postgres runs as another user below it
		t.Fatal(err)
	}
	ch := startClickHouse(t, embedded.Config{Dir: filepath.Join(dir, "clickhouse")})
	pg := startPostgres(t, postgres.Config{Dir: filepath.Join(dir, "postgres")})
	servers.pid = ch.Pid()
	servers.clickhouse, servers.postgres = ch.DSN(), pg.DSN()
	servers.stop = []func() error{ch.Close, pg.Close, func() error { return os.RemoveAll(dir) }}
}

// stores are the two stores of one test.
type stores struct {
	conn driver.Conn
	pool *pgxpool.Pool
	// dsn of the same ClickHouse database, for further connections.
	dsn string
}

// open gives a test its own databases, with the schema of ops/migrations.
func open(t testing.TB) stores {
	t.Helper()
	ctx := t.Context()
	shared(t)
	name := fmt.Sprintf("t%d", servers.databases.Add(1))
	root := connect(t, servers.clickhouse)
	if err := root.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	rootPool := connectPostgres(t, servers.postgres)
	if _, err := rootPool.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	dsn := database(servers.clickhouse, name)
	s := stores{conn: connect(t, dsn), pool: connectPostgres(t, database(servers.postgres, name)), dsn: dsn}
	migrate(t, s)
	return s
}

func migrate(t testing.TB, s stores) {
	t.Helper()
	if err := migrations.ClickHouse(t.Context(), s.conn); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Postgres(t.Context(), s.pool); err != nil {
		t.Fatal(err)
	}
}

// database puts another database into a DSN.
func database(dsn, name string) string {
	head, tail, _ := strings.Cut(dsn, "?")
	scheme, rest, _ := strings.Cut(head, "://")
	host, _, _ := strings.Cut(rest, "/")
	if tail != "" {
		name += "?" + tail
	}
	return scheme + "://" + host + "/" + name
}

func connect(t testing.TB, dsn string) driver.Conn {
	t.Helper()
	conn, err := clickhouse.Open(dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func connectPostgres(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func startClickHouse(t testing.TB, c embedded.Config) *embedded.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c.Lib = assets.ForTest(t, "clickhouse")
	s, err := embedded.Start(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startPostgres(t testing.TB, c postgres.Config) *postgres.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c.Bin = assets.ForTest(t, "postgres")
	s, err := postgres.Start(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// one reads a single number.
func one(t *testing.T, conn driver.Conn, sql string, args ...any) uint64 {
	t.Helper()
	var n uint64
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
