// Package trainer is the update loop: it consumes `samples` and publishes policy versions on `policies`.
//
// What is here so far is the objective: every loss of the algorithm (section 6) over [R, k] arrays of log-probs, with gradients, in float64. The
// loop and its engines are not written yet. What they read and write is settled in schemas: SampleAssembled in; UpdateStarted, PolicyPublished and
// PolicyRolledBack out.
//
// Read first: objective.go (Objective.Loss, one turn), loss.go (the surrogate, KL, importance weight), loss_directive.go (top-k, reverse KL),
// standardise.go (step rewards of a group), loss_engine.go (what external engines compute).
package trainer
