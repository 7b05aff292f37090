package guard_test

import (
	"testing"

	"github.com/nextstate-rl/nextstate/ops/guard"
)

// TestForm states which replies count. Method: replies by hand.
func TestForm(t *testing.T) {
	for text, want := range map[string]string{
		"First multiply 12 by 4, which is 48, and then add the 3 that were left over: 51.":  "",
		"I cannot multiply that in my head, so take 12 by 4 on paper: it comes to 48 pens.": "",
		"I'm so glad you asked! I'm so glad you asked! I'm so glad you asked!":              "repeats itself (62 % of its word 3-grams)",
		"I’m sorry, but that is beyond what this conversation is about today, as it were.":  "a refusal",
		"As an AI language model there is nothing that could be said about such a matter.":  "a refusal",
		"Internal server error: 500, the upstream said nothing that could be understood.":   "an error message",
		"51.": "only 3 tokens",
		"":    "only 0 tokens",
	} {
		tokens := 25
		if len(text) < 10 {
			tokens = len(text)
		}
		if got := guard.Form(text, tokens, guard.Tokens); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestRepeatedCountsThousandsOnce: the share is that of repeated word 3-grams, with numbers whole. Method: texts whose 3-grams can be counted by hand.
func TestRepeatedCountsThousandsOnce(t *testing.T) {
	for text, want := range map[string]float64{
		"":                          0,
		"one two":                   0,
		"a b c d":                   0,
		"a b c a b c":               0.25, // abc bca cab abc
		"1,234 plus 1,234 is 2,468": 0,
	} {
		if got := guard.Repeated(guard.Words(text)); got != want {
			t.Errorf("%q: %g, want %g", text, got, want)
		}
	}
	if got := guard.Words("It's 1,234 pens"); len(got) != 3 || got[1] != "1234" {
		t.Errorf("words %q", got)
	}
}
