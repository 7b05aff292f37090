package ops

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Pin is the version that the tenant's engines serve whatever is published; empty: none.
func Pin(ctx context.Context, s *System) (version string, err error) {
	err = s.Postgres.QueryRow(ctx, "SELECT version FROM policy_pins WHERE tenant = $1", s.Config.Tenant).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the policy's pin: %w", err)
	}
	return version, nil
}

// SetPin pins a version, until Unpin. One whose weights were pruned is refused.
func SetPin(ctx context.Context, s *System, version string) error {
	p, err := ReadPolicies(ctx, s)
	if err != nil {
		return err
	}
	return s.lockPolicies(ctx, func(tx pgx.Tx) error {
		if err := s.mustBeStored(ctx, p, version); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO policy_pins (tenant, version) VALUES ($1, $2)
			ON CONFLICT (tenant) DO UPDATE SET version = excluded.version, pinned_at = now()`, s.Config.Tenant, version)
		if err != nil {
			return fmt.Errorf("pin %s: %w", version, err)
		}
		return nil
	})
}

// Unpin lets the newest version be served again.
func Unpin(ctx context.Context, s *System) error {
	if _, err := s.Postgres.Exec(ctx, "DELETE FROM policy_pins WHERE tenant = $1", s.Config.Tenant); err != nil {
		return fmt.Errorf("unpin: %w", err)
	}
	return nil
}

// RollBack appends PolicyRolledBack: version is served again at once, and what came after it, with all that descends from it, no more. It returns the version
// that was to be served until now. One whose weights were pruned is refused.
func RollBack(ctx context.Context, s *System, p *Policies, version, reason, by string) (from string, err error) {
	from = p.Serve()[0]
	if _, known := p.Version(version); !known && version != policy.Base {
		return "", fmt.Errorf("there is no policy version %s: 'nextstate policies list' names those that there are", version)
	}
	if from == version {
		return "", fmt.Errorf("version %s is the one that is served: name an older one", version)
	}
	r, err := schemas.Encode(schemas.Event{
		ID: schemas.NewID(), Source: "cli", Tenant: s.Config.Tenant, Session: PolicySession,
		Payload: &schemas.PolicyRolledBack{FromVersion: from, ToVersion: version, Reason: reason, By: by},
	})
	if err != nil {
		return "", err
	}
	return from, s.lockPolicies(ctx, func(pgx.Tx) error {
		if err := s.mustBeStored(ctx, p, version); err != nil {
			return err
		}
		return s.Log.Append(ctx, r)
	})
}
