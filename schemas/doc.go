// Package schemas is what crosses a boundary: the events, their topics, ids and codec, and the two verbs of the log (append, read).
//
// In: nothing of ours; this package imports no other package of the module. Out: everything else imports it.
//
// Invariants:
//   - An event is immutable. The first event with an id wins, everywhere.
//   - A source event's id is a UUIDv7 (or a hash of the content it was imported from); a derived event's id is a hash of the
//     processor, its version, the kind, the id of the event that it was derived from, and an index. Same input, same id.
//   - A record's key is tenant "/" session, so that one session has one total order. Absence is absence, never zero.
//   - Decode accepts exactly what Encode writes: a hostile record is an error that says what is wrong, never a panic.
//
// Read event.go first, then kinds.go (the table of events and topics), codec.go, log.go.
package schemas
