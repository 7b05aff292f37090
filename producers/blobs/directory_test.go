package blobs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/producers/blobs"
)

func open(t *testing.T, cfg blobs.Config) *blobs.Directory {
	t.Helper()
	d, err := blobs.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPutOpenHas shows that content comes back under its hash and that the same content is kept once, also after opening again. Method:
// an empty, a small and a 3 MB blob.
func TestPutOpenHas(t *testing.T) {
	cfg := blobs.Config{Dir: filepath.Join(t.TempDir(), "new", "folder")}
	d := open(t, cfg)
	var total int64
	for _, data := range [][]byte{{}, []byte("small"), bytes.Repeat([]byte("large"), 600_000)} {
		want := sha256.Sum256(data)
		if has, err := d.Has(t.Context(), want); err != nil || has {
			t.Fatalf("before: %v %v", has, err)
		}
		for range 2 {
			sum, err := d.Put(t.Context(), data)
			if err != nil || sum != want {
				t.Fatalf("%x %v", sum, err)
			}
		}
		total += int64(len(data))
		d = open(t, cfg)
		if has, err := d.Has(t.Context(), want); err != nil || !has || d.Bytes() != total {
			t.Fatalf("after: %v %v, %d bytes of %d", has, err, d.Bytes(), total)
		}
		r, err := d.Open(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes of %d: %v", len(got), len(data), err)
		}
	}
	if _, err := d.Open(t.Context(), [32]byte{1}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a blob that is not there: %v", err)
	}
}

// TestBounds shows that no blob takes the store beyond its bounds, that a refused one leaves nothing behind, and that what is there can
// still be put. Method: a store of 100 bytes.
func TestBounds(t *testing.T) {
	d := open(t, blobs.Config{Dir: t.TempDir(), MaxBytes: 100, MaxBlobBytes: 60})
	put := func(n int) error { _, err := d.Put(t.Context(), bytes.Repeat([]byte{byte(n)}, n)); return err }
	if err := put(61); !errors.Is(err, blobs.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if err := put(60); err != nil {
		t.Fatal(err)
	}
	if err := put(41); !errors.Is(err, blobs.ErrFull) || !strings.Contains(err.Error(), "60 of 100") {
		t.Errorf("full: %v", err)
	}
	if err := errors.Join(put(60), put(40), put(40)); err != nil || d.Bytes() != 100 {
		t.Errorf("what fits: %v, %d bytes", err, d.Bytes())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Put(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	for want, cfg := range map[string]blobs.Config{"dir": {}, "negative": {Dir: "x", MaxBytes: -1}} {
		if _, err := blobs.Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestConcurrent shows that writers of the same and of different content do not disturb each other and that the count stays exact.
// Method: 8 goroutines put the same 20 blobs.
func TestConcurrent(t *testing.T) {
	cfg := blobs.Config{Dir: t.TempDir()}
	d := open(t, cfg)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 20 {
				if _, err := d.Put(t.Context(), fmt.Appendf(nil, "blob %02d", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if again := open(t, cfg); d.Bytes() != 20*7 || again.Bytes() != 20*7 {
		t.Errorf("%d bytes counted, %d on disk, want 140", d.Bytes(), again.Bytes())
	}
}

// TestDamage shows that damaged content is reported by the reader and repaired by the next Put, and that what a crash left half written
// goes away. Method: overwrite a blob's file, and leave an old and a young part behind.
func TestDamage(t *testing.T) {
	cfg := blobs.Config{Dir: t.TempDir()}
	d := open(t, cfg)
	sum, err := d.Put(t.Context(), []byte("original"))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%x", sum)
	path := filepath.Join(cfg.Dir, name[:2], name[2:4], name)
	if err := os.WriteFile(path, []byte("0riginal"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func() ([]byte, error) {
		r, err := d.Open(t.Context(), sum)
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(r)
		return data, errors.Join(err, r.Close())
	}
	if _, err := read(); !errors.Is(err, blobs.ErrCorrupt) {
		t.Errorf("damaged: %v", err)
	}
	if _, err := d.File(t.Context(), sum); !errors.Is(err, blobs.ErrCorrupt) {
		t.Errorf("damaged, as a file: %v", err)
	}
	if _, err := d.File(t.Context(), [32]byte{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that was never put: %v", err)
	}
	if _, err := d.Put(t.Context(), []byte("original")); err != nil {
		t.Fatal(err)
	}
	if data, err := read(); err != nil || string(data) != "original" || d.Bytes() != 8 {
		t.Errorf("repaired: %q %v, %d bytes", data, err, d.Bytes())
	}
	if file, err := d.File(t.Context(), sum); err != nil || file != path {
		t.Errorf("repaired, as a file: %q %v", file, err)
	}
	dir := filepath.Dir(path)
	for name, age := range map[string]time.Duration{".part-old": 2 * time.Hour, ".part-young": 0} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(dir, name), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if again := open(t, cfg); again.Bytes() != 8 {
		t.Errorf("%d bytes, want 8", again.Bytes())
	}
	if _, err := os.Stat(filepath.Join(dir, ".part-old")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old part is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".part-young")); err != nil {
		t.Errorf("a part that may be in use is gone: %v", err)
	}
}

// TestDelete shows that a deleted blob is gone and makes room, that what has it open reads on, and that deleting again is no error. Method: a store with room for one
// of two blobs.
func TestDelete(t *testing.T) {
	d := open(t, blobs.Config{Dir: t.TempDir(), MaxBytes: 10})
	first, err := d.Put(t.Context(), []byte("123456"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Put(t.Context(), []byte("abcdef")); !errors.Is(err, blobs.ErrFull) {
		t.Errorf("a full store: %v", err)
	}
	r, err := d.Open(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Size(t.Context(), first); err != nil || n != 6 {
		t.Errorf("size %d, %v", n, err)
	}
	for range 2 {
		if err := d.Delete(t.Context(), first); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := io.ReadAll(r); err != nil || string(b) != "123456" {
		t.Errorf("who has it open reads %q, %v", b, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Size(t.Context(), first); !errors.Is(err, fs.ErrNotExist) || d.Bytes() != 0 {
		t.Errorf("after: %v, %d bytes", err, d.Bytes())
	}
	if _, err := d.Put(t.Context(), []byte("abcdef")); err != nil {
		t.Errorf("the room is not free: %v", err)
	}
}
