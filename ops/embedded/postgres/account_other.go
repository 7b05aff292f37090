//go:build !linux

package postgres

import (
	"errors"
	"syscall"
)

// The asset exists for linux/amd64 only, and its absence is said before; this keeps the program whole elsewhere.
func searchRight() (uintptr, error) {
	return 0, errors.New("the embedded PostgreSQL runs on linux/amd64; use an external server")
}

func (account) attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
