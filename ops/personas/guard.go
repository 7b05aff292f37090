package personas

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

const (
	// guardTokens is the least length of a reply, repeatedMax the share of its word 3-grams that may be repetitions.
	guardTokens = 20
	repeatedMax = 0.2
	// FluencyFloor is the least mean log-prob, in nats a token at temperature 1 under the base model, of a reply that counts. The least likely of the base
	// model's own replies to the personas are near -1, with a hint near -1.6 (docs/learning.md, section Personas), so that the floor stops only what the base
	// model would hardly ever say.
	FluencyFloor = -2.0
)

var refusal = regexp.MustCompile(`(?i)\b(?:i (?:can ?not|can't|am unable to|am not able to|won't) (?:help|assist|answer|provide|solve|do|fulfil|comply)|i'm (?:sorry|unable|not able)|i am sorry|` +
	`as an ai\b|as a language model)`)

// failure is what an agent's program says in place of a reply.
var failure = regexp.MustCompile(`(?i)^\W*(?:(?:internal )?(?:server )?error\b\W*(?:\d{3}\b|:)|exception\b\W*:|traceback \(most recent call last\)|http(?:/[\d.]+)? [45]\d\d\b|\{\s*"error"\s*:|(?:request|operation) timed out|` +
	`(?:rate limit|context length|quota) exceeded|service unavailable|bad gateway|null$|undefined$)`)

// guard says why a reply does not count, whatever its form; empty: it counts.
func guard(r Reply, p Problem, work []string) string {
	words := split(r.Text)
	switch share := repeated(words); {
	case r.Tokens < guardTokens:
		return fmt.Sprintf("only %d tokens", r.Tokens)
	case share >= repeatedMax:
		return fmt.Sprintf("repeats itself (%.0f %% of its word 3-grams)", 100*share)
	case refusal.MatchString(strings.ReplaceAll(r.Text, "’", "'")):
		return "a refusal"
	case failure.MatchString(r.Text):
		return "an error message"
	case !onTopic(words, p, work):
		return "beside the point"
	}
	return ""
}

// split returns the words of a text in lower case; a number is one word, however a tokenizer cuts it, and its thousands separators go.
func split(text string) []string {
	text = thousands.ReplaceAllString(strings.ToLower(strings.ReplaceAll(text, "’", "'")), "$1$2")
	return strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '\'' })
}

var thousands = regexp.MustCompile(`(\d),(\d\d\d)\b`)

// repeated is the share of the 3-grams of words that stood in the text before.
func repeated(words []string) float64 {
	if len(words) < 3 {
		return 0
	}
	seen, again := map[[3]string]bool{}, 0
	for i := range len(words) - 2 {
		g := [3]string(words[i : i+3])
		if seen[g] {
			again++
		}
		seen[g] = true
	}
	return float64(again) / float64(len(words)-2)
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
