// Package postgres runs a real PostgreSQL server on this machine, for `nextstate up` and the tests, on 127.0.0.1.
//
// In: a data folder and the binaries (asset "postgres"). Out: a DSN with user, password and database `nextstate`.
//
// Invariants:
//   - The server ends with its parent: the kernel sends it a fast shutdown when the parent dies, even by SIGKILL.
//   - It never runs as root: as root it takes the uid of the data folder's owner, nobody at first.
//   - Nobody enters without the password, which is made once per data folder and kept there (0600).
//   - One data folder, one server: the folder's lock is inherited by every process of the server, so holding it means that none is left.
//   - The data folder appears complete: initdb works beside it, syncs, and a rename puts it in place.
//
// Read first: server.go (Start), then initdb.go, account.go (as whom it runs).
package postgres
