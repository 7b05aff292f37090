// Package ops puts the parts together: configuration, the servers and stores that a process uses, the list of stages, replay and status.
//
// In: a Config from the command line. Out: a System (the log, ClickHouse, Postgres: embedded, attached to a running `up`, or the operator's own)
// and the functions that the commands call on it.
//
// Invariants: a data folder belongs to one process at a time (a lock); other commands attach to it through its endpoints file. Everything that
// was started is stopped in order: first what reads, then the log, then the stores.
//
// Read pipeline.go first (the one list of stages), then system.go.
package ops
