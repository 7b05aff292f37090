// Package folder keeps what every embedded server's data folder has: a lock, a secret, and a log that does not grow without bound.
//
// In: a path. Out: the lock as an open file, which children inherit.
//
// Invariant: a folder's lock is held for as long as any process lives that inherited it. So whoever has it knows that no server of the folder runs,
// not even one whose parent was killed.
//
// Everything is in folder.go.
package folder
