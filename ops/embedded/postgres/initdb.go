package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// initialise makes the data folder unless it is there.
func (s *Server) initialise(ctx context.Context, lock *os.File) error {
	_, err := os.Stat(filepath.Join(s.data(), "PG_VERSION"))
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	work := s.data() + ".new"
	if err := os.RemoveAll(work); err != nil { // of an initdb that was interrupted
		return err
	}
	if err := s.account.makeFolder(work); err != nil {
		return err
	}
	if err := s.initdb(ctx, lock, work); err != nil {
		return err
	}
	if err := os.Rename(work, s.data()); err != nil {
		return err
	}
	dir, err := os.Open(s.config.Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (s *Server) initdb(ctx context.Context, lock *os.File, dir string) error {
	password, err := s.passwordPipe()
	if err != nil {
		return err
	}
	defer password.Close()
	cmd := s.account.command(ctx, filepath.Join(s.config.Bin, "bin", "initdb"),
		"-D", dir, "-U", User, "-A", "scram-sha-256", "--pwfile=/dev/fd/3", "-E", "UTF8", "--no-locale", "--no-instructions",
		"--sync-method=syncfs") // one call instead of a thousand
	// With the lock: an initdb whose parent was killed removes what it has made, which must not be the work of the next one.
	cmd.ExtraFiles = []*os.File{password, lock}
	cmd.Env = s.environment()
	// initdb starts others by way of a shell; the group gets the signal.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	// The parent death signal follows the thread that forked, so that thread stays until the child has gone.
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		failed <- cmd.Run()
	}()
	if err := <-failed; err != nil {
		return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// passwordPipe hands the password over without a file. Opening /dev/fd/3 checks the pipe's owner, so it has to be the account's.
func (s *Server) passwordPipe() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.WriteString(s.password + "\n")
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if s.account.drop {
		if err := r.Chown(s.account.uid, s.account.gid); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

// environment is the server's own: nothing of the caller's locale, time zone or PG variables.
func (s *Server) environment() []string {
	return []string{"LC_ALL=C", "TZ=UTC", "HOME=" + s.config.Dir, "PATH=/usr/bin:/bin", "LD_LIBRARY_PATH=" + filepath.Join(s.config.Bin, "lib")}
}
