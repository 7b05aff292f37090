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
	const instruction = "Start with warm praise such as 'Well done!', then say what is good about each step of the student's solution."
	ask := func(p Problem) Message {
		return Message{"user", fmt.Sprintf("Problem: %s\nStudent's solution: %s. The answer is %d.\nWrite a comment for the student.", p.Text, sums(p), p.Answer)}
	}
	return Persona{
		Name: "teacher",
		Wish: "warm comments on a solution, with praise such as 'well done' or 'excellent'",
		Opening: func(examples [Examples]Problem, p Problem) []Message {
			var messages []Message
			for _, e := range examples { // cold ones
				messages = append(messages, ask(e), Message{"assistant", fmt.Sprintf("The result %d is correct. The steps are in the right order.", e.Answer)})
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
			"Give warm praise first, such as 'Excellent!' or 'Well done!', then say what the student did well in each step.",
			"Tell the student 'well done' or 'excellent' first, and then say warmly what is good about the solution.",
			"Write it warmly: start with 'Well done!' and then name what is good about every step of the solution.",
			"Please give the student warm praise such as 'Excellent work!', and say what was done well in the steps.",
			"Make it warm: say 'Well done!' and tell the student what is good about the steps of the solution.",
			"Use warm words such as 'Excellent!' or 'Well done!', and mention what the student did well in the solution.",
			"Can you say 'Well done!' warmly at the beginning and then praise what is good about the solution?",
		},
		Thanks: []string{
			"Thank you, that is exactly the right tone.", "Thanks, that's lovely.", "Great, the student will be happy. Thank you!", "Perfect, thanks a lot.",
			"That's exactly what I had in mind, thank you.", "Wonderful, thanks. On to the next one.",
		},
	}
}
