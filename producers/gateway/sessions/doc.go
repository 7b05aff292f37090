// Package sessions says which session and which turn a chat request is, and makes the events of it. No HTTP.
//
// In: the messages of a request with who sends them (Begin), and what was answered (Finish). Out: ActionTaken, NextStateObserved,
// FeedbackGiven and SessionEnded, appended to a journal.
//
// A state is a conversation up to a response. A session is a line of states: each turn goes on where the one before ended. A request begins
// with some known states; the longest says where it belongs:
//   - It is the end of its session's line, nobody works there, and its next state is not another's: the request goes on with the session. All
//     messages after the state are the next state of its turn, appended before anything is sampled.
//   - Else the request is an edit, a regenerate, or parallel to another one: a branch, a session of its own, "<root>~<12 hex digits>", that names
//     the session and the turn that it left. So do the choices after the first. The parent stays as it is.
//   - No state is known: a new session; or, when the client names a session that is known, its history was rewritten, and the session goes
//     on with a whole context. Its next state is what follows the last assistant message, or the last message when there is none.
//   - The same request again, marked as a retry (or with the same idempotency key), is the same turn: it gets the stored answer. An attempt that
//     was interrupted is sampled again as the next turn of the session, with the attribute retry_of. Without a mark it is a regenerate.
//   - A side turn (header or rule) touches no line: it belongs to the named session or to one of its own.
//
// Conversations are compared by a canonical hash of each message (canonical.go) within a scope: tenant, key and user, or the named session.
// Leading system messages are not compared. The first turn of an inferred session has no state before it, so its regenerate is a new session.
//
// Invariants:
//   - At most one request works at the end of a line, so two conversations never merge, and a next state belongs to one turn, once.
//   - A delta names a turn that the journal has, of the same life of the session, and reaches back to a whole context that is younger than
//     Config.DeltaWithin. So pair knows the parent, and Restore finds every whole context in a bounded tail of the log.
//   - A response that the journal did not take is known for going on, and never referred to.
//   - The events of a session are appended in the order in which the Book saw them. No lock is held while sampling.
//   - Dying between Begin and Finish leaves a log that is right: the turn was not taken, and the same request goes on where it did.
//   - The messages that a request repeats cost one fast hash of their bytes each; only new ones are decoded.
//
// Read sessions.go (the API), place.go (the decision), exchange.go (the events), then book.go, conversation.go, restore.go.
package sessions
