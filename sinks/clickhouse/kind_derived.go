package clickhouse

import (
	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/schemas"
)

func turnClosed(t *table, b *Batch) func(row) {
	turn, index := newCells[uuid.UUID](t, "turn_id"), newCells[uint32](t, "turn_index")
	reason, end := newCells[string](t, "close_reason"), newCells[*string](t, "end_reason")
	feedbacks, outcome, sources := newCells[uint32](t, "feedbacks"), newCells[*float64](t, "outcome"), newLists[[]uuid.UUID](t, "source_ids")
	observations := observationColumns(t, b, "next_state_")
	return func(r row) {
		c, ok := r.Payload.(*schemas.TurnClosed)
		if !ok {
			return
		}
		turn.add(parseID(c.GetTurnId()))
		index.add(c.GetTurnIndex())
		reason.add(closeWords[c.GetCloseReason().Number()])
		end.add(c.EndReason)
		feedbacks.add(uint32(len(c.GetFeedback()))) //nolint:gosec // bounded by the size of an event
		if o := c.GetOutcome(); o != nil {
			score := o.GetScore()
			outcome.add(&score)
		} else {
			outcome.add(nil)
		}
		sources.add(parseIDs(c.GetSourceIds()))
		observations(r.Tenant, c.GetNextState())
	}
}

func voteCast(t *table, _ *Batch) func(row) {
	turn, judge, index := newCells[uuid.UUID](t, "turn_id"), newCells[string](t, "judge"), newCells[uint32](t, "index")
	vote, rationale := newCells[*int8](t, "vote"), newCells[string](t, "rationale")
	model, failure := newCells[*string](t, "model"), newCells[*string](t, "error")
	return func(r row) {
		v, ok := r.Payload.(*schemas.VoteCast)
		if !ok {
			return
		}
		turn.add(parseID(v.GetTurnId()))
		judge.add(v.GetJudge())
		index.add(v.GetIndex())
		vote.add(small(v.Vote))
		rationale.add(v.GetRationale())
		model.add(v.Model)
		failure.add(v.Error)
	}
}

func turnJudged(t *table, _ *Batch) func(row) {
	turn, score, mean := newCells[uuid.UUID](t, "turn_id"), newCells[*int8](t, "score"), newCells[float64](t, "mean_vote")
	outcome, step := newCells[*float64](t, "outcome"), newCells[*float64](t, "step_reward")
	judge, votes, valid := newCells[string](t, "judge"), newCells[uint32](t, "votes"), newCells[uint32](t, "valid_votes")
	reason, turnOffset := newCells[string](t, "reason"), newCells[uint64](t, "turn_offset")
	return func(r row) {
		j, ok := r.Payload.(*schemas.TurnJudged)
		if !ok {
			return
		}
		turn.add(parseID(j.GetTurnId()))
		score.add(small(j.Score))
		mean.add(j.GetMeanVote())
		outcome.add(j.Outcome)
		step.add(j.StepReward)
		judge.add(j.GetJudge())
		votes.add(j.GetVotes())
		valid.add(j.GetValidVotes())
		reason.add(j.GetReason())
		turnOffset.add(j.GetTurnOffset())
	}
}

func hintVoteCast(t *table, _ *Batch) func(row) {
	turn, finder, index := newCells[uuid.UUID](t, "turn_id"), newCells[string](t, "finder"), newCells[uint32](t, "index")
	decision, hint, rationale := newCells[*int8](t, "decision"), newCells[string](t, "hint"), newCells[string](t, "rationale")
	model, failure := newCells[*string](t, "model"), newCells[*string](t, "error")
	return func(r row) {
		v, ok := r.Payload.(*schemas.HintVoteCast)
		if !ok {
			return
		}
		turn.add(parseID(v.GetTurnId()))
		finder.add(v.GetFinder())
		index.add(v.GetIndex())
		decision.add(small(v.Decision))
		hint.add(v.GetHint())
		rationale.add(v.GetRationale())
		model.add(v.Model)
		failure.add(v.Error)
	}
}

func teacherScored(t *table, _ *Batch) func(row) {
	turn, index, hint := newCells[uuid.UUID](t, "turn_id"), newCells[uint32](t, "hint_index"), newCells[string](t, "hint")
	version, temperature := newCells[string](t, "teacher_version"), newCells[float64](t, "temperature")
	logprobs, student := newLists[[]float32](t, "logprobs"), newLists[[]float32](t, "logprobs_at_student")
	k, ids, topLogprobs := newCells[uint32](t, "top_k_k"), newLists[[]uint32](t, "top_k_ids"), newLists[[]float32](t, "top_k_logprobs")
	overlap := newCells[uint64](t, "overlap")
	return func(r row) {
		s, ok := r.Payload.(*schemas.TeacherScored)
		if !ok {
			return
		}
		turn.add(parseID(s.GetTurnId()))
		index.add(s.GetHintIndex())
		hint.add(s.GetHint())
		version.add(s.GetTeacherVersion())
		temperature.add(s.GetTemperature())
		logprobs.add(s.GetLogprobs())
		student.add(s.GetLogprobsAtStudent())
		k.add(s.GetTopK().GetK())
		ids.add(s.GetTopK().GetIds())
		topLogprobs.add(s.GetTopK().GetLogprobs())
		overlap.add(s.GetOverlap())
	}
}

func hintSelected(t *table, _ *Batch) func(row) {
	turn, hint, candidates := newCells[uuid.UUID](t, "turn_id"), newCells[string](t, "hint"), newLists[[]string](t, "candidates")
	index, selection, finder := newCells[uint32](t, "candidate_index"), newCells[string](t, "selection"), newCells[string](t, "finder")
	teacher, absent := newCells[*string](t, "teacher_version"), newCells[*string](t, "teacher_absent_reason")
	turnOffset, indexes := newCells[uint64](t, "turn_offset"), newLists[[]uint32](t, "hint_indexes")
	return func(r row) {
		h, ok := r.Payload.(*schemas.HintSelected)
		if !ok {
			return
		}
		turn.add(parseID(h.GetTurnId()))
		hint.add(h.GetHint())
		candidates.add(h.GetCandidates())
		index.add(h.GetCandidateIndex())
		selection.add(h.GetSelection())
		finder.add(h.GetFinder())
		teacher.add(teacherVersion(h.GetTeacher()))
		absent.add(h.TeacherAbsentReason)
		turnOffset.add(h.GetTurnOffset())
		indexes.add(h.GetTeacher().GetHintIndexes())
	}
}

func teacherVersion(s *schemas.TeacherScored) *string {
	if s == nil {
		return nil
	}
	v := s.GetTeacherVersion()
	return &v
}

func hintAbsent(t *table, _ *Batch) func(row) {
	turn, reason, turnOffset := newCells[uuid.UUID](t, "turn_id"), newCells[string](t, "reason"), newCells[uint64](t, "turn_offset")
	return func(r row) {
		h, ok := r.Payload.(*schemas.HintAbsent)
		if !ok {
			return
		}
		turn.add(parseID(h.GetTurnId()))
		reason.add(h.GetReason())
		turnOffset.add(h.GetTurnOffset())
	}
}

func sampleAssembled(t *table, b *Batch) func(row) {
	turn, kind, reward := newCells[uuid.UUID](t, "turn_id"), newCells[string](t, "sample_kind"), newCells[float64](t, "reward")
	step, hint := newCells[*float64](t, "step_reward"), newCells[*string](t, "hint")
	teacher, absent := newCells[*string](t, "teacher_version"), newCells[*string](t, "teacher_absent_reason")
	response, model, policy := newCells[uuid.UUID](t, "response_hash"), newCells[string](t, "model"), newCells[*string](t, "policy_version")
	user, group, index := newCells[*string](t, "user"), newCells[*string](t, "group"), newCells[uint32](t, "turn_index")
	temperature, tokens, trained := newCells[*float64](t, "temperature"), newCells[uint32](t, "tokens"), newCells[uint32](t, "trained_tokens")
	return func(r row) {
		s, ok := r.Payload.(*schemas.SampleAssembled)
		if !ok {
			return
		}
		turn.add(parseID(s.GetTurnId()))
		kind.add(sampleWords[s.GetKind().Number()])
		reward.add(s.GetReward())
		step.add(s.StepReward)
		hint.add(s.Hint)
		teacher.add(teacherVersion(s.GetTeacher()))
		absent.add(s.TeacherAbsentReason)
		if s.GetResponse() != nil {
			response.add(b.messages.hash(r.Tenant, s.GetResponse()))
		} else {
			response.add(uuid.Nil)
		}
		model.add(s.GetModel())
		policy.add(s.PolicyVersion)
		user.add(s.User)
		group.add(s.Group)
		index.add(s.GetTurnIndex())
		if s.GetSampling() != nil {
			temperature.add(s.GetSampling().Temperature)
		} else {
			temperature.add(nil)
		}
		n := len(s.GetTokens().GetResponseIds())
		masked := 0
		for _, m := range s.GetTokens().GetMask() {
			if m == 0 {
				masked++
			}
		}
		tokens.add(uint32(n))           //nolint:gosec // bounded by the size of an event
		trained.add(uint32(n - masked)) //nolint:gosec // validation makes the mask as long as the response, or empty
	}
}

func turnSkipped(t *table, _ *Batch) func(row) {
	turn, reason := newCells[uuid.UUID](t, "turn_id"), newCells[string](t, "reason")
	return func(r row) {
		s, ok := r.Payload.(*schemas.TurnSkipped)
		if !ok {
			return
		}
		turn.add(parseID(s.GetTurnId()))
		reason.add(s.GetReason())
	}
}
