package processors

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// RulesFinder lifts the correction that the next state states into a hint, without a model: at most one vote. It abstains when there was a
// correction that it cannot lift, so that the next finder is asked. Safe for concurrent use.
type RulesFinder struct{}

// Name implements Finder.
func (RulesFinder) Name() string { return RulesName }

// Hints implements Finder.
func (RulesFinder) Hints(_ context.Context, turn *schemas.TurnClosed) ([]*schemas.HintVoteCast, error) {
	for _, rule := range hintRules {
		if l := rule(turn); l.decided {
			decision := int32(-1)
			if l.hint != "" {
				decision = 1
			}
			return []*schemas.HintVoteCast{{Decision: &decision, Hint: l.hint, Rationale: l.rule}}, nil
		}
	}
	return nil, nil
}

// lifted is what one rule found: a hint, or (decided, no hint) that there is none.
type lifted struct {
	decided bool
	hint    string
	rule    string
}

// hintRules in order: the first that decides counts.
var hintRules = []func(*schemas.TurnClosed) lifted{hintFeedback, hintReply, hintTests, hintTools, hintHarness}

// hintTests: which tests must pass.
func hintTests(turn *schemas.TurnClosed) lifted {
	for i := len(turn.GetNextState()) - 1; i >= 0; i-- {
		t := turn.GetNextState()[i].GetTests()
		switch {
		case len(t.GetFailedNames()) > 0:
			names := t.GetFailedNames()[:min(5, len(t.GetFailedNames()))]
			return lifted{true, shorten("Make sure that these tests pass: " + strings.Join(names, ", ") + "."), "tests: names of failed ones"}
		case t.GetFailed() > 0:
			return lifted{}
		case t.GetPassed() > 0:
			return lifted{true, "", "tests: passed"}
		}
	}
	return lifted{}
}

// toolLift turns a well-known error into what to do about it.
type toolLift struct {
	pattern *regexp.Regexp
	form    string
}

// toolLifts in order; %s is the first group of the pattern.
var toolLifts = []toolLift{
	{regexp.MustCompile(`([\w.+-]+): (?:command )?not found\s*$`), "Do not call %s: it is not installed here."},
	{regexp.MustCompile(`command not found: ([\w.+-]+)`), "Do not call %s: it is not installed here."},
	{regexp.MustCompile(`No module named '?([\w.-]+)'?`), "Do not rely on the module %s: it is not installed here."},
	{regexp.MustCompile(`Cannot find module '([^']{1,80})'`), "Do not rely on the module %s: it is not installed here."},
	{regexp.MustCompile(`([\w./~-]{2,80})'?: No such file or directory`), "Check that %s exists before using it."},
	{regexp.MustCompile(`No such file or directory: '([^']{1,80})'`), "Check that %s exists before using it."},
	{regexp.MustCompile(`([\w./~-]{2,80})'?: Permission denied`), "Do not access %s: the permission is missing."},
}

// hintTools: the error that a tool call gave. A call that went well holds no hint.
func hintTools(turn *schemas.TurnClosed) lifted {
	o := judgeTools(turn)
	if !o.decided {
		return lifted{}
	}
	if o.vote > 0 {
		return lifted{true, "", o.rule}
	}
	for _, obs := range turn.GetNextState() {
		if vote, _ := toolVote(turn.GetAction(), obs); vote >= 0 {
			continue
		}
		line := telling(messageText(obs.GetMessage()))
		if line == "" {
			continue
		}
		for _, l := range toolLifts {
			if m := l.pattern.FindStringSubmatch(line); m != nil {
				return lifted{true, fmt.Sprintf(l.form, m[1]), "tool error: " + clip(line, 200)}
			}
		}
		if name := toolName(turn.GetAction(), obs); name != "" {
			return lifted{true, shorten(fmt.Sprintf("Avoid this error of %s: %s", name, clip(line, 300))), "tool error: " + clip(line, 200)}
		}
		return lifted{true, shorten("Avoid this error: " + clip(line, 300)), "tool error: " + clip(line, 200)}
	}
	return lifted{}
}

// telling is the line of an output that says what went wrong: of a Python traceback it is the last one.
func telling(text string) string {
	text = strings.TrimSpace(ansi.ReplaceAllString(text, ""))
	if strings.Contains(text, "Traceback (most recent call last)") {
		return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	}
	if line := errorLine(text); line != "" {
		return line
	}
	line := firstLine(text)
	if len(strings.Fields(line)) < 3 {
		return "" // a bare word tells nothing
	}
	return line
}

var ansi = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)

// hintHarness: the form that the agent's program asks for.
func hintHarness(turn *schemas.TurnClosed) lifted {
	for _, o := range turn.GetNextState() {
		if o.GetKind() != schemas.ObservationKind_OBSERVATION_KIND_HARNESS {
			continue
		}
		text := oneLine(messageText(o.GetMessage()))
		if m := formatRefusal.FindString(text); m != "" {
			return lifted{true, shorten("Keep to the required output format: " + clip(text, 300)), "harness: " + m}
		}
	}
	return lifted{}
}

var formatRefusal = regexp.MustCompile(`(?i)format error|(?:could not|couldn't|cannot|unable to|failed to) parse|invalid (?:format|json|tool call|arguments)|malformed|exactly one (?:action|command)|no action was found`)
