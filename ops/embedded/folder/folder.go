//go:build unix

package folder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// LockedError says that another process holds the folder.
type LockedError struct {
	Dir string
	// PID of the process that took the lock; 0 when it is not known.
	PID int
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("process %d uses the data folder %s; stop it first, or choose another folder", e.PID, e.Dir)
}

// Lock makes the folder (0700) and takes its lock. *LockedError comes at once while the process that took it lives and its server (Note) does. When either
// is dead, the rest of that server is on its way out and is waited for, at most for the given time; then it is *LockedError as well. The open file
// carries the lock: closing it lets go, unless a child inherited it.
func Lock(ctx context.Context, dir string, wait time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(wait); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		owner, server := holders(f)
		if Alive(owner) && (server == 0 || Alive(server)) || time.Now().After(deadline) {
			return nil, errors.Join(&LockedError{Dir: dir, PID: owner}, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err := note(f, fmt.Sprintf("%d\n", os.Getpid())); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Note writes into the lock which process is the server that inherited it.
func Note(lock *os.File, server int) error {
	return note(lock, fmt.Sprintf("%d\n%d\n", os.Getpid(), server))
}

func note(f *os.File, text string) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// holders are the process that took the lock and its server, 0 where the number is not written yet.
func holders(f *os.File) (owner, server int) {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 64))
	if err == nil {
		_, _ = fmt.Sscan(string(text), &owner, &server) // what is not there stays 0
	}
	return owner, server
}

// Alive says whether a process runs. A zombie does not: it has ended, and nobody has asked for its exit status yet.
func Alive(pid int) bool {
	if pid <= 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true // no /proc here: the kernel's answer stands
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

// Secret reads the file, or makes it (0600) with a new random secret of letters and digits. The rename keeps a crash from leaving half of one.
func Secret(file string) (string, error) {
	kept, err := os.ReadFile(file)
	if err == nil && len(kept) > 0 {
		return strings.TrimSpace(string(kept)), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	secret := rand.Text()
	if err := os.WriteFile(file+".new", []byte(secret+"\n"), 0o600); err != nil {
		return "", err
	}
	return secret, os.Rename(file+".new", file)
}

// NewLog opens a log for a server to append to, and keeps the log of the run before as path.1: it may say why that one ended.
func NewLog(path string) (*os.File, error) {
	if err := os.Rename(path, path+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// BoundLog starts a log over whenever it is longer than max bytes, until done is closed. Writers that append go on at the new end.
func BoundLog(done <-chan struct{}, path string, max int64) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if info, err := os.Stat(path); err == nil && info.Size() > max {
			_ = os.Truncate(path, 0) // it may be gone by now; the next tick tries again
		}
	}
}

// LogTail returns the end of a log for an error message.
func LogTail(path string) string {
	said, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(string(said))
	if n := len(text) - 3000; n > 0 {
		text = text[n:]
	}
	return text
}
