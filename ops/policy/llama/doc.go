// Package llama runs llama.cpp in a child of our own binary and speaks token ids with it: generate, score, swap.
//
// In: prompts as token ids, LoRA files. Out: sampled tokens, each with its log-probs, and the log-probs of given tokens. Text, templates and tools
// are the business of the package above (policy).
//
// Invariants:
//   - Native code runs in the child only. When it aborts, the requests in work fail with 503, the child is started again and loads the versions
//     that it had; the process lives.
//   - One goroutine of the child owns all of llama.cpp (scheduler.go). Each step is one batch: a token of every running sequence, then chunks of
//     prompts, so that no prompt stalls the others for long.
//   - Log-probs are float32 nats over the whole vocabulary, from the logits that the token was drawn from.
//   - A request keeps the policy version that it started with, from its first token to its last. A cached prefix is only used by its own version.
//   - Everything is bounded: the queue, the frames between the two, the tokens that wait for a slow caller (a context at most).
//
// Read server.go first (the parent's side and the API), then child.go, scheduler.go (the step), sampler.go (from logits to a token).
package llama
