package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/keys"
)

// KeysCreate creates a key.
type KeysCreate struct {
	Name string `arg:"" optional:"" help:"What the key is for." default:"unnamed"`
}

// Help explains the command.
func (KeysCreate) Help() string {
	return `Creates a key for the tenant in --tenant and prints it once; only its hash is kept.

  curl -H "Authorization: Bearer $(nextstate keys create my-agent)" ...`
}

// Run creates it.
func (k KeysCreate) Run(ctx context.Context, g *Globals) error {
	return g.with(ctx, ops.NeedPostgres, func(ctx context.Context, s *ops.System) error {
		store, err := keys.New(s.Postgres, keys.Config{})
		if err != nil {
			return err
		}
		if err := store.AddTenant(ctx, g.Tenant); err != nil {
			return err
		}
		key, secret, err := store.Create(ctx, g.Tenant, k.Name)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(map[string]any{"id": key.ID, "tenant": key.Tenant, "name": key.Name, "key": secret})
		}
		g.note("key %s of tenant %s; it is not shown again", key.ID, key.Tenant)
		g.printf("%s\n", secret)
		return nil
	})
}

// KeysList lists keys.
type KeysList struct{}

// Run lists those of the tenant.
func (KeysList) Run(ctx context.Context, g *Globals) error {
	return g.with(ctx, ops.NeedPostgres, func(ctx context.Context, s *ops.System) error {
		store, err := keys.New(s.Postgres, keys.Config{})
		if err != nil {
			return err
		}
		list, err := store.List(ctx, g.Tenant)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(list)
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "ID\tTENANT\tNAME\tKEY\tCREATED\tSTATE")
		for _, k := range list {
			state := "active"
			if k.RevokedAt != nil {
				state = "revoked " + k.RevokedAt.UTC().Format("2006-01-02 15:04")
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s…\t%s\t%s\n", k.ID, k.Tenant, k.Name, k.Prefix, k.CreatedAt.UTC().Format("2006-01-02 15:04"), state)
		}
		return w.Flush()
	})
}

// KeysRevoke revokes a key.
type KeysRevoke struct {
	ID string `arg:"" help:"Id of the key (keys list)."`
}

// Run revokes it.
func (k KeysRevoke) Run(ctx context.Context, g *Globals) error {
	return g.with(ctx, ops.NeedPostgres, func(ctx context.Context, s *ops.System) error {
		store, err := keys.New(s.Postgres, keys.Config{})
		if err != nil {
			return err
		}
		return store.Revoke(ctx, k.ID)
	})
}
