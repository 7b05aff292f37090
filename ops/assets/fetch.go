package assets

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// ensure has one asset in its folder: look, lock, look again, get the archives, unpack beside, rename.
func (s *Store) ensure(ctx context.Context, a Asset, t *tracker) error {
	dir := filepath.Join(s.cache, a.folder())
	if complete(dir) == nil {
		return nil
	}
	if !a.Supported() {
		return fmt.Errorf("%w: it exists for %s, this is %s/%s; use an external server instead", ErrUnsupported, a.Platform, runtime.GOOS, runtime.GOARCH)
	}
	unlock, err := lock(ctx, s.cache, a.Name, t)
	if err != nil {
		return err
	}
	defer unlock()
	damage := complete(dir)
	if damage == nil {
		return nil // another process has fetched it while this one waited
	}
	if err := clearWork(s.cache, a); err != nil {
		return err
	}
	downloads := filepath.Join(s.cache, ".downloads-"+a.folder())
	if err := s.archives(ctx, a, downloads, t); err != nil {
		return err
	}
	t.phase("unpacking")
	work, err := os.MkdirTemp(s.cache, workPrefix(a))
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil { // a server that runs under another uid reads it
		return err
	}
	if err := unpack(ctx, a, downloads, work); err != nil {
		return err
	}
	if !errors.Is(damage, os.ErrNotExist) { // something is in the way: an asset that lost files
		old, err := os.MkdirTemp(s.cache, workPrefix(a))
		if err != nil {
			return err
		}
		defer os.RemoveAll(old)
		if err := os.Rename(dir, filepath.Join(old, "damaged")); err != nil {
			return err
		}
	}
	if err := os.Rename(work, dir); err != nil {
		return err
	}
	if err := syncPath(s.cache); err != nil {
		return err
	}
	return os.RemoveAll(downloads)
}

// workPrefix of working folders. Whoever holds the asset's lock may remove all that carry it: their makers are gone.
func workPrefix(a Asset) string { return ".work-" + a.Name + "@" }

func clearWork(dir string, a Asset) error {
	left, err := filepath.Glob(filepath.Join(dir, workPrefix(a)+"*"))
	if err != nil {
		return err
	}
	for _, p := range left {
		if err := os.RemoveAll(p); err != nil {
			return fmt.Errorf("remove what an interrupted fetch left: %w", err)
		}
	}
	return nil
}

// archives has every archive of the asset in dir with the right hash. The caller holds the asset's lock on dir.
func (s *Store) archives(ctx context.Context, a Asset, dir string, t *tracker) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := clearWork(dir, a); err != nil {
		return err
	}
	missing, err := s.missing(a, dir)
	if err != nil || len(missing) == 0 {
		return err
	}
	if s.prefetched != "" {
		t.phase("copying")
		if missing, err = s.fromPrefetched(ctx, missing, dir); err != nil || len(missing) == 0 {
			return err
		}
	}
	t.phase("fetching")
	work, err := os.MkdirTemp(dir, workPrefix(a))
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	failed := runClient(ctx, a, work, t)
	if ctx.Err() != nil {
		failed = ctx.Err()
	}
	// Complete archives are kept even when the client failed, so that a rerun resumes with them.
	if err := keep(missing, filepath.Join(work, "out"), dir, failed); err != nil {
		if failed != nil && s.prefetched != "" {
			return fmt.Errorf("%w (the prefetched folder %s has no %s)", err, s.prefetched, missing[0].File)
		}
		return err
	}
	return syncPath(dir)
}

// missing returns the archives that dir does not have with the right hash.
func (s *Store) missing(a Asset, dir string) ([]Archive, error) {
	var out []Archive
	for _, f := range a.Archives {
		err := check(filepath.Join(dir, f.File), f)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrNotExist), errors.Is(err, ErrDamaged):
			out = append(out, f)
		default:
			return nil, err
		}
	}
	return out, nil
}

// fromPrefetched copies what is there and returns what is not. A prefetched archive with another hash is an error: whoever laid it there
// believes that it is used.
func (s *Store) fromPrefetched(ctx context.Context, want []Archive, dir string) ([]Archive, error) {
	var missing []Archive
	for _, f := range want {
		from := filepath.Join(s.prefetched, f.File)
		err := check(from, f)
		if errors.Is(err, os.ErrNotExist) {
			missing = append(missing, f)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("prefetched archive: %w; fetch it again with `nextstate assets fetch --to %s`", err, s.prefetched)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := copyFile(from, filepath.Join(dir, f.File)); err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// keep moves the archives that have the right hash from a client's folder to dir, and says what is wrong with the others.
func keep(want []Archive, from, dir string, failed error) error {
	var errs []error
	for _, f := range want {
		path := filepath.Join(from, f.File)
		err := check(path, f)
		switch {
		case err == nil:
			if err := syncPath(path); err != nil {
				return err
			}
			if err := os.Rename(path, filepath.Join(dir, f.File)); err != nil {
				return err
			}
		case failed != nil: // the client's own words say more
		case errors.Is(err, os.ErrNotExist):
			errs = append(errs, fmt.Errorf("the client did not deliver %s (it left: %s); the lock file and the client disagree about the name", f.File, listing(from)))
		default:
			errs = append(errs, fmt.Errorf("%w; it was not used. A registry mirror or proxy may have altered it: clear the client's cache and try again", err))
		}
	}
	if failed != nil {
		return failed
	}
	return errors.Join(errs...)
}

func listing(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return "nothing"
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) > 5 {
		names = append(names[:5], "...")
	}
	return strings.Join(names, ", ")
}

// check compares a file with the lock file. The error is ErrDamaged, os.ErrNotExist, or of reading.
func check(path string, want Archive) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() != want.Size {
		return fmt.Errorf("%w: %s has %d bytes, the lock file says %d", ErrDamaged, path, info.Size(), want.Size)
	}
	got, err := hashFile(path)
	if err != nil {
		return err
	}
	if got != want.SHA256 {
		return fmt.Errorf("%w: %s has SHA-256 %s, the lock file says %s", ErrDamaged, path, got, want.SHA256)
	}
	return nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(struct{ io.Writer }{h}, f, make([]byte, 1<<20)); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// copyFile copies by way of a neighbour, so that a half copy never carries the name.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	part := to + ".part"
	out, err := os.Create(part)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return os.Rename(part, to)
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
