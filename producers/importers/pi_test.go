package importers_test

import (
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Goal: version 1: failed calls are no actions, a text that was written again for each try is one reply, results of parallel calls are one next
// state, a command that the user ran is terminal output with its exit code, and a compaction keeps what it says. Method: the fixture, by hand.
func TestPiV1(t *testing.T) {
	events, report := fixture(t, "pi", "v1.jsonl")
	if report.Actions != 7 || report.Answered != 5 || report.NextStates["tool_result"] != 4 || report.NextStates["terminal_output"] != 2 {
		t.Errorf("report %+v", report)
	}
	_, a := action(t, events, "entry:7")
	if told(a) != "<u>read the theme file" || len(a.GetResponse().GetToolCalls()) != 3 || a.GetResponse().GetReasoning() == "" {
		t.Errorf("first action: %q, %v", told(a), a.GetResponse())
	}
	if u := a.GetUsage(); u.GetInputTokens() != 1023 || u.GetCachedTokens() != 900 || u.GetCostUsd() != 0.0123 {
		t.Errorf("usage %v", u)
	}
	for record, want := range map[string]string{
		"entry:7":  "tool_result: # Theme | tool_result: no such file: theme.ts | tool_result: theme.md\nmain.ts",
		"entry:12": "",
		"entry:13": "user_reply: read the theme file | user_reply: yes: make the border blue",
		"entry:16": "user_reply: no wait, green",
		"entry:18": "tool_result: edited[blob] | user_reply: stop here | user_reply: now run it | terminal_output: $ npm test\n2 passing",
		"entry:24": "terminal_output: $ npm run lint\n1 problem",
		"entry:26": "",
	} {
		if got := nextState(t, events, record); got != want {
			t.Errorf("%s: %q, want %q", record, got, want)
		}
	}
	_, kept := action(t, events, "entry:24")
	if got := told(kept); got != "<u>The border of the theme was ma<a>On it.<u>no wait, green<a>Green it is.<t>edited[blob]<u>stop here<u>now run it<u>$ npm test\n2 passing" {
		t.Errorf("the context behind the compaction is %q", got)
	}
	_, last := action(t, events, "entry:26")
	if last.GetFinishReason() != schemas.FinishReason_FINISH_REASON_ERROR || last.Usage != nil || told(last) != "+" {
		t.Errorf("last action %v", last)
	}
}

// Goal: a tree gives its newest line as the session and the others as branches with full contexts; a compaction keeps the entries that it
// names; a fork's copies are context. Method: the fixtures, by hand.
func TestPiTree(t *testing.T) {
	const id = "33333333-0000-4000-8000-000000000003"
	events, report := fixture(t, "pi", "tree.jsonl")
	if report.Sessions != 3 || report.Branches != 2 || report.Actions != 7 {
		t.Errorf("report %+v", report)
	}
	for record, want := range map[string][2]string{
		"00000002": {id, "<u>Plan the release."},
		"00000004": {id + "@00000003", "<u>Plan the release.<a>Plan: test, tag, publish.<u>Skip the tests."},
		"00000008": {id, "+<u>Skipping the tests was tried.<u>Keep the tests, but only the f"},
		"00000010": {id, "+<u>Tag it 1.3 instead.<u>The branch is protected."},
		"00000013": {id, "<u>Release 1.3 was tagged after f<u>Tag it 1.3 instead.<u>The branch is protected.<a>Tagged 1.3.<u>Publish."},
	} {
		if e, a := action(t, events, record); e.Session != want[0] || told(a) != want[1] {
			t.Errorf("%s: session %s, context %q", record, e.Session, told(a))
		}
	}
	if got := nextState(t, events, "00000010"); got != "user_reply: Publish." {
		t.Errorf("the action before the compaction: %q", got)
	}
	left, _ := action(t, events, "00000002")
	fork, report := fixture(t, "pi", "fork.jsonl")
	_, a := action(t, fork, "00000004")
	if report.Actions != 2 || a.GetParentSession() != id || a.GetParentTurnId() != left.ID ||
		told(a) != "<u>Plan the release.<a>Plan: test, tag, publish.<u>Draft the notes instead." {
		t.Errorf("fork: %d actions, parent %s in %s, context %q", report.Actions, a.GetParentTurnId(), a.GetParentSession(), told(a))
	}
	if _, report = fixture(t, "pi", "fork-v1.jsonl"); report.Sessions != 0 || len(report.Warnings) != 1 {
		t.Errorf("a fork that nobody went on with: %+v", report)
	}
}

// Goal: what OpenClaw writes by itself is no action (mirrors), a side turn (heartbeat, cron, memory flush) or marked (the sender), and the
// user's next words answer the last main turn. Method: the fixture, by hand.
func TestPiOpenClaw(t *testing.T) {
	events, report := fixture(t, "pi", "openclaw.jsonl")
	if report.Actions != 4 || report.SideTurns != 4 || report.Answered != 3 {
		t.Errorf("report %+v", report)
	}
	for record, want := range map[string]string{
		"00000003": `tool_result: {"id":"j1"}`,
		"00000005": "user_reply: no, make it eight",
		"00000008": "tool_result: water the plants",
		"0000000a": "",
		"0000000c": "user_reply: thanks, great help",
		"0000000e": "",
	} {
		if got := nextState(t, events, record); got != want {
			t.Errorf("%s: %q, want %q", record, got, want)
		}
	}
	_, a := action(t, events, "00000003")
	if m := a.GetContext().GetMessages()[0]; m.GetName() != "openclaw" || m.GetParts()[1].GetText() != "remind me of the dentist tomorrow" {
		t.Errorf("the sender's prefix is not marked: %v", m)
	}
}

// Goal: bad entries are dead letters, unknown ones are counted, a lost parent is the entry before, and the rest goes on. Method: the fixture.
func TestPiBroken(t *testing.T) {
	events, report := fixture(t, "pi", "v2.jsonl")
	if report.Malformed != 5 || report.Unknown != 3 || report.Actions != 2 || report.Branches != 0 {
		t.Errorf("report %+v", report)
	}
	if got := nextState(t, events, "00000003"); got != "user_reply: are you sure?" {
		t.Errorf("first action: %q", got)
	}
}
