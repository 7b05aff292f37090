//go:build !linux

package apache

import "os/exec"

// dieWithParent does nothing: only Linux can tie a child to its parent. Close ends the nodes.
func dieWithParent(*exec.Cmd) {}
