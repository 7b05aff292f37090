// Package migrations brings the schema of both stores up to date when the process starts.
//
// In: a connection to Postgres or ClickHouse. Out: the tables and views that this version of the binary works with.
//
// Invariants:
//   - A migration is a numbered SQL file that never changes once it was applied: a changed one is an error, a change is a new file.
//   - A database that is newer than the binary is refused, because the binary cannot know what it means.
//   - Any number of processes may start at once: Postgres takes an advisory lock; every ClickHouse statement is idempotent.
//
// Read migrations.go first.
package migrations
