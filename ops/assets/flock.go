//go:build unix

package assets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lock takes the asset's lock in dir, waiting for whoever holds it. The kernel lets go of it when its holder ends, however it ends.
func lock(ctx context.Context, dir, name string, t *tracker) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("%w; choose a folder that you may write to", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, ".lock-"+name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w; choose a folder that you may write to", err)
	}
	for {
		// Non-blocking, then a wait: a blocking flock would not hear ctx end.
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing lets go
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		t.phase("waiting for another process that fetches it")
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
