// Package clickhouse writes every event of the log into ClickHouse exactly once, and reads the history back.
//
// In: all topics of the log, as a consumer group. Out: the table events (each record once, byte for byte), one typed table for each kind,
// messages and tools once by content (the tables are made by ops/migrations); undecodable records become dead letters too.
//
// What makes it exactly once, in the order in which it happens to one range of one partition:
//  1. The range [first, last] is written down in Postgres, only by the current owner (its epoch).
//  2. Each table gets its rows of the range in one block under the token topic:partition:first-last; events comes last.
//  3. The group's commit and the next range follow.
//
// Invariants:
//   - A successor repeats exactly the range that it finds in Postgres. A table that has rows of the range already has the whole block,
//     because a block is atomic; the token refuses the block of a former owner that is still on its way.
//   - A known token is no proof of the block: ClickHouse notes it before it takes the part in, and loses the part when it is killed in between. So a
//     block that may have been sent before is looked for afterwards, and sent under the token's next form when it is not there.
//   - The first event with an id wins: a record whose id stands at a smaller offset of its partition is dropped from every table. This depends on
//     the log only, so that repeating a range gives the same rows.
//   - The memory of all batches together is bounded by Config.MemoryBytes.
//
// Read sink.go first, then claim.go (one partition from claim to end), batch.go, and the kind_*.go files (one function a kind).
package clickhouse
