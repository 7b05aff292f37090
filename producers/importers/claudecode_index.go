package importers

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
)

// maxQueued bounds the texts that wait in one session's queue.
const maxQueued = 10_000

// claudeKind is what a record is to the conversation.
type claudeKind uint8

const (
	claudeSilent      claudeKind = iota // a link of the tree only
	claudeAction                        // a part of a model call
	claudeReply                         // typed by a person
	claudeSteering                      // typed by a person while the agent worked
	claudeQueued                        // the same, in a queue-operation
	claudeResult                        // of tools
	claudeContext                       // seen by the model, written by the harness
	claudeInterrupted                   // a person stopped the model
	claudeRefused                       // a person stopped a tool
	claudeBoundary                      // the context was compacted here
)

// claudeNode is a record in the index.
type claudeNode struct {
	place
	parent  int32 // node; noNode for none
	convo   int32
	local   int32 // the model call's or record's number in its conversation
	message int32 // the first node of the same model call, noNode for records that are no action
	next    int32 // the next node of the same model call
	branch  int32 // the line of the conversation that the node is in, noNode for none, and its position there
	pos     int32
	kind    claudeKind
	linked  bool // names a parent, whether or not the file has it
	millis  int64
}

// claudeConvo is a conversation of the file: a session, or a sub-agent of one.
type claudeConvo struct {
	session string // the source's id
	agent   string // "" for the session itself
	named   bool   // agent is a name of the source's, not the id of the first record
	call    string // the call that started the sub-agent, where a stream names it
	members []int32
	lines   []branch
}

// id is the conversation's session id.
func (c *claudeConvo) id() string {
	if c.agent == "" {
		return c.session
	}
	return strings.TrimSuffix(c.session, "#agent-"+c.agent) + "@agent-" + c.agent
}

// claudeIndex is the structure of a file: who follows whom, and where the contents lie. It takes about a hundred bytes a record.
type claudeIndex struct {
	src    *Source
	nodes  []claudeNode
	convos []*claudeConvo
	// links of tool results: the nodes whose results came from a sub-agent or a workflow's run.
	agents map[string]int32
	runs   map[string]int32
	// calls of sub-agents in a stream, by their ids: messages of sub-agents name those.
	calls map[string]int32

	newest   map[string]int32 // session -> its newest sub-agent
	byUUID   map[[16]byte]int32
	messages map[[16]byte]int32 // convo and message id -> first node
	tails    map[int32]int32    // first node of a call -> last one so far
	convoOf  map[[2]string]int32
	pending  map[int32][16]byte // nodes whose parent has not been seen
	queues   map[int32][]queuedText
	steered  map[[16]byte]int // convo and text of attachments
	removed  []removedText
}

// queuedText is a queue-operation that put a text into the queue.
type queuedText struct {
	place
	sum [16]byte
}

// removedText is a queue-operation that gave a queued text to the running agent.
type removedText struct {
	node int32
	sum  [16]byte
}

// malformed is told each record that makes no sense.
type malformed func(ctx context.Context, line int64, reason string, raw []byte) error

// indexClaude reads the file once.
func indexClaude(ctx context.Context, src *Source, bad malformed, unknown func(typ string)) (*claudeIndex, error) {
	x := &claudeIndex{
		src: src, agents: map[string]int32{}, runs: map[string]int32{}, calls: map[string]int32{}, byUUID: map[[16]byte]int32{}, messages: map[[16]byte]int32{},
		tails: map[int32]int32{}, convoOf: map[[2]string]int32{}, newest: map[string]int32{}, pending: map[int32][16]byte{},
		queues: map[int32][]queuedText{}, steered: map[[16]byte]int{},
	}
	lines := src.Lines()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if line.Err != nil {
			if err := bad(ctx, line.Number, line.Err.Error(), line.Data); err != nil {
				return nil, err
			}
			continue
		}
		r, known, err := parseClaude(line.Data)
		if err != nil {
			if err := bad(ctx, line.Number, err.Error(), line.Data); err != nil {
				return nil, err
			}
			continue
		}
		if !known {
			unknown(r.Type)
		}
		x.add(&r, placeOf(line))
	}
	x.resolve()
	return x, nil
}

// digest is a short hash of a record's names, so that the index holds no strings. 128 bits: nobody can make two records collide.
func digest(parts ...string) [16]byte {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	return [16]byte(h.Sum(nil)[:16])
}

// add takes one record into the index.
func (x *claudeIndex) add(r *claudeRecord, p place) {
	kind := r.kind()
	var uuid [16]byte
	if r.UUID != "" {
		uuid = digest(r.UUID)
		if _, twice := x.byUUID[uuid]; twice {
			return // resuming a session copies its records, and a replay repeats them: the first stays
		}
	} else if kind == claudeSilent && r.Type != "queue-operation" {
		return // no link of the tree
	}
	convo := x.convo(r)
	if r.Type == "queue-operation" {
		x.queue(r, p, convo)
		return
	}
	n := x.push(claudeNode{place: p, parent: noNode, convo: convo, message: noNode, next: noNode, kind: kind, linked: r.ParentUUID != ""})
	if t := r.time(); !t.IsZero() {
		x.nodes[n].millis = t.UnixMilli()
	}
	if r.UUID != "" {
		x.byUUID[uuid] = n
	}
	x.follow(n, r)
	switch kind {
	case claudeAction:
		x.join(n, r)
		for _, b := range r.blocks {
			if _, known := x.calls[b.ID]; r.StreamSessionID != "" && !known && (b.Name == "Task" || b.Name == "Agent") {
				x.calls[b.ID] = n
			}
		}
	case claudeSteering:
		x.steered[x.within(convo, r.typedText())]++
	case claudeResult:
		l := r.link()
		if _, known := x.agents[l.AgentID]; !known && l.AgentID != "" {
			x.agents[l.AgentID] = n
		}
		if _, known := x.runs[l.RunID]; !known && l.RunID != "" {
			x.runs[l.RunID] = n
		}
	case claudeSilent, claudeReply, claudeQueued, claudeContext, claudeInterrupted, claudeRefused, claudeBoundary:
	}
}

func (x *claudeIndex) push(n claudeNode) int32 {
	i := int32(len(x.nodes)) //nolint:gosec // a file of 2^31 records does not fit the bounds of a source
	n.branch = noNode
	x.nodes = append(x.nodes, n)
	c := x.convos[n.convo]
	c.members = append(c.members, i)
	return i
}

// follow notes the record's parent, which may come later in the file.
func (x *claudeIndex) follow(n int32, r *claudeRecord) {
	parent := r.ParentUUID
	if parent == "" && x.nodes[n].kind == claudeBoundary {
		parent = r.LogicalParentUUID
	}
	if parent == "" {
		return
	}
	key := digest(parent)
	if p, ok := x.byUUID[key]; ok {
		x.nodes[n].parent = p
	} else {
		x.pending[n] = key
	}
}

// join puts the records of one model call together: Claude Code writes one a content block.
func (x *claudeIndex) join(n int32, r *claudeRecord) {
	x.nodes[n].message = n
	if r.message.ID == "" {
		return
	}
	key := x.within(x.nodes[n].convo, r.message.ID)
	first, ok := x.messages[key]
	if !ok {
		x.messages[key], x.tails[n] = n, n
		return
	}
	x.nodes[n].message = first
	x.nodes[x.tails[first]].next = n
	x.tails[first] = n
}

// convo finds the conversation of a record.
func (x *claudeIndex) convo(r *claudeRecord) int32 {
	session := r.SessionID
	if session == "" {
		session = x.src.Base()
		if len(x.nodes) > 0 {
			session = x.convos[x.nodes[len(x.nodes)-1].convo].session
		}
	}
	switch {
	case r.ParentToolUseID != "":
		c := x.open(session, r.ParentToolUseID)
		x.convos[c].call, x.convos[c].named = r.ParentToolUseID, true
		return c
	case !r.IsSidechain:
		return x.open(session, "")
	}
	// hang is the sub-agent that the record's parent belongs to, or the newest one when the file has lost the parent.
	hang := noNode
	if parent, ok := x.byUUID[digest(r.ParentUUID)]; ok && x.convos[x.nodes[parent].convo].agent != "" {
		hang = x.nodes[parent].convo
	} else if newest, ok := x.newest[session]; ok && r.ParentUUID != "" {
		hang = newest
	}
	switch {
	case r.AgentID != "":
		if c, ok := x.convoOf[[2]string{session, r.AgentID}]; ok {
			return c
		}
		if hang != noNode && !x.convos[hang].named { // its first records did not name it
			x.convos[hang].agent, x.convos[hang].named = r.AgentID, true
			x.convoOf[[2]string{session, r.AgentID}] = hang
			return hang
		}
		c := x.open(session, r.AgentID)
		x.convos[c].named = true
		return c
	case hang != noNode:
		return hang
	case r.UUID != "":
		return x.open(session, r.UUID)
	default:
		return x.open(session, "unnamed")
	}
}

// open returns the conversation of a session and agent.
func (x *claudeIndex) open(session, agent string) int32 {
	key := [2]string{session, agent}
	c, ok := x.convoOf[key]
	if !ok {
		c = int32(len(x.convos)) //nolint:gosec // fewer than records
		x.convos = append(x.convos, &claudeConvo{session: session, agent: agent})
		x.convoOf[key] = c
		if agent != "" {
			x.newest[session] = c
		}
	}
	return c
}

// queue follows the queue of texts that the user typed while the agent worked. "remove" gives one to the agent; the record that puts it in
// has the text where "remove" has none.
func (x *claudeIndex) queue(r *claudeRecord, p place, convo int32) {
	typed := r.typedText()
	sum := x.within(convo, typed)
	waiting := x.queues[convo]
	switch r.Operation {
	case "enqueue":
		if typed != "" && len(waiting) < maxQueued {
			x.queues[convo] = append(waiting, queuedText{place: p, sum: sum})
		}
	case "dequeue": // it follows as a record of the user's
		if len(waiting) > 0 {
			x.queues[convo] = waiting[1:]
		}
	case "popAll":
		delete(x.queues, convo)
	case "remove":
		line := p.line
		if i := slices.IndexFunc(waiting, func(q queuedText) bool { return typed == "" || q.sum == sum }); i >= 0 {
			if typed == "" {
				p, sum = waiting[i].place, waiting[i].sum
			}
			x.queues[convo] = slices.Delete(waiting, i, i+1)
		} else if typed == "" {
			return
		}
		p.line = line
		n := x.push(claudeNode{place: p, parent: noNode, convo: convo, message: noNode, next: noNode, kind: claudeQueued})
		x.removed = append(x.removed, removedText{node: n, sum: sum})
	}
}

// within is a digest of a name or text that has its meaning in one conversation.
func (x *claudeIndex) within(convo int32, name string) [16]byte {
	return digest(string(binary.BigEndian.AppendUint32(nil, uint32(convo))), name) //nolint:gosec // an index
}

// resolve finds the parents that came later in the file, and silences queue operations that an attachment repeats.
func (x *claudeIndex) resolve() {
	for n, key := range x.pending {
		if p, ok := x.byUUID[key]; ok {
			x.nodes[n].parent = p
		}
	}
	for _, r := range x.removed {
		if x.steered[r.sum] > 0 {
			x.steered[r.sum]--
			x.nodes[r.node].kind = claudeSilent
		}
	}
	x.pending, x.messages, x.tails, x.queues, x.steered, x.removed = nil, nil, nil, nil, nil, nil
	for c := range x.convos {
		x.untangle(int32(c)) //nolint:gosec // an index
	}
}

// untangle finds the lines of one conversation.
func (x *claudeIndex) untangle(convo int32) {
	c := x.convos[convo]
	var reps []int32 // one node a model call, and the others
	linear := true
	for _, n := range c.members {
		node := &x.nodes[n]
		if node.message != noNode && node.message != n {
			node.local = x.nodes[node.message].local
		} else {
			node.local = int32(len(reps)) //nolint:gosec // an index
			reps = append(reps, n)
		}
		if node.parent != noNode && x.nodes[node.parent].convo == convo {
			linear = false
		}
	}
	t := tree{
		parent: make([]int32, len(reps)),
		stays: func(i int32) bool {
			k := x.nodes[reps[i]].kind
			return k != claudeAction && k != claudeReply && k != claudeBoundary
		},
		leaf: func(i int32) bool { return x.nodes[reps[i]].kind.turns() },
		forks: func(children []int32) []int32 {
			if c.agent != "" {
				return nil // a sub-agent that is called again begins at a root, too
			}
			typed := slices.DeleteFunc(slices.Clone(children), func(i int32) bool { return x.nodes[reps[i]].kind != claudeReply })
			if len(typed) < 2 {
				return nil
			}
			return typed
		},
	}
	type twin struct {
		parent int32
		millis int64
	}
	first := map[twin]int32{}
	replays := map[int32]int32{}
	for i, n := range reps {
		p := int32(i) - 1 //nolint:gosec // an index; the record before, noNode for the first
		if !linear {
			p = x.parentOf(n, convo, p)
		}
		if q, ok := replays[p]; ok {
			p = q
		}
		t.parent[i] = p
		if node := &x.nodes[n]; node.kind == claudeReply && node.millis != 0 && !linear {
			// Two texts at one place and time are one text, replayed.
			if q, ok := first[twin{p, node.millis}]; ok {
				node.kind, replays[int32(i)] = claudeSilent, q //nolint:gosec // an index
			} else {
				first[twin{p, node.millis}] = int32(i) //nolint:gosec // an index
			}
		}
	}
	c.lines = untangle(t)
	for li, l := range c.lines {
		for i := range l.nodes {
			n := reps[l.nodes[i]]
			l.nodes[i], x.nodes[n].branch, x.nodes[n].pos = n, int32(li), int32(i) //nolint:gosec // indexes
		}
	}
}

// parentOf is the parent of a call or record within its conversation. before is the one before it in the file: it stands in for a parent that
// the file does not have.
func (x *claudeIndex) parentOf(n, convo, before int32) int32 {
	for m := n; m != noNode; m = x.nodes[m].next {
		if p := x.nodes[m].parent; p != noNode && x.nodes[p].convo == convo && x.nodes[p].local != x.nodes[n].local {
			return x.nodes[p].local
		}
	}
	if node := &x.nodes[n]; node.kind == claudeReply && !node.linked && x.convos[convo].agent == "" {
		return noNode // the conversation begins here, or the user rewound to its beginning
	}
	return before
}

// turns reports whether a record of the kind is a part of a turn.
func (k claudeKind) turns() bool {
	switch k {
	case claudeAction, claudeReply, claudeSteering, claudeQueued, claudeResult:
		return true
	case claudeSilent, claudeContext, claudeInterrupted, claudeRefused, claudeBoundary:
		return false
	}
	return false
}
