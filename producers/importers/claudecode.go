package importers

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// claudeFormat reads session files of Claude Code, and its stream-json output. The file is read twice: once for its tree (claudecode_index.go),
// then along each line of conversation, record by record.
func claudeFormat() Format {
	return Format{Name: "claudecode", Detect: detectClaude, Read: readClaude}
}

func detectClaude(p Probe) bool {
	return p.Any(func(s *Shape) bool {
		typ := s.Key("type").String()
		switch {
		case s.Key("sessionId").String() != "":
			return s.Has("uuid") || s.Has("leafUuid") || s.Has("operation")
		case typ == "system":
			return s.Key("subtype").String() == "init" && s.Has("session_id")
		case typ == "summary":
			return s.Has("leafUuid")
		case typ == "file-history-snapshot":
			return s.Has("snapshot")
		case typ == "started" || typ == "result": // the journal of a workflow: nothing of a conversation
			return s.Has("agentId", "key")
		}
		return false
	})
}

func readClaude(ctx context.Context, src *Source, out *Emitter) error {
	x, err := indexClaude(ctx, src, out.Malformed, out.Unknown)
	if err != nil {
		return err
	}
	c := &claudeReader{src: src, out: out, x: x, names: map[string]int{}}
	for i := range x.convos {
		if err := c.read(ctx, int32(i)); err != nil { //nolint:gosec // an index
			return err
		}
	}
	return nil
}

// claudeReader writes the conversations of one file.
type claudeReader struct {
	src   *Source
	out   *Emitter
	x     *claudeIndex
	names map[string]int // session ids in use
}

// prefixBytes bounds how much of the conversation before a branch goes into its first context, counted in bytes of the file. The newest
// records are the ones that are kept.
const prefixBytes = 4 << 20

// read writes one conversation: its main line and its branches.
func (c *claudeReader) read(ctx context.Context, convo int32) error {
	for li := range c.x.convos[convo].lines {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.line(ctx, convo, li); err != nil {
			return err
		}
	}
	return nil
}

// line writes one line of conversation as a session. A line without a model call is none.
func (c *claudeReader) line(ctx context.Context, convo int32, li int) error {
	l := &c.x.convos[convo].lines[li]
	if !c.acts(l.nodes) {
		return nil
	}
	name, err := c.x.lineID(convo, li)
	if err != nil {
		return err
	}
	if c.names[name]++; c.names[name] > 1 {
		name += "~" + strconv.Itoa(c.names[name])
	}
	w := &claudeLine{claudeReader: c, thread: c.out.thread(name), convo: c.x.convos[convo], first: &schemas.ActionTaken{}}
	if li > 0 {
		c.out.Branch()
	}
	if err := w.before(ctx, convo, li); err != nil {
		return err
	}
	for i, n := range l.nodes {
		if err := w.node(ctx, n, l.nodes[i+1:]); err != nil {
			return err
		}
	}
	return w.done(ctx)
}

func (c *claudeReader) acts(nodes []int32) bool {
	for _, n := range nodes {
		if c.x.nodes[n].kind == claudeAction {
			return true
		}
	}
	return false
}

// lineID is the session id of a line.
func (x *claudeIndex) lineID(convo int32, li int) (string, error) {
	id := x.convos[convo].id()
	if li == 0 {
		return id, nil
	}
	r, err := x.record(x.convos[convo].lines[li].nodes[0])
	if err != nil {
		return "", err
	}
	if r.UUID == "" {
		return id + "@line-" + strconv.Itoa(int(x.nodes[x.convos[convo].lines[li].nodes[0]].line)), nil
	}
	return id + "@" + r.UUID, nil
}

// record reads a node's record again.
func (x *claudeIndex) record(n int32) (claudeRecord, error) {
	b, err := x.src.load(x.nodes[n].place)
	if err != nil {
		return claudeRecord{}, err
	}
	r, _, err := parseClaude(b)
	if err != nil {
		return r, fmt.Errorf("line %d changed while it was read (%w): import again when nobody writes the file", x.nodes[n].line, err)
	}
	return r, nil
}

// actionID is what identifies a model call within its session: the id of its response.
func (r *claudeRecord) actionID(n *claudeNode) string {
	if r.message.ID != "" {
		return r.message.ID
	}
	return r.nodeID(n)
}

// nodeID is what identifies a record within its session: its id, or its place in the file.
func (r *claudeRecord) nodeID(n *claudeNode) string {
	if r.UUID != "" {
		return "uuid:" + r.UUID
	}
	return "line:" + strconv.Itoa(int(n.line))
}

// ancestors calls yield with the nodes up to nodes[:cut] of a line and of the lines that it left, the newest first, until yield says false.
func (x *claudeIndex) ancestors(convo int32, li, cut int, yield func(li int, n int32) bool) {
	lines := x.convos[convo].lines
	for li >= 0 {
		for i := cut - 1; i >= 0; i-- {
			if !yield(li, lines[li].nodes[i]) {
				return
			}
		}
		li, cut = lines[li].from, lines[li].cut
	}
}

// locate finds a node's line and its position there.
func (x *claudeIndex) locate(n int32) (li, pos int, ok bool) {
	if m := x.nodes[n].message; m != noNode {
		n = m
	}
	return int(x.nodes[n].branch), int(x.nodes[n].pos), x.nodes[n].branch != noNode
}

// callerReach is how many model calls a result is looked for behind. It stands right behind its own, or behind a few more at most.
const callerReach = 200

// caller finds the model call that a tool result answers, the newest before it that made the call: its session id and its own.
func (x *claudeIndex) caller(result int32) (session, action string, err error) {
	r, err := x.record(result)
	if err != nil {
		return "", "", err
	}
	calls := map[string]bool{}
	for _, b := range r.blocks {
		if b.Type == "tool_result" {
			calls[b.ToolUseID] = true
		}
	}
	convo := x.nodes[result].convo
	li, pos, ok := x.locate(result)
	if !ok {
		return "", "", nil
	}
	back := 0
	x.ancestors(convo, li, pos+1, func(li int, n int32) bool {
		if x.nodes[n].kind != claudeAction {
			return true
		}
		if back++; back > callerReach {
			return false
		}
		for m := n; m != noNode; m = x.nodes[m].next {
			var r claudeRecord
			if r, err = x.record(m); err != nil {
				return false
			}
			for _, b := range r.blocks {
				if b.Type == "tool_use" && calls[b.ID] {
					action = r.actionID(&x.nodes[n])
					session, err = x.lineID(convo, li)
					return false
				}
			}
		}
		return true
	})
	return session, action, err
}

// claudeLine writes one line of conversation.
type claudeLine struct {
	*claudeReader
	*thread
	convo *claudeConvo
	// first holds where the session came from, until its first action takes it.
	first *schemas.ActionTaken
	// preserved are the records that the last compaction kept, until its summary has been seen.
	preserved []string
}

// node writes one record, or all records of one model call. rest is what follows in the line.
func (w *claudeLine) node(ctx context.Context, n int32, rest []int32) error {
	node := &w.x.nodes[n]
	w.out.At(int64(node.line))
	switch node.kind {
	case claudeSilent:
		return nil
	case claudeBoundary:
		r, err := w.x.record(n)
		w.Restart()
		w.preserved = r.preserved()
		return err
	case claudeAction:
		return w.action(ctx, n, w.interrupted(rest))
	case claudeReply, claudeSteering, claudeQueued, claudeResult, claudeContext, claudeInterrupted, claudeRefused:
	}
	r, err := w.x.record(n)
	if err != nil {
		return err
	}
	if r.IsCompactSummary {
		w.Restart()
	}
	s, err := w.said(ctx, &r)
	if err != nil {
		return err
	}
	w.See(s.messages...)
	if r.IsCompactSummary {
		if err := w.recallPreserved(ctx); err != nil {
			return err
		}
	}
	for _, o := range s.observations {
		if o.GetKind() != schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT {
			w.observe(r.time(), o)
		} else if !w.result(r.time(), o) {
			w.out.Warn("line %d: the result of a call that the file does not have (%s): context only", node.line, o.GetMessage().GetToolCallId())
		}
	}
	for i, words := range s.interrupts {
		w.judge(r.nodeID(node)+":"+strconv.Itoa(i), r.time(), words)
	}
	return nil
}

// interrupted reports whether the user stopped the model before anything else happened.
func (w *claudeLine) interrupted(rest []int32) bool {
	for _, n := range rest {
		switch w.x.nodes[n].kind {
		case claudeInterrupted:
			return true
		case claudeSilent:
		default:
			return false
		}
	}
	return false
}

// action writes a model call.
func (w *claudeLine) action(ctx context.Context, n int32, interrupted bool) error {
	a := &schemas.ActionTaken{Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}}
	var at time.Time
	var id, version string
	for m := n; m != noNode; m = w.x.nodes[m].next {
		r, err := w.x.record(m)
		if err != nil {
			return err
		}
		if err := w.respond(ctx, a, &r); err != nil {
			return err
		}
		if t := r.time(); !t.IsZero() {
			at = t
		}
		if m == n {
			id, version = r.actionID(&w.x.nodes[n]), r.Version
		}
	}
	p := a.GetResponse()
	if len(p.GetParts()) == 0 && len(p.GetToolCalls()) == 0 && p.GetReasoning() == "" {
		return nil // a failed call without content
	}
	switch {
	case interrupted && a.GetFinishReason() == schemas.FinishReason_FINISH_REASON_UNSPECIFIED:
		a.FinishReason = schemas.FinishReason_FINISH_REASON_ABORTED
	case len(p.GetToolCalls()) > 0 && a.GetFinishReason() <= schemas.FinishReason_FINISH_REASON_STOP:
		a.FinishReason = schemas.FinishReason_FINISH_REASON_TOOL_CALLS // stop_reason may be absent or wrong; the calls are there
	}
	a.Attributes = map[string]string{}
	if version != "" {
		a.Attributes["agent"] = "claude-code/" + text(clip(version, 60))
	}
	a.Kind = schemas.TurnKind_TURN_KIND_MAIN
	if w.convo.agent != "" {
		a.Kind = schemas.TurnKind_TURN_KIND_SIDE
		a.Attributes["agent_id"] = text(clip(w.convo.agent, 200))
	}
	if w.first != nil {
		a.ParentSession, a.ParentTurnId = w.first.ParentSession, w.first.ParentTurnId
		for k, v := range w.first.GetAttributes() {
			a.Attributes[k] = v
		}
		w.first = nil
	}
	return w.act(ctx, id, at, a)
}
