// Package guard says whether a reply counts at all, whatever it says: replies that are too short, that repeat themselves, refuse, are an error message in
// place of an answer, or speak of nothing that was asked meet many a wish about form, and must teach nothing.
//
// In: a reply's text and its length, and what is particular to the request. Out: why it does not count, or nothing. All functions are pure. The scripted users (ops/personas) and rehearsals use it.
package guard

import (
	"fmt"
	"regexp"
	"slices"
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

// Words that few requests have in common say what each is about.
const (
	// particularMin is the least number of requests that can be compared, particularMax the share of them that may have a particular word.
	particularMin = 4
	particularMax = 0.5
	// wordMin is the least length of a word that says something, numbers excepted.
	wordMin = 4
	// aboutMin is how many particular words of a request a reply to it must take up.
	aboutMin = 2
)

// Particular returns for each of the requests of one kind the words that set it apart: numbers, and words of some length, that are in at most half of the requests.
// Where there are too few to compare, none.
func Particular(requests []string) [][]string {
	in, words := map[string]int{}, make([][]string, len(requests))
	for i, text := range requests {
		for _, w := range Words(text) {
			if (len(w) >= wordMin || w[0] >= '0' && w[0] <= '9') && !slices.Contains(words[i], w) {
				words[i] = append(words[i], w)
				in[w]++
			}
		}
	}
	for i := range words {
		words[i] = slices.DeleteFunc(words[i], func(w string) bool {
			return len(requests) < particularMin || float64(in[w]) > particularMax*float64(len(requests))
		})
	}
	return words
}

// About says why a reply to a request with such particular words does not count; empty: it takes up at least two of them, or all when there are fewer.
func About(text string, particular []string) string {
	reply, found := Words(text), 0
	for _, w := range particular {
		if slices.Contains(reply, w) {
			found++
		}
	}
	if found < min(aboutMin, len(particular)) {
		return "beside the point"
	}
	return ""
}
