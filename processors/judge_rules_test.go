package processors

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	toolResult = schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT
	terminalIs = schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT
	harness    = schemas.ObservationKind_OBSERVATION_KIND_HARNESS
	diff       = schemas.ObservationKind_OBSERVATION_KIND_DIFF
	userReplyK = schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY
	verdictK   = schemas.ObservationKind_OBSERVATION_KIND_TEST_VERDICT
)

func observation(kind schemas.ObservationKind, text string) *schemas.Observation {
	return &schemas.Observation{Kind: kind, Message: textMessage(schemas.Role_ROLE_TOOL, text)}
}

func exited(code int32, text string) *schemas.Observation {
	o := observation(terminalIs, text)
	o.ExitCode = &code
	return o
}

func marked(isError bool, text string) *schemas.Observation {
	o := observation(toolResult, text)
	o.IsError = &isError
	return o
}

func tested(passed, failed uint32, names ...string) *schemas.Observation {
	o := observation(verdictK, "")
	o.Tests = &schemas.TestVerdict{Passed: &passed, Failed: &failed, FailedNames: names}
	return o
}

func rewarded(r float64) *schemas.Observation {
	o := observation(terminalIs, "")
	o.Reward = &r
	return o
}

// closed makes a turn that the given parts of a next state closed.
func closed(obs ...*schemas.Observation) *schemas.TurnClosed {
	return &schemas.TurnClosed{
		TurnId: id("a1"), Action: mainAction("a1"), NextState: obs, CloseReason: schemas.CloseReason_CLOSE_REASON_NEXT_STATE,
	}
}

func ran(command string, obs ...*schemas.Observation) *schemas.TurnClosed {
	t := closed(obs...)
	t.Action.Response = &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT, ToolCalls: []*schemas.ToolCall{{Id: "c", Name: "bash", Arguments: `{"command": "` + command + `"}`}}}
	return t
}

func withFeedback(f *schemas.FeedbackGiven, obs ...*schemas.Observation) *schemas.TurnClosed {
	t := closed(obs...)
	t.Feedback = []*schemas.FeedbackGiven{f}
	return t
}

func endedWith(outcome *schemas.OutcomeReported, obs ...*schemas.Observation) *schemas.TurnClosed {
	t := closed(obs...)
	t.Outcome, t.CloseReason = outcome, schemas.CloseReason_CLOSE_REASON_SESSION_ENDED
	return t
}

// TestRulesJudge states what each rule says. Method: turns by hand; the vote and the beginning of the rationale.
func TestRulesJudge(t *testing.T) {
	reply := func(text string) *schemas.Observation {
		return &schemas.Observation{Kind: userReplyK, Message: textMessage(schemas.Role_ROLE_USER, text)}
	}
	failedEnd := endedWith(nil)
	failedEnd.Action.FinishReason = schemas.FinishReason_FINISH_REASON_ERROR
	refusal := endedWith(nil)
	refusal.Action.Response.Parts = []*schemas.Part{{Content: &schemas.Part_Refusal{Refusal: "I cannot help with that."}}}
	middle := closed()
	middle.Outcome = &schemas.OutcomeReported{Score: 1}
	for name, c := range map[string]struct {
		turn *schemas.TurnClosed
		vote int32 // 2: abstains
		rule string
	}{
		"thumbs up":                       {withFeedback(&schemas.FeedbackGiven{Score: proto.Float64(1)}, reply("That's wrong.")), 1, "feedback"},
		"thumbs down":                     {withFeedback(&schemas.FeedbackGiven{Score: proto.Float64(-0.5)}, reply("thanks")), -1, "feedback"},
		"neutral feedback":                {withFeedback(&schemas.FeedbackGiven{Score: proto.Float64(0)}), 0, "feedback"},
		"a written correction":            {withFeedback(&schemas.FeedbackGiven{Correction: proto.String("Use 42.")}), -1, "feedback"},
		"feedback in words":               {withFeedback(&schemas.FeedbackGiven{Text: proto.String("This is wrong.")}), -1, "feedback correction"},
		"tests fail":                      {closed(tested(3, 1), reply("thanks")), -1, "tests"},
		"tests pass":                      {closed(tested(3, 0)), 1, "tests"},
		"no tests ran":                    {closed(tested(0, 0)), 2, ""},
		"the user over the tool":          {closed(marked(false, "ok"), reply("That's wrong.")), -1, "correction"},
		"exit 0":                          {closed(exited(0, "error: this line is only printed")), 1, "tool result"},
		"exit 2":                          {closed(exited(2, "")), -1, "tool error"},
		"grep finds nothing":              {ran("grep -rn foo src", exited(1, "")), 2, ""},
		"diff finds something":            {ran("cd x && diff a b", exited(1, "< 1")), 2, ""},
		"grep fails":                      {ran("grep -rn foo nowhere", exited(2, "grep: nowhere: No such file or directory")), -1, "tool error"},
		"interrupted":                     {closed(exited(130, "")), 2, ""},
		"marked error":                    {closed(marked(true, "nope")), -1, "tool error"},
		"marked fine":                     {closed(marked(false, "Error handling is described in chapter 3")), 1, "tool result"},
		"parallel calls disagree":         {closed(marked(false, "ok"), marked(true, "nope")), 2, ""},
		"error text":                      {closed(observation(toolResult, "bash: line 1: foo: command not found")), -1, "tool error"},
		"python traceback":                {closed(observation(toolResult, "Traceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'a'")), -1, "tool error"},
		"json error":                      {closed(observation(toolResult, `{"error": "rate limited"}`)), -1, "tool error"},
		"a file that speaks of errors":    {closed(observation(toolResult, "package x\n\n// returns\n// Error: when it fails\nfunc f() {}\n// end\n")), 1, "tool result"},
		"an empty result":                 {closed(observation(toolResult, "")), 2, ""},
		"terminal output without a code":  {closed(observation(terminalIs, "total 12")), 2, ""},
		"a diff":                          {closed(observation(diff, "-a\n+b")), -1, "diff"},
		"an empty diff":                   {closed(observation(diff, " \n")), 1, "diff"},
		"a reward":                        {closed(rewarded(0.5)), 1, "reward"},
		"a penalty":                       {closed(rewarded(-0.5)), -1, "reward"},
		"no reward yet":                   {closed(rewarded(0)), 2, ""},
		"won":                             {endedWith(&schemas.OutcomeReported{Score: 1}), 1, "outcome"},
		"lost":                            {endedWith(&schemas.OutcomeReported{Score: -1}), -1, "outcome"},
		"lost with points":                {endedWith(&schemas.OutcomeReported{Score: 0.4, Success: proto.Bool(false)}), -1, "outcome"},
		"the outcome is of the last turn": {middle, 2, ""},
		"format error":                    {closed(observation(harness, "Format error: exactly one action is needed")), -1, "harness"},
		"interruption":                    {closed(observation(harness, "[Request interrupted by user]")), 2, ""},
		"permission refused":              {closed(observation(harness, "The user doesn't want to proceed with this tool use.")), -1, "harness"},
		"a refusal that nobody answered":  {refusal, -1, "end"},
		"an error that nobody answered":   {failedEnd, -1, "end"},
		"an end":                          {endedWith(nil), 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			votes, err := RulesJudge{}.Votes(t.Context(), c.turn)
			switch {
			case err != nil:
				t.Fatal(err)
			case c.vote == 2 && len(votes) == 0:
			case c.vote == 2:
				t.Errorf("voted %d: %s, want no vote", votes[0].GetVote(), votes[0].GetRationale())
			case len(votes) != 1:
				t.Errorf("%d votes", len(votes))
			case votes[0].GetVote() != c.vote || !strings.HasPrefix(votes[0].GetRationale(), c.rule+":"):
				t.Errorf("voted %d: %s, want %d: %s", votes[0].GetVote(), votes[0].GetRationale(), c.vote, c.rule)
			}
		})
	}
}

// judgeFunc is a judge made of a function.
type judgeFunc struct {
	name string
	f    func() ([]*schemas.VoteCast, error)
}

func (j judgeFunc) Name() string { return j.name }
func (j judgeFunc) Votes(context.Context, *schemas.TurnClosed) ([]*schemas.VoteCast, error) {
	return j.f()
}

func votesOf(name string, scores ...any) judgeFunc {
	return judgeFunc{name, func() ([]*schemas.VoteCast, error) {
		var out []*schemas.VoteCast
		for _, s := range scores {
			v := &schemas.VoteCast{}
			switch s := s.(type) {
			case int:
				v.Vote = proto.Int32(int32(s)) //nolint:gosec // small
			case string:
				v.Error = &s
			}
			out = append(out, v)
		}
		return out, nil
	}}
}

// TestEvaluate states the cascade and the verdict. Method: judges with fixed votes; every field that the algorithm fixes.
func TestEvaluate(t *testing.T) {
	abstains, panics := votesOf("abstains"), judgeFunc{"panics", func() ([]*schemas.VoteCast, error) { panic("a bug") }}
	refused := judgeFunc{"refused", func() ([]*schemas.VoteCast, error) { return nil, Permanent(errDead) }}
	third := 1.0 / 3 // in float64 arithmetic, as the code has it
	for name, c := range map[string]struct {
		judges  []Judge
		outcome *float64
		want    *schemas.TurnJudged
		votes   int
	}{
		"majority":          {[]Judge{votesOf("m", 1, 1, -1)}, nil, &schemas.TurnJudged{Score: proto.Int32(1), MeanVote: 1.0 / 3, Judge: "m", Votes: 3, ValidVotes: 3}, 3},
		"first that votes":  {[]Judge{abstains, votesOf("m", -1), votesOf("n", 1)}, nil, &schemas.TurnJudged{Score: proto.Int32(-1), MeanVote: -1, Judge: "m", Votes: 1, ValidVotes: 1}, 1},
		"unparsable votes":  {[]Judge{votesOf("m", nil, nil), votesOf("n", nil, 1)}, nil, &schemas.TurnJudged{Score: proto.Int32(1), MeanVote: 1, Judge: "n", Votes: 2, ValidVotes: 1}, 4},
		"a zero decides":    {[]Judge{votesOf("m", 0), votesOf("n", 1)}, nil, &schemas.TurnJudged{Score: proto.Int32(0), Judge: "m", Votes: 1, ValidVotes: 1}, 1},
		"tie":               {[]Judge{votesOf("m", 1, -1)}, nil, &schemas.TurnJudged{Score: proto.Int32(0), Judge: "m", Votes: 2, ValidVotes: 2, Reason: "the votes are tied"}, 2},
		"nobody can tell":   {[]Judge{abstains}, nil, &schemas.TurnJudged{Score: proto.Int32(0), Reason: "no judge could tell"}, 0},
		"nothing parses":    {[]Judge{votesOf("m", nil, "down")}, nil, &schemas.TurnJudged{Score: proto.Int32(0), Votes: 2, Reason: "no judge could tell"}, 2},
		"everybody is down": {[]Judge{abstains, votesOf("m", "down", "down")}, nil, &schemas.TurnJudged{Votes: 2, Reason: "every judge failed: down"}, 2},
		"a judge panics":    {[]Judge{panics, votesOf("m", 1)}, nil, &schemas.TurnJudged{Score: proto.Int32(1), MeanVote: 1, Judge: "m", Votes: 1, ValidVotes: 1}, 2},
		"a judge gives up":  {[]Judge{refused}, nil, &schemas.TurnJudged{Votes: 1, Reason: "every judge failed: " + errDead.Error()}, 1},
		"step reward":       {[]Judge{votesOf("m", 1, 1, -1)}, proto.Float64(-1), &schemas.TurnJudged{Score: proto.Int32(1), MeanVote: 1.0 / 3, Judge: "m", Votes: 3, ValidVotes: 3, Outcome: proto.Float64(-1), StepReward: proto.Float64(third - 1)}, 3},
		"a vote of 7":       {[]Judge{votesOf("m", 7)}, nil, &schemas.TurnJudged{Votes: 1, Reason: "every judge failed: the judge voted 7: -1, 0 or 1 is needed"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			turn := closed(observation(userReplyK, "hm"))
			if c.outcome != nil {
				turn.Outcome = &schemas.OutcomeReported{Score: *c.outcome}
			}
			out := processOne(t, NewEvaluate(EvaluateConfig{Judges: c.judges}), turn)
			c.want.TurnId, c.want.TurnOffset = id("a1"), 7
			if got := out[len(out)-1].Payload; !proto.Equal(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
			if len(out)-1 != c.votes {
				t.Errorf("%d votes, want %d", len(out)-1, c.votes)
			}
		})
	}
	t.Run("unanswered", func(t *testing.T) {
		turn := closed()
		turn.CloseReason = schemas.CloseReason_CLOSE_REASON_NEXT_ACTION
		out := processOne(t, NewEvaluate(EvaluateConfig{Judges: []Judge{panics}}), turn)
		if got := out[0].Payload.(*schemas.TurnJudged); len(out) != 1 || got.Score != nil || got.GetReason() != "no next state" {
			t.Errorf("got %v", out)
		}
	})
}

// processOne takes a turn at offset 7 of turns through a processor; all outputs must be writable and have ids of their own.
func processOne(t *testing.T, p Processor, turn *schemas.TurnClosed) []schemas.Event {
	t.Helper()
	e := schemas.Event{ID: id("t"), Source: "test", Tenant: "acme", Session: "x", Payload: turn, Position: schemas.Position{Topic: schemas.TopicTurns, Offset: 7}}
	out, err := p.Process(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, e := range out {
		if _, err := schemas.Encode(e); err != nil {
			t.Error(err)
		}
		if ids[e.ID] {
			t.Errorf("two outputs have the id %s", e.ID)
		}
		ids[e.ID] = true
	}
	return out
}
