package importers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// sweAgentFormat reads SWE-agent's .traj files.
func sweAgentFormat() Format {
	return Format{Name: "sweagent", Detect: detectSWEAgent, Read: readSWEAgent}
}

func detectSWEAgent(p Probe) bool {
	return p.Any(func(o *Shape) bool {
		if o != nil && o.Type == '[' && len(o.Items()) > 0 {
			o = o.Items()[0]
		}
		for _, step := range o.Key("trajectory").Items() {
			if step.Has("action", "observation") {
				return true
			}
		}
		for _, m := range o.Key("history").Items() {
			if m.Has("role", "agent") {
				return true
			}
		}
		return o.Has("trajectory", "history", "info")
	})
}

func readSWEAgent(ctx context.Context, src *Source, out *Emitter) error {
	return src.documents(ctx, out, func(doc *Source) error {
		t := &sweTrajectory{out: out, src: doc}
		return t.read(ctx, doc.Probe.Root())
	})
}

// sweInfo is what the file says about the run.
type sweInfo struct {
	ExitStatus json.RawMessage `json:"exit_status"`
	ModelStats *struct {
		Cost     float64 `json:"instance_cost"`
		Sent     float64 `json:"tokens_sent"`
		Received float64 `json:"tokens_received"`
		Calls    float64 `json:"api_calls"`
	} `json:"model_stats"`
}

// sweStep is one step. Its state, and the messages or query that it repeats, are not read.
type sweStep struct {
	Response    *string         `json:"response"`
	Thought     string          `json:"thought"`
	Action      json.RawMessage `json:"action"`
	Observation json.RawMessage `json:"observation"`
}

// sweTrajectory is one file being read: two walks side by side, one over trajectory (what was done) and one over history (what the policy saw).
type sweTrajectory struct {
	out     *Emitter
	src     *Source
	s       *Session
	history *elements
	// next is the history's next assistant message, which no step has taken yet.
	next *chatMessage
	// between are the messages before next: the templated form of the last observation.
	between     []*schemas.Message
	untrainable string
	exitStatus  string

	turn        Turn
	record      string
	observation *schemas.Observation // of turn, not yet written
}

func (t *sweTrajectory) read(ctx context.Context, shape *Shape) error {
	if err := t.readInfo(ctx, shape); err != nil {
		return err
	}
	id := t.out.base
	if i := strings.LastIndex(id, ".traj"); i > 0 {
		id = id[:i]
	}
	if t.src.line > 1 {
		id = fmt.Sprintf("%s:%d", id, t.src.line)
	}
	t.s = t.out.Session(id + "~" + t.src.fingerprint())
	if h := shape.Key("history"); h != nil && h.Type == '[' {
		t.history = &elements{d: t.src.Document(h.Offset, h.Line)}
	}
	whole, err := t.walk(ctx, shape)
	if err != nil {
		return err
	}
	if t.observation != nil && len(t.observation.GetMessage().GetParts()) > 0 {
		if err := t.flush(ctx); err != nil {
			return err
		}
	}
	if t.exitStatus != "" && whole {
		if err := t.s.End(ctx, time.Time{}, t.exitStatus); err != nil {
			return err
		}
	}
	return t.s.Done(ctx)
}

func (t *sweTrajectory) walk(ctx context.Context, shape *Shape) (whole bool, err error) {
	trajectory := shape.Key("trajectory")
	if trajectory == nil || trajectory.Type != '[' || len(trajectory.Items()) == 0 {
		return t.onlyHistory(ctx)
	}
	if err := t.advance(ctx); err != nil {
		return false, err
	}
	list := &elements{d: t.src.Document(trajectory.Offset, trajectory.Line)}
	index := 0
	return list.each(ctx, t.out, func(raw []byte, line int64) error {
		index++
		return t.step(ctx, raw, line, index)
	})
}

func (t *sweTrajectory) readInfo(ctx context.Context, shape *Shape) error {
	raw, err := t.src.value(shape.Key("info"))
	if err == nil && raw != nil {
		var info sweInfo
		if err = decode(raw, &info); err == nil {
			t.exitStatus, _ = jsonString(info.ExitStatus)
			if m := info.ModelStats; m != nil && m.Cost == 0 && m.Sent == 0 && m.Received == 0 {
				t.untrainable = "replay or demonstration: no model was called"
			}
			return nil
		}
	}
	if shape.Key("trajectory") == nil {
		t.untrainable = "demonstration: no run was recorded"
	}
	if err == nil {
		return nil
	}
	if t.src.failed != nil {
		return t.src.failed
	}
	return t.out.Malformed(ctx, shape.Key("info").Line, "info: "+err.Error(), raw)
}

// advance reads history up to its next assistant message that is no demonstration.
func (t *sweTrajectory) advance(ctx context.Context) error {
	t.next, t.between = nil, nil
	for t.history != nil {
		raw, line, err := t.history.Next()
		if errors.Is(err, io.EOF) {
			t.history = nil
			return nil
		}
		var m chatMessage
		if err == nil {
			err = decode(raw, &m)
		}
		var message *schemas.Message
		if err == nil {
			message, err = t.out.chat(ctx, &m)
		}
		if err != nil {
			if err := t.malformed(ctx, line, "history: "+err.Error(), raw); err != nil {
				return err
			}
			if t.history.over {
				t.history = nil
			}
			continue
		}
		if m.Role == "assistant" && !m.IsDemo {
			t.next = &m
			return nil
		}
		t.between = append(t.between, message)
	}
	return nil
}

func (t *sweTrajectory) malformed(ctx context.Context, line int64, reason string, raw []byte) error {
	if t.src.failed != nil {
		return t.src.failed
	}
	return t.out.Malformed(ctx, line, reason, raw)
}

func (t *sweTrajectory) step(ctx context.Context, raw []byte, line int64, index int) error {
	var st sweStep
	if err := decode(raw, &st); err != nil {
		return t.malformed(ctx, line, "step: "+err.Error(), raw)
	}
	observation, ok := jsonString(st.Observation)
	if !ok && !absent(st.Observation) {
		return t.malformed(ctx, line, "step: the observation is no text", raw)
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	response := &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}
	if st.Response != nil && *st.Response != "" {
		response.Parts = []*schemas.Part{textPart(*st.Response)}
	}
	matched := t.next != nil && t.same(&st)
	switch {
	case matched:
		full, err := t.out.chat(ctx, t.next)
		if err != nil {
			return t.malformed(ctx, line, "history: "+err.Error(), raw)
		}
		response.ToolCalls, response.Reasoning = full.GetToolCalls(), full.Reasoning
		t.s.See(t.between...)
	case index == 1:
		t.s.See(t.between...)
		t.between = nil
	case t.observation != nil:
		// The history lacks this step (a retry, the final submit): the policy saw the last observation in some form.
		t.s.See(t.observation.GetMessage())
	}
	if err := t.act(ctx, index, response, observation); err != nil || !matched {
		return err
	}
	err := t.advance(ctx)
	t.out.At(line)
	return err
}

// act appends the action and keeps its observation for flush.
func (t *sweTrajectory) act(ctx context.Context, index int, response *schemas.Message, observation string) error {
	t.observation = nil
	if emptyMessage(response) {
		return nil // a failed call: nothing was said
	}
	t.record = fmt.Sprintf("step-%d", index)
	turn, err := t.s.Action(ctx, t.record, time.Time{}, &schemas.ActionTaken{Response: response, UntrainableReason: optional(t.untrainable)})
	t.turn, t.observation = turn, terminalOutput(observation, response.GetToolCalls())
	return err
}

// terminalOutput is what a terminal showed; a result of the call when there was exactly one.
func terminalOutput(s string, calls []*schemas.ToolCall) *schemas.Observation {
	m := textMessage(schemas.Role_ROLE_USER, s)
	if len(calls) == 1 && calls[0].GetId() != "" {
		m.Role, m.ToolCallId = schemas.Role_ROLE_TOOL, &calls[0].Id
	}
	return &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT, Message: m}
}

// flush appends the last step's observation: a command without output was answered too, but not by the run's end.
func (t *sweTrajectory) flush(ctx context.Context) error {
	if t.observation == nil {
		return nil
	}
	return t.s.NextState(ctx, t.record, time.Time{}, t.turn, t.observation)
}

// same: the history's message is this step's response. The history may lack steps, so the position says nothing.
func (t *sweTrajectory) same(st *sweStep) bool {
	response, content := "", ""
	if st.Response != nil {
		response = strings.TrimSpace(*st.Response)
	}
	content, _ = jsonString(t.next.Content)
	if content = strings.TrimSpace(content); content == response {
		return true
	}
	thought := strings.TrimSpace(t.next.Thought)
	return thought != "" && thought == strings.TrimSpace(st.Thought)
}

// onlyHistory reads a demonstration: a file without a trajectory.
func (t *sweTrajectory) onlyHistory(ctx context.Context) (whole bool, err error) {
	if t.history == nil {
		return true, nil
	}
	index := 0
	var obs []*schemas.Observation
	whole, err = t.history.each(ctx, t.out, func(raw []byte, line int64) error {
		var m chatMessage
		if err := decode(raw, &m); err != nil {
			return t.malformed(ctx, line, "history: "+err.Error(), raw)
		}
		message, err := t.out.chat(ctx, &m)
		if err != nil {
			return t.malformed(ctx, line, "history: "+err.Error(), raw)
		}
		if m.Role != "assistant" || m.IsDemo {
			t.s.See(message)
			if t.turn.ID != "" && (message.GetRole() == schemas.Role_ROLE_TOOL || message.GetRole() == schemas.Role_ROLE_USER) {
				obs = append(obs, &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT, Message: message})
			}
			return nil
		}
		if err := t.s.NextState(ctx, t.record, time.Time{}, t.turn, obs...); err != nil {
			return err
		}
		index++
		obs = nil
		t.record = fmt.Sprintf("history-%d", index)
		t.turn, err = t.s.Action(ctx, t.record, time.Time{}, &schemas.ActionTaken{Response: message, UntrainableReason: optional(t.untrainable)})
		return err
	})
	if err != nil {
		return false, err
	}
	return whole, t.s.NextState(ctx, t.record, time.Time{}, t.turn, obs...)
}
