package llama

import "golang.org/x/sys/cpu"

// expsAVX2 is in exp_amd64.s.
//
//go:noescape
func expsAVX2(to, from *float32, n int, top, scale float32) float32

// expsFast does what it can of exps with vectors: it returns how many entries are done, and their sum.
func expsFast(to, from []float32, top, scale float32) (int, float64) {
	n := len(from) &^ 7
	if n == 0 || !cpu.X86.HasAVX2 || !cpu.X86.HasFMA {
		return 0, 0
	}
	return n, float64(expsAVX2(&to[0], &from[0], n, top, scale))
}
