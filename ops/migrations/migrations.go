package migrations

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed postgres/*.sql clickhouse/*.sql
var files embed.FS

// lockKey is the advisory lock under which one process at a time migrates Postgres ("nextstat" in ASCII).
const lockKey = 0x6e65787473746174

// Errors that an operator acts on.
var (
	// ErrNewer: a later version of the binary has migrated this database.
	ErrNewer = errors.New("the database is newer than this binary: start a binary of that version or later")
	// ErrChanged: an applied migration is not the one in this binary.
	ErrChanged = errors.New("an applied migration differs from the one in this binary: use the binary that applied it, or restore the file and add a new migration")
)

// migration is one numbered file.
type migration struct {
	version  int
	name     string
	sql      string
	checksum string
}

// Postgres applies what is missing, each file in a transaction, all under an advisory lock. Safe to call from many processes at once.
func Postgres(ctx context.Context, pool *pgxpool.Pool) error {
	all, err := load(files, "postgres")
	if err != nil {
		return err
	}
	return postgres(ctx, pool, all)
}

func postgres(ctx context.Context, pool *pgxpool.Pool, all []migration) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("migrate Postgres: %w", err)
	}
	defer conn.Release()
	// The transaction's lock ends with it, also when this process dies; so everything is one transaction.
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(lockKey)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS schema_migrations (
			version int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT version, checksum FROM schema_migrations")
		if err != nil {
			return err
		}
		applied := map[int]string{}
		var version int
		var checksum string
		if _, err := pgx.ForEachRow(rows, []any{&version, &checksum}, func() error {
			applied[version] = checksum
			return nil
		}); err != nil {
			return err
		}
		missing, err := plan(all, applied)
		if err != nil {
			return err
		}
		for _, m := range missing {
			if _, err := tx.Exec(ctx, m.sql); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			if _, err := tx.Exec(ctx, "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)",
				m.version, m.name, m.checksum); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("migrate Postgres: %w", err)
	}
	return nil
}

// ClickHouse applies what is missing in the connection's database. ClickHouse has no transactions: each statement is idempotent, and a
// file is recorded after its last statement, so that a crash in the middle is repaired by the next start. Two that start at once apply
// the same statements and both record them.
func ClickHouse(ctx context.Context, conn driver.Conn) error {
	all, err := load(files, "clickhouse")
	if err != nil {
		return err
	}
	return clickhouse(ctx, conn, all)
}

func clickhouse(ctx context.Context, conn driver.Conn, all []migration) error {
	if err := conn.Exec(ctx, `CREATE TABLE IF NOT EXISTS schema_migrations (version UInt32, name String, checksum String,
		applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')) ENGINE = MergeTree ORDER BY version COMMENT 'Migrations that were applied'`); err != nil {
		return fmt.Errorf("migrate ClickHouse: %w", err)
	}
	applied, err := appliedClickHouse(ctx, conn)
	if err != nil {
		return fmt.Errorf("migrate ClickHouse: %w", err)
	}
	missing, err := plan(all, applied)
	if err != nil {
		return fmt.Errorf("migrate ClickHouse: %w", err)
	}
	for _, m := range missing {
		for _, statement := range statements(m.sql) {
			if err := conn.Exec(ctx, statement); err != nil {
				return fmt.Errorf("migrate ClickHouse: %s: %w", m.name, err)
			}
		}
		if err := conn.Exec(ctx, "INSERT INTO schema_migrations (version, name, checksum) SETTINGS async_insert = 0 VALUES ($1, $2, $3)",
			m.version, m.name, m.checksum); err != nil {
			return fmt.Errorf("migrate ClickHouse: %s: %w", m.name, err)
		}
	}
	return nil
}

func appliedClickHouse(ctx context.Context, conn driver.Conn) (map[int]string, error) {
	rows, err := conn.Query(ctx, "SELECT DISTINCT version, checksum FROM schema_migrations")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	applied := map[int]string{}
	for rows.Next() {
		var version uint32
		var checksum string
		if err := rows.Scan(&version, &checksum); err != nil {
			return nil, err
		}
		if _, ok := applied[int(version)]; ok {
			checksum = "two different files" // two binaries have applied different files under one number: neither can be right
		}
		applied[int(version)] = checksum
	}
	return applied, rows.Err()
}

// plan returns the migrations that were not applied, in order.
func plan(all []migration, applied map[int]string) ([]migration, error) {
	newest := 0
	var missing []migration
	for _, m := range all {
		newest = m.version
		checksum, ok := applied[m.version]
		switch {
		case !ok:
			missing = append(missing, m)
		case checksum != m.checksum:
			return nil, fmt.Errorf("%s: %w", m.name, ErrChanged)
		}
	}
	for version := range applied {
		if version > newest {
			return nil, fmt.Errorf("schema version %d, this binary knows %d: %w", version, newest, ErrNewer)
		}
	}
	return missing, nil
}

// load reads the files of a folder; names sort by their number, from 1 without gaps.
func load(from fs.FS, folder string) ([]migration, error) {
	names, err := fs.Glob(from, path.Join(folder, "*.sql"))
	if err != nil {
		return nil, err
	}
	var all []migration
	for i, name := range names {
		b, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, err
		}
		number, _, _ := strings.Cut(path.Base(name), "_")
		if version, err := strconv.Atoi(number); err != nil || version != i+1 {
			return nil, fmt.Errorf("migration %s: number %04d was expected", name, i+1)
		}
		sum := sha256.Sum256(b)
		all = append(all, migration{version: i + 1, name: path.Base(name), sql: string(b), checksum: hex.EncodeToString(sum[:])})
	}
	return all, nil
}

// statements splits a ClickHouse file, which sends one statement at a time: each ends with a semicolon at the end of a line.
func statements(sql string) []string {
	var all []string
	for part := range strings.SplitSeq(sql, ";\n") {
		if s := strings.TrimSpace(part); s != "" {
			all = append(all, s)
		}
	}
	return all
}
