package files

import (
	"maps"
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

type updateSkippedFields struct {
	Update        uint64 `parquet:"update"`
	UpdateID      string `parquet:"update_id"`
	ParentVersion string `parquet:"parent_version"`
	Reason        string `parquet:"reason"`
}

func updateSkippedRow(p *schemas.UpdateSkipped) updateSkippedFields {
	return updateSkippedFields{
		Update:        p.GetUpdate(),
		UpdateID:      p.GetUpdateId(),
		ParentVersion: p.GetParentVersion(),
		Reason:        p.GetReason(),
	}
}

type hintStoodFields struct {
	User   string `parquet:"user"`
	Hint   string `parquet:"hint"`
	TurnID string `parquet:"turn_id"`
}

func hintStoodRow(p *schemas.HintStood) hintStoodFields {
	return hintStoodFields{
		User:   p.GetUser(),
		Hint:   p.GetHint(),
		TurnID: p.GetTurnId(),
	}
}

type hintWithdrawnFields struct {
	User   string `parquet:"user"`
	HintID string `parquet:"hint_id"`
	Reason string `parquet:"reason"`
	By     string `parquet:"by,dict"`
}

func hintWithdrawnRow(p *schemas.HintWithdrawn) hintWithdrawnFields {
	return hintWithdrawnFields{
		User:   p.GetUser(),
		HintID: p.GetHintId(),
		Reason: p.GetReason(),
		By:     p.GetBy(),
	}
}

type rehearsalEndedFields struct {
	HintIDs     []string `parquet:"hint_ids,list"`
	SampleIDs   []string `parquet:"sample_ids,list"`
	FromVersion string   `parquet:"from_version"`
	ToVersion   string   `parquet:"to_version"`
	GuardBefore float64  `parquet:"guard_before"`
	GuardAfter  float64  `parquet:"guard_after"`
	Reason      string   `parquet:"reason"`
	Seconds     []metric `parquet:"seconds,list"`
}

func rehearsalEndedRow(p *schemas.RehearsalEnded) rehearsalEndedFields {
	return rehearsalEndedFields{
		HintIDs:     p.GetHintIds(),
		SampleIDs:   p.GetSampleIds(),
		FromVersion: p.GetFromVersion(),
		ToVersion:   p.GetToVersion(),
		GuardBefore: p.GetGuardBefore(),
		GuardAfter:  p.GetGuardAfter(),
		Reason:      p.GetReason(),
		Seconds:     metricsOf(p.GetSeconds()),
	}
}

type evaluationStartedFields struct {
	Arm       string   `parquet:"arm,dict"`
	Seed      uint64   `parquet:"seed"`
	Personas  []string `parquet:"personas,list"`
	Sessions  uint32   `parquet:"sessions"`
	Half      string   `parquet:"half,dict"`
	Settings  string   `parquet:"settings"`
	BaseModel string   `parquet:"base_model,dict"`
}

func evaluationStartedRow(p *schemas.EvaluationStarted) evaluationStartedFields {
	return evaluationStartedFields{
		Arm:       p.GetArm(),
		Seed:      p.GetSeed(),
		Personas:  p.GetPersonas(),
		Sessions:  p.GetSessions(),
		Half:      p.GetHalf(),
		Settings:  p.GetSettings(),
		BaseModel: p.GetBaseModel(),
	}
}

type replyEvaluatedFields struct {
	Arm           string   `parquet:"arm,dict"`
	Seed          uint64   `parquet:"seed"`
	Persona       string   `parquet:"persona,dict"`
	Phase         string   `parquet:"phase,dict"`
	SessionIndex  uint32   `parquet:"session_index"`
	TurnIndex     uint32   `parquet:"turn_index"`
	Problem       string   `parquet:"problem"`
	Reply         string   `parquet:"reply"`
	Tokens        uint32   `parquet:"tokens"`
	PolicyVersion string   `parquet:"policy_version"`
	Complaint     string   `parquet:"complaint"`
	Guard         string   `parquet:"guard"`
	Satisfied     bool     `parquet:"satisfied"`
	BaseLogprob   *float64 `parquet:"base_logprob,optional"`
	Seconds       float64  `parquet:"seconds"`
}

func replyEvaluatedRow(p *schemas.ReplyEvaluated) replyEvaluatedFields {
	return replyEvaluatedFields{
		Arm:           p.GetArm(),
		Seed:          p.GetSeed(),
		Persona:       p.GetPersona(),
		Phase:         strings.ToLower(strings.TrimPrefix(p.GetPhase().String(), "REPLY_PHASE_")),
		SessionIndex:  p.GetSessionIndex(),
		TurnIndex:     p.GetTurnIndex(),
		Problem:       p.GetProblem(),
		Reply:         p.GetReply(),
		Tokens:        p.GetTokens(),
		PolicyVersion: p.GetPolicyVersion(),
		Complaint:     p.GetComplaint(),
		Guard:         p.GetGuard(),
		Satisfied:     p.GetSatisfied(),
		BaseLogprob:   p.BaseLogprob,
		Seconds:       p.GetSeconds(),
	}
}

type evaluationEndedFields struct {
	Arm       string   `parquet:"arm,dict"`
	Seed      uint64   `parquet:"seed"`
	Outcome   string   `parquet:"outcome,dict"`
	Sessions  uint32   `parquet:"sessions"`
	AlignedAt []metric `parquet:"aligned_at,list"`
	Updates   uint32   `parquet:"updates"`
	Seconds   []metric `parquet:"seconds,list"`
}

func evaluationEndedRow(p *schemas.EvaluationEnded) evaluationEndedFields {
	return evaluationEndedFields{
		Arm:       p.GetArm(),
		Seed:      p.GetSeed(),
		Outcome:   p.GetOutcome(),
		Sessions:  p.GetSessions(),
		AlignedAt: metricsOf(p.GetAlignedAt()),
		Updates:   p.GetUpdates(),
		Seconds:   metricsOf(p.GetSeconds()),
	}
}

// metricsOf are the entries of a map, by name.
func metricsOf[V float64 | uint32](m map[string]V) []metric {
	var list []metric
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, metric{name, float64(m[name])})
	}
	return list
}
