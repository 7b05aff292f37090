package importers

import (
	"context"
	"regexp"
	"strconv"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// claudeSaid is what a record that is no model call says.
type claudeSaid struct {
	// messages as the model saw them.
	messages []*schemas.Message
	// observations are what of it the world said.
	observations []*schemas.Observation
	// interrupts are the notices that a person stopped the agent.
	interrupts []string
}

// said turns a record of type user, attachment or queue-operation into messages.
func (w *claudeReader) said(ctx context.Context, r *claudeRecord) (claudeSaid, error) {
	var s claudeSaid
	seen := &schemas.Message{Role: schemas.Role_ROLE_USER}
	reply := &schemas.Message{Role: schemas.Role_ROLE_USER}
	harness := r.IsMeta || r.IsCompactSummary
	for _, b := range r.blocks {
		if b.Type == "tool_result" {
			o, err := w.toolResult(ctx, b)
			if err != nil {
				return s, err
			}
			s.messages, s.observations = append(s.messages, o.GetMessage()), append(s.observations, o)
			continue
		}
		parts, err := w.parts(ctx, b)
		if err != nil {
			return s, err
		}
		seen.Parts = append(seen.Parts, parts...)
		switch kind, typed := claudeText(b.Text); {
		case harness:
		case b.Type != "text":
			reply.Parts = append(reply.Parts, parts...)
		case kind == textTyped:
			reply.Parts = append(reply.Parts, textPart(typed))
		case kind == textInterrupt:
			s.interrupts = append(s.interrupts, text(typed))
		}
	}
	if len(seen.GetParts()) > 0 {
		s.messages = append(s.messages, seen)
	}
	if len(reply.GetParts()) > 0 {
		s.observations = append(s.observations, &schemas.Observation{
			Kind: schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY, Message: reply,
		})
	}
	return s, nil
}

// claudeExit is how the shell tool begins the output of a command that failed.
var claudeExit = regexp.MustCompile(`\AExit code (\d{1,5})(?:\n|\z)`)

// toolResult turns a tool_result block into an observation.
func (w *claudeReader) toolResult(ctx context.Context, b claudeBlock) (*schemas.Observation, error) {
	m := &schemas.Message{Role: schemas.Role_ROLE_TOOL, ToolCallId: optional(text(b.ToolUseID))}
	blocks, err := claudeBlocks(b.Content)
	if err != nil && len(b.Content) > 0 && string(b.Content) != "null" {
		blocks = []claudeBlock{{Type: "text", Text: compactJSON(b.Content)}} // a shape of a tool's own is still its answer
	}
	for _, inner := range blocks {
		parts, err := w.parts(ctx, inner)
		if err != nil {
			return nil, err
		}
		m.Parts = append(m.Parts, parts...)
	}
	o := &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, Message: m, IsError: b.IsError}
	if len(m.GetParts()) > 0 && b.IsError != nil && *b.IsError {
		if found := claudeExit.FindStringSubmatch(m.GetParts()[0].GetText()); found != nil {
			if code, err := strconv.ParseInt(found[1], 10, 32); err == nil {
				exit := int32(code)
				o.ExitCode = &exit
			}
		}
	}
	return o, nil
}

// parts turns a content block that is no tool call, no tool result and no reasoning into parts.
func (w *claudeReader) parts(ctx context.Context, b claudeBlock) ([]*schemas.Part, error) {
	var part *schemas.Part
	var err error
	switch {
	case b.Type == "text":
		if b.Text == "" {
			return nil, nil
		}
		part = textPart(b.Text)
	case (b.Type == "image" || b.Type == "document") && b.Source != nil && b.Source.Type == "base64":
		part, err = w.out.Base64(ctx, b.Source.Data, b.Source.MediaType)
	case (b.Type == "image" || b.Type == "document") && b.Source != nil && b.Source.URL != "":
		part, err = w.out.Reference(ctx, b.Source.URL, b.Source.MediaType)
	case b.Type == "document" && b.Source != nil && b.Source.Type == "text":
		part = textPart(b.Source.Data)
	default:
		if !claudeKnownBlocks[b.Type] {
			w.out.Unknown("content:" + b.Type)
		}
		part = textPart(compactJSON(b.raw))
	}
	if err != nil {
		return nil, err
	}
	return []*schemas.Part{part}, nil
}

// claudeKnownBlocks are blocks that have no part of their own in an event: they stay in it as JSON.
var claudeKnownBlocks = map[string]bool{
	"image": true, "document": true, "tool_reference": true, "search_result": true, "server_tool_use": true, "web_search_tool_result": true,
	"web_fetch_tool_result": true, "code_execution_tool_result": true, "container_upload": true,
}

// respond adds one record of a model call to its action.
func (w *claudeReader) respond(ctx context.Context, a *schemas.ActionTaken, r *claudeRecord) error {
	m := a.GetResponse()
	for _, b := range r.blocks {
		switch b.Type {
		case "thinking":
			reasoning := strings.TrimSpace(text(b.Thinking))
			if reasoning != "" && m.GetReasoning() != "" {
				reasoning = m.GetReasoning() + "\n\n" + reasoning
			}
			if reasoning != "" {
				m.Reasoning = &reasoning
			}
		case "redacted_thinking": // nobody can read it
		case "tool_use":
			m.ToolCalls = appendCall(m.ToolCalls, &schemas.ToolCall{Id: text(b.ID), Name: text(b.Name), Arguments: compactJSON(b.Input)})
		default:
			parts, err := w.parts(ctx, b)
			if err != nil {
				return err
			}
			m.Parts = append(m.Parts, parts...)
		}
	}
	a.Model = text(r.message.Model)
	a.ResponseId = optional(text(r.message.ID))
	if f := claudeFinish[r.message.StopReason]; f != schemas.FinishReason_FINISH_REASON_UNSPECIFIED {
		a.FinishReason = f
	}
	if u := r.message.Usage; u != nil {
		a.Usage = u.usage() // each record repeats it and the last one is complete
	}
	return nil
}

// appendCall adds a call unless the action has it: a record that was written twice names it again.
func appendCall(calls []*schemas.ToolCall, c *schemas.ToolCall) []*schemas.ToolCall {
	for _, have := range calls {
		if have.GetId() == c.GetId() && c.GetId() != "" {
			return calls
		}
	}
	return append(calls, c)
}

var claudeFinish = map[string]schemas.FinishReason{
	"end_turn":      schemas.FinishReason_FINISH_REASON_STOP,
	"stop_sequence": schemas.FinishReason_FINISH_REASON_STOP,
	"max_tokens":    schemas.FinishReason_FINISH_REASON_LENGTH,
	"tool_use":      schemas.FinishReason_FINISH_REASON_TOOL_CALLS,
	"refusal":       schemas.FinishReason_FINISH_REASON_CONTENT_FILTER,

	"model_context_window_exceeded": schemas.FinishReason_FINISH_REASON_LENGTH,
}

// usage counts cached tokens as input tokens, which the source does not.
func (u *claudeUsage) usage() *schemas.Usage {
	s := &schemas.Usage{CachedTokens: u.CacheRead, OutputTokens: u.Output}
	if u.Input != nil {
		n := *u.Input
		for _, more := range []*uint64{u.CacheCreation, u.CacheRead} {
			if more != nil {
				n += *more
			}
		}
		s.InputTokens = &n
	}
	return s
}
