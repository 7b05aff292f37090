//go:build !linux

package bench

import "os/exec"

// startTied starts a process and sends its outcome to ended, which must have room for it. Only Linux can tie a process to its parent.
func startTied(cmd *exec.Cmd, ended chan<- error) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { ended <- cmd.Wait() }() // ends with the process
	return nil
}
