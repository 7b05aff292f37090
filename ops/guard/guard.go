// Package guard says whether a reply counts at all, whatever it says: replies that are too short, that repeat themselves, refuse, or are an error message in
// place of an answer meet many a wish about form, and must teach nothing.
//
// In: a reply's text and its length. Out: why it does not count, or nothing. All functions are pure. The scripted users (ops/personas) and rehearsals use it.
package guard

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// Tokens is the least length of a reply that counts, unless the caller knows better; repeatedMax is the share of its word 3-grams that may be repetitions.
const (
	Tokens      = 20
	repeatedMax = 0.2
)

var refusal = regexp.MustCompile(`(?i)\b(?:i (?:can ?not|can't|am unable to|am not able to|won't) (?:help|assist|answer|provide|solve|do|fulfil|comply)|i'm (?:sorry|unable|not able)|i am sorry|` +
	`as an ai\b|as a language model)`)

// failure is what an agent's program says in place of a reply.
var failure = regexp.MustCompile(`(?i)^\W*(?:(?:internal )?(?:server )?error\b\W*(?:\d{3}\b|:)|exception\b\W*:|traceback \(most recent call last\)|http(?:/[\d.]+)? [45]\d\d\b|\{\s*"error"\s*:|(?:request|operation) timed out|` +
	`(?:rate limit|context length|quota) exceeded|service unavailable|bad gateway|null$|undefined$)`)

// Form says why a reply of so many tokens, where least are needed, does not count; empty: its form is that of an answer.
func Form(text string, tokens, least int) string {
	words := Words(text)
	switch share := Repeated(words); {
	case tokens < least || len(words) == 0:
		return fmt.Sprintf("only %d tokens", tokens)
	case share >= repeatedMax:
		return fmt.Sprintf("repeats itself (%.0f %% of its word 3-grams)", 100*share)
	case refusal.MatchString(strings.ReplaceAll(text, "’", "'")):
		return "a refusal"
	case failure.MatchString(text):
		return "an error message"
	}
	return ""
}

// Words returns the words of a text in lower case; a number is one word, however a tokenizer cuts it, and its thousands separators go.
func Words(text string) []string {
	text = thousands.ReplaceAllString(strings.ToLower(strings.ReplaceAll(text, "’", "'")), "$1$2")
	return strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '\'' })
}

var thousands = regexp.MustCompile(`(\d),(\d\d\d)\b`)

// Repeated is the share of the 3-grams of words that stood in the text before.
func Repeated(words []string) float64 {
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
