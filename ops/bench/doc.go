// Package bench measures nextstate beside a baseline in the same run.
//
// In: an Env (sizes, a scratch folder, how to start the embedded servers). Out: for each benchmark Results, of which the first is the
// figure that the benchmark is named after and the others say more about it.
//
// Invariants:
//   - Subject and baseline run in alternation and each is reported as its median, because a machine is never quiet.
//   - A ratio above 1 is better than the baseline, whether the unit is one to be high (events/s) or low (seconds, bytes).
//   - Servers are embedded ones in a folder of its own, removed afterwards: no benchmark touches data of anybody.
//   - The events are generated, the same for the same seed (Generate).
//
// Read bench.go first (the table), then compare.go, then one benchmark: produce.go.
package bench
