// Package chat is between messages and token ids: it renders a conversation with the model's own chat template, and reads tool calls out of what the model says.
//
// In: the chat template of a GGUF file, messages, tools; the text of a response as it comes. Out: the ids of the prompt; visible text and tool calls.
//
// Invariants:
//   - Special tokens come from the template only. One that is written in a message, a tool or a name stays text, also where two texts meet.
//   - The same conversation gives the same ids, so a session's next prompt begins with the last one wherever the template allows it.
//   - A template is somebody else's program: it reads no files, its time, depth and output are bounded, and its failure is an error of one request.
//
// Read first: template.go (New, Render), then messages.go (what the template is given), tools.go, mark.go (how text stays text), jinja.go (the
// sandbox), parse.go (responses).
package chat
