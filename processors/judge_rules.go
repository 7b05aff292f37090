package processors

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// RulesJudge judges by fixed rules, without a model: at most one vote, whose rationale names the rule and what it matched. It aims at
// precision and abstains when in doubt. Safe for concurrent use.
type RulesJudge struct{}

// RulesName is the name that the rules' votes carry, as judge and as finder.
const RulesName = "rules"

// Name implements Judge.
func (RulesJudge) Name() string { return RulesName }

// Votes implements Judge.
func (RulesJudge) Votes(_ context.Context, turn *schemas.TurnClosed) ([]*schemas.VoteCast, error) {
	for _, rule := range judgeRules {
		if o := rule(turn); o.decided {
			return []*schemas.VoteCast{{Vote: &o.vote, Rationale: o.rule + ": " + clip(o.evidence, 200)}}, nil
		}
	}
	return nil, nil
}

// opinion is what one rule says.
type opinion struct {
	decided  bool
	vote     int32
	rule     string
	evidence string
}

func good(rule, evidence string) opinion { return opinion{true, 1, rule, evidence} }
func bad(rule, evidence string) opinion  { return opinion{true, -1, rule, evidence} }

// judgeRules in order: the first that decides counts. People come before machines, and machines before the harness.
var judgeRules = []func(*schemas.TurnClosed) opinion{
	judgeFeedback, judgeTests, judgeReply, judgeTools, judgeDiff, judgeReward, judgeOutcome, judgeHarness, judgeEnd,
}

// judgeFeedback: the newest explicit feedback that says anything.
func judgeFeedback(turn *schemas.TurnClosed) opinion {
	for i := len(turn.GetFeedback()) - 1; i >= 0; i-- {
		f := turn.GetFeedback()[i]
		switch {
		case f.Score != nil && f.GetScore() > 0:
			return good("feedback", fmt.Sprintf("score %g", f.GetScore()))
		case f.Score != nil && f.GetScore() < 0:
			return bad("feedback", fmt.Sprintf("score %g", f.GetScore()))
		case f.GetCorrection() != "":
			return bad("feedback", "a correction was written")
		case f.Score != nil:
			return opinion{true, 0, "feedback", "score 0"}
		}
		if o := classifyReply(f.GetText(), "", ""); o.decided {
			o.rule = "feedback " + o.rule
			return o
		}
	}
	return opinion{}
}

// judgeTests: the newest test verdict.
func judgeTests(turn *schemas.TurnClosed) opinion {
	for i := len(turn.GetNextState()) - 1; i >= 0; i-- {
		switch t := turn.GetNextState()[i].GetTests(); {
		case t.GetFailed() > 0 || len(t.GetFailedNames()) > 0:
			return bad("tests", fmt.Sprintf("%d failed", max(int(t.GetFailed()), len(t.GetFailedNames()))))
		case t.GetPassed() > 0:
			return good("tests", fmt.Sprintf("%d passed", t.GetPassed()))
		}
	}
	return opinion{}
}

// judgeReply: what the user said.
func judgeReply(turn *schemas.TurnClosed) opinion {
	text := userReply(turn)
	if text == "" {
		return opinion{}
	}
	a := turn.GetAction()
	return classifyReply(text, lastUserText(a.GetContext().GetMessages()), messageText(a.GetResponse()))
}

// userReply joins the user's replies in the next state.
func userReply(turn *schemas.TurnClosed) string {
	var texts []string
	for _, o := range turn.GetNextState() {
		if o.GetKind() == schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY {
			if text := messageText(o.GetMessage()); text != "" {
				texts = append(texts, text)
			}
		}
	}
	return strings.Join(texts, "\n")
}

// judgeTools: every tool result and terminal output that says how it went. A mixture of parallel calls decides nothing.
func judgeTools(turn *schemas.TurnClosed) opinion {
	var first [2]string
	var count [2]int
	for _, o := range turn.GetNextState() {
		vote, evidence := toolVote(turn.GetAction(), o)
		if vote == 0 {
			continue
		}
		i := (vote + 1) / 2
		if count[i] == 0 {
			first[i] = evidence
		}
		count[i]++
	}
	switch {
	case count[0] > 0 && count[1] == 0:
		return bad("tool error", first[0])
	case count[1] > 0 && count[0] == 0:
		return good("tool result", first[1])
	}
	return opinion{}
}

// toolVote judges one result: +1, -1, or 0 for "does not tell".
func toolVote(a *schemas.ActionTaken, o *schemas.Observation) (int32, string) {
	tool := o.GetKind() == schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT
	if !tool && o.GetKind() != schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT {
		return 0, ""
	}
	text := messageText(o.GetMessage())
	switch {
	case o.ExitCode != nil && o.GetExitCode() == 0 && !o.GetIsError():
		return 1, "exit code 0"
	case o.ExitCode != nil && o.GetExitCode() != 0:
		if harmlessExit(a, o.GetExitCode()) {
			return 0, ""
		}
		return -1, fmt.Sprintf("exit code %d", o.GetExitCode())
	case o.GetIsError():
		return -1, "marked as an error: " + firstLine(text)
	}
	if o.IsError != nil {
		return 1, "marked as no error"
	}
	if line := errorLine(text); line != "" {
		return -1, line
	}
	if tool && strings.TrimSpace(text) != "" {
		return 1, "no error"
	}
	return 0, ""
}

// harmlessExit: some commands answer a question with their exit code, and a signal comes from outside.
func harmlessExit(a *schemas.ActionTaken, code int32) bool {
	if code == 130 || code == 143 {
		return true
	}
	return code == 1 && questionCommand.MatchString(commandText(a))
}

var questionCommand = regexp.MustCompile(`(?:^|[|;&"']\s*|\bcommand"?:\s*")(?:grep|egrep|fgrep|rg|ag|diff|cmp|test|which|pgrep|\[)\s`)

// commandText is what the action ran: its calls' arguments, or its text.
func commandText(a *schemas.ActionTaken) string {
	var b strings.Builder
	for _, call := range a.GetResponse().GetToolCalls() {
		b.WriteString(call.GetArguments())
		b.WriteByte('\n')
	}
	if b.Len() == 0 {
		return clip(messageText(a.GetResponse()), replyBytes)
	}
	return b.String()
}

// errorWords begin (after a prefix such as "bash: line 1:") a line that reports an error. Only the first and the last lines of a text are
// looked at: in between, tools print files and logs that speak of errors.
var errorWords = regexp.MustCompile(`(?i)^(?:\[?(?:error|fatal|fatal error|panic|exception|failed|failure)\]?[:!]|\[(?:error|fatal)\]|failed to |(?:uncaught |unhandled )?[\w.]*(?:Error|Exception): |Traceback \(most recent call last\)|` +
	`(?:\S+: ){1,4}.*(?:No such file or directory|command not found|Permission denied|not found|cannot access|Is a directory|syntax error)|command not found|` +
	`(?:permission|access) denied|no such file|file not found|HTTP (?:4|5)\d\d|\{"error":|\{"success": ?false|<error>|<tool_use_error>)`)

func errorLine(text string) string {
	if len(text) > 2*replyBytes {
		text = text[:replyBytes] + "\n" + text[len(text)-replyBytes:]
	}
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		if i >= 2 && i < len(lines)-2 {
			continue
		}
		line = strings.TrimSpace(line)
		if errorWords.MatchString(line) {
			return line
		}
	}
	return ""
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// judgeDiff: somebody had to change what the action produced, or did not.
func judgeDiff(turn *schemas.TurnClosed) opinion {
	for _, o := range turn.GetNextState() {
		if o.GetKind() != schemas.ObservationKind_OBSERVATION_KIND_DIFF {
			continue
		}
		if strings.TrimSpace(messageText(o.GetMessage())) == "" {
			return good("diff", "taken without a change")
		}
		return bad("diff", "the result was changed")
	}
	return opinion{}
}

// judgeReward: the environment's own reward for the turn; 0 is common as "not yet" and decides nothing.
func judgeReward(turn *schemas.TurnClosed) opinion {
	for i := len(turn.GetNextState()) - 1; i >= 0; i-- {
		switch r := turn.GetNextState()[i].GetReward(); {
		case r > 0:
			return good("reward", fmt.Sprintf("%g", r))
		case r < 0:
			return bad("reward", fmt.Sprintf("%g", r))
		}
	}
	return opinion{}
}

// judgeOutcome: the checker's verdict is about the last turn; the others have it in their step reward only.
func judgeOutcome(turn *schemas.TurnClosed) opinion {
	o := turn.GetOutcome()
	switch {
	case o == nil || !terminal(turn) && turn.GetCloseReason() != schemas.CloseReason_CLOSE_REASON_OUTCOME:
		return opinion{}
	case o.Success != nil && o.GetSuccess() || o.Success == nil && o.GetScore() > 0:
		return good("outcome", fmt.Sprintf("score %g", o.GetScore()))
	case o.Success != nil || o.GetScore() < 0:
		return bad("outcome", fmt.Sprintf("score %g", o.GetScore()))
	}
	return opinion{}
}

var harnessRefusal = regexp.MustCompile(`(?i)format error|(?:could not|couldn't|cannot|unable to|failed to) parse|invalid (?:format|json|tool call|arguments)|malformed|unknown tool|no such tool|` +
	`rejected|denied|doesn't want to (?:proceed|take this action)|declined|exactly one (?:action|command)|no action was found|did not (?:contain|include)`)

// judgeHarness: the agent's own program could not use the action, or the user refused to let it run.
func judgeHarness(turn *schemas.TurnClosed) opinion {
	for _, o := range turn.GetNextState() {
		if o.GetKind() != schemas.ObservationKind_OBSERVATION_KIND_HARNESS {
			continue
		}
		text := messageText(o.GetMessage())
		if m := harnessRefusal.FindString(text); m != "" || o.GetIsError() {
			return bad("harness", firstLine(text))
		}
	}
	return opinion{}
}

// judgeEnd: the session's end says nothing of a good answer, but a refusal or an error that nobody answered is a bad one.
func judgeEnd(turn *schemas.TurnClosed) opinion {
	if !terminal(turn) || len(turn.GetNextState()) > 0 {
		return opinion{}
	}
	a := turn.GetAction()
	switch a.GetFinishReason() {
	case schemas.FinishReason_FINISH_REASON_ERROR:
		return bad("end", "the last action ended with an error")
	case schemas.FinishReason_FINISH_REASON_CONTENT_FILTER:
		return bad("end", "the last action was filtered")
	default:
	}
	for _, p := range a.GetResponse().GetParts() {
		if p.GetRefusal() != "" {
			return bad("end", "the last action was a refusal")
		}
	}
	return opinion{}
}
