package importers

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// miniSWEAgentFormat reads mini-swe-agent's .traj.json files, of version 1 and 2, and the oldest, a bare array of messages.
func miniSWEAgentFormat() Format {
	return Format{Name: "mini-swe-agent", Detect: detectMini, Read: readMini}
}

func detectMini(p Probe) bool {
	root := p.Root()
	if p.Document && root != nil && root.Type == '[' {
		for _, m := range root.Items() {
			if m.Key("role").String() == "user" && returnCode.MatchString(m.Key("content").String()) {
				return true
			}
		}
		if len(root.Items()) > 0 {
			root = root.Items()[0]
		}
	}
	if strings.HasPrefix(root.Key("trajectory_format").String(), "mini-swe-agent") {
		return true
	}
	return root.Has("messages") && (root.Key("info").Has("exit_status") || root.Key("info").Has("mini_version"))
}

var returnCode = regexp.MustCompile(`^\s*<returncode>(-?\d+)</returncode>`)

// What version 1 says in words only.
var (
	formatError = regexp.MustCompile(`(?i)(format error|tool call error|exactly one action)`)
	timedOut    = regexp.MustCompile(`(?s)^The last command.*timed out`)
)

// miniExtra is what mini-swe-agent adds to a message.
type miniExtra struct {
	Response      json.RawMessage `json:"response"`
	Cost          *float64        `json:"cost"`
	Timestamp     json.Number     `json:"timestamp"`
	ReturnCode    json.RawMessage `json:"returncode"`
	RawOutput     *string         `json:"raw_output"`
	InterruptType string          `json:"interrupt_type"`
	ExitStatus    string          `json:"exit_status"`
}

// miniResponse is the raw completion.
type miniResponse struct {
	ID      string `json:"id"`
	Model   string `json:"model"`
	Choices []struct {
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *chatUsage `json:"usage"`
}

func readMini(ctx context.Context, src *Source, out *Emitter) error {
	root := src.Probe.Root()
	if src.Probe.Document && root != nil && root.Type == '[' && len(root.Items()) > 0 && root.Items()[0].Has("role") {
		t := &miniTrajectory{out: out, src: src}
		return t.read(ctx, root, nil)
	}
	return src.documents(ctx, out, func(doc *Source) error {
		t := &miniTrajectory{out: out, src: doc}
		return t.read(ctx, doc.Probe.Root().Key("messages"), doc.Probe.Root())
	})
}

// miniTrajectory is one run being read, message by message.
type miniTrajectory struct {
	out   *Emitter
	src   *Source
	s     *Session
	end   string
	turn  Turn
	obs   []*schemas.Observation
	at    time.Time
	obsAt time.Time
	rec   string
}

func (t *miniTrajectory) read(ctx context.Context, messages, root *Shape) error {
	t.s = t.out.Session(t.name(root))
	t.end = root.Key("info").Key("exit_status").String()
	whole := true
	if messages != nil {
		list := &elements{d: t.src.Document(messages.Offset, messages.Line)}
		index := 0
		var err error
		whole, err = list.each(ctx, t.out, func(raw []byte, line int64) error {
			index++
			return t.message(ctx, raw, line, index)
		})
		if err != nil {
			return err
		}
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	if t.end != "" && whole {
		if err := t.s.End(ctx, t.at, t.end); err != nil {
			return err
		}
	}
	return t.s.Done(ctx)
}

// name: the instance when the file says it, with the file's beginning, because one instance is tried many times.
func (t *miniTrajectory) name(root *Shape) string {
	id := root.Key("instance_id").String()
	if id == "" {
		id = root.Key("info").Key("instance_id").String()
	}
	if id == "" {
		id = strings.TrimSuffix(strings.TrimSuffix(t.out.base, ".json"), ".traj")
	}
	if t.src.line > 1 {
		id = fmt.Sprintf("%s:%d", id, t.src.line)
	}
	return id + "~" + t.src.fingerprint()
}

func (t *miniTrajectory) message(ctx context.Context, raw []byte, line int64, index int) error {
	var m chatMessage
	if err := decode(raw, &m); err != nil {
		return t.malformed(ctx, line, err, raw)
	}
	if m.Extra == nil {
		m.Extra = &miniExtra{}
	}
	t.at = unixTime(m.Extra.Timestamp)
	if m.Role == "exit" || m.Role == "user" && m.Extra.ExitStatus != "" {
		if m.Extra.ExitStatus != "" {
			t.end = m.Extra.ExitStatus
		}
		return nil
	}
	message, err := t.out.chat(ctx, &m)
	if err != nil {
		return t.malformed(ctx, line, err, raw)
	}
	if m.Role == "assistant" {
		return t.action(ctx, index, &m, message)
	}
	t.s.See(message)
	if o := t.observation(&m, message); o != nil {
		t.obs, t.obsAt = append(t.obs, o), t.at
	}
	return nil
}

func (t *miniTrajectory) malformed(ctx context.Context, line int64, err error, raw []byte) error {
	if t.src.failed != nil {
		return t.src.failed
	}
	return t.out.Malformed(ctx, line, "message: "+err.Error(), raw)
}

func (t *miniTrajectory) action(ctx context.Context, index int, m *chatMessage, message *schemas.Message) error {
	if emptyMessage(message) {
		return nil // a failed call
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	a := &schemas.ActionTaken{Response: message}
	var r miniResponse
	if !absent(m.Extra.Response) && decode(m.Extra.Response, &r) == nil {
		a.Model, a.ResponseId, a.Usage = text(r.Model), optional(text(r.ID)), r.Usage.usage()
		if len(r.Choices) > 0 {
			a.FinishReason = finishReason(r.Choices[0].FinishReason)
		}
	}
	if m.Extra.Cost != nil {
		if a.Usage == nil {
			a.Usage = &schemas.Usage{}
		}
		a.Usage.CostUsd = m.Extra.Cost
	}
	t.rec = fmt.Sprintf("message-%d", index)
	turn, err := t.s.Action(ctx, t.rec, unixTime(m.Extra.Timestamp), a)
	t.turn = turn
	return err
}

// observation of a message of the world: a command's output with its exit code, or the harness's own words.
func (t *miniTrajectory) observation(m *chatMessage, message *schemas.Message) *schemas.Observation {
	if t.turn.ID == "" || observed(message) == nil || len(message.GetParts()) == 0 {
		return nil
	}
	words := clip(messageText(message), 300)
	code := returnCode.FindStringSubmatch(words)
	raw := string(m.Extra.ReturnCode)
	if absent(m.Extra.ReturnCode) && code != nil {
		raw = code[1]
	}
	n, err := strconv.ParseInt(strings.TrimSpace(raw), 10, 32)
	output := err == nil || code != nil || m.Extra.RawOutput != nil || message.GetRole() == schemas.Role_ROLE_TOOL || timedOut.MatchString(words)
	switch {
	case strings.HasPrefix(m.Extra.InterruptType, "User"):
		return observed(message)
	case m.Extra.InterruptType != "" || !output && formatError.MatchString(words):
		return &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_HARNESS, Message: message}
	case !output:
		return observed(message)
	}
	o := &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT, Message: message}
	if err == nil {
		exit := int32(n)
		o.ExitCode = &exit
	}
	if m.Extra.RawOutput != nil { // the message may hold only its head and tail
		full := textMessage(message.GetRole(), *m.Extra.RawOutput)
		full.ToolCallId, full.Name = message.ToolCallId, message.Name
		o.Message = full
	}
	return o
}

func (t *miniTrajectory) flush(ctx context.Context) error {
	obs := t.obs
	t.obs = nil
	return t.s.NextState(ctx, t.rec, t.obsAt, t.turn, obs...)
}
