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

// TestAbout: what counts takes up what is particular to its request, and not what all requests of the kind say. Method: four requests of one kind, replies by hand.
func TestAbout(t *testing.T) {
	requests := []string{
		"Comment on the solution: 12 boxes of 4 pens", "Comment on the solution: 7 trays of 9 seedlings",
		"Comment on the solution: 30 tickets of 5 euros", "Comment on the solution: 8 shelves of 25 jars",
	}
	particular := guard.Particular(requests)
	for reply, want := range map[string]string{
		"The 12 boxes hold four pens each.":         "",
		"Twelve pens are in the boxes.":             "",
		"A very good comment on the solution.":      "beside the point",
		"There are 12 reasons to like the solution": "beside the point",
		"": "beside the point",
	} {
		if got := guard.About(reply, particular[0]); got != want {
			t.Errorf("%q: %q, want %q (particular: %q)", reply, got, want, particular[0])
		}
	}
	for _, words := range guard.Particular(requests[:3]) {
		if len(words) > 0 || guard.About("anything", words) != "" {
			t.Errorf("three requests are too few to compare, and %q is called particular", words)
		}
	}
	if got := guard.About("it takes up 4", []string{"4"}); got != "" {
		t.Errorf("all particular words there are, and %q", got)
	}
}
