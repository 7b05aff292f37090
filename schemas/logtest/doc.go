// Package logtest is the one suite that every implementation of schemas.Log passes: in memory, the embedded broker, Apache Kafka.
//
// In: a Harness for each test. Out: failures. There are no feature flags: a log that cannot do something is not a schemas.Log.
//
// Invariants:
//   - No assertion depends on how fast something is; waits only end tests that hang.
//
// Read suite.go first; records.go is about records, owners.go about who owns what.
package logtest
