// Package eval measures whether a policy learns: personas talk to it session by session, and what counts is the session from which on their first replies are
// what they want.
//
// In: the arms (arms.go: what is varied), seeds, and a running system's servers. Out: the events EvaluationStarted, ReplyEvaluated and EvaluationEnded on the topic
// evaluations, and in a folder results.json, sessions.parquet and the report, all of which are read from the history.
//
// Invariants: one run, which is an arm with a seed, is one tenant of the log, so its policy starts from the base model and learns from its own personas only.
// The same seed gives every arm the same problems, the same words and the same draws. Personas know the gateway and nothing else; what they think of a reply
// is appended and never learned from. Between joint sessions everything is waited for that they set going. A run that was completed is not held again; one that was
// interrupted is begun anew under another tenant, and what is left of it is not reported.
//
// Read arms.go first, then eval.go (all runs), run.go (one of them) and sessions.go (one joint session).
package eval
