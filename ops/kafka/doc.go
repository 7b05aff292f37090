// Package kafka is schemas.Log on Apache Kafka, and on anything else that speaks its protocol, through kafka-go.
//
// In: records of any stage. Out: the same records, in the partition that Java's partitioner chooses for their key.
//
// Invariants:
//   - Append is acknowledged by all in-sync replicas. Batches of one partition go out one after another, each repeated until it is
//     acknowledged: a later one never overtakes a failed one. An ambiguous acknowledgement therefore repeats records, and never
//     reorders the first of each.
//   - Commits carry the member and its generation, so the broker itself refuses those of a former owner (schemas.ErrFenced). That is why
//     kafka-go's Reader is not used with a group: its commits carry neither, and rewind the group.
//   - The bytes that a caller gave to Append are not looked at any more once Append has returned.
//   - Topics are created, never changed: another partition count would tear sessions apart, and Open refuses it.
//   - No transactions, no compaction: kafka-go does not handle them well enough.
//
// Read log.go first (Open), then append.go, lane.go and batch.go (one record's way to the broker), cursor.go (back again) and
// group.go (who owns what).
package kafka
