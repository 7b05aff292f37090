package assets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// manifestName lists what was unpacked, in the asset's folder.
const manifestName = ".manifest.json"

// complete says whether an asset's folder has every file in its size. os.ErrNotExist: there is no such folder; ErrDamaged: it is not whole.
func complete(dir string) error {
	files, err := readManifest(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		info, err := os.Lstat(filepath.Join(dir, f.Path))
		switch {
		case err != nil:
			return fmt.Errorf("%w: %s is missing", ErrDamaged, filepath.Join(dir, f.Path)) // not %w of err: the folder is there
		case f.Link == "" && info.Size() != f.Size:
			return fmt.Errorf("%w: %s has %d bytes, want %d", ErrDamaged, filepath.Join(dir, f.Path), info.Size(), f.Size)
		}
	}
	return nil
}

func readManifest(dir string) ([]file, error) {
	if _, err := os.Lstat(dir); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, fmt.Errorf("%w: its manifest: %v", ErrDamaged, err) //nolint:errorlint // not os.ErrNotExist: the folder is there
	}
	var m struct {
		Files []file `json:"files"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%w: its manifest: %w", ErrDamaged, err)
	}
	return m.Files, nil
}

// verify compares every file under dir with the manifest, contents too, and finds files that do not belong there.
func verify(ctx context.Context, dir string) error {
	files, err := readManifest(dir)
	if err != nil {
		return err
	}
	var errs []error
	known := map[string]bool{manifestName: true}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		known[filepath.FromSlash(f.Path)] = true
		errs = append(errs, verifyFile(dir, f))
	}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if rel, err := filepath.Rel(dir, p); err != nil || !known[rel] {
			errs = append(errs, fmt.Errorf("%w: %s does not belong to the asset", ErrDamaged, p))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func verifyFile(dir string, f file) error {
	path := filepath.Join(dir, f.Path)
	if f.Link != "" {
		if to, err := os.Readlink(path); err != nil || to != f.Link {
			return fmt.Errorf("%w: %s is no link to %s", ErrDamaged, path, f.Link)
		}
		return nil
	}
	err := check(path, Archive{SHA256: f.SHA256, Size: f.Size})
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %s is missing", ErrDamaged, path)
	}
	return err
}
