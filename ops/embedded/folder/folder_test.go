package folder_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
)

// Goal: a lock is held by whoever inherited it, is refused at once while its holder lives, and is waited for when the server is dead and only its remains
// hold it. Method: a child that sleeps inherits the lock; it is noted as the server, then another number that is nobody's.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	lock, err := folder.Lock(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	var locked *folder.LockedError
	if _, err := folder.Lock(t.Context(), dir, time.Hour); !errors.As(err, &locked) || locked.PID != os.Getpid() {
		t.Fatalf("second lock: %v, want LockedError of %d", err, os.Getpid())
	}
	child := exec.CommandContext(t.Context(), "sleep", "60")
	child.ExtraFiles = []*os.File{lock}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(folder.Note(lock, child.Process.Pid), lock.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := folder.Lock(t.Context(), dir, time.Hour); !errors.As(err, &locked) {
		t.Fatalf("lock while the server lives: %v, want LockedError", err)
	}
	// A server that is dead, whose helper still holds the lock: the number of a process that has been waited for.
	dead := exec.CommandContext(t.Context(), "true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(folder.Note(f, dead.Process.Pid), f.Close()); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		again, err := folder.Lock(t.Context(), dir, time.Hour)
		got <- errors.Join(err, again.Close())
	}()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	if err := <-got; err != nil {
		t.Errorf("lock after the remains have gone: %v", err)
	}
}

// Goal: a secret is made once, for its owner alone. Method: ask twice, look at the mode.
func TestSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	a, err := folder.Secret(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := folder.Secret(file)
	if err != nil || a != b || len(a) < 20 {
		t.Errorf("secrets %q, %q: %v", a, b, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
}
