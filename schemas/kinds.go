package schemas

import "google.golang.org/protobuf/proto"

// Topic names. Each is keyed by tenant and session, so that a session has one total order; all have the same number of partitions,
// because assemble joins partition n of turns, verdicts and hints.
const (
	TopicInteractions = "interactions"
	TopicTurns        = "turns"
	TopicVerdicts     = "verdicts"
	TopicHints        = "hints"
	TopicSamples      = "samples"
	TopicPolicies     = "policies"
	TopicStanding     = "standing"
	TopicEvaluations  = "evaluations"
	TopicDeadLetters  = "deadletters"
)

// Topics lists every topic in the order of the data.
func Topics() []string {
	return []string{
		TopicInteractions, TopicTurns, TopicVerdicts, TopicHints, TopicSamples, TopicPolicies, TopicStanding, TopicEvaluations, TopicDeadLetters,
	}
}

// Kind is one line of the table of events.
type Kind struct {
	Name  string
	Topic string
	New   func() proto.Message
}

// Kinds is the table of events. A new kind is a message in proto/, a line here, a case in validate.go and a golden file.
func Kinds() []Kind { return kinds }

var kinds = []Kind{
	{"ActionTaken", TopicInteractions, func() proto.Message { return new(ActionTaken) }},
	{"NextStateObserved", TopicInteractions, func() proto.Message { return new(NextStateObserved) }},
	{"FeedbackGiven", TopicInteractions, func() proto.Message { return new(FeedbackGiven) }},
	{"OutcomeReported", TopicInteractions, func() proto.Message { return new(OutcomeReported) }},
	{"SessionEnded", TopicInteractions, func() proto.Message { return new(SessionEnded) }},
	{"TurnClosed", TopicTurns, func() proto.Message { return new(TurnClosed) }},
	{"VoteCast", TopicVerdicts, func() proto.Message { return new(VoteCast) }},
	{"TurnJudged", TopicVerdicts, func() proto.Message { return new(TurnJudged) }},
	{"HintVoteCast", TopicHints, func() proto.Message { return new(HintVoteCast) }},
	{"TeacherScored", TopicHints, func() proto.Message { return new(TeacherScored) }},
	{"HintSelected", TopicHints, func() proto.Message { return new(HintSelected) }},
	{"HintAbsent", TopicHints, func() proto.Message { return new(HintAbsent) }},
	{"SampleAssembled", TopicSamples, func() proto.Message { return new(SampleAssembled) }},
	{"TurnSkipped", TopicSamples, func() proto.Message { return new(TurnSkipped) }},
	{"UpdateStarted", TopicPolicies, func() proto.Message { return new(UpdateStarted) }},
	{"PolicyPublished", TopicPolicies, func() proto.Message { return new(PolicyPublished) }},
	{"PolicyRolledBack", TopicPolicies, func() proto.Message { return new(PolicyRolledBack) }},
	{"UpdateSkipped", TopicPolicies, func() proto.Message { return new(UpdateSkipped) }},
	{"HintStood", TopicStanding, func() proto.Message { return new(HintStood) }},
	{"HintWithdrawn", TopicStanding, func() proto.Message { return new(HintWithdrawn) }},
	{"RehearsalEnded", TopicStanding, func() proto.Message { return new(RehearsalEnded) }},
	{"EvaluationStarted", TopicEvaluations, func() proto.Message { return new(EvaluationStarted) }},
	{"ReplyEvaluated", TopicEvaluations, func() proto.Message { return new(ReplyEvaluated) }},
	{"EvaluationEnded", TopicEvaluations, func() proto.Message { return new(EvaluationEnded) }},
	{"DeadLettered", TopicDeadLetters, func() proto.Message { return new(DeadLettered) }},
}

var kindByName = func() map[string]Kind {
	m := make(map[string]Kind, len(kinds))
	for _, k := range kinds {
		m[k.Name] = k
	}
	return m
}()

// KindByName finds a line of the table.
func KindByName(name string) (Kind, bool) {
	k, ok := kindByName[name]
	return k, ok
}
