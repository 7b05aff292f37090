package schemas

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
)

// maxItems bounds every repeated field that a stage walks; real sessions stay far below.
const maxItems = 100_000

// Validate reports the first thing that is wrong with an event, in words for its producer.
func (e Event) Validate() error { return e.validate() }

func (e Event) validate() error {
	if err := CheckID(e.ID); err != nil {
		return err
	}
	if e.Source == "" || len(e.Source) > maxSource || !utf8.ValidString(e.Source) {
		return fmt.Errorf("source: 1 to %d bytes of UTF-8 are needed", maxSource)
	}
	if err := CheckTenant(e.Tenant); err != nil {
		return err
	}
	if err := CheckSession(e.Session); err != nil {
		return err
	}
	if y := e.Time.UTC().Year(); !e.Time.IsZero() && (y < 1970 || y > 9999) {
		return errors.New("time is outside 1970 to 9999")
	}
	if len(e.TraceParent) > 64 || strings.ContainsFunc(e.TraceParent, func(c rune) bool { return c < 0x20 || c > 0x7e }) {
		return errors.New("traceparent is not a W3C trace context")
	}
	if e.Payload == nil || !e.Payload.ProtoReflect().IsValid() {
		return errors.New("payload is missing")
	}
	return validatePayload(e.Payload)
}

func validatePayload(payload proto.Message) error {
	switch p := payload.(type) {
	case *ActionTaken:
		return validateAction(p)
	case *NextStateObserved:
		if len(p.GetObservations()) == 0 {
			return errors.New("observations: at least one is needed")
		}
		return errors.Join(optionalID("turn_id", p.TurnId), validateObservations(p.GetObservations()))
	case *FeedbackGiven:
		if p.Score == nil && p.GetText() == "" && p.GetCorrection() == "" {
			return errors.New("score, text or correction is needed")
		}
		if p.Score != nil && !(p.GetScore() >= -1 && p.GetScore() <= 1) {
			return errors.New("score: -1 to 1 is needed")
		}
		return optionalID("turn_id", p.TurnId)
	case *OutcomeReported:
		return finite("score", p.GetScore())
	case *SessionEnded:
		if p.GetReason() == "" {
			return errors.New("reason is needed")
		}
		return validateObservations(p.GetObservations())
	case *TurnClosed:
		if p.GetAction() == nil || p.GetCloseReason() == CloseReason_CLOSE_REASON_UNSPECIFIED {
			return errors.New("action and close_reason are needed")
		}
		return errors.Join(
			CheckID(p.GetTurnId()), validateAction(p.GetAction()), validateObservations(p.GetNextState()),
			bounded("feedback", len(p.GetFeedback())), bounded("source_ids", len(p.GetSourceIds())), finite("outcome", p.GetOutcome().GetScore()),
		)
	case *VoteCast:
		return errors.Join(CheckID(p.GetTurnId()), ternary("vote", p.Vote))
	case *TurnJudged:
		return errors.Join(CheckID(p.GetTurnId()), ternary("score", p.Score), finite("mean_vote", p.GetMeanVote()),
			finite("outcome", p.GetOutcome()), finite("step_reward", p.GetStepReward()))
	case *HintVoteCast:
		return errors.Join(CheckID(p.GetTurnId()), ternary("decision", p.Decision))
	case *TeacherScored:
		return validateTeacher(p)
	case *HintSelected:
		if p.GetHint() == "" {
			return errors.New("hint is needed")
		}
		return errors.Join(CheckID(p.GetTurnId()), optionalTeacher(p.GetTeacher()))
	case *HintAbsent:
		return CheckID(p.GetTurnId())
	case *SampleAssembled:
		if p.GetKind() == SampleKind_SAMPLE_KIND_UNSPECIFIED {
			return errors.New("kind is needed")
		}
		return errors.Join(CheckID(p.GetTurnId()), finite("reward", p.GetReward()), finite("step_reward", p.GetStepReward()),
			validateTokens(p.GetTokens()), validateSampling(p.GetSampling()), optionalTeacher(p.GetTeacher()))
	case *TurnSkipped:
		if p.GetReason() == "" {
			return errors.New("reason is needed")
		}
		return CheckID(p.GetTurnId())
	case *UpdateStarted:
		return bounded("sample_ids", len(p.GetSampleIds()))
	case *PolicyPublished:
		if len(p.GetPeftSha256()) != 32 {
			return errors.New("peft_sha256: 32 bytes are needed")
		}
		return nil
	case *PolicyRolledBack:
		if p.GetToVersion() == "" {
			return errors.New("to_version is needed")
		}
		return nil
	case *UpdateSkipped:
		if p.GetReason() == "" {
			return errors.New("reason is needed")
		}
		return CheckID(p.GetUpdateId())
	case *HintStood:
		if p.GetUser() == "" || p.GetHint() == "" {
			return errors.New("user and hint are needed")
		}
		return CheckID(p.GetTurnId())
	case *HintWithdrawn:
		if p.GetUser() == "" {
			return errors.New("user is needed")
		}
		return CheckID(p.GetHintId())
	case *RehearsalEnded:
		return errors.Join(bounded("hint_ids", len(p.GetHintIds())), bounded("sample_ids", len(p.GetSampleIds())), finite("guard_before", p.GetGuardBefore()), finite("guard_after", p.GetGuardAfter()))
	case *EvaluationStarted:
		if p.GetArm() == "" {
			return errors.New("arm is needed")
		}
		return bounded("personas", len(p.GetPersonas()))
	case *ReplyEvaluated:
		if p.GetArm() == "" || p.GetPersona() == "" || p.GetPhase() == ReplyPhase_REPLY_PHASE_UNSPECIFIED {
			return errors.New("arm, persona and phase are needed")
		}
		return errors.Join(finite("base_logprob", p.GetBaseLogprob()), finite("seconds", p.GetSeconds()))
	case *EvaluationEnded:
		if p.GetArm() == "" || p.GetOutcome() == "" {
			return errors.New("arm and outcome are needed")
		}
		return nil
	case *DeadLettered:
		if p.GetStage() == "" || p.GetReason() == "" {
			return errors.New("stage and reason are needed")
		}
		return nil
	default:
		return fmt.Errorf("payload %T is not an event", payload)
	}
}

func optionalTeacher(t *TeacherScored) error {
	if t == nil {
		return nil
	}
	if err := validateTeacher(t); err != nil {
		return fmt.Errorf("teacher: %w", err)
	}
	return nil
}

func validateTeacher(t *TeacherScored) error {
	return errors.Join(
		CheckID(t.GetTurnId()), finite("temperature", t.GetTemperature()), finiteAll("logprobs", t.GetLogprobs()),
		finiteAll("logprobs_at_student", t.GetLogprobsAtStudent()), validateTopK(t.GetTopK(), len(t.GetLogprobs())),
	)
}

func validateAction(a *ActionTaken) error {
	switch {
	case a.GetKind() == TurnKind_TURN_KIND_UNSPECIFIED:
		return errors.New("kind: TURN_KIND_MAIN or TURN_KIND_SIDE is needed")
	case a.GetContext() == nil:
		return errors.New("context is needed: all messages, or parent_turn_id and those added")
	case a.GetResponse() == nil || a.GetResponse().GetRole() != Role_ROLE_ASSISTANT:
		return errors.New("response: a message of ROLE_ASSISTANT is needed")
	}
	for _, m := range a.GetContext().GetMessages() {
		if m.GetRole() == Role_ROLE_UNSPECIFIED {
			return errors.New("context: a message has no role")
		}
	}
	return errors.Join(
		bounded("context.messages", len(a.GetContext().GetMessages())),
		optionalID("context.parent_turn_id", a.GetContext().ParentTurnId),
		optionalID("parent_turn_id", a.ParentTurnId),
		validateTokens(a.GetTokens()), validateSampling(a.GetSampling()),
		finite("usage.cost_usd", a.GetUsage().GetCostUsd()),
	)
}

func validateTokens(t *Tokens) error {
	if t == nil {
		return nil
	}
	n := len(t.GetResponseIds())
	same := func(name string, got int) error {
		if got != 0 && got != n {
			return fmt.Errorf("tokens.%s: %d entries for %d response tokens", name, got, n)
		}
		return nil
	}
	for _, m := range t.GetMask() {
		if m > 1 {
			return errors.New("tokens.mask: 0 or 1 is needed")
		}
	}
	return errors.Join(
		same("logprobs", len(t.GetLogprobs())), same("logprobs_sampled", len(t.GetLogprobsSampled())), same("mask", len(t.GetMask())),
		finiteAll("tokens.logprobs", t.GetLogprobs()), finiteAll("tokens.logprobs_sampled", t.GetLogprobsSampled()),
		validateTopK(t.GetTopK(), n),
	)
}

func validateSampling(s *Sampling) error {
	return errors.Join(finite("sampling.temperature", s.GetTemperature()), finite("sampling.top_p", s.GetTopP()), finite("sampling.min_p", s.GetMinP()))
}

func validateTopK(t *TopK, rows int) error {
	if t == nil {
		return nil
	}
	k := int(t.GetK())
	if k == 0 || k > 1000 || len(t.GetIds()) != rows*k || len(t.GetLogprobs()) != rows*k {
		return fmt.Errorf("top_k: %d ids and %d log-probs are not %d x %d", len(t.GetIds()), len(t.GetLogprobs()), rows, k)
	}
	for r := range rows {
		if id, twice := repeated(t.GetIds()[r*k : (r+1)*k]); twice {
			return fmt.Errorf("top_k: id %d twice in row %d", id, r)
		}
	}
	return finiteAll("top_k.logprobs", t.GetLogprobs())
}

// repeated finds an id that a row has twice. Rows are short; a long one is sorted first, so that no event takes quadratic time.
func repeated(row []uint32) (id uint32, twice bool) {
	if len(row) > 32 {
		row = slices.Sorted(slices.Values(row))
		for i := range len(row) - 1 {
			if row[i] == row[i+1] {
				return row[i], true
			}
		}
		return 0, false
	}
	for i := range row {
		if slices.Contains(row[:i], row[i]) {
			return row[i], true
		}
	}
	return 0, false
}

func validateObservations(obs []*Observation) error {
	if err := bounded("observations", len(obs)); err != nil {
		return err
	}
	for i, o := range obs {
		if o.GetKind() == ObservationKind_OBSERVATION_KIND_UNSPECIFIED {
			return fmt.Errorf("observations[%d]: kind is needed", i)
		}
		if o.Reward != nil && finite("reward", o.GetReward()) != nil {
			return fmt.Errorf("observations[%d]: reward is not finite", i)
		}
	}
	return nil
}

func optionalID(name string, id *string) error {
	if id == nil {
		return nil
	}
	if err := CheckID(*id); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func ternary(name string, v *int32) error {
	if v != nil && (*v < -1 || *v > 1) {
		return fmt.Errorf("%s: -1, 0 or 1 is needed", name)
	}
	return nil
}

func bounded(name string, n int) error {
	if n > maxItems {
		return fmt.Errorf("%s: %d entries, at most %d are allowed", name, n, maxItems)
	}
	return nil
}

func finite(name string, v float64) error {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("%s: a finite number is needed", name)
	}
	return nil
}

func finiteAll(name string, vs []float32) error {
	for i, v := range vs {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return fmt.Errorf("%s[%d]: a finite number is needed", name, i)
		}
	}
	return nil
}
