// Package memlog is schemas.Log in memory, for tests and for deriving again from the history.
//
// In: records. Out: the same records, in the partitions that Kafka would choose. Topics come into being when they are first named.
//
// Invariants:
//   - It passes the same suite as the log on Kafka (schemas/logtest), fencing of former owners included.
//   - Nothing that was appended is ever copied again or changed: cursors hand out records that share the stored bytes.
//   - Every wait ends: with its context, or after Options.Handover for a former owner that does not let go.
//
// Read log.go first, then group.go (who owns what) and faults.go (what tests can make go wrong).
package memlog
