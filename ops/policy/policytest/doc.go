// Package policytest is the suite that every policy engine passes.
//
// In: a function that opens an engine, and what its server can tell. Out: failures of the test.
//
// Invariants: the suite needs no special model; what it asserts holds for random weights, too. It times nothing: an engine that hangs runs into
// the limit of go test. Read policytest.go first.
package policytest
