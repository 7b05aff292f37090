package client

import "github.com/nextstate-rl/nextstate/schemas"

// System makes the message that sets the policy up.
func System(text string) *schemas.Message { return message(schemas.Role_ROLE_SYSTEM, text) }

// User makes a message of the person.
func User(text string) *schemas.Message { return message(schemas.Role_ROLE_USER, text) }

// Assistant makes a message of the policy. Tool calls go into its ToolCalls; with calls only, text is "".
func Assistant(text string, calls ...*schemas.ToolCall) *schemas.Message {
	m := message(schemas.Role_ROLE_ASSISTANT, text)
	m.ToolCalls = calls
	return m
}

// Tool makes the message that answers a tool call.
func Tool(callID, text string) *schemas.Message {
	m := message(schemas.Role_ROLE_TOOL, text)
	m.ToolCallId = &callID
	return m
}

func message(role schemas.Role, text string) *schemas.Message {
	m := &schemas.Message{Role: role}
	if text != "" {
		m.Parts = []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}
	}
	return m
}

// Context makes the context of an action from the whole conversation before its response.
func Context(messages ...*schemas.Message) *schemas.Context {
	return &schemas.Context{Messages: messages}
}

// Reply is the user's reply, the next state of a chat turn.
func Reply(text string) *schemas.Observation {
	return &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY, Message: User(text)}
}

// ToolResult is what a tool answered to one call.
func ToolResult(callID, text string) *schemas.Observation {
	return &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, Message: Tool(callID, text)}
}

// ToolError is the answer of a tool that failed.
func ToolError(callID, text string) *schemas.Observation {
	failed := true
	o := ToolResult(callID, text)
	o.IsError = &failed
	return o
}

// Terminal is the output of a command and its exit code.
func Terminal(output string, exitCode int32) *schemas.Observation {
	return &schemas.Observation{
		Kind: schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT, Message: message(schemas.Role_ROLE_TOOL, output), ExitCode: &exitCode,
	}
}

// Tests is the verdict of a test run.
func Tests(passed, failed uint32, failedNames ...string) *schemas.Observation {
	return &schemas.Observation{
		Kind:  schemas.ObservationKind_OBSERVATION_KIND_TEST_VERDICT,
		Tests: &schemas.TestVerdict{Passed: &passed, Failed: &failed, FailedNames: failedNames},
	}
}

// Diff is a change that a person or a tool made to what the action produced.
func Diff(diff string) *schemas.Observation {
	return &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_DIFF, Message: User(diff)}
}
