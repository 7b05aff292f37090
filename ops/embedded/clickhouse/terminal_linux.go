package clickhouse

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// terminalStdin makes standard input a terminal and returns its other side. Without a terminal `clickhouse local` takes a client's broken connection
// for its own end.
func terminalStdin() (*os.File, error) {
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	s, err := unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Dup3(s, 0, 0); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(m), "terminal"), unix.Close(s)
}
