package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// nobody owns the data of a server that root starts. initdb wants a uid that has a name, and this one has it nearly everywhere.
const nobody = 65534

// account is as whom the server runs.
type account struct {
	uid, gid int
	drop     bool      // root starts it, so that the child has to change its uid
	caps     []uintptr // what the child keeps of root's rights
}

// accountFor chooses the account: whoever owns the data, else nobody under root, else the caller.
func accountFor(ctx context.Context, data, bin string, log *slog.Logger) (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	a := account{uid: nobody, gid: nobody, drop: true}
	if info, err := os.Stat(data); err == nil {
		if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 {
			a.uid, a.gid = int(s.Uid), int(s.Gid)
		}
	}
	// The binaries have to be open to the account: initdb and postgres look for each other by access(2), which ignores capabilities.
	closed, err := a.closedFolder(bin)
	if err != nil {
		return a, err
	}
	if closed != "" {
		return a, fmt.Errorf("%s is closed to uid %d, which PostgreSQL takes because it refuses to run as root: choose a cache folder for the assets that everybody may enter, or `chmod o+x %s`", closed, a.uid, closed)
	}
	closed, err = a.closedFolder(filepath.Dir(data))
	if err != nil || closed == "" {
		return a, err
	}
	right, err := searchRight()
	if err != nil {
		return a, err
	}
	if right == 0 {
		return a, fmt.Errorf("%s is closed to uid %d, which PostgreSQL takes because it refuses to run as root: choose a data folder that everybody may enter, or `chmod o+x %s`", closed, a.uid, closed)
	}
	a.caps = []uintptr{right}
	log.InfoContext(ctx, "postgres keeps a right of root's to reach its data", "uid", a.uid, "closed_folder", closed)
	return a, nil
}

// closedFolder is the first folder on the way to dir, dir included, that the account may not search; "" when it may search all.
func (a account) closedFolder(dir string) (string, error) {
	for p := dir; ; p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err != nil {
			return "", err
		}
		s, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return "", fmt.Errorf("%s: no owner", p)
		}
		shift := 0 // the bits of others
		switch {
		case int(s.Uid) == a.uid:
			shift = 6
		case int(s.Gid) == a.gid:
			shift = 3
		}
		if s.Mode>>shift&1 == 0 {
			return p, nil
		}
		if p == filepath.Dir(p) {
			return "", nil
		}
	}
}

// command runs a program as the account. A right that the child keeps counts only after its first exec, so that a program in a closed folder is reached
// by way of a shell, which becomes the program: the process stays the same.
func (a account) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	if len(a.caps) > 0 {
		program, args = "/bin/sh", append([]string{"-c", `exec "$0" "$@"`, program}, args...)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = a.attributes()
	cmd.Dir = "/" // the caller's folder may be closed to the account
	return cmd
}

// give makes path the account's.
func (a account) give(path string) error {
	if !a.drop {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// makeFolder makes a folder of the account's alone.
func (a account) makeFolder(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return a.give(path)
}
