// Package files writes events into files that people take away: JSONL in the CloudEvents form of schemas.EncodeJSON, and Parquet with typed columns.
//
// In: a schemas.Reader, which is the log or the history in ClickHouse. Out: one JSONL file a topic (order of each session kept) or one Parquet file
// a kind, or a stream of JSONL.
//
// Invariants:
//   - The same records give the same bytes: topics, partitions and offsets in order, no clock, no map order.
//   - A file is there completely or not at all: it is written beside its place, synced and renamed, after all of the export has succeeded.
//   - Each event once: a record that repeats an id of its partition is left out.
//
// Read export.go first, then jsonl.go and parquet.go; rows_*.go are the Parquet schemas.
package files
