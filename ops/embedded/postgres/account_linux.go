package postgres

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// searchRight is the least right of ours that opens folders that are closed to others, such as root's home; 0 when we have none. Containers often leave
// root only the second.
func searchRight() (uintptr, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return 0, fmt.Errorf("read our capabilities: %w", err)
	}
	for _, right := range []uintptr{unix.CAP_DAC_READ_SEARCH, unix.CAP_DAC_OVERRIDE} {
		if have[0].Permitted>>right&1 == 1 {
			return right, nil
		}
	}
	return 0, nil
}

// attributes of the server and of initdb.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Setpgid:   true,           // a ^C at the terminal is ours, not the server's
		Pdeathsig: syscall.SIGINT, // a fast shutdown when the parent dies
	}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)} //nolint:gosec // uids of the kernel's
		attr.AmbientCaps = a.caps
	}
	return attr
}
