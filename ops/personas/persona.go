package personas

import (
	"fmt"
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
	// Asks are what it says that it wants when it does not like a reply, all of them the same in other words; Hint is the plainest of them.
	Asks []string
	Hint string
	// Thanks are what it says to a reply that satisfies it.
	Thanks []string
}

// All are the personas. A new one is a file like student.go and a line here.
func All() []Persona { return []Persona{student(), ta(), teacher()} }

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
	return Judgement{Complaint: p.Complaint(r), Guard: guarded(r, q, p.Work)}
}

// Hinted is the conversation with what the persona asks for in its last user message, in the form in which the teacher gets a hint.
func (p Persona) Hinted(messages []Message) []Message {
	hinted := slices.Clone(messages)
	for i := len(hinted) - 1; i >= 0; i-- {
		if hinted[i].Role == "user" {
			hinted[i].Content = strings.TrimSpace(hinted[i].Content + "\n\n[user's hint / instruction]\n" + p.Hint)
			break
		}
	}
	return hinted
}
