package migrations_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	chgo "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/embedded/postgres"
	"github.com/nextstate-rl/nextstate/ops/migrations"
)

func TestMain(m *testing.M) {
	clickhouse.MaybeChild()
	os.Exit(m.Run())
}

// Goal: ClickHouse is migrated by any number of processes at once, once, and a changed or newer schema is refused. Method: the real server, eight
// at once, then tampered records.
func TestClickHouse(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := clickhouse.Start(ctx, clickhouse.Config{Dir: filepath.Join(t.TempDir(), "data"), Lib: assets.ForTest(t, "clickhouse")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	o, err := chgo.ParseDSN(server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := chgo.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	var g errgroup.Group
	for range 8 {
		g.Go(func() error { return migrations.ClickHouse(ctx, conn) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := migrations.ClickHouse(ctx, conn); err != nil {
		t.Fatal(err)
	}
	for _, view := range []string{"turns", "sessions", "conversations", "rewards", "judge_agreement", "staleness", "feedback", "dead_letters", "freshness", "audit", "updates", "rewards_by_version", "teacher_gap", "evaluation_runs", "evaluation_first_replies", "evaluation_alignment"} {
		var n uint64
		if err := conn.QueryRow(ctx, "SELECT count() FROM (SELECT * FROM "+view+")").Scan(&n); err != nil {
			t.Errorf("view %s: %v", view, err)
		}
	}
	var without uint64
	if err := conn.QueryRow(ctx, "SELECT count() FROM system.tables WHERE database = currentDatabase() AND comment = ''").Scan(&without); err != nil || without != 0 {
		t.Errorf("%d tables or views have no comment, %v", without, err)
	}
	if err := conn.QueryRow(ctx, `SELECT count() FROM system.columns WHERE database = currentDatabase() AND table IN ('updates', 'rewards_by_version', 'teacher_gap', 'staleness', 'evaluation_runs', 'evaluation_first_replies', 'evaluation_alignment') AND comment = ''`).
		Scan(&without); err != nil || without != 0 {
		t.Errorf("%d columns of the views of training and evaluation have no comment, %v", without, err)
	}
	if err := conn.Exec(ctx, "INSERT INTO schema_migrations (version, name, checksum) SETTINGS async_insert = 0 VALUES (99, 'x', 'x')"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.ClickHouse(ctx, conn); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("a newer schema: %v", err)
	}
	if err := conn.Exec(ctx, "INSERT INTO schema_migrations (version, name, checksum) SETTINGS async_insert = 0 VALUES (1, 'x', 'x')"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.ClickHouse(ctx, conn); !errors.Is(err, migrations.ErrChanged) {
		t.Errorf("a changed migration: %v", err)
	}
}

// Goal and method as for ClickHouse.
func TestPostgres(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "migrations-test-") // not t.TempDir: Postgres runs as another user below it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see above
		t.Fatal(err)
	}
	server, err := postgres.Start(ctx, postgres.Config{Dir: filepath.Join(dir, "data"), Bin: assets.ForTest(t, "postgres")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	pool, err := pgxpool.New(ctx, server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var g errgroup.Group
	for range 4 {
		g.Go(func() error { return migrations.Postgres(ctx, pool) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "INSERT INTO tenants (name) VALUES ('acme')"); err != nil {
		t.Error(err)
	}
	if _, err := pool.Exec(ctx, "INSERT INTO schema_migrations (version, name, checksum) VALUES (99, 'x', 'x')"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Postgres(ctx, pool); !errors.Is(err, migrations.ErrNewer) {
		t.Errorf("a newer schema: %v", err)
	}
	if _, err := pool.Exec(ctx, "UPDATE schema_migrations SET checksum = 'x' WHERE version = 1"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Postgres(ctx, pool); !errors.Is(err, migrations.ErrChanged) {
		t.Errorf("a changed migration: %v", err)
	}
}
