// Package gateway is the HTTP door for producers.
//
// In: POST /v1/events, CloudEvents JSON (one object, an array, or NDJSON) with an API key. Out: records on the topic interactions, through
// a schemas.Appender; one answer an event. GET /healthz says that the process runs, GET /readyz that what it needs is there.
//
// Invariants:
//   - An event is answered "ok" only after the log acknowledged it. "failed" may be in the log and can be sent again with its id.
//   - The tenant is that of the key; an event that names another is refused. Only the kinds of the topic interactions are taken.
//   - The whole body is decoded before anything is appended: a torn or oversized request has no effect.
//   - The bytes of all requests in work are bounded; beyond the bound the answer is 429, not memory.
//
// Read gateway.go first, then events.go (the request), body.go (framing), health.go. A further API is a further file and a line in routes.
package gateway
