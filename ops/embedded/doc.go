// Package embedded starts the servers that a machine without any needs: the broker, ClickHouse and PostgreSQL, in one data folder.
//
// In: a data folder, the assets, which servers are wanted. Out: their addresses. Invariants: one process at a time owns the folder (a lock);
// ports are chosen once and kept in it, so that clients reconnect after a restart; a server that dies is started again with the same
// address; all end with this process, also when it is killed.
//
// Read servers.go first.
package embedded
