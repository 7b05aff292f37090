package clickhouse

import (
	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/schemas"
)

func actionTaken(t *table, b *Batch) func(row) {
	turnKind, model, policy := newCells[string](t, "turn_kind"), newCells[string](t, "model"), newCells[*string](t, "policy_version")
	finish := newCells[string](t, "finish_reason")
	contextParent := newCells[*uuid.UUID](t, "context_parent_turn_id")
	contextHashes, toolHashes := newLists[[]uuid.UUID](t, "context_hashes"), newLists[[]uuid.UUID](t, "tool_hashes")
	responseHash, responseText := newCells[uuid.UUID](t, "response_hash"), newCells[string](t, "response_text")
	reasoning := newCells[*string](t, "reasoning")
	callNames, callArguments := newLists[[]string](t, "call_names"), newLists[[]string](t, "call_arguments")
	tokens, sampling := tokenColumns(t), samplingColumns(t)
	input, cached, output := newCells[*uint64](t, "input_tokens"), newCells[*uint64](t, "cached_tokens"), newCells[*uint64](t, "output_tokens")
	cost, responseID, user := newCells[*float64](t, "cost_usd"), newCells[*string](t, "response_id"), newCells[*string](t, "user")
	parentSession, parentTurn := newCells[*string](t, "parent_session"), newCells[*uuid.UUID](t, "parent_turn_id")
	awaits, group := newCells[bool](t, "awaits_outcome"), newCells[*string](t, "group")
	untrainable, attributes := newCells[*string](t, "untrainable_reason"), newLists[map[string]string](t, "attributes")
	return func(r row) {
		a, ok := r.Payload.(*schemas.ActionTaken)
		if !ok {
			return
		}
		turnKind.add(turnKindWords[a.GetKind().Number()])
		model.add(a.GetModel())
		policy.add(a.PolicyVersion)
		finish.add(finishWords[a.GetFinishReason().Number()])
		contextParent.add(optionalID(a.GetContext().ParentTurnId))
		contextHashes.add(b.messages.hashes(r.Tenant, a.GetContext().GetMessages()))
		toolHashes.add(b.tools.hashes(r.Tenant, a.GetContext().GetTools()))
		responseHash.add(b.messages.hash(r.Tenant, a.GetResponse()))
		responseText.add(text(a.GetResponse()))
		reasoning.add(a.GetResponse().Reasoning)
		names, arguments := calls(a.GetResponse())
		callNames.add(names)
		callArguments.add(arguments)
		tokens(a.GetTokens())
		sampling(a.GetSampling())
		u := a.GetUsage()
		if u == nil {
			u = &schemas.Usage{}
		}
		input.add(u.InputTokens)
		cached.add(u.CachedTokens)
		output.add(u.OutputTokens)
		cost.add(u.CostUsd)
		responseID.add(a.ResponseId)
		user.add(a.User)
		parentSession.add(a.ParentSession)
		parentTurn.add(optionalID(a.ParentTurnId))
		awaits.add(a.GetAwaitsOutcome())
		group.add(a.Group)
		untrainable.add(a.UntrainableReason)
		attributes.add(a.GetAttributes())
	}
}

func tokenColumns(t *table) func(*schemas.Tokens) {
	prompt, response := newLists[[]uint32](t, "prompt_ids"), newLists[[]uint32](t, "response_ids")
	logprobs, sampled := newLists[[]float32](t, "logprobs"), newLists[[]float32](t, "logprobs_sampled")
	k, ids, topLogprobs := newCells[uint32](t, "top_k_k"), newLists[[]uint32](t, "top_k_ids"), newLists[[]float32](t, "top_k_logprobs")
	mask := newLists[[]uint8](t, "mask")
	return func(tokens *schemas.Tokens) {
		prompt.add(tokens.GetPromptIds())
		response.add(tokens.GetResponseIds())
		logprobs.add(tokens.GetLogprobs())
		sampled.add(tokens.GetLogprobsSampled())
		k.add(tokens.GetTopK().GetK())
		ids.add(tokens.GetTopK().GetIds())
		topLogprobs.add(tokens.GetTopK().GetLogprobs())
		m := make([]uint8, len(tokens.GetMask()))
		for i, v := range tokens.GetMask() {
			m[i] = uint8(v) //nolint:gosec // 0 or 1
		}
		mask.add(m)
	}
}

func samplingColumns(t *table) func(*schemas.Sampling) {
	temperature, topP, topK := newCells[*float64](t, "temperature"), newCells[*float64](t, "top_p"), newCells[*uint32](t, "top_k")
	minP, seed, maxTokens := newCells[*float64](t, "min_p"), newCells[*int64](t, "seed"), newCells[*uint32](t, "max_tokens")
	stop := newLists[[]string](t, "stop")
	return func(s *schemas.Sampling) {
		if s == nil {
			s = &schemas.Sampling{}
		}
		temperature.add(s.Temperature)
		topP.add(s.TopP)
		topK.add(s.TopK)
		minP.add(s.MinP)
		seed.add(s.Seed)
		maxTokens.add(s.MaxTokens)
		stop.add(s.GetStop())
	}
}

// observationColumns are the parts of a next state, one array entry a part; prefix stands before the columns' names.
func observationColumns(t *table, b *Batch, prefix string) func(tenant string, obs []*schemas.Observation) {
	kinds, texts := newLists[[]string](t, prefix+"kinds"), newLists[[]string](t, prefix+"texts")
	hashes := newLists[[]uuid.UUID](t, prefix+"hashes")
	exits, isError := newLists[[]*int32](t, prefix+"exit_codes"), newLists[[]*bool](t, prefix+"errors")
	rewards := newLists[[]*float64](t, prefix+"rewards")
	passed, failed := newLists[[]*uint32](t, prefix+"tests_passed"), newLists[[]*uint32](t, prefix+"tests_failed")
	return func(tenant string, obs []*schemas.Observation) {
		n := len(obs)
		k, x, h := make([]string, n), make([]string, n), make([]uuid.UUID, n)
		e, i, w, p, f := make([]*int32, n), make([]*bool, n), make([]*float64, n), make([]*uint32, n), make([]*uint32, n)
		for j, o := range obs {
			k[j] = observationWords[o.GetKind().Number()]
			if o.GetMessage() != nil {
				x[j], h[j] = text(o.GetMessage()), b.messages.hash(tenant, o.GetMessage())
			}
			if o == nil {
				continue
			}
			e[j], i[j], w[j] = o.ExitCode, o.IsError, o.Reward
			if v := o.GetTests(); v != nil {
				p[j], f[j] = v.Passed, v.Failed
			}
		}
		kinds.add(k)
		texts.add(x)
		hashes.add(h)
		exits.add(e)
		isError.add(i)
		rewards.add(w)
		passed.add(p)
		failed.add(f)
	}
}

func nextStateObserved(t *table, b *Batch) func(row) {
	turn, more := newCells[*uuid.UUID](t, "turn_id"), newCells[bool](t, "more_follows")
	observations := observationColumns(t, b, "")
	return func(r row) {
		n, ok := r.Payload.(*schemas.NextStateObserved)
		if !ok {
			return
		}
		turn.add(optionalID(n.TurnId))
		more.add(n.GetMoreFollows())
		observations(r.Tenant, n.GetObservations())
	}
}

func feedbackGiven(t *table, _ *Batch) func(row) {
	turn, score := newCells[*uuid.UUID](t, "turn_id"), newCells[*float64](t, "score")
	words, user, correction := newCells[*string](t, "text"), newCells[*string](t, "user"), newCells[*string](t, "correction")
	return func(r row) {
		f, ok := r.Payload.(*schemas.FeedbackGiven)
		if !ok {
			return
		}
		turn.add(optionalID(f.TurnId))
		score.add(f.Score)
		words.add(f.Text)
		user.add(f.User)
		correction.add(f.Correction)
	}
}

func outcomeReported(t *table, _ *Batch) func(row) {
	score, success := newCells[float64](t, "score"), newCells[*bool](t, "success")
	checker, detail := newCells[string](t, "checker"), newCells[*string](t, "detail")
	passed, failed, names := newCells[*uint32](t, "tests_passed"), newCells[*uint32](t, "tests_failed"), newLists[[]string](t, "tests_failed_names")
	return func(r row) {
		o, ok := r.Payload.(*schemas.OutcomeReported)
		if !ok {
			return
		}
		score.add(o.GetScore())
		success.add(o.Success)
		checker.add(o.GetChecker())
		detail.add(o.Detail)
		tests := o.GetTests()
		if tests == nil {
			tests = &schemas.TestVerdict{}
		}
		passed.add(tests.Passed)
		failed.add(tests.Failed)
		names.add(tests.GetFailedNames())
	}
}

func sessionEnded(t *table, b *Batch) func(row) {
	reason := newCells[string](t, "reason")
	observations := observationColumns(t, b, "")
	return func(r row) {
		e, ok := r.Payload.(*schemas.SessionEnded)
		if !ok {
			return
		}
		reason.add(e.GetReason())
		observations(r.Tenant, e.GetObservations())
	}
}
