// Package personas plays scripted users who talk to a policy and tell it what they would have liked better.
//
// In: an OpenAI-compatible endpoint that serves the policy, a persona, and a seed. Out: sessions, each with the judgement of its first reply, and
// whether the policy became aligned: a number of sessions in a row (3) whose first reply satisfied the persona.
//
// Invariants: a persona knows the policy through the public API only, and the policy learns of the persona through its messages only: a correction, thanks,
// or silence. The judgement of a reply is a pure function of its text, its length in tokens and the problem. Problems, and the seeds of the sampling, are
// functions of the run's seed. At most 8 turns a session.
//
// Satisfied means that the preference holds and the guard too, because a reply that is empty, repeated, a refusal or beside the point can meet a preference
// about form. The guard looks at the text alone: how likely the reply is under the base model is not part of it, since that would need the model.
//
// Read persona.go first, then session.go and run.go; guard.go holds the guard, problems.go what is talked about, client.go the API.
package personas
