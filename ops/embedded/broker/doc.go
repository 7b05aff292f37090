// Package broker is the embedded Kafka broker: kfake in our own process, with a data folder, for one machine and for tests.
//
// In: a data folder. Out: an address on 127.0.0.1 that speaks Kafka's protocol. It is no production broker; ops/kafka works with either.
//
// Invariants:
//   - One process a data folder (a lock). The port stays the same for as long as it is free.
//   - What was acknowledged survives kill -9; it survives a power cut with Config.Fsync.
//   - The janitor deletes a record only when every group that reads its topic has committed past it, and at least one group does. When
//     records that somebody still needs fill the log, appends to the source topics are refused until there is room again: the log
//     pushes back, it does not forget.
//   - A partition is never emptied: kfake would forget its offsets at the next start, and readers would stall.
//
// Read broker.go first, then janitor.go (what is deleted) and gate.go (what is refused).
package broker
