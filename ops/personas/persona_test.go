package personas

import (
	"math"
	"strings"
	"testing"
)

// kofi is a problem that the hand-written replies below are about.
var kofi = Problem{
	Text:  "Kofi buys 4 boxes of pens. Each box holds 12 pens. Kofi gives 9 pens to friends. How many pens are left?",
	Nouns: []string{"pens", "pen", "boxes", "box", "friends"}, Steps: []Step{times(4, 12), minus(48, 9)}, Answer: 39,
}

const (
	plain    = "Kofi has 4 boxes with 12 pens in each, which makes 48 pens. After giving 9 of them to friends there are 39 pens left."
	detailed = "The student multiplied 4 by 12 to get the 48 pens in all boxes, which is right because every box holds the same number. Then the student took away the 9 pens for the friends and got 39, which is right too. It would be clearer to say what 48 stands for."
)

// TestPreferences holds each persona's preference against replies written by hand. Method: the complaint must name what was written.
func TestPreferences(t *testing.T) {
	for name, c := range map[string]struct {
		persona, text string
		tokens        int
		complaint     string // empty: none
	}{
		"plain":                 {"student", plain, 40, ""},
		"decimals":              {"student", "The pens cost 4. 50 euros is 12.5 times that, so 39 is right", 30, ""},
		"number opens a line":   {"student", "48 pens are in the boxes.\n39 are left.", 30, ""},
		"numbered":              {"student", "1. 4 x 12 = 48\n2. 48 - 9 = 39", 30, "numbered"},
		"numbered with bracket": {"student", "First:\n 1) 4 x 12 = 48", 30, "numbered"},
		"numbered in bold":      {"student", "**1.** 4 x 12 = 48", 30, "numbered"},
		"step by number":        {"student", "Step 1: 4 x 12 = 48", 30, "numbered"},
		"bold":                  {"student", "There are **39** pens left.", 30, "bold"},
		"label":                 {"student", "Final answer: 39", 30, "label"},
		"label in capitals":     {"student", "So the FINAL  ANSWER is 39", 30, "label"},
		"boxed":                 {"student", `It is \boxed{39}.`, 30, "box"},
		"long comment":          {"ta", detailed, 60, ""},
		"just long enough":      {"ta", detailed, 50, ""},
		"short comment":         {"ta", detailed, 49, "49 tokens"},
		"warm":                  {"teacher", "Well done, Kofi! Multiplying 4 by 12 first was right.", 30, ""},
		"warm within":           {"teacher", "Your solution with the 48 pens is EXCELLENT.", 30, ""},
		"proud":                 {"teacher", "I am so proud of you for seeing that 48 - 9 = 39.", 30, ""},
		"cold":                  {"teacher", "The result 39 is correct.", 30, "no praise"},
		"good alone":            {"teacher", "It is good to multiply first.", 30, "no praise"},
		"praise denied":         {"teacher", "This is not well done: 4 x 12 is 48.", 30, "no praise"},
		"praise denied within":  {"teacher", "That isn’t a great job at all.", 30, "no praise"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Named(c.persona)
			if err != nil {
				t.Fatal(err)
			}
			got := p.Complaint(Reply{Text: c.text, Tokens: c.tokens})
			if (got == "") != (c.complaint == "") || !strings.Contains(got, c.complaint) {
				t.Errorf("%q: %q, want %q", c.text, got, c.complaint)
			}
		})
	}
}

// TestGuard refuses what meets a preference and helps nobody. Method: replies written by hand, each with one fault.
func TestGuard(t *testing.T) {
	loop := strings.Repeat("I am so glad that you asked about the pens. ", 6)
	for name, c := range map[string]struct {
		text   string
		tokens int
		work   []string
		want   string
	}{
		"good":                 {plain, 40, nil, ""},
		"plain arithmetic":     {"4 times 12 is 48, and 48 minus 9 is 39, so that is what is left in the end.", 40, nil, ""},
		"short":                {"39 pens in 4 boxes.", 8, nil, "only 8 tokens"},
		"empty":                {"", 0, nil, "only 0 tokens"},
		"loop":                 {loop, 70, nil, "repeats itself"},
		"refusal":              {"I’m sorry, but I cannot say how many pens are in the 4 boxes of 12, as that is private.", 30, nil, "a refusal"},
		"another refusal":      {"As an AI language model I know nothing of pens and boxes that belong to Kofi.", 30, nil, "a refusal"},
		"error":                {"Error 500: the upstream failed while it counted the 4 boxes of 12 pens, please try again later.", 30, nil, "an error message"},
		"error of an API":      {"{\"error\": {\"message\": \"4 boxes of 12 pens are too many\", \"type\": \"invalid_request_error\"}}", 30, nil, "an error message"},
		"traceback":            {"Traceback (most recent call last):\n  File \"pens.py\", line 4, in boxes\nValueError: 12", 30, nil, "an error message"},
		"errors as a word":     {"Errors are easy to make with 4 boxes of 12 pens: first there are 48, then 39.", 30, nil, ""},
		"beside the point":     {"What a lovely day it is to go to the beach and to look at the sea and the ships.", 30, nil, "beside the point"},
		"one number only":      {"There are 39 of them, I think, because that is what comes out when one counts it all, 4 by one.", 30, nil, "beside the point"},
		"one number and work":  {"The student multiplied by 4 as one should, and everything that follows from that is right as well.", 30, []string{"multiplied"}, ""},
		"praise for all":       {"Well done! Your solution is excellent and your answer is right. Keep up the good work, I am proud of you.", 30, gradingWords, "beside the point"},
		"work without problem": {"The student multiplied as one should, and everything that follows from that is right as well.", 30, []string{"multiplied"}, "beside the point"},
	} {
		t.Run(name, func(t *testing.T) {
			got := guarded(Reply{Text: c.text, Tokens: c.tokens}, kofi, c.work)
			if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
				t.Errorf("%q: %q, want %q", c.text, got, c.want)
			}
		})
	}
}

// TestNamed: an unknown persona is refused with the names that exist.
func TestNamed(t *testing.T) {
	if _, err := Named("pirate"); err == nil || !strings.Contains(err.Error(), "student, ta, teacher") {
		t.Errorf("error %v", err)
	}
}

// generate makes problems of which there are enough.
func generate(t *testing.T, half Half, seed uint64, n int) []Problem {
	t.Helper()
	problems, err := Problems(half, seed, n)
	if err != nil {
		t.Fatal(err)
	}
	return problems
}

// TestSameness: the share of 3-grams that replies have in common, numbers being equal. Method: replies of which it can be counted by hand.
func TestSameness(t *testing.T) {
	for name, c := range map[string]struct {
		replies []string
		want    float64
	}{
		"none":         {nil, 0},
		"one":          {[]string{"a b c d"}, 0},
		"one and none": {[]string{"a b c d", "a b"}, 0},
		"different":    {[]string{"a b c d", "e f g h"}, 0},
		"equal":        {[]string{"The answer is 12.", "the answer is 1,234"}, 1},
		"half":         {[]string{"a b c d", "x a b c"}, 0.5},              // abc of abc, bcd; of xab, abc
		"once counted": {[]string{"a b c a b c", "a b c"}, (1./3 + 1) / 2}, // abc of abc, bca, cab; of abc
		"pairs":        {[]string{"a b c d", "a b c d", "e f g"}, 1. / 3},
	} {
		if got := Sameness(c.replies); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: %g, want %g", name, got, c.want)
		}
	}
}
