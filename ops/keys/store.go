package keys

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Errors that callers act on.
var (
	// ErrNoTenant: a key is wanted for a tenant that does not exist.
	ErrNoTenant = errors.New("the tenant does not exist: create it first")
	// ErrNoKey: no key has this id.
	ErrNoKey = errors.New("no API key has this id: list them to see which exist")
)

// Config of a Store. The zero value of a field means its default.
type Config struct {
	// CacheFor is how long a key that was found is trusted without asking Postgres: the time until a revocation elsewhere takes effect.
	// Default 15 s.
	CacheFor time.Duration `json:"cache_for"`
	// CacheKeys bounds the keys in memory. Default 10,000.
	CacheKeys int `json:"cache_keys"`
}

// Validate reports the first setting that cannot work, and what to do about it.
func (c Config) Validate() error {
	if c.CacheFor < 0 || c.CacheFor > time.Hour || c.CacheKeys < 0 {
		return errors.New("keys: cache_for must be 0 to 1h and cache_keys not negative")
	}
	return nil
}

// Key is what is known of an API key, its secret aside.
type Key struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant"`
	Name   string `json:"name"`
	// Prefix is the beginning of the secret, so that people can tell their keys apart.
	Prefix     string     `json:"prefix"`
	CreatedAt  time.Time  `json:"created_at"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
}

// Tenant owns sessions and keys.
type Tenant struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
}

// Store is the keys in Postgres. Safe for concurrent use.
type Store struct {
	cfg  Config
	pool *pgxpool.Pool

	mu    sync.Mutex
	cache map[[sha256.Size]byte]cached
}

type cached struct {
	id, tenant string
	until      time.Time
}

var _ gateway.Keys = (*Store)(nil)

// New returns the store of a migrated database. The pool stays the caller's.
func New(pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.CacheFor == 0 {
		cfg.CacheFor = 15 * time.Second
	}
	if cfg.CacheKeys == 0 {
		cfg.CacheKeys = 10_000
	}
	return &Store{cfg: cfg, pool: pool, cache: map[[sha256.Size]byte]cached{}}, nil
}

// AddTenant creates a tenant; one that exists already is no error.
func (s *Store) AddTenant(ctx context.Context, name string) error {
	if err := schemas.CheckTenant(name); err != nil {
		return err
	}
	if _, err := s.pool.Exec(ctx, `INSERT INTO tenants (name) VALUES ($1) ON CONFLICT DO NOTHING`, name); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	return nil
}

// Tenants lists all tenants by name.
func (s *Store) Tenants(ctx context.Context) ([]Tenant, error) {
	rows, err := s.pool.Query(ctx, `SELECT name, created_at FROM tenants ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	tenants, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Tenant])
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	return tenants, nil
}

// secretPrefix begins every key, so that people and secret scanners recognise one.
const secretPrefix = "nsk_"

// Create makes a key of an existing tenant. The secret is returned here and never again.
func (s *Store) Create(ctx context.Context, tenant, name string) (k Key, secret string, err error) {
	if name == "" || utf8.RuneCountInString(name) > 100 || !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		return Key{}, "", errors.New("keys: name: 1 to 100 characters are needed, to tell the key apart")
	}
	var random [32]byte
	if _, err := rand.Read(random[:]); err != nil {
		return Key{}, "", fmt.Errorf("keys: %w", err)
	}
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	hash := sha256.Sum256([]byte(secret))
	k = Key{ID: uuid.NewString(), Tenant: tenant, Name: name, Prefix: secret[:len(secretPrefix)+6]}
	err = s.pool.QueryRow(ctx,
		`INSERT INTO api_keys (id, tenant, name, prefix, secret_hash) VALUES ($1, $2, $3, $4, $5) RETURNING created_at`,
		k.ID, k.Tenant, k.Name, k.Prefix, hash[:]).Scan(&k.CreatedAt)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23503" { // foreign key
		return Key{}, "", fmt.Errorf("keys: tenant %q: %w", tenant, ErrNoTenant)
	}
	if err != nil {
		return Key{}, "", fmt.Errorf("keys: %w", err)
	}
	return k, secret, nil
}

// List returns a tenant's keys, revoked ones too, oldest first; "" lists every tenant's.
func (s *Store) List(ctx context.Context, tenant string) ([]Key, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT id::text, tenant, name, prefix, created_at, revoked_at, last_used_at
		FROM api_keys WHERE $1 = '' OR tenant = $1 ORDER BY tenant, created_at, id`, tenant)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Key])
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	return keys, nil
}

// Revoke ends a key; one that was revoked before keeps its time.
func (s *Store) Revoke(ctx context.Context, id string) error {
	if uuid.Validate(id) != nil {
		return fmt.Errorf("keys: %.60q: %w", id, ErrNoKey)
	}
	tag, err := s.pool.Exec(ctx, `UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1`, id)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("keys: %s: %w", id, ErrNoKey)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash, c := range s.cache {
		if c.id == id {
			delete(s.cache, hash)
		}
	}
	return nil
}

// Tenant returns the tenant that a secret opens, or an error that is gateway.ErrUnknownKey. It implements gateway.Keys.
func (s *Store) Tenant(ctx context.Context, secret string) (string, error) {
	if !strings.HasPrefix(secret, secretPrefix) || len(secret) != len(secretPrefix)+base64.RawURLEncoding.EncodedLen(32) {
		return "", gateway.ErrUnknownKey
	}
	hash := sha256.Sum256([]byte(secret))
	now := time.Now()
	s.mu.Lock()
	c, ok := s.cache[hash]
	s.mu.Unlock()
	if ok && now.Before(c.until) {
		return c.tenant, nil
	}
	var stored []byte
	// The index finds the row by the hash of a secret that the caller must know whole, so its timing tells nothing about the secret.
	err := s.pool.QueryRow(ctx, `
		UPDATE api_keys SET last_used_at = now() WHERE secret_hash = $1 AND revoked_at IS NULL
		RETURNING id::text, tenant, secret_hash`, hash[:]).Scan(&c.id, &c.tenant, &stored)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", gateway.ErrUnknownKey
	}
	if err != nil {
		return "", fmt.Errorf("keys: %w", err)
	}
	if subtle.ConstantTimeCompare(stored, hash[:]) != 1 {
		return "", gateway.ErrUnknownKey
	}
	// The time before the query counts: a key revoked while the query ran must not live longer than CacheFor.
	c.until = now.Add(s.cfg.CacheFor)
	s.remember(hash, c, now)
	return c.tenant, nil
}

// remember caches a key. When the cache is full it first drops what is stale, and then everything: asking again is cheap.
func (s *Store) remember(hash [sha256.Size]byte, c cached, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cache) >= s.cfg.CacheKeys {
		for h, old := range s.cache {
			if !now.Before(old.until) {
				delete(s.cache, h)
			}
		}
		if len(s.cache) >= s.cfg.CacheKeys {
			clear(s.cache)
		}
	}
	s.cache[hash] = c
}
