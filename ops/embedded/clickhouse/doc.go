// Package clickhouse runs a real ClickHouse server on this machine, for `nextstate up` and the tests: native and HTTP on 127.0.0.1.
//
// In: a data folder and libchdb.so, the whole of ClickHouse as a library (asset "clickhouse"). Out: a DSN and an HTTP address.
//
// The engine runs in a child, which is our own binary executed again: an abort in native code ends the child, not us. The child runs
// `clickhouse local`, lets it open its listeners, and leaves it at its prompt, on a terminal of its own.
//
// Invariants:
//   - The child lives as long as a pipe from its parent is open. When that ends, by Close or by the death of the parent, even by SIGKILL, the child
//     types "exit" at the prompt: the engine shuts down in order. One that does not is ended after a while.
//   - Nobody enters without the password, which is made once per data folder and kept there (0600). ClickHouse's own user `default`, which has none,
//     is needed to open the listeners; it may do nothing else, and its one allowed session is that of the prompt.
//   - Memory stays under Config.MemoryBytes; a query that needs more fails.
//   - One data folder, one server: a second one is refused with *folder.LockedError.
//
// Read first: server.go (Start), then child.go (what the child does), config.go (what the engine is told).
package clickhouse
