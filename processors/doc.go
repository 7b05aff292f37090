// Package processors derives the two signals: pair joins an action and its next state, evaluate judges the turn, direct finds the hint in
// it, assemble makes the sample; stand has a user's hint stay, if that is asked for.
//
// In: records of interactions (pair), turns (evaluate, direct), turns with verdicts and hints (assemble), samples (stand). Out: records of turns,
// verdicts, hints, samples, standing, and deadletters for whatever a stage cannot take.
//
// Invariants:
//   - Derivation is a pure function of the log: no clock, no randomness, no map order. What a model said is an event, so a replay reads it.
//   - Nothing is made up: without a teacher's answer there is a reason, never zeros.
//   - Every main action becomes exactly one TurnClosed; every TurnClosed record exactly one TurnJudged and one of HintSelected and
//     HintAbsent, in the order of turns; every TurnClosed exactly one of SampleAssembled and TurnSkipped. "Exactly one" counts ids: a
//     record may repeat after a crash, and the first one wins everywhere.
//   - Outputs are acknowledged before progress is committed. State is rebuilt from the log, never stored.
//   - What stands depends on when a turn is derived, so the vote that says it is recorded, and read in a replay as a model's is.
//   - No input stops a stage: what cannot be taken is dead-lettered with its reason and bytes; what may pass is retried.
//
// Read processor.go first (the contract), then pair.go, evaluate.go, direct.go and assemble.go, one operator each, then runner.go, which
// runs any of them over the log, and derive.go, which runs all of them in memory.
package processors
