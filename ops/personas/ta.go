package personas

import (
	"fmt"
	"strings"
)

// taTokens is the least length of a comment that the teaching assistant calls detailed: half of the reference's, because replies are cut early here.
const taTokens = 50

// ta wants detailed comments on solutions that it grades.
func ta() Persona {
	const instruction = "Explain every step in detail: what the student calculated, why it is right, and how it could be explained better."
	ask := func(p Problem) Message {
		return Message{"user", fmt.Sprintf("Problem: %s\nStudent's solution: %s. The answer is %d.\nComment on the solution.", p.Text, sums(p), p.Answer)}
	}
	return Persona{
		Name: "ta",
		Wish: fmt.Sprintf("detailed comments on a solution, of at least %d tokens", taTokens),
		Opening: func(examples [Examples]Problem, p Problem) []Message {
			var messages []Message
			for _, e := range examples {
				messages = append(messages, ask(e), Message{"assistant", fmt.Sprintf("The solution is correct: %d.", e.Answer)})
			}
			return append(messages, ask(p))
		},
		Complaint: func(r Reply) string {
			if r.Tokens < taTokens {
				return fmt.Sprintf("%d tokens instead of %d", r.Tokens, taTokens)
			}
			return ""
		},
		Work: gradingWords,
		Hint: instruction,
		Asks: []string{
			instruction,
			"Write a detailed comment on every step: what the student calculated, why it is right, and how it could be explained better.",
			"Go through every step in detail: what the student calculated, why it is right, and how it could be put better.",
			"Describe each step in detail, say why it is right, and tell the student how to explain it better.",
			"Please look at each step in detail: what was calculated, why that is right, and what could be explained better.",
			"Give detailed comments on every step: what the student did, why it is right, and how to explain it better.",
			"Tell the student in detail what was calculated in every step, why it is right, and how it could be explained better.",
			"Can you explain in detail what the student calculated in each step, why it is right, and how it could be explained better?",
		},
		Thanks: []string{
			"Thank you, that is exactly what I needed.", "Thanks, that's a very helpful comment.", "Great, that is detailed enough. Thank you!", "Perfect, thanks. On to the next solution.",
			"That's exactly what the student needs, thank you.", "Excellent, thanks a lot.",
		},
	}
}

// sums are the steps of a solution as a student hands them in.
func sums(p Problem) string {
	var steps []string
	for _, s := range p.Steps {
		steps = append(steps, fmt.Sprintf("%s = %d", s.Sum, s.Result))
	}
	return strings.Join(steps, ", then ")
}

// gradingWords show that a reply speaks of a solution.
var gradingWords = []string{"solution", "step", "steps", "student", "calculated", "multiplied", "multiplying", "added", "adding", "subtracted", "subtracting", "divided", "dividing"}
