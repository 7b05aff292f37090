package importers

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// piLine writes one line of conversation.
type piLine struct {
	*piReader
	*thread
	// first holds where the session came from, until its first action takes it.
	first *schemas.ActionTaken
	side  bool // since a prompt that OpenClaw wrote
	// What the user said last, and how many failed calls came since: the same words again are a new try, not a new message.
	words [16]byte
	tries int
}

// before gives a branch or a fork the conversation that it goes on with, and names the turn that it left.
func (w *piLine) before(ctx context.Context, li, own int) error {
	var nodes []int32
	var err error
	size, omitted, acted := 0, 0, false
	w.ancestors(li, own, func(at int, n int32) bool {
		kind := w.nodes[n].kind
		if kind == piAction && !acted {
			acted = true
			if err = w.leave(at, n); err != nil {
				return false
			}
		}
		size += int(w.nodes[n].size)
		switch {
		case kind == piCompaction:
			nodes = append(nodes, n)
			return false
		case size <= prefixBytes:
			nodes = append(nodes, n)
		default:
			omitted++
		}
		return true
	})
	if err != nil {
		return err
	}
	if omitted > 0 {
		w.first.Attributes = map[string]string{"context_omitted": strconv.Itoa(omitted) + " earlier records"}
	}
	if !acted && w.parentSession() != "" && w.copied != 0 {
		w.setOrigin(w.parentSession(), "")
	}
	for _, n := range slices.Backward(nodes) {
		if w.nodes[n].kind == piCompaction {
			if err := w.compact(ctx, n); err != nil {
				return err
			}
			continue
		}
		if err := w.recall(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// leave notes the turn that the line leaves its parent session after. Entries of v1 have no ids, so that a copy cannot be found again.
func (w *piLine) leave(li int, n int32) error {
	e, err := w.entry(n)
	if err != nil {
		return err
	}
	if w.isCopy(n) {
		record := e.ID
		w.setOrigin(w.parentSession(), record)
		return nil
	}
	session, err := w.lineID(li)
	if err == nil {
		w.setOrigin(session, e.record(n))
	}
	return err
}

func (w *piLine) setOrigin(session, record string) {
	session = SessionID(session)
	w.first.ParentSession = &session
	if record != "" {
		id := schemas.ContentID(w.out.format, session, "ActionTaken", record)
		w.first.ParentTurnId = &id
	}
}

// recall sees one entry of the conversation before.
func (w *piLine) recall(ctx context.Context, n int32) error {
	switch w.nodes[n].kind {
	case piSilent, piEmpty, piCompaction:
		return nil
	case piAction, piReply, piPrompt, piResult, piBash, piContext:
	}
	e, err := w.entry(n)
	if err != nil {
		return err
	}
	m, err := w.message(ctx, &e)
	if err == nil && !e.message.ExcludeFromContext {
		w.See(m)
	}
	return err
}

// node writes one entry. n is nodes[pos] of the line.
func (w *piLine) node(ctx context.Context, li, pos int, n int32) error {
	node := w.nodes[n]
	w.out.At(int64(node.line))
	switch node.kind {
	case piSilent:
		return nil
	case piEmpty:
		w.tries++
		return nil
	case piCompaction:
		w.tries, w.words = 0, [16]byte{}
		w.Restart()
		return w.compacted(ctx, li, pos, n)
	case piAction, piReply, piPrompt, piResult, piBash, piContext:
	}
	e, err := w.entry(n)
	if err != nil {
		return err
	}
	if node.kind == piReply || node.kind == piPrompt {
		words := digest(e.text())
		if w.tries > 0 && words == w.words {
			return nil
		}
		w.words = words
	} else {
		w.words = [16]byte{}
	}
	w.tries = 0
	m, err := w.message(ctx, &e)
	if err != nil {
		return err
	}
	if node.kind == piAction {
		return w.action(ctx, &e, e.record(n), m)
	}
	if !e.message.ExcludeFromContext {
		w.See(m)
	}
	w.answer(&e, node, m)
	return nil
}

// answer adds what the world said to the open turn.
func (w *piLine) answer(e *piEntry, node piNode, m *schemas.Message) {
	o := &schemas.Observation{Message: m}
	switch node.kind {
	case piPrompt:
		w.side = true
	case piReply:
		w.side = false
		o.Kind = schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY
		o.Message = withoutPrefix(m)
		w.observe(e.time(), o)
	case piBash:
		o.Kind = schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT
		if code := e.message.ExitCode; code != nil && *code >= -1<<31 && *code < 1<<31 {
			exit := int32(*code)
			o.ExitCode = &exit
		}
		w.observe(e.time(), o)
	case piResult:
		o.Kind, o.IsError = schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, e.message.IsError
		if !w.result(e.time(), o) {
			w.out.Warn("line %d: the result of a call that the file does not have (%s): context only", node.line, m.GetToolCallId())
		}
	case piSilent, piAction, piEmpty, piContext, piCompaction:
	}
}

// piPrefix marks the part of a user's message that OpenClaw wrote before the words.
const piPrefix = "openclaw"

// withoutPrefix is a user's message without what OpenClaw wrote before it.
func withoutPrefix(m *schemas.Message) *schemas.Message {
	if m.GetName() != piPrefix || len(m.GetParts()) < 2 {
		return m
	}
	return &schemas.Message{Role: m.GetRole(), Parts: m.GetParts()[1:]}
}

// action writes a model call.
func (w *piLine) action(ctx context.Context, e *piEntry, record string, m *schemas.Message) error {
	if len(m.GetParts()) == 0 && len(m.GetToolCalls()) == 0 && m.GetReasoning() == "" {
		w.tries++
		return nil
	}
	a := &schemas.ActionTaken{
		Kind: schemas.TurnKind_TURN_KIND_MAIN, Response: m, Model: text(e.message.Model), ResponseId: optional(text(e.message.ResponseID)),
		FinishReason: piFinish[e.message.StopReason], Usage: e.message.Usage.usage(), Attributes: map[string]string{},
	}
	if w.side {
		a.Kind = schemas.TurnKind_TURN_KIND_SIDE
	}
	if p := e.message.Provider; p != "" {
		a.Attributes["provider"] = text(clip(p, 100))
	}
	if ms := e.message.Millis; ms > 0 && ms < 1e14 {
		a.Attributes["started"] = time.UnixMilli(int64(ms)).UTC().Format(time.RFC3339Nano)
	}
	if w.first != nil {
		a.ParentSession, a.ParentTurnId = w.first.ParentSession, w.first.ParentTurnId
		for k, v := range w.first.GetAttributes() {
			a.Attributes[k] = v
		}
		w.first = nil
	}
	return w.act(ctx, record, e.time(), a)
}

var piFinish = map[string]schemas.FinishReason{
	"stop":    schemas.FinishReason_FINISH_REASON_STOP,
	"length":  schemas.FinishReason_FINISH_REASON_LENGTH,
	"toolUse": schemas.FinishReason_FINISH_REASON_TOOL_CALLS,
	"aborted": schemas.FinishReason_FINISH_REASON_ABORTED,
	"error":   schemas.FinishReason_FINISH_REASON_ERROR,
}

// compacted begins the context anew behind a compaction: its summary, and the entries that it kept.
func (w *piLine) compacted(ctx context.Context, li, pos int, n int32) error {
	e, err := w.entry(n)
	if err != nil {
		return err
	}
	first := noNode
	if e.FirstKeptEntryIndex != nil {
		first = int32(max(-1, min(*e.FirstKeptEntryIndex-1, len(w.nodes)))) //nolint:gosec // bounded by the nodes
	}
	if kept, ok := w.byID[digest(e.FirstKeptEntryID)]; ok {
		first = kept
	}
	var kept []int32
	size, found := 0, false
	w.ancestors(li, pos, func(_ int, n int32) bool {
		if size += int(w.nodes[n].size); size <= prefixBytes {
			kept = append(kept, n)
		}
		found = n == first
		return !found
	})
	if err := w.compact(ctx, n); err != nil || !found {
		return err
	}
	for _, n := range slices.Backward(kept) {
		if err := w.recall(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// compact sees a compaction's summary.
func (w *piLine) compact(_ context.Context, n int32) error {
	e, err := w.entry(n)
	if err == nil && strings.TrimSpace(e.Summary) != "" {
		w.See(textMessage(schemas.Role_ROLE_USER, e.Summary))
	}
	return err
}

// message turns an entry into a message as the model saw or wrote it.
func (w *piLine) message(ctx context.Context, e *piEntry) (*schemas.Message, error) {
	m := &schemas.Message{Role: schemas.Role_ROLE_USER}
	switch {
	case e.Type == "branch_summary":
		return textMessage(m.GetRole(), e.Summary), nil
	case e.message.Role == "branchSummary" || e.message.Role == "compactionSummary":
		return textMessage(m.GetRole(), e.message.Summary), nil
	case e.message.Role == "bashExecution":
		return textMessage(m.GetRole(), "$ "+e.message.Command+"\n"+e.message.Output), nil
	case e.message.Role == "assistant":
		m.Role = schemas.Role_ROLE_ASSISTANT
	case e.message.Role == "toolResult":
		m.Role = schemas.Role_ROLE_TOOL
		m.ToolCallId, m.Name = optional(text(e.message.ToolCallID)), optional(text(e.message.ToolName))
	}
	for i, b := range e.blocks {
		if err := w.block(ctx, m, b, i == 0 && e.message.Role == "user"); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// block adds one content block to a message.
func (w *piLine) block(ctx context.Context, m *schemas.Message, b piBlock, opens bool) error {
	switch b.Type {
	case "text":
		if prefix, words := piWords(b.Text); opens && prefix != "" && words != "" {
			name := piPrefix
			m.Name = &name
			m.Parts = append(m.Parts, textPart(prefix), textPart(words))
		} else if b.Text != "" {
			m.Parts = append(m.Parts, textPart(b.Text))
		}
	case "thinking":
		if reasoning := text(b.Thinking); reasoning != "" {
			if m.GetReasoning() != "" {
				reasoning = m.GetReasoning() + "\n\n" + reasoning
			}
			m.Reasoning = &reasoning
		}
	case "toolCall":
		m.ToolCalls = append(m.ToolCalls, &schemas.ToolCall{Id: text(b.ID), Name: text(b.Name), Arguments: compactJSON(b.Arguments)})
	case "image":
		part, err := w.out.Base64(ctx, b.Data, b.MimeType)
		if err != nil {
			return err
		}
		m.Parts = append(m.Parts, part)
	default:
		w.out.Unknown("content:" + b.Type)
		m.Parts = append(m.Parts, textPart(compactJSON(b.raw)))
	}
	return nil
}

// usage counts cached tokens as input tokens, which the source does not. A call that failed counts nothing: all 0 is absent.
func (u *piUsage) usage() *schemas.Usage {
	if u == nil {
		return nil
	}
	s := &schemas.Usage{CachedTokens: tokens(u.CacheRead), OutputTokens: tokens(u.Output), InputTokens: tokens(u.Input)}
	if s.InputTokens != nil {
		for _, more := range []*float64{u.CacheRead, u.CacheWrite} {
			if n := tokens(more); n != nil {
				*s.InputTokens += *n
			}
		}
	}
	if u.Cost != nil && u.Cost.Total != nil {
		s.CostUsd = u.Cost.Total
	}
	if s.GetInputTokens() == 0 && s.GetOutputTokens() == 0 && s.GetCostUsd() == 0 {
		return nil
	}
	return s
}

// tokens is a count, absent when it is none.
func tokens(v *float64) *uint64 {
	if v == nil || *v < 0 || *v > 1<<53 {
		return nil
	}
	n := uint64(*v)
	return &n
}
