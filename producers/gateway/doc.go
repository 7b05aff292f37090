// Package gateway is the HTTP door: producers post events to it, and agents use it as their model.
//
// In: POST /v1/events, CloudEvents JSON (one object, an array, or NDJSON) with an API key; POST /v1/chat/completions in OpenAI's shape, also
// under /s/{session}/v1; feedback, ends of sessions. Out: records on the topic interactions; answers of the policy (Policy), or of an
// upstream (relay.go), token by token. GET /healthz says that the process runs, GET /readyz that what it needs is there.
//
// Invariants:
//   - An event is answered "ok" only after the log acknowledged it. "failed" may be in the log and can be sent again with its id.
//   - The tenant is that of the key; an event that names another is refused. Only the kinds of the topic interactions are taken.
//   - The last bytes of a chat answer (the JSON body, or "data: [DONE]") are sent only after its turn is in the journal. An answer without them
//     was not recorded, or recorded as interrupted.
//   - A turn holds what was sampled, as the policy gave it. One that was interrupted says so, and is never trained. Nothing sampled is no turn.
//   - A field that would change the answer and cannot be honoured is refused by its name, never ignored.
//   - What is in work is bounded: requests, bytes of bodies, the time of a write to a client that does not read. Beyond the bound the answer is
//     429, not memory.
//   - A body is decoded whole before anything is appended or sampled: a torn or oversized request has no effect.
//
// Read gateway.go first, then, for events: events.go (the request), body.go (framing). For chat: door.go (admission), auth.go, exchange.go
// (from a request to its turns: no API's shape), run.go (sampling and recording), then OpenAI's shape: chat_request.go, chat_message.go,
// chat_tools.go (decode) and chat.go, chat_stream.go (encode), over wire.go. A further API is a decoder that fills a completion, a reply, and a line in routes.
package gateway
