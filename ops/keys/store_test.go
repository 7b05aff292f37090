package keys_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/embedded/postgres"
	"github.com/nextstate-rl/nextstate/ops/keys"
	"github.com/nextstate-rl/nextstate/ops/migrations"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// database returns a migrated database on a real Postgres of the test's own.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	server, err := postgres.Start(t.Context(), postgres.Config{Dir: t.TempDir(), Bin: assets.ForTest(t, "postgres")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.New(t.Context(), server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := migrations.Postgres(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

func open(t *testing.T, pool *pgxpool.Pool, cfg keys.Config) *keys.Store {
	t.Helper()
	s, err := keys.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStore shows the life of keys on a real Postgres. One server serves all parts, which use tenants of their own.
func TestStore(t *testing.T) {
	pool := database(t)
	t.Run("life", func(t *testing.T) { testLife(t, pool) })
	t.Run("refused", func(t *testing.T) { testRefused(t, pool) })
	t.Run("cache", func(t *testing.T) { testCache(t, pool) })
	t.Run("hashed", func(t *testing.T) { testHashed(t, pool) })
	t.Run("concurrent", func(t *testing.T) { testConcurrent(t, pool) })
	t.Run("away", func(t *testing.T) { testAway(t, pool) })
}

// testLife shows that a key opens its tenant from its creation to its revocation and is listed all along. Method: two tenants.
func testLife(t *testing.T, pool *pgxpool.Pool) {
	s := open(t, pool, keys.Config{})
	for _, tenant := range []string{"acme", "zebra", "acme"} { // twice is no error
		if err := s.AddTenant(t.Context(), tenant); err != nil {
			t.Fatal(err)
		}
	}
	tenants, err := s.Tenants(t.Context())
	if err != nil || len(tenants) != 2 || tenants[0].Name != "acme" || tenants[0].CreatedAt.IsZero() {
		t.Fatalf("%+v %v", tenants, err)
	}
	key, secret, err := s.Create(t.Context(), "acme", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	other, otherSecret, err := s.Create(t.Context(), "zebra", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(secret, "nsk_") || !strings.HasPrefix(secret, key.Prefix) || len(secret) < 40 || secret == otherSecret {
		t.Errorf("secret %q, prefix %q", secret, key.Prefix)
	}
	for secret, want := range map[string]string{secret: "acme", otherSecret: "zebra"} {
		for range 2 { // from Postgres, then from the cache
			if got, err := s.Tenant(t.Context(), secret); err != nil || got != want {
				t.Errorf("tenant %q %v, want %q", got, err, want)
			}
		}
	}
	for range 2 {
		if err := s.Revoke(t.Context(), key.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Tenant(t.Context(), secret); !errors.Is(err, gateway.ErrUnknownKey) {
		t.Errorf("revoked: %v", err)
	}
	list, err := s.List(t.Context(), "acme")
	if err != nil || len(list) != 1 || list[0].ID != key.ID || list[0].RevokedAt == nil || list[0].LastUsedAt == nil || list[0].Name != "laptop" {
		t.Errorf("%+v %v", list, err)
	}
	list, err = s.List(t.Context(), "")
	if err != nil || len(list) != 2 || list[1].ID != other.ID || list[1].RevokedAt != nil {
		t.Errorf("%+v %v", list, err)
	}
}

// testRefused shows what each bad order is told.
func testRefused(t *testing.T, pool *pgxpool.Pool) {
	s := open(t, pool, keys.Config{})
	if _, _, err := s.Create(t.Context(), "nobody", "x"); !errors.Is(err, keys.ErrNoTenant) {
		t.Errorf("no tenant: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("x", 101), "\xff", "a\x00b"} {
		if _, _, err := s.Create(t.Context(), "acme", name); err == nil || !strings.Contains(err.Error(), "name") {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if err := s.AddTenant(t.Context(), "Not Allowed"); err == nil {
		t.Error("a bad tenant was added")
	}
	for _, id := range []string{"7", schemas.NewID()} {
		if err := s.Revoke(t.Context(), id); !errors.Is(err, keys.ErrNoKey) {
			t.Errorf("revoke %s: %v", id, err)
		}
	}
	for _, secret := range []string{"", "nsk_", "nsk_" + strings.Repeat("A", 43), strings.Repeat("x", 1000), "nsk_" + strings.Repeat("\x00", 43)} {
		if _, err := s.Tenant(t.Context(), secret); !errors.Is(err, gateway.ErrUnknownKey) {
			t.Errorf("secret %.20q: %v", secret, err)
		}
	}
	if _, err := keys.New(pool, keys.Config{CacheFor: -1}); err == nil || !strings.Contains(err.Error(), "cache_for") {
		t.Errorf("config: %v", err)
	}
}

// testCache shows that a revocation by another process takes effect when the cached key has aged, and that more keys than the cache
// holds all work. Method: two stores on one database, one of which forgets at once and holds three keys.
func testCache(t *testing.T, pool *pgxpool.Pool) {
	trusting, forgetful := open(t, pool, keys.Config{CacheFor: time.Hour}), open(t, pool, keys.Config{CacheFor: 1, CacheKeys: 3})
	key, secret, err := trusting.Create(t.Context(), "acme", "cached")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*keys.Store{trusting, forgetful} {
		if _, err := s.Tenant(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pool.Exec(t.Context(), `UPDATE api_keys SET revoked_at = now() WHERE id = $1`, key.ID); err != nil {
		t.Fatal(err)
	}
	if tenant, err := trusting.Tenant(t.Context(), secret); err != nil || tenant != "acme" {
		t.Errorf("a trusted key must be answered without asking: %q %v", tenant, err)
	}
	if _, err := forgetful.Tenant(t.Context(), secret); !errors.Is(err, gateway.ErrUnknownKey) {
		t.Errorf("an aged key must be asked for again: %v", err)
	}
	full := open(t, pool, keys.Config{CacheFor: time.Hour, CacheKeys: 3})
	for i := range 8 {
		_, secret, err := full.Create(t.Context(), "acme", fmt.Sprint("key ", i))
		if err != nil {
			t.Fatal(err)
		}
		if tenant, err := full.Tenant(t.Context(), secret); err != nil || tenant != "acme" {
			t.Errorf("key %d: %q %v", i, tenant, err)
		}
	}
}

// testHashed shows that the database holds no secret. Method: the whole row as text.
func testHashed(t *testing.T, pool *pgxpool.Pool) {
	key, secret, err := open(t, pool, keys.Config{}).Create(t.Context(), "acme", "hashed")
	if err != nil {
		t.Fatal(err)
	}
	var row string
	if err := pool.QueryRow(t.Context(), `SELECT k::text FROM api_keys k WHERE id = $1`, key.ID).Scan(&row); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(row, key.Prefix) || strings.Contains(row, secret[len(key.Prefix):]) {
		t.Errorf("row %s", row)
	}
}

// testConcurrent shows that a store is safe for concurrent use; the race detector watches.
func testConcurrent(t *testing.T, pool *pgxpool.Pool) {
	s := open(t, pool, keys.Config{CacheFor: time.Millisecond, CacheKeys: 2})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			key, secret, err := s.Create(t.Context(), "acme", fmt.Sprint("worker ", i))
			if err != nil {
				t.Error(err)
				return
			}
			for range 50 {
				if tenant, err := s.Tenant(t.Context(), secret); err != nil || tenant != "acme" {
					t.Errorf("%q %v", tenant, err)
				}
			}
			if err := s.Revoke(t.Context(), key.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// testAway shows that a store which cannot be asked is no unknown key: the gateway must answer 503, not 401.
func testAway(t *testing.T, pool *pgxpool.Pool) {
	s := open(t, pool, keys.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Tenant(ctx, "nsk_"+strings.Repeat("A", 43)); err == nil || errors.Is(err, gateway.ErrUnknownKey) {
		t.Errorf("away: %v", err)
	}
}
