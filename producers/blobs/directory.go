package blobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Errors that callers act on.
var (
	// ErrFull: the blob would take the store beyond its bound.
	ErrFull = errors.New("the blob store is full: raise blobs.max_bytes or move old blobs away")
	// ErrTooLarge: the blob is larger than one blob may be. Permanent.
	ErrTooLarge = errors.New("the blob is too large: keep a reference to it instead")
	// ErrCorrupt: a file does not hold what its name says. Put writes it again.
	ErrCorrupt = errors.New("the blob on disk is damaged: import its source again")
)

// Config of a Directory. The zero value of a bound means its default.
type Config struct {
	// Dir is created when it is missing.
	Dir string `json:"dir"`
	// MaxBytes bounds the sum of all blobs. Default 10 GiB.
	MaxBytes int64 `json:"max_bytes"`
	// MaxBlobBytes bounds one blob. Default 64 MiB.
	MaxBlobBytes int64 `json:"max_blob_bytes"`
}

// Validate reports the first setting that cannot work, and what to do about it.
func (c Config) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("blobs: dir is needed: a folder for blobs")
	case c.MaxBytes < 0 || c.MaxBlobBytes < 0:
		return errors.New("blobs: max_bytes and max_blob_bytes must not be negative")
	}
	return nil
}

// Directory is a blob store in a folder. Safe for concurrent use, also by several processes, whose bounds then count separately.
type Directory struct {
	cfg Config

	mu    sync.Mutex
	bytes int64 // of all blobs, those being written included
}

// Open opens the store, and removes what a crash left half written. It reads the folder's entries once, to know how full it is.
func Open(cfg Config) (*Directory, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 10 << 30
	}
	if cfg.MaxBlobBytes == 0 {
		cfg.MaxBlobBytes = 64 << 20
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("blobs: %w", err)
	}
	d := &Directory{cfg: cfg}
	err := filepath.WalkDir(cfg.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process renamed or removed it meanwhile
		}
		if err != nil {
			return err
		}
		if strings.HasPrefix(entry.Name(), partPrefix) {
			return removeStale(path, info)
		}
		d.bytes += info.Size()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("blobs: %w", err)
	}
	return d, nil
}

// Put keeps data and returns its SHA-256. When it returns nil the blob is durable. Putting the same data again costs a look only. data
// stays the caller's.
func (d *Directory) Put(ctx context.Context, data []byte) (sum [sha256.Size]byte, err error) {
	if err := ctx.Err(); err != nil {
		return sum, err
	}
	size := int64(len(data))
	if size > d.cfg.MaxBlobBytes {
		return sum, fmt.Errorf("%d bytes, at most %d are allowed: %w", size, d.cfg.MaxBlobBytes, ErrTooLarge)
	}
	sum = sha256.Sum256(data)
	path := d.path(sum)
	if whole, err := holds(path, data); err != nil || whole {
		return sum, err
	}
	if err := d.reserve(size); err != nil {
		return sum, err
	}
	added, err := write(d.cfg.Dir, path, data)
	if !added {
		d.release(size)
	}
	if err != nil {
		return sum, fmt.Errorf("blobs: %w", err)
	}
	return sum, nil
}

// Open returns a reader of a blob, which the caller closes, or an error that is fs.ErrNotExist. At the end of the content the reader
// reports ErrCorrupt instead of io.EOF when it is not what was put.
func (d *Directory) Open(_ context.Context, sum [sha256.Size]byte) (io.ReadCloser, error) {
	f, err := os.Open(d.path(sum))
	if err != nil {
		return nil, fmt.Errorf("blobs: %w", err)
	}
	return &checked{f: f, hash: sha256.New(), want: sum}, nil
}

// File returns the path of a blob for programs that read files themselves, after it was read once and found to be what was put: ErrCorrupt when it is not,
// an error that is fs.ErrNotExist when it is not there. The file stays the store's: nobody writes to it.
func (d *Directory) File(ctx context.Context, sum [sha256.Size]byte) (string, error) {
	r, err := d.Open(ctx, sum)
	if err != nil {
		return "", err
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		return "", fmt.Errorf("blobs: %w", err)
	}
	return d.path(sum), nil
}

// Has reports whether a blob is there.
func (d *Directory) Has(_ context.Context, sum [sha256.Size]byte) (bool, error) {
	_, err := os.Stat(d.path(sum))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("blobs: %w", err)
	}
	return true, nil
}

// Size returns the bytes of a blob, or an error that is fs.ErrNotExist.
func (d *Directory) Size(_ context.Context, sum [sha256.Size]byte) (int64, error) {
	info, err := os.Stat(d.path(sum))
	if err != nil {
		return 0, fmt.Errorf("blobs: %w", err)
	}
	return info.Size(), nil
}

// Delete removes a blob that nothing refers to any more; one that is not there is no error. Who has it open goes on reading it.
func (d *Directory) Delete(ctx context.Context, sum [sha256.Size]byte) error {
	size, err := d.Size(ctx, sum)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch err := os.Remove(d.path(sum)); {
	case errors.Is(err, fs.ErrNotExist): // another process was faster
		return nil
	case err != nil:
		return fmt.Errorf("blobs: %w", err)
	}
	d.release(size)
	return nil
}

// Bytes returns the size of all blobs.
func (d *Directory) Bytes() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.bytes
}

func (d *Directory) reserve(n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bytes+n > d.cfg.MaxBytes {
		return fmt.Errorf("%d of %d bytes are used, %d more are needed: %w", d.bytes, d.cfg.MaxBytes, n, ErrFull)
	}
	d.bytes += n
	return nil
}

func (d *Directory) release(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bytes -= n
}

// path is DIR/ab/cd/abcd....
func (d *Directory) path(sum [sha256.Size]byte) string {
	name := hex.EncodeToString(sum[:])
	return filepath.Join(d.cfg.Dir, name[:2], name[2:4], name)
}

// holds reports whether path has exactly data: a file that a failing disk damaged must be written again, not trusted by its name.
func holds(path string, data []byte) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("blobs: %w", err)
	}
	if info.Size() != int64(len(data)) {
		return false, nil
	}
	there, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("blobs: %w", err)
	}
	return bytes.Equal(there, data), nil
}
