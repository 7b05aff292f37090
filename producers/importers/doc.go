// Package importers turns transcripts of agents into source events.
//
// In: a file (or a reader) in one of the formats of the table Formats. Out: ActionTaken, NextStateObserved, FeedbackGiven, OutcomeReported
// and SessionEnded, appended in the order of each session, and a Report that counts them.
//
// Invariants:
//   - An event's id is a hash of the format, the session and the record that it came from: importing a file again adds nothing.
//   - Times come from the file or are absent; no clock is read. What the file does not say stays absent.
//   - Memory does not grow with the file: a reader holds one record (at most MaxRecord bytes), an index, and the messages since the
//     session's last action. Contexts are written as deltas, blobs go to the blob store.
//   - A bad record becomes one dead letter with its file, line and reason, and the rest goes on. No input panics a reader.
//
// Read format.go first (the table), then import.go, source.go (reading), emitter.go and session.go (writing), then one reader: atif.go.
package importers
