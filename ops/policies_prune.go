package ops

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/producers/blobs"
	"github.com/nextstate-rl/nextstate/schemas"
)

// PrunedVersion is a version whose weights go; its events stay.
type PrunedVersion struct {
	Version   string    `json:"version"`
	Update    uint64    `json:"update"`
	Published time.Time `json:"published"`
	// Bytes that it frees: those of its files that no other version has.
	Bytes int64 `json:"bytes"`
}

// KeptVersion is a version whose weights stay.
type KeptVersion struct {
	Version string `json:"version"`
	Update  uint64 `json:"update"`
	// Why it stays.
	Why string `json:"why"`
}

// Pruning is what pruning deletes and keeps of a tenant's versions, oldest first. Versions that were pruned before are in neither.
type Pruning struct {
	Pruned []PrunedVersion `json:"pruned"`
	Kept   []KeptVersion   `json:"kept"`
	Bytes  int64           `json:"bytes"`

	files [][32]byte
}

// PlanPruning says what PrunePolicies would do now.
func PlanPruning(ctx context.Context, s *System, store *blobs.Directory, keep int) (*Pruning, error) {
	return s.planPruning(ctx, s.Postgres, store, keep)
}

// querier is Postgres, or a transaction of it.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func (s *System) planPruning(ctx context.Context, db querier, store *blobs.Directory, keep int) (*Pruning, error) {
	if keep < 1 {
		return nil, fmt.Errorf("%d versions cannot be kept: the trainer needs the newest; keep 1 or more", keep)
	}
	all, err := readEveryTenant(ctx, s)
	if err != nil {
		return nil, err
	}
	mine := all[s.Config.Tenant]
	if mine == nil {
		mine = NewPolicies(s.Config.Tenant)
	}
	why, err := s.reasonsToKeep(ctx, db, mine, keep)
	if err != nil {
		return nil, err
	}
	needed := map[[32]byte]bool{}
	for tenant, p := range all {
		for _, v := range p.All() {
			if tenant != s.Config.Tenant || why[v.Version] != "" {
				for _, sum := range v.files() {
					needed[sum] = true
				}
			}
		}
	}
	out := &Pruning{Pruned: []PrunedVersion{}, Kept: []KeptVersion{}}
	for _, v := range mine.All() {
		if why[v.Version] != "" {
			out.Kept = append(out.Kept, KeptVersion{v.Version, v.Update, why[v.Version]})
			continue
		}
		if err := out.prune(ctx, store, v, needed); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// prune adds what is there of a version's files and needed by no other.
func (p *Pruning) prune(ctx context.Context, store *blobs.Directory, v *PolicyVersion, needed map[[32]byte]bool) error {
	gone := PrunedVersion{Version: v.Version, Update: v.Update, Published: v.Published}
	found := false
	for _, sum := range v.files() {
		if needed[sum] {
			continue
		}
		size, err := store.Size(ctx, sum)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		needed[sum], found = true, true // of two versions that go and share it, the first frees it
		gone.Bytes += size
		p.files = append(p.files, sum)
	}
	if found {
		p.Pruned = append(p.Pruned, gone)
		p.Bytes += gone.Bytes
	}
	return nil
}

// PrunePolicies deletes the weights of a tenant's old versions from the blob store: of all but the newest keep, the one that is to be served, which the trainer goes on
// from, the pinned one, those that an operator went back to or had computed again, and the one that an update under way starts from. A file that a version of any
// tenant still needs stays. Doing it again, or after a crash in the middle, does what is left to do. Pins and rollbacks wait meanwhile, and see the result.
func PrunePolicies(ctx context.Context, s *System, store *blobs.Directory, keep int) (out *Pruning, err error) {
	err = s.lockPolicies(ctx, func(tx pgx.Tx) error {
		if out, err = s.planPruning(ctx, tx, store, keep); err != nil {
			return err
		}
		for _, sum := range out.files {
			if err := store.Delete(ctx, sum); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

// lockPolicies keeps pruning, pinning, rolling back and putting weights back apart, in all processes.
func (s *System) lockPolicies(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.Postgres, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('nextstate policy weights', 0))"); err != nil {
			return fmt.Errorf("the lock of the policy's weights: %w", err)
		}
		return do(tx)
	})
}

// reasonsToKeep are those of the versions that stay, by id.
func (s *System) reasonsToKeep(ctx context.Context, db querier, p *Policies, keep int) (map[string]string, error) {
	why := map[string]string{}
	for id := range p.restored {
		why[id] = "it was rolled back to"
	}
	for _, q := range []struct{ sql, reason string }{
		{"SELECT version FROM policy_keeps WHERE tenant = $1", "it was computed again and stored"},
		{"SELECT parent FROM updates WHERE tenant = $1 AND status = 'started'", "an update starts from it"},
		{"SELECT version FROM policy_pins WHERE tenant = $1", "it is pinned"},
		{"SELECT from_version FROM rehearsals WHERE tenant = $1", "a rehearsal began with it"},
		{"SELECT good_version FROM rehearsals WHERE tenant = $1", "a rehearsal may go back to it"},
	} {
		rows, err := db.Query(ctx, q.sql, s.Config.Tenant)
		if err != nil {
			return nil, fmt.Errorf("the versions that are in use: %w", err)
		}
		versions, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("the versions that are in use: %w", err)
		}
		for _, version := range versions {
			why[version] = q.reason
		}
	}
	for _, id := range p.published[max(0, len(p.published)-keep):] {
		why[id] = "it is one of the newest"
	}
	why[p.Serve()[0]] = "it is the one to be served"
	return why, nil
}

// readEveryTenant is ReadPolicies for all tenants: they share the blob store.
func readEveryTenant(ctx context.Context, s *System) (map[string]*Policies, error) {
	all := map[string]*Policies{}
	err := eachPolicyRecord(ctx, s, func(r schemas.Record) error {
		e, err := schemas.Decode(r)
		if err != nil {
			return nil //nolint:nilerr // no event of ours: it is in the dead letters
		}
		if all[e.Tenant] == nil {
			all[e.Tenant] = NewPolicies(e.Tenant)
		}
		all[e.Tenant].Apply(e)
		return nil
	})
	return all, err
}

// files are the hashes of the version's files. The one that serving needs goes last: a crash between two deletions leaves it.
func (v *PolicyVersion) files() (sums [][32]byte) {
	for _, hash := range []string{v.Checkpoint, v.PEFT, v.GGUF} {
		var sum [32]byte
		if n, err := hex.Decode(sum[:], []byte(hash)); err == nil && n == len(sum) {
			sums = append(sums, sum)
		}
	}
	return sums
}

// Stored says whether the blob store has the weights, or whether they were pruned.
func (v *PolicyVersion) Stored(ctx context.Context, store *blobs.Directory) (bool, error) {
	for _, sum := range v.files() {
		if has, err := store.Has(ctx, sum); err != nil || !has {
			return false, err
		}
	}
	return true, nil
}

// mustBeStored is an error that says the remedy when a version's weights were pruned. Only the machine that has the blob store can tell: elsewhere nothing is said.
func (s *System) mustBeStored(ctx context.Context, p *Policies, version string) error {
	v, known := p.Version(version)
	if !known {
		return nil
	}
	store, err := s.OpenBlobs()
	if err != nil || store.Bytes() == 0 {
		return err
	}
	stored, err := v.Stored(ctx, store)
	if err == nil && !stored {
		err = fmt.Errorf("the weights of version %s were pruned: 'nextstate policies rebuild %s --store' computes them again", version, version)
	}
	return err
}

// pruneAlong prunes after each publication of the tenant, and at first what a former process left, until ctx ends. What fails is tried again.
func (s *System) pruneAlong(ctx context.Context, store *blobs.Directory, keep int) error {
	for ctx.Err() == nil {
		err := s.prunings(ctx, store, keep)
		if ctx.Err() != nil {
			break
		}
		s.Telemetry.Logger.WarnContext(ctx, "the weights of old policy versions cannot be deleted now; it is tried again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pruneAgain):
		}
	}
	return nil //nolint:nilerr // that is how it ends
}

// pruneAgain is the pause after a failure: the weights of a few more versions harm nobody.
const pruneAgain = 30 * time.Second

func (s *System) prunings(ctx context.Context, store *blobs.Directory, keep int) error {
	bounds, err := s.Log.Bounds(ctx, schemas.TopicPolicies)
	if err != nil {
		return err
	}
	events := make(chan schemas.Event, 64)
	running, ctx := errgroup.WithContext(ctx)
	for partition, b := range bounds {
		running.Go(func() error { return tail(ctx, s.Log, partition, b.Next, events) })
	}
	running.Go(func() error {
		for {
			done, err := PrunePolicies(ctx, s, store, keep)
			if err != nil {
				return err
			}
			if len(done.Pruned) > 0 {
				s.Telemetry.Logger.InfoContext(ctx, "the weights of old policy versions were deleted", "versions", len(done.Pruned), "bytes", done.Bytes)
			}
			if err := nextPublication(ctx, events, s.Config.Tenant); err != nil {
				return err
			}
		}
	})
	return running.Wait()
}

// nextPublication waits for one of the tenant's, and takes those that came with it.
func nextPublication(ctx context.Context, events <-chan schemas.Event, tenant string) error {
	for published := false; !published || len(events) > 0; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-events:
			_, isPublication := e.Payload.(*schemas.PolicyPublished)
			published = published || isPublication && e.Tenant == tenant
		}
	}
	return nil
}

// keepRebuilt notes that a version's weights are put back, so that pruning leaves them alone.
func (s *System) keepRebuilt(ctx context.Context, version string) error {
	return s.lockPolicies(ctx, func(tx pgx.Tx) error { // a pruning that does not see the note has ended when it is there
		_, err := tx.Exec(ctx, "INSERT INTO policy_keeps (tenant, version) VALUES ($1, $2) ON CONFLICT DO NOTHING", s.Config.Tenant, version)
		if err != nil {
			return fmt.Errorf("keep version %s: %w", version, err)
		}
		return nil
	})
}

// ReleaseRebuilt lets pruning delete again what 'policies rebuild --store' put back.
func ReleaseRebuilt(ctx context.Context, s *System) error {
	if _, err := s.Postgres.Exec(ctx, "DELETE FROM policy_keeps WHERE tenant = $1", s.Config.Tenant); err != nil {
		return fmt.Errorf("release the versions that were computed again: %w", err)
	}
	return nil
}
