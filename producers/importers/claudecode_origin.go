package importers

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// before gives a line what came before it: the conversation that a branch or a resumed session goes on with, as full messages, and the turn
// that a branch or a sub-agent left.
func (w *claudeLine) before(ctx context.Context, convo int32, li int) error {
	l := w.convo.lines[li]
	from, cut := l.from, l.cut
	if li == 0 {
		if w.convo.agent != "" {
			return w.agentOrigin(ctx)
		}
		// A session that was resumed under a new id goes on with records of the old one.
		parent := w.x.nodes[l.nodes[0]].parent
		if parent == noNode || w.x.nodes[parent].convo == convo {
			return nil
		}
		var ok bool
		convo = w.x.nodes[parent].convo
		if from, cut, ok = w.x.locate(parent); !ok {
			return nil
		}
		cut++
	}
	return w.prefix(ctx, convo, from, cut)
}

// prefix sees the messages before a branch, as many of the newest as prefixBytes allows, back to a compaction at most.
func (w *claudeLine) prefix(ctx context.Context, convo int32, from, cut int) error {
	var nodes []int32
	size, omitted, acted := 0, 0, false
	var err error
	w.x.ancestors(convo, from, cut, func(li int, n int32) bool {
		kind := w.x.nodes[n].kind
		if kind == claudeAction && !acted {
			acted = true
			if err = w.leave(convo, li, n); err != nil {
				return false
			}
		}
		for m := n; m != noNode; m = w.x.nodes[m].next {
			size += int(w.x.nodes[m].size)
		}
		switch {
		case kind == claudeBoundary:
			return false
		case kind == claudeSilent:
		case omitted == 0 && size <= prefixBytes:
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
	for _, n := range slices.Backward(nodes) {
		if err := w.recall(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// leave notes the turn that the line leaves its parent session after.
func (w *claudeLine) leave(convo int32, li int, n int32) error {
	session, err := w.x.lineID(convo, li)
	if err != nil {
		return err
	}
	r, err := w.x.record(n)
	if err != nil {
		return err
	}
	w.setOrigin(session, r.actionID(&w.x.nodes[n]))
	return nil
}

// setOrigin names the parent session, and the turn in it when that is known.
func (w *claudeLine) setOrigin(session, action string) {
	session = SessionID(session)
	w.first.ParentSession = &session
	if action != "" {
		id := schemas.ContentID(w.out.format, session, "ActionTaken", action)
		w.first.ParentTurnId = &id
	}
}

// recall sees one record of the conversation before a branch.
func (w *claudeLine) recall(ctx context.Context, n int32) error {
	w.out.At(int64(w.x.nodes[n].line))
	if w.x.nodes[n].kind != claudeAction {
		r, err := w.x.record(n)
		if err != nil {
			return err
		}
		s, err := w.said(ctx, &r)
		w.See(s.messages...)
		return err
	}
	a := &schemas.ActionTaken{Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}}
	for m := n; m != noNode; m = w.x.nodes[m].next {
		r, err := w.x.record(m)
		if err != nil {
			return err
		}
		if err := w.respond(ctx, a, &r); err != nil {
			return err
		}
	}
	w.See(a.GetResponse())
	return nil
}

// recallPreserved sees the records that a compaction kept, behind its summary.
func (w *claudeLine) recallPreserved(ctx context.Context) error {
	size := 0
	seen := map[int32]bool{}
	for _, id := range w.preserved {
		n, ok := w.x.byUUID[digest(id)]
		if !ok {
			continue
		}
		if first := w.x.nodes[n].message; first != noNode {
			n = first
		}
		size += int(w.x.nodes[n].size)
		if seen[n] || size > prefixBytes || w.x.nodes[n].kind == claudeSilent {
			continue
		}
		seen[n] = true
		if err := w.recall(ctx, n); err != nil {
			return err
		}
	}
	w.preserved = nil
	return nil
}

// agentOrigin links a sub-agent to the call that started it. The link is in the call's result, in this file or in the session's own.
func (w *claudeLine) agentOrigin(ctx context.Context) error {
	c := w.convo
	session := strings.TrimSuffix(c.session, "#agent-"+c.agent)
	w.setOrigin(session, "")
	var parent, action string
	var err error
	if n, ok := w.x.agents[c.agent]; ok {
		parent, action, err = w.x.caller(n)
	} else if c.call != "" {
		parent, action, err = w.x.callerIn(c.call)
	} else {
		parent, action, err = w.outside(ctx, session)
	}
	if err == nil && action != "" {
		w.setOrigin(parent, action)
	}
	return err
}

// callerIn finds the model call with a call that a stream names as the parent of a sub-agent's messages.
func (x *claudeIndex) callerIn(call string) (session, action string, err error) {
	n, ok := x.calls[call]
	if !ok {
		return "", "", nil
	}
	li, _, ok := x.locate(n)
	if !ok {
		return "", "", nil
	}
	if m := x.nodes[n].message; m != noNode {
		n = m
	}
	r, err := x.record(n)
	if err != nil {
		return "", "", err
	}
	session, err = x.lineID(x.nodes[n].convo, li)
	return session, r.actionID(&x.nodes[n]), err
}

// outside looks for the call in the session's own file: a sub-agent's is <session>/subagents/agent-<id>.jsonl beside it, or deeper, in a
// folder that is named after a workflow's run. Without that file the sub-agent names its session and no turn.
func (w *claudeLine) outside(ctx context.Context, session string) (parent, action string, err error) {
	path, run := w.src.sessionFile(session)
	if path == "" {
		return "", "", nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		w.out.Warn("the session's own file cannot be read, so the sub-agent is not linked to its call: %v", err)
		return "", "", nil
	}
	defer f.Close()
	src, err := openSource(path, f, nil)
	if err != nil {
		return "", "", err
	}
	skip := func(context.Context, int64, string, []byte) error { return nil } // reported where the file itself is imported
	x, err := indexClaude(ctx, src, skip, func(string) {})
	if err != nil {
		return "", "", errors.Join(err, src.close())
	}
	n, ok := x.agents[w.convo.agent]
	if !ok && run != "" {
		n, ok = x.runs[run]
	}
	if ok {
		parent, action, err = x.caller(n)
	}
	return parent, action, errors.Join(err, src.close())
}

// sessionFile is the path of the file that a sub-agent's file belongs to, "" when the source does not lie in such a folder; run is the folder
// of a workflow's run.
func (s *Source) sessionFile(session string) (path, run string) {
	full, err := filepath.Abs(s.Name)
	if s.dir == nil || err != nil || session == "" || strings.ContainsAny(session, `/\`) {
		return "", ""
	}
	folder := filepath.Dir(full)
	for range 8 {
		base := filepath.Base(folder)
		if base == "subagents" {
			return filepath.Join(filepath.Dir(filepath.Dir(folder)), session+".jsonl"), run
		}
		if run == "" {
			run = base
		}
		folder = filepath.Dir(folder)
	}
	return "", ""
}
