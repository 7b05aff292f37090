package bench

import (
	"os/exec"
	"runtime"
	"syscall"
)

// startTied starts a process that the kernel kills when ours ends, and sends its outcome to ended, which must have room for it.
func startTied(cmd *exec.Cmd, ended chan<- error) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() { // ends with the process
		// The signal follows the thread that forked, so that thread stays until the process has gone.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	return <-started
}
