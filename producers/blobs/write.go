package blobs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// partPrefix begins the names of files that are being written.
const partPrefix = ".part-"

// write puts data under path, whole or not at all, and durable. added: path was not there before, so that the store grew.
func write(root, path string, data []byte) (added bool, err error) {
	dir := filepath.Dir(path)
	if err := makeFolders(root, dir); err != nil {
		return false, err
	}
	f, err := os.CreateTemp(dir, partPrefix)
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return false, err
	}
	// Two writers of the same blob may both come here. A link fails for the second one, which therefore knows that the store did not grow.
	err = os.Link(f.Name(), path)
	switch {
	case err == nil:
		added = true
		err = remove(f.Name())
	case errors.Is(err, fs.ErrExist):
		err = os.Rename(f.Name(), path) // the same content, or a repair of a damaged file
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, fs.ErrPermission):
		added, err = true, os.Rename(f.Name(), path) // a file system without links: two writers at once count twice until the next Open
	}
	if err != nil {
		return added, err
	}
	return added, syncFolder(dir)
}

// makeFolders creates the two levels below root, and syncs each parent so that the entries survive a power loss.
func makeFolders(root, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	return errors.Join(syncFolder(filepath.Dir(dir)), syncFolder(root))
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeStale removes a file that a crash left half written. A young one may belong to another process that is writing it.
func removeStale(path string, info fs.FileInfo) error {
	if time.Since(info.ModTime()) < time.Hour {
		return nil
	}
	return remove(path)
}

// checked compares the content with its name while it is read.
type checked struct {
	f    *os.File
	hash hash.Hash
	want [sha256.Size]byte
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.f.Read(p)
	c.hash.Write(p[:n])
	if errors.Is(err, io.EOF) && [sha256.Size]byte(c.hash.Sum(nil)) != c.want {
		return n, fmt.Errorf("blob %x: %w", c.want[:8], ErrCorrupt)
	}
	return n, err
}

func (c *checked) Close() error { return c.f.Close() }
