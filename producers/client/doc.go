// Package client is the public Go client for agents: it turns what an agent did and what the world answered into events and appends
// them to the log, directly (ops/kafka) or over HTTP (the gateway's POST /v1/events).
//
// In: typed calls on a Session (Action, NextState, Feedback, Outcome, End), or Send for a Future instead of waiting. Out: records on the
// topic interactions, through any schemas.Appender.
//
// Invariants:
//   - A call that returned nil is durable: the log acknowledged the event. A call that returned an error may or may not be in the log;
//     sending it again with the same id (client.ID) never makes a second event, because the first event with an id wins everywhere.
//   - Events of one session reach the log in the order of the calls, retries included: a session belongs to one lane, and a lane has one
//     append in flight.
//   - Memory is bounded by Config.BufferedBytes: a full buffer blocks the caller until ctx ends. Nothing is dropped silently.
//
// Read client.go first, then session.go (the typed calls), lane.go (batching and retry), http.go.
package client
