package gateway

import (
	"errors"
	"fmt"

	"github.com/nextstate-rl/nextstate/schemas"
)

// errUpstreamBroke is an answer that ended before its end.
var errUpstreamBroke = errors.New("the upstream broke off")

// ending says how an answer ended, as far as its bytes do not.
type ending int

const (
	// endedWhole: the upstream finished.
	endedWhole ending = iota
	// endedAborted: the client went away.
	endedAborted
	// endedBroken: the upstream broke off, was silent for too long, or sent an error in mid-stream.
	endedBroken
)

// action makes the event of a choice, or nil when the upstream said nothing of it. Context, kind and session are the book's to add.
func (r *relayReply) action(choice int, req *relayRequest, end ending) *schemas.ActionTaken {
	var c *replyChoice
	for _, have := range r.choices {
		if have.index == choice {
			c = have
		}
	}
	if c == nil {
		if choice > 0 || end != endedWhole && r.trouble == "" {
			return nil
		}
		c = &replyChoice{} // an answer that cannot be read is an answer all the same
		r.note("the upstream's answer has no choices")
	}
	a := &schemas.ActionTaken{
		Response: c.response(), Model: r.model, Sampling: req.samplingSet(), FinishReason: finishReasons[c.finish],
	}
	if a.Model == "" {
		a.Model = req.model
	}
	if r.id != "" {
		id := r.id
		a.ResponseId = &id
	}
	if choice == 0 { // the usage of a request is that of all its choices
		a.Usage = r.usage
	}
	reason := r.trouble
	if reason == "" {
		a.Tokens, reason = c.tokens(r.promptIDs)
	}
	if t := req.sampling.Temperature; reason == "" && t != nil && *t == 0 {
		reason = "temperature 0"
	}
	switch {
	case c.finish != "" && !r.failed && r.trouble == "": // complete, whatever happened afterwards
	case end == endedAborted:
		a.FinishReason, reason = schemas.FinishReason_FINISH_REASON_ABORTED, "the client went away before the end"
	case end == endedBroken || r.failed:
		a.FinishReason, reason = schemas.FinishReason_FINISH_REASON_ERROR, errUpstreamBroke.Error()
	case reason == "":
		reason = "the upstream gave no finish reason"
	}
	if reason != "" {
		a.UntrainableReason = &reason
	}
	return a
}

// finishReasons are OpenAI's names. What is not in the table is unspecified.
var finishReasons = map[string]schemas.FinishReason{
	"stop": schemas.FinishReason_FINISH_REASON_STOP, "length": schemas.FinishReason_FINISH_REASON_LENGTH,
	"tool_calls": schemas.FinishReason_FINISH_REASON_TOOL_CALLS, "function_call": schemas.FinishReason_FINISH_REASON_TOOL_CALLS,
	"content_filter": schemas.FinishReason_FINISH_REASON_CONTENT_FILTER,
}

func (c *replyChoice) response() *schemas.Message {
	m := &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT, Parts: textParts(valid(string(c.text)))}
	if len(c.refusal) > 0 {
		m.Parts = append(m.Parts, &schemas.Part{Content: &schemas.Part_Refusal{Refusal: valid(string(c.refusal))}})
	}
	reasoning := c.reasoning
	if len(reasoning) == 0 {
		reasoning = c.reasoning2
	}
	if len(reasoning) > 0 {
		text := valid(string(reasoning))
		m.Reasoning = &text
	}
	for _, call := range c.calls {
		m.ToolCalls = append(m.ToolCalls, &schemas.ToolCall{Id: call.id, Name: call.name, Arguments: valid(string(call.arguments))})
	}
	return m
}

// tokens are those that the upstream gave; without ids there are none, because text is never tokenised again. Log-probs that do not fit the
// ids are left out, and the reason says so.
func (c *replyChoice) tokens(prompt []uint32) (t *schemas.Tokens, trouble string) {
	ids := c.ids
	if len(ids) == 0 && len(c.named) == c.entries {
		ids = c.named
	}
	if len(ids) == 0 {
		return nil, ""
	}
	t = &schemas.Tokens{PromptIds: prompt, ResponseIds: ids}
	switch {
	case c.entries == 0:
	case c.entries == len(ids) && len(c.logprobs) == c.entries:
		t.Logprobs = c.logprobs
	default:
		return t, fmt.Sprintf("the upstream gave %d token ids and %d log-probs", len(ids), len(c.logprobs))
	}
	return t, ""
}
