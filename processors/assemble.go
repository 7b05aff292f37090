package processors

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// AssembleVersion is part of the ids that assemble derives; it changes with what assemble derives.
const AssembleVersion = "1"

// Assemble makes the one sample of a turn, or says why there is none (algorithm, section 5). It is a pure function of the three events:
// closed is a TurnClosed, judged its TurnJudged, hint its HintSelected or HintAbsent.
//
//	| hint accepted | score is +1/-1 | sample                                 |
//	| yes           | yes            | combined: reward = score               |
//	| yes           | no             | directive: reward 0                    |
//	| no            | yes            | evaluative: reward = score, no teacher |
//	| no            | no             | skipped, with the reason               |
func Assemble(closed, judged, hint schemas.Event) schemas.Event {
	turn := closed.Payload.(*schemas.TurnClosed)
	verdict := judged.Payload.(*schemas.TurnJudged)
	selected, _ := hint.Payload.(*schemas.HintSelected)
	action := turn.GetAction()
	derive := func(payload proto.Message) schemas.Event {
		return closed.Derive(StageAssemble, AssembleVersion, payload, turn.GetTurnId(), 0)
	}
	skip := func(reason string) schemas.Event {
		return derive(&schemas.TurnSkipped{TurnId: turn.GetTurnId(), Reason: reason})
	}
	if action.GetKind() == schemas.TurnKind_TURN_KIND_SIDE {
		return skip("a side turn is never trained")
	}
	if action.UntrainableReason != nil {
		return skip("untrainable: " + clip(action.GetUntrainableReason(), maxReason))
	}
	scored := verdict.Score != nil && verdict.GetScore() != 0
	sample := &schemas.SampleAssembled{
		TurnId: turn.GetTurnId(), Reward: float64(verdict.GetScore()), StepReward: verdict.StepReward,
		Response: action.GetResponse(), Tokens: action.GetTokens(), Sampling: action.GetSampling(), Model: action.GetModel(),
		PolicyVersion: action.PolicyVersion, User: action.User, Group: action.Group, TurnIndex: turn.GetTurnIndex(),
	}
	if selected != nil {
		sample.Hint, sample.Teacher, sample.TeacherAbsentReason = &selected.Hint, selected.Teacher, selected.TeacherAbsentReason
		sample.Standing = selected.Standing
	}
	switch {
	case selected != nil && scored:
		sample.Kind = schemas.SampleKind_SAMPLE_KIND_COMBINED
	case selected != nil:
		sample.Kind = schemas.SampleKind_SAMPLE_KIND_DIRECTIVE
	case scored:
		sample.Kind = schemas.SampleKind_SAMPLE_KIND_EVALUATIVE
		reason := "no hint was accepted"
		sample.TeacherAbsentReason = &reason
	default:
		return skip(skipReason(verdict, hint))
	}
	return derive(sample)
}

func skipReason(verdict *schemas.TurnJudged, hint schemas.Event) string {
	absent, _ := hint.Payload.(*schemas.HintAbsent)
	score := "the score is 0"
	if verdict.Score == nil {
		score = "there is no score"
	}
	return clip(fmt.Sprintf("%s (%s), and no hint (%s)", score, verdict.GetReason(), absent.GetReason()), maxReason)
}
