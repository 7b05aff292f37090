package clickhouse

import (
	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/schemas"
)

func updateSkipped(t *table, _ *Batch) func(row) {
	update := newCells[uint64](t, "update")
	updateID := newCells[uuid.UUID](t, "update_id")
	parentVersion := newCells[string](t, "parent_version")
	reason := newCells[string](t, "reason")
	return func(r row) {
		p, ok := r.Payload.(*schemas.UpdateSkipped)
		if !ok {
			return
		}
		update.add(p.GetUpdate())
		updateID.add(parseID(p.GetUpdateId()))
		parentVersion.add(p.GetParentVersion())
		reason.add(p.GetReason())
	}
}

func hintStood(t *table, _ *Batch) func(row) {
	user := newCells[string](t, "user")
	hint := newCells[string](t, "hint")
	turnID := newCells[uuid.UUID](t, "turn_id")
	return func(r row) {
		p, ok := r.Payload.(*schemas.HintStood)
		if !ok {
			return
		}
		user.add(p.GetUser())
		hint.add(p.GetHint())
		turnID.add(parseID(p.GetTurnId()))
	}
}

func hintWithdrawn(t *table, _ *Batch) func(row) {
	user := newCells[string](t, "user")
	hintID := newCells[uuid.UUID](t, "hint_id")
	reason := newCells[string](t, "reason")
	by := newCells[string](t, "by")
	return func(r row) {
		p, ok := r.Payload.(*schemas.HintWithdrawn)
		if !ok {
			return
		}
		user.add(p.GetUser())
		hintID.add(parseID(p.GetHintId()))
		reason.add(p.GetReason())
		by.add(p.GetBy())
	}
}

func rehearsalEnded(t *table, _ *Batch) func(row) {
	hintIDs := newLists[[]uuid.UUID](t, "hint_ids")
	sampleIDs := newLists[[]uuid.UUID](t, "sample_ids")
	fromVersion := newCells[string](t, "from_version")
	toVersion := newCells[string](t, "to_version")
	guardBefore := newCells[float64](t, "guard_before")
	guardAfter := newCells[float64](t, "guard_after")
	reason := newCells[string](t, "reason")
	seconds := newLists[map[string]float64](t, "seconds")
	return func(r row) {
		p, ok := r.Payload.(*schemas.RehearsalEnded)
		if !ok {
			return
		}
		hintIDs.add(parseIDs(p.GetHintIds()))
		sampleIDs.add(parseIDs(p.GetSampleIds()))
		fromVersion.add(p.GetFromVersion())
		toVersion.add(p.GetToVersion())
		guardBefore.add(p.GetGuardBefore())
		guardAfter.add(p.GetGuardAfter())
		reason.add(p.GetReason())
		seconds.add(p.GetSeconds())
	}
}

func evaluationStarted(t *table, _ *Batch) func(row) {
	arm := newCells[string](t, "arm")
	seed := newCells[uint64](t, "seed")
	personas := newLists[[]string](t, "personas")
	sessions := newCells[uint32](t, "sessions")
	half := newCells[string](t, "half")
	settings := newCells[string](t, "settings")
	baseModel := newCells[string](t, "base_model")
	return func(r row) {
		p, ok := r.Payload.(*schemas.EvaluationStarted)
		if !ok {
			return
		}
		arm.add(p.GetArm())
		seed.add(p.GetSeed())
		personas.add(p.GetPersonas())
		sessions.add(p.GetSessions())
		half.add(p.GetHalf())
		settings.add(p.GetSettings())
		baseModel.add(p.GetBaseModel())
	}
}

func replyEvaluated(t *table, _ *Batch) func(row) {
	arm := newCells[string](t, "arm")
	seed := newCells[uint64](t, "seed")
	persona := newCells[string](t, "persona")
	phase := newCells[string](t, "phase")
	sessionIndex := newCells[uint32](t, "session_index")
	turnIndex := newCells[uint32](t, "turn_index")
	problem := newCells[string](t, "problem")
	reply := newCells[string](t, "reply")
	tokens := newCells[uint32](t, "tokens")
	policyVersion := newCells[string](t, "policy_version")
	complaint := newCells[string](t, "complaint")
	guard := newCells[string](t, "guard")
	satisfied := newCells[bool](t, "satisfied")
	baseLogprob := newCells[*float64](t, "base_logprob")
	seconds := newCells[float64](t, "seconds")
	return func(r row) {
		p, ok := r.Payload.(*schemas.ReplyEvaluated)
		if !ok {
			return
		}
		arm.add(p.GetArm())
		seed.add(p.GetSeed())
		persona.add(p.GetPersona())
		phase.add(phaseWords[p.GetPhase().Number()])
		sessionIndex.add(p.GetSessionIndex())
		turnIndex.add(p.GetTurnIndex())
		problem.add(p.GetProblem())
		reply.add(p.GetReply())
		tokens.add(p.GetTokens())
		policyVersion.add(p.GetPolicyVersion())
		complaint.add(p.GetComplaint())
		guard.add(p.GetGuard())
		satisfied.add(p.GetSatisfied())
		baseLogprob.add(p.BaseLogprob)
		seconds.add(p.GetSeconds())
	}
}

func evaluationEnded(t *table, _ *Batch) func(row) {
	arm := newCells[string](t, "arm")
	seed := newCells[uint64](t, "seed")
	outcome := newCells[string](t, "outcome")
	sessions := newCells[uint32](t, "sessions")
	alignedAt := newLists[map[string]uint32](t, "aligned_at")
	updates := newCells[uint32](t, "updates")
	seconds := newLists[map[string]float64](t, "seconds")
	return func(r row) {
		p, ok := r.Payload.(*schemas.EvaluationEnded)
		if !ok {
			return
		}
		arm.add(p.GetArm())
		seed.add(p.GetSeed())
		outcome.add(p.GetOutcome())
		sessions.add(p.GetSessions())
		alignedAt.add(p.GetAlignedAt())
		updates.add(p.GetUpdates())
		seconds.add(p.GetSeconds())
	}
}
