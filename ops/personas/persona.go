package personas

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Examples is the number of problems that earlier exchanges are about.
const Examples = 2

// Message is one message of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Persona is a scripted user. The zero value is not usable: take one of All or Named.
type Persona struct {
	// Name and Wish: what it is called, and what it wants in words.
	Name, Wish string
	// Opening is the conversation up to the first message about p, which is the last one. Earlier exchanges about the examples set the policy on the form
	// that the persona does not like.
	Opening func(examples [Examples]Problem, p Problem) []Message
	// Complaint says what the persona does not like about a reply; empty: the preference holds.
	Complaint func(r Reply) string
	// Work are words that show, beside one number or noun of the problem, that a reply is about it. Nil: two numbers or two nouns are needed.
	Work []string
	// Correction is what it says to a reply that it does not like, and Hint what that correction asks for, as an instruction.
	Correction, Hint string
	// Thanks is what it says to a reply that satisfies it.
	Thanks string
}

// All are the personas. A new one is a function like student and a line here.
func All() []Persona { return []Persona{student(), ta()} }

// Names lists the personas.
func Names() []string {
	var names []string
	for _, p := range All() {
		names = append(names, p.Name)
	}
	return names
}

// Named finds a persona.
func Named(name string) (Persona, error) {
	all := All()
	i := slices.IndexFunc(all, func(p Persona) bool { return p.Name == name })
	if i < 0 {
		return Persona{}, fmt.Errorf("there is no persona %q: use one of %s", name, strings.Join(Names(), ", "))
	}
	return all[i], nil
}

// Judgement is what a persona thinks of a reply. Both fields empty: it is satisfied.
type Judgement struct {
	// Complaint is what it does not like, Guard why the reply would not count even if it liked it.
	Complaint, Guard string
}

// Satisfied is whether the preference and the guard hold.
func (j Judgement) Satisfied() bool { return j.Complaint == "" && j.Guard == "" }

// String is the judgement in words.
func (j Judgement) String() string {
	switch {
	case j.Satisfied():
		return "satisfied"
	case j.Complaint == "":
		return j.Guard
	case j.Guard == "":
		return j.Complaint
	}
	return j.Complaint + "; " + j.Guard
}

// Judge judges a reply to a message about p. Pure.
func (p Persona) Judge(r Reply, q Problem) Judgement {
	return Judgement{Complaint: p.Complaint(r), Guard: guard(r, q, p.Work)}
}

// NoHelp answers a reply that the guard refuses and that has the form which the persona likes: there is nothing to ask for but a better reply.
const NoHelp = "That answer does not help me."

// Answer is what the persona says to a reply that was judged so.
func (p Persona) Answer(j Judgement) string {
	switch {
	case j.Satisfied():
		return p.Thanks
	case j.Complaint == "":
		return NoHelp
	}
	return p.Correction
}

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
		Complaint:  machineWritten,
		Correction: "That is not what I wanted. " + instruction,
		Hint:       instruction,
		Thanks:     "Thank you, that is exactly what I wanted.",
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

// taTokens is the least length of a comment that the teaching assistant calls detailed: half of the reference's, because replies are cut early here.
const taTokens = 50

// ta wants detailed comments on solutions that it grades.
func ta() Persona {
	const instruction = "Explain every step in detail: what the student calculated, why it is right, and how it could be explained better."
	ask := func(p Problem) Message {
		var steps []string
		for _, s := range p.Steps {
			steps = append(steps, fmt.Sprintf("%s = %d", s.Sum, s.Result))
		}
		return Message{"user", fmt.Sprintf("Problem: %s\nStudent's solution: %s. The answer is %d.\nComment on the solution.", p.Text, strings.Join(steps, ", then "), p.Answer)}
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
		Work:       []string{"solution", "step", "steps", "student", "calculated", "multiplied", "multiplying", "added", "adding", "subtracted", "subtracting", "divided", "dividing"},
		Correction: "That is not detailed enough. " + instruction,
		Hint:       instruction,
		Thanks:     "Thank you, that is exactly what I needed.",
	}
}
