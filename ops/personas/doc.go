// Package personas plays scripted users who talk to a policy and tell it what they would have liked better.
//
// In: an OpenAI-compatible endpoint that serves the policy, a persona, and a seed. Out: sessions (Plan.Talk), each with the judgement of its replies, of
// which the first one counts; first replies to problems that no session is about (Plan.HeldOut); and whether the policy became aligned: a number of sessions
// in a row (3) whose first reply satisfied the persona (Plan.Run).
//
// The personas are a student, who wants plain sentences; a teaching assistant, who wants detailed comments on a solution; and a teacher, who wants warm ones.
// What they want stays the same, their words vary with the seed: a correction, another one that puts it otherwise, a complaint that a reply does not help,
// thanks, a word in parting. The rules of the derivation understand every phrase as it is meant. A model behind an endpoint can phrase them instead (Phrased).
//
// Invariants: a persona knows the policy through the public API only, and the policy learns of the persona through its messages only. The judgement of a reply
// is a pure function of its text, its length in tokens and the problem, and of its log-prob under the base model where the plan asks for it. Problems, words,
// and the seeds of the sampling, are functions of the run's seed and the persona. At most 8 turns a session. The problems are in two halves that share no
// story: settings are tuned on one and figures reported on the other. Within a run no two personas, no session and no held-out problem share a problem.
//
// Satisfied means that the preference holds and the guard too, because a reply that is empty, repeated, a refusal, an error message, beside the point or not
// fluent can meet a preference about form. A guard on one reply does not see one template in all of them: Sameness shows that. Nobody checks the arithmetic.
// What the embedded model does before it has learned anything is in docs/learning.md, section "Personas".
//
// Read persona.go first, then session.go and run.go; student.go, ta.go and teacher.go are the personas, words.go what all say, guard.go the guard,
// problems.go and stories_*.go what is talked about, client.go the API.
package personas
