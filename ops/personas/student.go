package personas

import (
	"fmt"
	"regexp"
	"strings"
)

// student wants explanations that do not look machine-written.
func student() Persona {
	const instruction = "Explain it in two or three plain sentences: no numbered list, no bold and no 'Final answer' label."
	return Persona{
		Name: "student",
		Wish: "plain sentences, without numbered steps, bold or a 'Final answer' label",
		Opening: func(examples [Examples]Problem, p Problem) []Message {
			messages := []Message{{"system", "House style: number the steps (1., 2.) and end with **Final answer: N**."}}
			for _, e := range examples { // after one exchange, half of a small model's replies are plain by chance
				messages = append(messages, Message{"user", e.Text}, Message{"assistant", styled(e)})
			}
			return append(messages, Message{"user", p.Text})
		},
		Complaint: machineWritten,
		Hint:      instruction,
		Asks: []string{
			instruction,
			"Explain it in two or three plain sentences, without a numbered list, bold or a 'Final answer' label.",
			"Write it in plain sentences as a person would say it: no numbered list, no bold, no 'Final answer' label.",
			"Please tell me in two or three plain sentences how to get there, without numbers before the steps, without bold and without a 'Final answer' label.",
			"Use plain sentences only: no list with numbers, nothing in bold and no 'Final answer' label at the end.",
			"Can you write two or three plain sentences instead of a numbered list with bold text and a 'Final answer' label?",
			"Don't use a numbered list, bold or a 'Final answer' label, just plain sentences.",
			"Give me the explanation in plain sentences, with no numbered steps, no bold and no 'Final answer' label.",
		},
		Thanks: []string{
			"Thank you, that is exactly what I wanted.", "Thanks, that's perfect.", "Great, that helps a lot. Thank you!", "That's exactly it, thanks.",
			"Perfect, now it's clear. I'll go on to the next one.", "Thanks a lot, I can use that.",
		},
	}
}

// styled is a solution in the house style that the student does not like.
func styled(p Problem) string {
	var b strings.Builder
	for i, s := range p.Steps {
		fmt.Fprintf(&b, "%d. %s = **%d**.\n", i+1, s.Sum, s.Result)
	}
	fmt.Fprintf(&b, "\n**Final answer: %d**", p.Answer)
	return b.String()
}

// marks are what looks machine-written, by name.
var marks = []struct {
	name    string
	pattern *regexp.Regexp
}{
	{"a numbered list", regexp.MustCompile(`(?m)^\s*(?:[*_]{0,2}(?:step\s+)?\d{1,2}\s?[.):](?:\s|[*_])|[*_]{0,2}step\s+\d)`)},
	{"bold", regexp.MustCompile(`\*\*|__\w`)},
	{"a 'Final answer' label", regexp.MustCompile(`(?i)\bfinal\s+answer\b`)},
	{"a box", regexp.MustCompile(`\\boxed|\\fbox`)},
}

func machineWritten(r Reply) string {
	var found []string
	for _, m := range marks {
		if m.pattern.MatchString(strings.ToLower(r.Text)) {
			found = append(found, m.name)
		}
	}
	return strings.Join(found, ", ")
}
