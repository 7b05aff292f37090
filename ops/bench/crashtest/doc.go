// Package crashtest holds the tests of the benchmarks crash and crash-train: kill -9 at random moments, on embedded servers and on real ones.
//
// In: flags that choose seed and kills again (go test ./ops/bench/crashtest -crash.seed 7 -crash.kills 500 -timeout 1h). Out: nothing but the verdict.
//
// Invariant: they are apart from the other tests of benchmarks, so that both run side by side and neither comes near go test's limit of ten minutes.
//
// Read crash_test.go.
package crashtest
