package assets

import (
	"archive/tar"
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/errgroup"
)

// unpack fills dir with the asset's files out of the verified archives in downloads, and writes the manifest.
func unpack(ctx context.Context, a Asset, downloads, dir string) error {
	root, err := os.OpenRoot(dir) // nothing in an archive can write outside of it
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{ctx: ctx, asset: a, root: root}
	for _, f := range a.Archives {
		path := filepath.Join(downloads, f.File)
		switch {
		case a.Ecosystem == "npm":
			err = u.tarball(path)
		case a.Ecosystem == "pip" || a.container():
			err = u.archive(path)
		default: // a jar is used as it is
			err = u.whole(path, f.File)
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", f.File, err)
		}
	}
	if err := u.links(); err != nil {
		return fmt.Errorf("links of %s: %w", a.Symlinks, err)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Links)) {
		if err := u.link(name, a.Links[name]); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	if len(u.files) == 0 {
		return fmt.Errorf("unpack: no file in the archives matches take %q", a.Take)
	}
	if err := u.manifest(); err != nil {
		return err
	}
	return syncTree(dir)
}

type unpacker struct {
	ctx     context.Context //nolint:containedctx // lives for one call of unpack
	asset   Asset
	root    *os.Root
	files   []file
	symlink []byte // the archive's own list of links
}

// file is one line of the manifest.
type file struct {
	Path   string `json:"path"`
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	// Link is the target of a symbolic link.
	Link string `json:"link,omitempty"`
}

// place says where an archive's file goes, and whether it is taken.
func (u *unpacker) place(name string) (string, bool) {
	name, ok := strings.CutPrefix(path.Clean(name), u.asset.Strip)
	if !ok || name == "" {
		return "", false
	}
	taken := len(u.asset.Take) == 0 || slices.ContainsFunc(u.asset.Take, func(t string) bool {
		return name == t || strings.HasSuffix(t, "/") && strings.HasPrefix(name, t)
	})
	return name, taken
}

func (u *unpacker) tarball(archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	defer z.Close()
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if u.asset.Symlinks != "" && path.Clean(h.Name) == u.asset.Symlinks {
			if u.symlink, err = io.ReadAll(io.LimitReader(t, 1<<20)); err != nil {
				return err
			}
			continue
		}
		name, taken := u.place(h.Name)
		if !taken {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			err = u.write(name, t, h.FileInfo().Mode())
		case tar.TypeSymlink:
			err = u.link(name, h.Linkname)
		case tar.TypeDir, tar.TypeXGlobalHeader:
		default:
			err = fmt.Errorf("%s has tar type %q, which nobody needs", h.Name, h.Typeflag)
		}
		if err != nil {
			return err
		}
	}
}

// archive unpacks a wheel or a jar: both are zip files.
func (u *unpacker) archive(archive string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, f := range z.File {
		name, taken := u.place(f.Name)
		if !taken || f.Mode().IsDir() {
			continue
		}
		if !f.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", f.Name)
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		if err := errors.Join(u.write(name, r, f.Mode()), r.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) whole(archive, name string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	return errors.Join(u.write(name, f, 0o644), f.Close())
}

func (u *unpacker) write(name string, r io.Reader, mode fs.FileMode) error {
	if err := u.ctx.Err(); err != nil {
		return err
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	perm := fs.FileMode(0o644)
	if mode&0o100 != 0 {
		perm = 0o755
	}
	// O_EXCL: two archives that hold one name would depend on their order.
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, h)}, r, make([]byte, 1<<20))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	u.files = append(u.files, file{Path: name, Size: n, SHA256: hex.EncodeToString(h.Sum(nil))})
	return nil
}

func (u *unpacker) link(name, target string) error {
	if !filepath.IsLocal(path.Join(path.Dir(name), target)) {
		return fmt.Errorf("%s links to %s, outside of the asset", name, target)
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := u.root.Symlink(target, name); err != nil {
		return err
	}
	u.files = append(u.files, file{Path: name, Link: target})
	return nil
}

// links makes the symbolic links of the archive's list. Its paths are relative to the archive's first folder.
func (u *unpacker) links() error {
	if u.asset.Symlinks == "" {
		return nil
	}
	var list []struct{ Source, Target string } // source is the file, target the link
	if err := json.Unmarshal(u.symlink, &list); err != nil {
		return err
	}
	first, _, _ := strings.Cut(u.asset.Symlinks, "/")
	for _, l := range list {
		name, taken := u.place(path.Join(first, l.Target))
		if !taken {
			continue
		}
		source, ok := strings.CutPrefix(path.Join(first, l.Source), u.asset.Strip)
		if !ok {
			return fmt.Errorf("%s links to %s, outside of the asset", l.Target, l.Source)
		}
		to, err := filepath.Rel(path.Dir(name), source)
		if err != nil {
			return err
		}
		if err := u.link(name, to); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) manifest() error {
	data, err := json.MarshalIndent(struct {
		Files []file `json:"files"`
	}{u.files}, "", " ")
	if err != nil {
		return err
	}
	return u.root.WriteFile(manifestName, data, 0o644)
}

// syncTree makes everything under dir durable, several files at a time: the file system then joins their journal commits.
func syncTree(dir string) error {
	var g errgroup.Group
	g.SetLimit(16)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSymlink == 0 {
			g.Go(func() error { return syncPath(p) })
		}
		return err
	})
	return errors.Join(err, g.Wait())
}
