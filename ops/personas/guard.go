package personas

import (
	"slices"

	"github.com/nextstate-rl/nextstate/ops/guard"
)

// FluencyFloor is the least mean log-prob, in nats a token at temperature 1 under the base model, of a reply that counts. The least likely of the base
// model's own replies to the personas are near -1, with a hint near -1.6 (docs/learning.md, section Personas), so that the floor stops only what the base
// model would hardly ever say.
const FluencyFloor = -2.0

// guarded says why a reply does not count, whatever its form; empty: it counts.
func guarded(r Reply, p Problem, work []string) string {
	why := guard.Form(r.Text, r.Tokens, guard.Tokens)
	if why == "" && !onTopic(guard.Words(r.Text), p, work) {
		why = "beside the point"
	}
	return why
}

// onTopic holds when words name two of the problem's numbers or two of its nouns; or, for a persona with work words, one of these and a work word. "Your
// solution" alone is not enough for the teacher: praise that fits every problem would be on topic.
func onTopic(words []string, p Problem, work []string) bool {
	has := func(candidates []string) int {
		n := 0
		for _, c := range candidates {
			if slices.Contains(words, c) {
				n++
			}
		}
		return n
	}
	numbers, nouns := has(p.Numbers()), has(p.Nouns)
	return numbers >= 2 || nouns >= 2 || numbers+nouns >= 1 && has(work) >= 1
}
