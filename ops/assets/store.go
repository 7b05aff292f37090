package assets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Errors that callers act on.
var (
	// ErrClientMissing: the package client that fetches the asset is not installed. The message names the command that installs it.
	ErrClientMissing = errors.New("package client is not installed")
	// ErrUnsupported: the asset does not exist for this platform.
	ErrUnsupported = errors.New("platform is not supported")
	// ErrDamaged: a file is not what the lock file or the manifest says.
	ErrDamaged = errors.New("asset is damaged")
)

// Options say where assets lie. The zero value is the user's cache folder, the registries, and no progress.
type Options struct {
	// Cache holds the unpacked assets. Empty: nextstate/assets in the user's cache folder, or in the system's for root.
	Cache string
	// Prefetched is a folder with archives, as Download leaves them, for machines without registries. Looked at first.
	Prefetched string
	// Progress receives a bar (when it is a terminal) or lines. Nil: nothing.
	Progress io.Writer
}

// Store is the cache of assets. Safe for concurrent use, between processes too.
type Store struct {
	assets     []Asset
	cache      string
	prefetched string
	progress   io.Writer
}

// Open returns the store of the assets in the embedded lock file. It fetches nothing.
func Open(o Options) (*Store, error) {
	list, err := parseLock(lockFile)
	if err != nil {
		return nil, err
	}
	return open(list, o)
}

func open(list []Asset, o Options) (*Store, error) {
	if o.Cache == "" {
		dir, err := cacheDir()
		if err != nil {
			return nil, err
		}
		o.Cache = filepath.Join(dir, "nextstate", "assets")
	}
	cache, err := filepath.Abs(o.Cache)
	if err != nil {
		return nil, fmt.Errorf("cache folder of the assets: %w", err)
	}
	if o.Prefetched != "" {
		if info, err := os.Stat(o.Prefetched); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("the folder of prefetched assets %s is not a folder; make it with `nextstate assets fetch --to %s` on a machine with registries", o.Prefetched, o.Prefetched)
		}
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return &Store{assets: list, cache: cache, prefetched: o.Prefetched, progress: o.Progress}, nil
}

// systemCache is root's when its own is closed to others.
const systemCache = "/var/cache"

// cacheDir is the user's cache folder. PostgreSQL does not run as root: started by root it takes another uid, which has to reach the binaries, and root's
// home is mostly closed to others. So root has the system's cache folder then.
func cacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil && os.Geteuid() == 0 {
		return systemCache, nil
	}
	if err != nil {
		return "", fmt.Errorf("no cache folder for the assets: %w; set HOME or XDG_CACHE_HOME", err)
	}
	if os.Geteuid() != 0 {
		return dir, nil
	}
	for p := dir; ; p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err == nil && info.Mode()&0o001 == 0 {
			return systemCache, nil
		}
		if p == filepath.Dir(p) {
			return dir, nil
		}
	}
}

// Ensure has the named assets fetched, verified and unpacked, different ones in parallel. Those that are there cost a few file look-ups.
// When one fails the others are still completed, so that a rerun resumes with what is there.
func (s *Store) Ensure(ctx context.Context, names ...string) error {
	return s.each(ctx, names, func(ctx context.Context, a Asset, t *tracker) error {
		return s.ensure(ctx, a, t)
	})
}

// Download has the archives of the named assets in dir, verified, for Options.Prefetched of another machine. Nothing is unpacked, and assets of
// other platforms are fetched as well.
func (s *Store) Download(ctx context.Context, dir string, names ...string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("folder for the archives: %w", err)
	}
	return s.each(ctx, names, func(ctx context.Context, a Asset, t *tracker) error {
		unlock, err := lock(ctx, dir, a.Name, t)
		if err != nil {
			return err
		}
		defer unlock()
		return s.archives(ctx, a, dir, t)
	})
}

func (s *Store) each(ctx context.Context, names []string, do func(context.Context, Asset, *tracker) error) error {
	list, err := s.pick(names)
	if err != nil {
		return err
	}
	report := newReport(s.progress, list)
	stop := report.start(ctx)
	defer stop()
	errs := make([]error, len(list))
	var g errgroup.Group // without a shared context: one failure does not undo the progress of the others
	for i, a := range list {
		g.Go(func() error {
			if err := do(ctx, a, report.trackers[i]); err != nil {
				errs[i] = fmt.Errorf("asset %s %s: %w", a.Name, a.Version, err)
			}
			report.trackers[i].finish(errs[i])
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// Dir is the folder of an unpacked asset; Ensure fills it. It panics for a name that the lock file does not list: names are constants.
func (s *Store) Dir(name string) string {
	for _, a := range s.assets {
		if a.Name == name {
			return filepath.Join(s.cache, a.folder())
		}
	}
	panic("assets: " + s.unknown(name).Error())
}

// Status is an asset with its place.
type Status struct {
	Asset
	Dir string
	// Present says that Dir is complete; Verify looks into the files.
	Present bool
}

// List returns all assets in the lock file's order.
func (s *Store) List() []Status {
	out := make([]Status, 0, len(s.assets))
	for _, a := range s.assets {
		dir := filepath.Join(s.cache, a.folder())
		out = append(out, Status{Asset: a, Dir: dir, Present: complete(dir) == nil})
	}
	return out
}

// Verify reads every file of the named assets (none named: those that are present) and compares it with the manifest. The error names each file
// that differs, is missing or is not the asset's, and is ErrDamaged.
func (s *Store) Verify(ctx context.Context, names ...string) error {
	list, err := s.pick(names)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range list {
		dir := filepath.Join(s.cache, a.folder())
		if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
			if len(names) > 0 {
				errs = append(errs, fmt.Errorf("asset %s is not there; `nextstate assets fetch %s` fetches it", a.Name, a.Name))
			}
			continue
		}
		if err := verify(ctx, dir); err != nil {
			errs = append(errs, fmt.Errorf("asset %s: %w; remove %s and run `nextstate assets fetch %s`", a.Name, err, dir, a.Name))
		}
	}
	return errors.Join(errs...)
}

// pick resolves names; none means all.
func (s *Store) pick(names []string) ([]Asset, error) {
	if len(names) == 0 {
		return s.assets, nil
	}
	var out []Asset
	seen := map[string]bool{}
names:
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		for _, a := range s.assets {
			if a.Name == name {
				out = append(out, a)
				continue names
			}
		}
		return nil, s.unknown(name)
	}
	return out, nil
}

func (s *Store) unknown(name string) error {
	known := make([]string, 0, len(s.assets))
	for _, a := range s.assets {
		known = append(known, a.Name)
	}
	return fmt.Errorf("no asset %q; there are %s", name, strings.Join(known, ", "))
}
