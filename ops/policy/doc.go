// Package policy is the policy engine: sample, score, swap.
//
// In: conversations, from the gateway; token ids to score, from the teacher; LoRA files, from the trainer. Out: tokens with their ids and
// log-probs, as the model that sampled them gave them.
//
// Invariants:
//   - A request keeps the policy version that it started with. A swap takes effect between two requests and drops none.
//   - Log-probs are nats: at temperature 1 for the APIs, at the sampling temperature for training (algorithm, section 6). What an engine cannot
//     give is absent, never zero.
//   - Special tokens in the text of a message are text: only the chat template makes special tokens.
//
// Read engine.go first (the seam), then embedded.go (llama.cpp in a child, package llama), openai.go and sglang.go (servers elsewhere).
// A further engine is a file and a line in Engines; package policytest is the suite that every engine passes.
package policy
