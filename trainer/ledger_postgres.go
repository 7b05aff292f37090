package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// LedgerPostgres is the ledger in a migrated database (ops/migrations/postgres/0002_trainer.sql). An advisory lock on a connection of its own keeps other
// trainers of the tenant waiting; the epoch fences an owner that lost that connection and does not know it yet.
type LedgerPostgres struct {
	pool   *pgxpool.Pool
	tenant string
	epoch  int64
	lock   *pgxpool.Conn // holds the advisory lock; nil when not claimed
}

// NewLedgerPostgres returns the ledger of a tenant. The pool stays the caller's, and needs two connections for it.
func NewLedgerPostgres(pool *pgxpool.Pool, tenant string) (*LedgerPostgres, error) {
	if err := schemas.CheckTenant(tenant); err != nil {
		return nil, err
	}
	return &LedgerPostgres{pool: pool, tenant: tenant}, nil
}

var _ Ledger = (*LedgerPostgres)(nil)

// lockPoll is how often a waiting trainer looks whether the other one has ended.
const lockPoll = 250 * time.Millisecond

// releaseTimeout bounds the farewell to a database that does not answer.
const releaseTimeout = 5 * time.Second

// lockClass keeps the trainer's advisory locks apart from others in the database ("trai").
const lockClass = 0x74726169

// Claim implements Ledger.
func (l *LedgerPostgres) Claim(ctx context.Context) (*State, error) {
	if err := l.acquire(ctx); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	if _, err := l.pool.Exec(ctx, `INSERT INTO trainers (tenant) VALUES ($1) ON CONFLICT DO NOTHING`, l.tenant); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	s := &State{}
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `UPDATE trainers SET epoch = epoch + 1 WHERE tenant = $1 RETURNING epoch, low`, l.tenant).Scan(&l.epoch, &s.Low)
		if err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM updates WHERE tenant = $1`, l.tenant).Scan(&s.Updates); err != nil {
			return err
		}
		if s.Versions, err = l.versions(ctx, tx); err != nil {
			return err
		}
		if s.Open, err = l.open(ctx, tx, s.Low); err != nil {
			return err
		}
		s.Outbox, err = l.outbox(ctx, tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return s, nil
}

// acquire waits for the advisory lock, unless this ledger's connection still has it.
func (l *LedgerPostgres) acquire(ctx context.Context) error {
	if l.lock != nil {
		if err := l.lock.Ping(ctx); err == nil {
			return nil
		}
		l.lock.Release() // a broken connection leaves the pool, and with it the lock
		l.lock = nil
	}
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	for {
		var mine bool
		if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, hashtext($2))`, lockClass, l.tenant).Scan(&mine); err != nil {
			conn.Release()
			return err
		}
		if mine {
			l.lock = conn
			return nil
		}
		select {
		case <-ctx.Done():
			conn.Release()
			return ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

func (l *LedgerPostgres) versions(ctx context.Context, tx pgx.Tx) ([]Version, error) {
	rows, err := tx.Query(ctx, `SELECT version::text, checkpoint FROM updates WHERE tenant = $1 AND status = 'published' ORDER BY number`, l.tenant)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (v Version, err error) {
		var sum []byte
		err = row.Scan(&v.ID, &sum)
		copy(v.Checkpoint[:], sum)
		return v, err
	})
}

func (l *LedgerPostgres) open(ctx context.Context, tx pgx.Tx, low []int64) (*Begun, error) {
	var id string
	var at time.Time
	var payload []byte
	err := tx.QueryRow(ctx, `SELECT update_id::text, started_at, started FROM updates WHERE tenant = $1 AND status = 'started'`, l.tenant).Scan(&id, &at, &payload)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // none is open
	}
	if err != nil {
		return nil, err
	}
	started := &schemas.UpdateStarted{}
	if err := proto.Unmarshal(payload, started); err != nil {
		return nil, fmt.Errorf("the UpdateStarted of update %s: %w", id, err)
	}
	b := &Begun{Event: envelope(l.tenant, id, at, started), Low: slices.Clone(low)}
	rows, err := tx.Query(ctx, `SELECT sample_id::text, partition, log_offset FROM update_samples WHERE tenant = $1 AND number = $2 ORDER BY ordinal`, l.tenant, started.GetUpdate())
	if err != nil {
		return nil, err
	}
	b.Samples, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Used])
	return b, err
}

func (l *LedgerPostgres) outbox(ctx context.Context, tx pgx.Tx) ([]schemas.Event, error) {
	rows, err := tx.Query(ctx, `SELECT event_id::text, kind, time, payload FROM trainer_outbox WHERE tenant = $1 ORDER BY position`, l.tenant)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (schemas.Event, error) {
		var id, name string
		var at time.Time
		var payload []byte
		if err := row.Scan(&id, &name, &at, &payload); err != nil {
			return schemas.Event{}, err
		}
		kind, ok := schemas.KindByName(name)
		if !ok {
			return schemas.Event{}, fmt.Errorf("the outbox holds a %q, which this version does not know: run the version that wrote it, or a newer one", name)
		}
		p := kind.New()
		if err := proto.Unmarshal(payload, p); err != nil {
			return schemas.Event{}, fmt.Errorf("%s %s in the outbox: %w", name, id, err)
		}
		return envelope(l.tenant, id, at, p), nil
	})
}

// owned runs f in a transaction that fails when another owner has claimed. The row stays locked until the end, so that nobody claims within.
func (l *LedgerPostgres) owned(ctx context.Context, f func(pgx.Tx) error) error {
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		var epoch int64
		if err := tx.QueryRow(ctx, `SELECT epoch FROM trainers WHERE tenant = $1 FOR UPDATE`, l.tenant).Scan(&epoch); err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				return ErrFenced
			}
			return err
		}
		if l.epoch == 0 || epoch != l.epoch {
			return ErrFenced
		}
		return f(tx)
	})
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return nil
}

// Used implements Ledger.
func (l *LedgerPostgres) Used(ctx context.Context, ids []string) (map[string]bool, error) {
	used := map[string]bool{}
	err := l.owned(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT sample_id::text FROM update_samples WHERE tenant = $1 AND sample_id = ANY($2::uuid[])`, l.tenant, ids)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		for _, id := range found {
			used[id] = true
		}
		return err
	})
	return used, err
}

// Begin implements Ledger.
func (l *LedgerPostgres) Begin(ctx context.Context, b Begun) error {
	if err := b.check(); err != nil {
		return err
	}
	started := b.Started()
	payload, err := encode(started)
	if err != nil {
		return err
	}
	return l.owned(ctx, func(tx pgx.Tx) error {
		var updates uint64
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM updates WHERE tenant = $1`, l.tenant).Scan(&updates); err != nil {
			return err
		}
		if started.GetUpdate() != updates+1 {
			return fmt.Errorf("update %d cannot begin after update %d", started.GetUpdate(), updates)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO updates (tenant, number, update_id, parent, status, started, started_at) VALUES ($1, $2, $3, $4, 'started', $5, $6)`,
			l.tenant, started.GetUpdate(), b.Event.ID, started.GetParentVersion(), payload, b.Event.Time); err != nil {
			return err
		}
		rows := make([][]any, len(b.Samples))
		for i, s := range b.Samples {
			rows[i] = []any{l.tenant, s.SampleID, started.GetUpdate(), i, s.Partition, s.Offset}
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"update_samples"}, []string{"tenant", "sample_id", "number", "ordinal", "partition", "log_offset"}, pgx.CopyFromRows(rows)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE trainers SET low = $2 WHERE tenant = $1`, l.tenant, b.Low); err != nil {
			return err
		}
		return l.post(ctx, tx, b.Event, payload)
	})
}

// post puts an event into the outbox.
func (l *LedgerPostgres) post(ctx context.Context, tx pgx.Tx, e schemas.Event, payload []byte) error {
	_, err := tx.Exec(ctx, `INSERT INTO trainer_outbox (tenant, event_id, kind, time, payload) VALUES ($1, $2, $3, $4, $5)`, l.tenant, e.ID, e.Kind(), e.Time, payload)
	return err
}

func encode(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// Finish implements Ledger.
func (l *LedgerPostgres) Finish(ctx context.Context, f Finished) error {
	update, version, skipped, err := f.outcome()
	if err != nil {
		return err
	}
	payload, err := encode(f.Event.Payload)
	if err != nil {
		return err
	}
	return l.owned(ctx, func(tx pgx.Tx) error {
		const set = `UPDATE updates SET finished_at = now(), status = $3, reason = $4, version = $5, checkpoint = $6 WHERE tenant = $1 AND number = $2 AND status = 'started'`
		args := []any{l.tenant, update, "skipped", skipped, nil, nil}
		if version != nil {
			args = []any{l.tenant, update, "published", nil, version.ID, version.Checkpoint[:]}
		}
		tag, err := tx.Exec(ctx, set, args...)
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return fmt.Errorf("update %d is not open", update)
		}
		return l.post(ctx, tx, f.Event, payload)
	})
}

// Delivered implements Ledger.
func (l *LedgerPostgres) Delivered(ctx context.Context, eventID string) error {
	return l.owned(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM trainer_outbox WHERE tenant = $1 AND event_id = $2`, l.tenant, eventID)
		return err
	})
}

// Release implements Ledger.
func (l *LedgerPostgres) Release(ctx context.Context) error {
	l.epoch = 0
	if l.lock == nil {
		return nil
	}
	// The connection is closed, and with it goes the lock: unlocking it could fail and leave the lock in the pool.
	conn := l.lock.Hijack()
	l.lock = nil
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	return conn.Close(ctx)
}
