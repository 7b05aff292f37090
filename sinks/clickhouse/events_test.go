package clickhouse_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

func ptr[T any](v T) *T { return &v }

// start is the time of the first event of every test.
var start = time.Date(2026, 1, 2, 3, 4, 5, 678_901_000, time.UTC)

func say(role schemas.Role, text string) *schemas.Message {
	return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}}
}

// event completes an envelope; the id follows from the session and the name, so that a test can say it again.
func event(session, name string, payload proto.Message) schemas.Event {
	return schemas.Event{
		ID: schemas.ContentID(session, name), Source: "test/1", Tenant: "acme", Session: session, Time: start, LogTime: start.Truncate(time.Millisecond),
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Payload: payload,
	}
}

// turnEvents is everything that one turn leaves in the log, over all topics.
func turnEvents(session string, n int, previous string) []schemas.Event {
	name := func(what string) string { return fmt.Sprintf("%s %d", what, n) }
	turn := schemas.ContentID(session, name("action"))
	action := &schemas.ActionTaken{
		Kind: schemas.TurnKind_TURN_KIND_MAIN, Model: "small", PolicyVersion: ptr("base"), FinishReason: schemas.FinishReason_FINISH_REASON_TOOL_CALLS,
		Context: &schemas.Context{
			Messages: []*schemas.Message{say(schemas.Role_ROLE_SYSTEM, "You help."), say(schemas.Role_ROLE_USER, name("question of "+session))},
			Tools:    []*schemas.Tool{{Name: "search", Description: ptr("finds"), Parameters: ptr(`{"type":"object"}`)}},
		},
		Response: &schemas.Message{
			Role: schemas.Role_ROLE_ASSISTANT, Reasoning: ptr("because"),
			Parts:     []*schemas.Part{{Content: &schemas.Part_Text{Text: name("answer")}}, {Content: &schemas.Part_Text{Text: "second part"}}},
			ToolCalls: []*schemas.ToolCall{{Id: "c1", Name: "search", Arguments: `{"q":1}`}},
		},
		Tokens: &schemas.Tokens{
			PromptIds: []uint32{1, 2, 3}, ResponseIds: []uint32{7, 70_000}, Logprobs: []float32{-0.5, -1.25}, LogprobsSampled: []float32{-0.25, -1},
			TopK: &schemas.TopK{K: 2, Ids: []uint32{7, 8, 70_000, 9}, Logprobs: []float32{-0.5, -2, -1.25, -3}}, Mask: []uint32{1, 0},
		},
		Sampling: &schemas.Sampling{Temperature: ptr(0.7), Seed: ptr(int64(-4)), Stop: []string{"\n"}},
		Usage:    &schemas.Usage{InputTokens: ptr(uint64(3)), CostUsd: ptr(0.001)}, User: ptr("ann"), Attributes: map[string]string{"file": "a.jsonl"},
	}
	if previous != "" {
		action.Context.ParentTurnId = ptr(previous)
	}
	next := []*schemas.Observation{
		{Kind: schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, Message: say(schemas.Role_ROLE_TOOL, name("result")), ExitCode: ptr(int32(1)), IsError: ptr(true)},
		{Kind: schemas.ObservationKind_OBSERVATION_KIND_TEST_VERDICT, Tests: &schemas.TestVerdict{Passed: ptr(uint32(0)), Failed: ptr(uint32(2))}, Reward: ptr(-0.5)},
		{Kind: schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY, Message: say(schemas.Role_ROLE_USER, name("no, use the other"))},
	}
	feedback := &schemas.FeedbackGiven{TurnId: ptr(turn), Score: ptr(-1.0), Text: ptr("wrong")}
	all := []schemas.Event{
		event(session, name("action"), action),
		event(session, name("next"), &schemas.NextStateObserved{TurnId: ptr(turn), Observations: next}),
		event(session, name("feedback"), feedback),
		event(session, name("closed"), &schemas.TurnClosed{
			TurnId: turn, Action: action, NextState: next, Feedback: []*schemas.FeedbackGiven{feedback},
			CloseReason: schemas.CloseReason_CLOSE_REASON_NEXT_STATE, TurnIndex: uint32(n), SourceIds: []string{schemas.ContentID(session, name("next"))}, //nolint:gosec // small
		}),
		event(session, name("vote"), &schemas.VoteCast{TurnId: turn, Judge: "rules", Vote: ptr(int32(-1)), Rationale: "correction"}),
		event(session, name("no vote"), &schemas.VoteCast{TurnId: turn, Judge: "openai", Index: 1, Rationale: "", Error: ptr("timeout")}),
		event(session, name("judged"), &schemas.TurnJudged{TurnId: turn, Score: ptr(int32(-1)), MeanVote: -1, Judge: "rules", Votes: 2, ValidVotes: 1, Reason: "r", TurnOffset: uint64(n)}), //nolint:gosec // small
		event(session, name("hint vote"), &schemas.HintVoteCast{TurnId: turn, Finder: "rules", Decision: ptr(int32(1)), Hint: "Use the other."}),
	}
	if n%2 == 0 {
		teacher := &schemas.TeacherScored{TurnId: turn, Hint: "Use the other.", TeacherVersion: "base", Temperature: 1, Logprobs: []float32{-1, -2}, HintIndexes: []uint32{0, 0}}
		return append(all,
			event(session, name("teacher"), teacher),
			event(session, name("hint"), &schemas.HintSelected{TurnId: turn, Hint: "Use the other.", Candidates: []string{"Use the other."}, Selection: "unscored", Teacher: teacher, Finder: "rules"}),
			event(session, name("sample"), &schemas.SampleAssembled{
				TurnId: turn, Kind: schemas.SampleKind_SAMPLE_KIND_COMBINED, Reward: -1, Hint: ptr("Use the other."),
				Response: action.GetResponse(), Tokens: action.GetTokens(), Model: "small", PolicyVersion: ptr("base"),
			}))
	}
	return append(all,
		event(session, name("hint"), &schemas.HintAbsent{TurnId: turn, Reason: "none"}),
		event(session, name("sample"), &schemas.TurnSkipped{TurnId: turn, Reason: "no signal"}))
}

// sessionEvents is a session of some turns and its end.
func sessionEvents(session string, turns int) []schemas.Event {
	var all []schemas.Event
	previous := ""
	for n := range turns {
		all = append(all, turnEvents(session, n, previous)...)
		previous = schemas.ContentID(session, fmt.Sprintf("action %d", n))
	}
	return append(all,
		event(session, "outcome", &schemas.OutcomeReported{Score: -0.5, Success: ptr(false), Checker: "tests", Tests: &schemas.TestVerdict{FailedNames: []string{"a", "b"}}}),
		event(session, "end", &schemas.SessionEnded{Reason: "closed", Observations: []*schemas.Observation{
			{Kind: schemas.ObservationKind_OBSERVATION_KIND_HARNESS, Message: say(schemas.Role_ROLE_USER, "bye")},
		}}))
}

// trainingEvents are those of the trainer, and a dead letter of an importer.
func trainingEvents() []schemas.Event {
	sample := schemas.ContentID("s0", "sample 0")
	return []schemas.Event{
		event("training", "update", &schemas.UpdateStarted{Update: 1, ParentVersion: "base", SampleIds: []string{sample}, Objective: "{}", Seed: 7, Engine: "onnx"}),
		event("training", "policy", &schemas.PolicyPublished{Update: 1, UpdateId: schemas.ContentID("training", "update"), ParentVersion: "base", PeftSha256: make([]byte, 32), Metrics: map[string]float64{"loss": 0.5}, BaseModel: "small"}),
		event("training", "rollback", &schemas.PolicyRolledBack{FromVersion: "1", ToVersion: "base", Reason: "worse", By: "ann"}),
		event("training", "skipped", &schemas.UpdateSkipped{Update: 2, UpdateId: sample, ParentVersion: "base", Reason: "not finite"}),
		event("user", "stood", &schemas.HintStood{User: "u", Hint: "h", TurnId: sample}),
		event("user", "withdrawn", &schemas.HintWithdrawn{User: "u", HintId: sample, Reason: "r", By: "ann"}),
		event("user", "rehearsal", &schemas.RehearsalEnded{HintIds: []string{sample}, SampleIds: []string{sample}, FromVersion: "base", ToVersion: "1", GuardBefore: 0.5, GuardAfter: 1, Reason: "budget", Seconds: map[string]float64{"sample": 1}}),
		event("eval", "eval", &schemas.EvaluationStarted{Arm: "hybrid", Seed: 1, Personas: []string{"student"}, Sessions: 8, Half: "tuning", Settings: "{}", BaseModel: "small"}),
		event("eval", "reply", &schemas.ReplyEvaluated{Arm: "hybrid", Persona: "student", Phase: schemas.ReplyPhase_REPLY_PHASE_CONTROL, SessionIndex: 1, Problem: "p", Reply: "r", Tokens: 3, BaseLogprob: ptr(-1.5)}),
		event("eval", "eval end", &schemas.EvaluationEnded{Arm: "hybrid", Outcome: "aligned", Sessions: 3, AlignedAt: map[string]uint32{"joint": 3}, Updates: 2, Seconds: map[string]float64{"decode": 1}}),
		event("import", "dead", &schemas.DeadLettered{
			Stage: "import", Reason: "not JSON", Value: []byte("\xff\x00{"),
			Origin: &schemas.DeadLettered_File{File: &schemas.FilePosition{Name: "a.jsonl", Line: 3}},
		}),
	}
}

func encode(t *testing.T, events []schemas.Event) []schemas.Record {
	t.Helper()
	records := make([]schemas.Record, len(events))
	for i, e := range events {
		r, err := schemas.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		records[i] = r
	}
	return records
}

// foreign is a record that no version can decode, in the partition of its session.
func foreign(topic, session string, r *rand.Rand) schemas.Record {
	return schemas.Record{
		Topic: topic, Key: schemas.Key("acme", session), Time: start.Truncate(time.Millisecond), Value: fmt.Appendf(nil, "\xff\x00 %d", r.Int64()),
		Headers: []schemas.Header{{Key: "x", Value: []byte{0, 0xff}}, {Key: "x", Value: nil}},
	}
}
