// Package apache runs Apache Kafka 4 (KRaft, no ZooKeeper, no containers) out of its jars, for the tests: one JVM a node, each broker and
// controller at once, on 127.0.0.1.
//
// In: a folder with the jars, and java 17 or later on PATH. Out: brokers that can be killed and restarted.
//
// Invariants:
//   - A node keeps its ports over restarts, so its peers and clients find it again.
//   - No JVM outlives the process that started it, not even one that was killed (Linux).
//   - Ready means that a metadata request lists every node and a controller; an open port is not enough.
//
// Read cluster.go first, then node.go.
package apache
