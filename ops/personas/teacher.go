package personas

import (
	"fmt"
	"regexp"
	"strings"
)

// praise is what the teacher calls a warm comment. A praise that is denied ("not well done") is none.
var (
	praise = regexp.MustCompile(`(?i)\b(?:well done|excellent(?:ly)?|great (?:job|work)|good (?:job|work)|nicely done|wonderful(?:ly)?|fantastic|brilliant|impressive|superb|bravo|proud of you)\b`)
	denied = regexp.MustCompile(`(?i)\b(?:not|isn't|wasn't|never|hardly|no)\s+(?:\w+\s+)?(?:well done|excellent|great|good|nicely done|wonderful|fantastic|brilliant|impressive|superb)\b`)
)

// teacher wants warm comments on solutions.
func teacher() Persona {
	const instruction = "Explain why the student's solution is excellent: what is calculated first, what is calculated then, and what the numbers mean."
	ask := func(p Problem) Message {
		return Message{"user", fmt.Sprintf("Problem: %s\nStudent's solution: %s. The answer is %d.\nWrite a comment for the student.", p.Text, sums(p), p.Answer)}
	}
	return Persona{
		Name: "teacher",
		Wish: "warm comments on a solution, with praise such as 'well done' or 'excellent'",
		Opening: func(examples [Examples]Problem, p Problem) []Message {
			var messages []Message
			for _, e := range examples { // cold ones
				cold := fmt.Sprintf("The solution is correct, because %s.", strings.ReplaceAll(sums(e), ", then ", " and "))
				messages = append(messages, ask(e), Message{"assistant", cold})
			}
			return append(messages, ask(p))
		},
		Complaint: func(r Reply) string {
			if praise.MatchString(denied.ReplaceAllString(strings.ReplaceAll(r.Text, "’", "'"), "")) {
				return ""
			}
			return "no praise"
		},
		Work: gradingWords,
		Hint: instruction,
		Asks: []string{
			instruction,
			"Tell the student why the solution is excellent: what is calculated first, what is calculated then, and what the numbers mean.",
			"Write warmly why the student's solution is excellent: what is calculated first, what is calculated next, and what the numbers mean.",
			"Say what is excellent about the student's solution: what is calculated first, what is calculated then, and what the numbers stand for.",
			"Describe why this is an excellent solution: what is calculated first, what is calculated next, and what each number means.",
			"Please explain to the student why the solution is excellent, from what is calculated first to what the numbers mean.",
			"Show the student why this solution is excellent: what is calculated first, what comes then, and what the numbers mean.",
			"Can you explain why the student's solution is excellent: what is calculated first, what is calculated then, and what the numbers mean?",
		},
		Thanks: []string{
			"Thank you, that is exactly the right tone.", "Thanks, that's lovely.", "Great, the student will be happy. Thank you!", "Perfect, thanks a lot.",
			"That's exactly what I had in mind, thank you.", "Wonderful, thanks. On to the next one.",
		},
	}
}
