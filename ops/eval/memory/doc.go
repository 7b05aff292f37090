// Package memory is the memory baseline: what a user asked for is stored, and put into the prompt of that user's next sessions.
//
// In: corrections of users, and the opening messages of a session. Out: the opening with a system message that names what this user asked for earlier.
// An embedding model decides which of the stored corrections say the same and which fit the new message.
//
// Invariants: users never see each other's memories. What is recalled is a function of that user's corrections, in order, and of the opening. The text stands in
// the prompt once.
//
// Read memory.go.
package memory
