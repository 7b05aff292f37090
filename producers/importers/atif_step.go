package importers

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// atifStep is one step of a trajectory.
type atifStep struct {
	StepID    json.RawMessage `json:"step_id"`
	Source    string          `json:"source"`
	Message   json.RawMessage `json:"message"`
	Timestamp string          `json:"timestamp"`
	ModelName string          `json:"model_name"`
	Reasoning string          `json:"reasoning_content"`
	ToolCalls []struct {
		ToolCallID   string          `json:"tool_call_id"`
		FunctionName string          `json:"function_name"`
		Arguments    json.RawMessage `json:"arguments"`
		ID           string          `json:"id"`   // unofficial writers
		Name         string          `json:"name"` // unofficial writers
	} `json:"tool_calls"`
	Observation json.RawMessage `json:"observation"`
	Metrics     *atifMetrics    `json:"metrics"`
	Copied      bool            `json:"is_copied_context"`
}

type atifMetrics struct {
	Prompt        *uint64         `json:"prompt_tokens"`
	Completion    *uint64         `json:"completion_tokens"`
	Cached        *uint64         `json:"cached_tokens"`
	Cost          *float64        `json:"cost_usd"`
	Reward        *float64        `json:"reward"`
	PromptIDs     json.RawMessage `json:"prompt_token_ids"`
	CompletionIDs json.RawMessage `json:"completion_token_ids"`
	Logprobs      json.RawMessage `json:"logprobs"`
}

type atifResult struct {
	CallID  string          `json:"source_call_id"`
	Content json.RawMessage `json:"content"`
	Refs    json.RawMessage `json:"subagent_trajectory_ref"`
}

// atifHeld is a result that came before the step that lists its call.
type atifHeld struct {
	sequence int
	line     int64
	raw      []byte
	obs      []*schemas.Observation
}

// maxHeld bounds the results that wait for their call.
const maxHeld = 1000

func (t *atifTrajectory) step(ctx context.Context, raw []byte, line int64, index int) error {
	var st atifStep
	if err := decode(raw, &st); err != nil {
		return t.out.Malformed(ctx, line, "step: "+err.Error(), raw)
	}
	defer t.link()
	if st.Source != "agent" {
		t.at(st.Timestamp)
	}
	message, err := t.message(ctx, &st)
	if err != nil {
		return t.malformed(ctx, line, err, raw)
	}
	results, err := t.results(ctx, &st)
	if err != nil {
		return t.malformed(ctx, line, err, raw)
	}
	switch {
	case message.GetRole() == schemas.Role_ROLE_UNSPECIFIED:
		t.out.Unknown("source:" + st.Source)
	case st.Copied:
		t.s.See(message)
		for _, o := range results {
			t.s.See(o.GetMessage())
		}
	case st.Source == "agent":
		return t.agent(ctx, &st, index, message, results)
	case st.Source == "user":
		t.s.See(message)
		if t.last.ID != "" && len(message.GetParts()) > 0 && !t.handover {
			t.pending = append(t.pending, observed(message))
		}
	default:
		return t.system(ctx, line, raw, message, results)
	}
	return nil
}

// at is the time of what the world says next: the step's own, absent when the step has none.
func (t *atifTrajectory) at(timestamp string) { t.lastAt = isoTime(timestamp) }

// malformed tells the file's faults from the blob store's.
func (t *atifTrajectory) malformed(ctx context.Context, line int64, err error, raw []byte) error {
	if t.src.failed != nil {
		return t.src.failed
	}
	return t.out.Malformed(ctx, line, "step: "+err.Error(), raw)
}

func (t *atifTrajectory) message(ctx context.Context, st *atifStep) (*schemas.Message, error) {
	role := schemas.Role_ROLE_UNSPECIFIED
	switch st.Source {
	case "agent":
		role = schemas.Role_ROLE_ASSISTANT
	case "user":
		role = schemas.Role_ROLE_USER
	case "system":
		role = schemas.Role_ROLE_SYSTEM
	}
	parts, err := t.content(ctx, st.Message)
	if err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	m := &schemas.Message{Role: role, Parts: parts, Reasoning: optional(text(st.Reasoning))}
	for _, c := range st.ToolCalls {
		id, name := c.ToolCallID, c.FunctionName
		if id == "" {
			id = c.ID
		}
		if name == "" {
			name = c.Name
		}
		m.ToolCalls = append(m.ToolCalls, &schemas.ToolCall{Id: text(id), Name: text(name), Arguments: arguments(c.Arguments)})
	}
	return m, nil
}

// content is a string, null, or (since 1.6) parts of text and image.
func (t *atifTrajectory) content(ctx context.Context, raw json.RawMessage) ([]*schemas.Part, error) {
	var list []struct {
		Type   string `json:"type"`
		Text   string `json:"text"`
		Source *struct {
			MediaType string `json:"media_type"`
			Path      string `json:"path"`
		} `json:"source"`
	}
	if len(raw) == 0 || raw[0] != '[' {
		return t.out.chatContent(ctx, raw)
	}
	if err := decode(raw, &list); err != nil {
		return nil, err
	}
	var parts []*schemas.Part
	for _, p := range list {
		switch {
		case p.Type == "text" && p.Text != "":
			parts = append(parts, textPart(p.Text))
		case p.Type == "text":
		case p.Type == "image" && p.Source != nil:
			part, err := t.out.Reference(ctx, p.Source.Path, p.Source.MediaType)
			if err != nil {
				return nil, err
			}
			parts = append(parts, part)
		default:
			t.out.Unknown("part:" + p.Type)
		}
	}
	return parts, nil
}

var parseError = regexp.MustCompile(`(?i)\b(pars(ing|e) errors?|failed to parse|invalid (json|format)|format error)\b`)

// results reads the observation: {results: [...]}, or (unofficial) a string or an object with content.
func (t *atifTrajectory) results(ctx context.Context, st *atifStep) ([]*schemas.Observation, error) {
	raw := st.Observation
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var o struct {
		Results *[]atifResult   `json:"results"`
		Content json.RawMessage `json:"content"`
		CallID  string          `json:"source_call_id"`
	}
	list := []atifResult{{Content: raw}}
	if raw[0] == '{' {
		if err := decode(raw, &o); err != nil {
			return nil, fmt.Errorf("observation: %w", err)
		}
		if o.Results != nil {
			list = *o.Results
		} else {
			list = []atifResult{{Content: o.Content, CallID: o.CallID}}
			t.out.Warn("line %d: an observation without results: its content was taken", t.out.line)
		}
	}
	var obs []*schemas.Observation
	for _, r := range list {
		if len(r.Refs) > 0 {
			t.references(r.Refs)
		}
		parts, err := t.content(ctx, r.Content)
		if err != nil {
			return nil, fmt.Errorf("observation: %w", err)
		}
		if len(parts) == 0 && (r.CallID == "" || len(r.Refs) > 0) {
			continue
		}
		obs = append(obs, atifObservation(r.CallID, parts, len(st.ToolCalls)))
	}
	return obs, nil
}

// atifObservation is a tool's result when it names its call; else what a terminal shows, or the harness's complaint that it could not parse
// a reply without calls.
func atifObservation(callID string, parts []*schemas.Part, calls int) *schemas.Observation {
	o := &schemas.Observation{
		Kind:    schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT,
		Message: &schemas.Message{Role: schemas.Role_ROLE_TOOL, Parts: parts, ToolCallId: optional(text(callID))},
	}
	if callID == "" {
		o.Kind = schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT
		o.Message.Role = schemas.Role_ROLE_USER
		if calls == 0 && parseError.MatchString(clip(messageText(o.Message), 300)) {
			o.Kind = schemas.ObservationKind_OBSERVATION_KIND_HARNESS
		}
	}
	return o
}

func (t *atifTrajectory) agent(ctx context.Context, st *atifStep, index int, m *schemas.Message, results []*schemas.Observation) error {
	if emptyMessage(m) {
		// A failed call: no action. What followed it belongs to the action before.
		t.observe(results...)
		return nil
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	a := &schemas.ActionTaken{
		Response: m, Model: text(st.ModelName), Tokens: t.tokens(st.Metrics), Usage: st.Metrics.usage(),
		Attributes: map[string]string{},
	}
	agent := t.root.Agent
	if a.Model == "" {
		a.Model = text(agent.ModelName + agent.Model)
	}
	if agent.Name != "" {
		a.Attributes["agent"] = strings.TrimSpace(text(agent.Name + " " + agent.Version))
	}
	if len(st.StepID) > 0 {
		a.Attributes["step_id"] = text(clip(string(st.StepID), 100))
	}
	var temperature float64
	if decode(agent.Extra.Temperature, &temperature) == nil {
		a.Sampling = &schemas.Sampling{Temperature: &temperature}
	}
	if t.side {
		a.Kind = schemas.TurnKind_TURN_KIND_SIDE
	}
	if t.s.Last().ID == "" {
		t.s.Offer(chatTools(agent.Tools))
		a.ParentSession, a.ParentTurnId = optional(t.parentSession), optional(t.parentTurn)
	}
	t.record = fmt.Sprintf("step-%d", index)
	turn, err := t.s.Action(ctx, t.record, isoTime(st.Timestamp), a)
	if err != nil {
		return err
	}
	t.at(st.Timestamp)
	t.last, t.open, t.handover = turn, map[string]bool{}, false
	for _, c := range m.GetToolCalls() {
		t.open[c.GetId()] = true
	}
	for _, c := range m.GetToolCalls() {
		t.claim(c.GetId())
	}
	if n := len(results); n > 0 && st.Metrics != nil {
		results[n-1].Reward = st.Metrics.Reward // the environment's, for the whole step
	}
	t.observe(results...)
	return nil
}

// observe adds to the next state of the newest action.
func (t *atifTrajectory) observe(obs ...*schemas.Observation) {
	for _, o := range obs {
		delete(t.open, o.GetMessage().GetToolCallId())
		t.s.See(o.GetMessage())
		if t.last.ID != "" {
			t.pending = append(t.pending, o)
		}
	}
}

func (t *atifTrajectory) flush(ctx context.Context) error {
	obs := t.pending
	t.pending = nil
	return t.s.NextState(ctx, t.record, t.lastAt, t.last, obs...)
}

var callID = regexp.MustCompile(`\b(?:call|toolu|tool)_[A-Za-z0-9_-]+`)

// system: context, or the result of a call, as unofficial writers put it: before the step that lists the call.
func (t *atifTrajectory) system(ctx context.Context, line int64, raw []byte, m *schemas.Message, results []*schemas.Observation) error {
	id := ""
	for _, o := range results {
		if id = o.GetMessage().GetToolCallId(); id != "" {
			break
		}
	}
	if id == "" && len(results) == 0 && t.last.ID != "" {
		if id = callID.FindString(messageText(m)); id != "" {
			results = []*schemas.Observation{atifObservation(id, m.GetParts(), 0)}
		}
	}
	switch {
	case id == "":
		// Context management (a summary, a hand-over): no reply, and neither is the user text that the harness writes behind it.
		t.handover = t.handover || len(results) > 0 || len(t.refs) > 0
		t.s.See(m)
		for _, o := range results {
			t.s.See(o.GetMessage())
		}
		return nil
	case t.open[id]:
		t.out.Warn("line %d: the result of %s is a system step: linked by its id", line, clip(id, 60))
		t.observe(results...)
		return nil
	case len(t.heldResults) >= maxHeld:
		return t.out.Malformed(ctx, line, "step: over 1000 results wait for the step that lists their call", raw)
	}
	if old, ok := t.heldResults[id]; ok {
		if err := t.out.Malformed(ctx, old.line, "step: a result whose call no step lists: "+clip(id, 60), old.raw); err != nil {
			return err
		}
	}
	t.sequence++
	t.heldResults[id] = atifHeld{sequence: t.sequence, line: line, raw: raw[:min(len(raw), maxDeadBytes)], obs: results}
	return nil
}

// claim gives a step the results that came before it.
func (t *atifTrajectory) claim(id string) {
	held, ok := t.heldResults[id]
	if !ok {
		return
	}
	delete(t.heldResults, id)
	t.out.Warn("line %d: the result of %s came before the step that lists the call: linked by its id", held.line, clip(id, 60))
	t.observe(held.obs...)
}

// dropHeld dead-letters the results whose call never came.
func (t *atifTrajectory) dropHeld(ctx context.Context) error {
	var left []string
	for id := range t.heldResults {
		left = append(left, id)
	}
	slices.SortFunc(left, func(a, b string) int { return t.heldResults[a].sequence - t.heldResults[b].sequence })
	for _, id := range left {
		held := t.heldResults[id]
		if err := t.out.Malformed(ctx, held.line, "step: a result whose call no step lists: "+clip(id, 60), held.raw); err != nil {
			return err
		}
	}
	return nil
}

func (m *atifMetrics) usage() *schemas.Usage {
	if m == nil || m.Prompt == nil && m.Completion == nil && m.Cached == nil && m.Cost == nil {
		return nil
	}
	return &schemas.Usage{InputTokens: m.Prompt, CachedTokens: m.Cached, OutputTokens: m.Completion, CostUsd: m.Cost}
}

// tokens takes ids and log-probs as they are, if they are equally long; else neither, and says so.
func (t *atifTrajectory) tokens(m *atifMetrics) *schemas.Tokens {
	if m == nil || absent(m.CompletionIDs) && absent(m.Logprobs) {
		return nil
	}
	return t.out.tokens(m.PromptIDs, m.CompletionIDs, m.Logprobs)
}

// tokens takes JSON arrays of ids and log-probs. Ids without log-probs are kept; log-probs without ids, or of another length, are not.
func (e *Emitter) tokens(promptIDs, ids, logprobs json.RawMessage) *schemas.Tokens {
	tokens := &schemas.Tokens{}
	var ok bool
	if tokens.ResponseIds, ok = numbers[uint32](ids); !ok || len(tokens.ResponseIds) == 0 {
		e.Warn("line %d: log-probs without token ids, or ids that are no numbers: dropped", e.line)
		return nil
	}
	if !absent(logprobs) {
		if tokens.Logprobs, ok = numbers[float32](logprobs); !ok || len(tokens.Logprobs) != len(tokens.ResponseIds) {
			e.Warn("line %d: %d token ids and %d log-probs: both dropped", e.line, len(tokens.ResponseIds), len(tokens.Logprobs))
			return nil
		}
	}
	if !absent(promptIDs) {
		if tokens.PromptIds, ok = numbers[uint32](promptIDs); !ok {
			e.Warn("line %d: prompt ids that are no numbers: dropped", e.line)
		}
	}
	return tokens
}

// numbers reads an array without holes: a null is not a zero.
func numbers[T uint32 | float32](raw json.RawMessage) ([]T, bool) {
	var list []*T
	if decode(raw, &list) != nil {
		return nil, false
	}
	out := make([]T, 0, len(list))
	for _, v := range list {
		if v == nil {
			return nil, false
		}
		out = append(out, *v)
	}
	return out, true
}

// absent: the key is not there, or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
