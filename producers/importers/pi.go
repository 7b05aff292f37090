package importers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// piFormat reads session files of OpenClaw and pi: a header, then entries that form a tree (a list in version 1). The file is read twice: once
// for the tree, then along each line of conversation, entry by entry.
func piFormat() Format {
	return Format{Name: "pi", Detect: detectPi, Read: readPi}
}

func detectPi(p Probe) bool {
	return p.Root().Key("type").String() == "session" && p.Root().Key("id").String() != ""
}

// piKind is what an entry is to the conversation.
type piKind uint8

const (
	piSilent     piKind = iota // a link of the tree only
	piAction                   // a model call with content
	piEmpty                    // a model call that failed before it said anything
	piReply                    // a person's words
	piPrompt                   // a prompt that OpenClaw wrote: what follows is side turns
	piResult                   // of a tool
	piBash                     // a command that the user ran
	piContext                  // seen by the model, nobody's words
	piCompaction               // the context begins anew
)

// piNode is an entry in the index.
type piNode struct {
	place
	parent int32
	millis int64
	kind   piKind
}

// piReader reads one file.
type piReader struct {
	src    *Source
	out    *Emitter
	header piEntry
	nodes  []piNode // as v1 counts entries: the one behind the header is the first
	byID   map[[16]byte]int32
	lines  []branch
	copied int64 // entries before this time (ms) were copied from the parent session; 0: none
	names  map[string]int
}

func readPi(ctx context.Context, src *Source, out *Emitter) error {
	r := &piReader{src: src, out: out, byID: map[[16]byte]int32{}, names: map[string]int{}}
	if err := r.index(ctx); err != nil {
		return err
	}
	if r.header.ID == "" {
		r.header.ID = src.Base()
	}
	if t := r.header.time(); r.parentSession() != "" && !t.IsZero() {
		r.copied = t.UnixMilli()
	}
	r.untangle()
	if r.copied != 0 && !r.goesOn() {
		r.out.Warn("every model call was copied from session %s: import that session's file to have them", clip(r.parentSession(), 100))
	}
	for i := range r.lines {
		if err := r.line(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// index reads the file once.
func (r *piReader) index(ctx context.Context) error {
	lines := r.src.Lines()
	pending := map[int32][16]byte{}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if line.Err != nil {
			if err := r.out.Malformed(ctx, line.Number, line.Err.Error(), line.Data); err != nil {
				return err
			}
			continue
		}
		e, known, object, err := parsePi(line.Data)
		if err != nil {
			if err := r.out.Malformed(ctx, line.Number, err.Error(), line.Data); err != nil {
				return err
			}
			if !object || e.Type == "session" {
				continue
			}
			e = piEntry{} // it still counts as an entry
		}
		if !known {
			r.out.Unknown(e.Type)
		} else if e.Type == "message" && !piRoles[e.message.Role] {
			r.out.Unknown("role:" + e.message.Role)
		}
		if e.Type == "session" && r.header.Type == "" {
			r.header = e
			continue
		}
		r.add(&e, placeOf(line), pending)
	}
	for n, key := range pending {
		if p, ok := r.byID[key]; ok {
			r.nodes[n].parent = p
		}
	}
	return nil
}

var piRoles = map[string]bool{
	"user": true, "assistant": true, "toolResult": true, "bashExecution": true, "custom": true, "hookMessage": true, "branchSummary": true,
	"compactionSummary": true,
}

// add takes one entry into the index.
func (r *piReader) add(e *piEntry, p place, pending map[int32][16]byte) {
	i := int32(len(r.nodes)) //nolint:gosec // a file of 2^31 entries does not fit the bounds of a source
	n := piNode{place: p, parent: i - 1, kind: e.kind()}
	if t := e.time(); !t.IsZero() {
		n.millis = t.UnixMilli()
	}
	if e.ID != "" {
		key := digest(e.ID)
		if _, twice := r.byID[key]; twice {
			r.out.Warn("line %d: entry %s again: the first stays", p.line, clip(e.ID, 60))
			n.kind = piSilent
		} else {
			r.byID[key] = i
			if e.root() {
				n.parent = noNode
			} else if parent := e.parent(); parent != "" {
				if at, ok := r.byID[digest(parent)]; ok {
					n.parent = at
				} else {
					pending[i] = digest(parent)
				}
			}
		}
	}
	r.nodes = append(r.nodes, n)
}

// untangle finds the lines of conversation. The current leaf is the last entry.
func (r *piReader) untangle() {
	t := tree{
		parent: make([]int32, len(r.nodes)),
		forks:  func(children []int32) []int32 { return children },
		stays:  func(int32) bool { return false },
		leaf:   func(int32) bool { return true },
	}
	for i, n := range r.nodes {
		t.parent[i] = n.parent
	}
	r.lines = untangle(t)
}

// line writes one line of conversation as a session. A line without a model call of its own is none.
func (r *piReader) line(ctx context.Context, li int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l := r.lines[li]
	own := slices.IndexFunc(l.nodes, func(n int32) bool { return !r.isCopy(n) })
	if own < 0 || !slices.ContainsFunc(l.nodes[own:], func(n int32) bool { return r.nodes[n].kind == piAction }) {
		return nil
	}
	name, err := r.lineID(li)
	if err != nil {
		return err
	}
	if r.names[name]++; r.names[name] > 1 {
		name += "~" + strconv.Itoa(r.names[name])
	}
	w := &piLine{piReader: r, thread: r.out.thread(name), first: &schemas.ActionTaken{}}
	if li > 0 {
		r.out.Branch()
	}
	if err := w.before(ctx, li, own); err != nil {
		return err
	}
	for i, n := range l.nodes[own:] {
		if err := w.node(ctx, li, own+i, n); err != nil {
			return err
		}
	}
	return w.done(ctx)
}

// isCopy reports whether a fork copied the entry from its parent session.
func (r *piReader) isCopy(n int32) bool {
	return r.copied != 0 && r.nodes[n].millis != 0 && r.nodes[n].millis < r.copied
}

// goesOn reports whether a fork has a model call of its own.
func (r *piReader) goesOn() bool {
	for i, n := range r.nodes {
		if n.kind == piAction && !r.isCopy(int32(i)) { //nolint:gosec // an index
			return true
		}
	}
	return false
}

// parentSession is the id of the session that a fork came from: the file is named <time>_<id>.jsonl.
func (r *piReader) parentSession() string {
	from := r.header.ParentSession
	if from == "" {
		from = r.header.BranchedFrom
	}
	if from == "" {
		return ""
	}
	base := strings.TrimSuffix(path.Base(strings.ReplaceAll(from, `\`, "/")), ".jsonl")
	if _, id, ok := strings.Cut(base, "_"); ok && id != "" {
		return id
	}
	return base
}

func (r *piReader) lineID(li int) (string, error) {
	if li == 0 {
		return r.header.ID, nil
	}
	n := r.lines[li].nodes[0]
	e, err := r.entry(n)
	if err != nil {
		return "", err
	}
	return r.header.ID + "@" + e.record(n), nil
}

// entry reads a node's entry again.
func (r *piReader) entry(n int32) (piEntry, error) {
	b, err := r.src.load(r.nodes[n].place)
	if err != nil {
		return piEntry{}, err
	}
	e, _, object, err := parsePi(b)
	if err != nil && !object {
		return e, fmt.Errorf("line %d changed while it was read (%w): import again when nobody writes the file", r.nodes[n].line, err)
	}
	return e, nil
}

// record identifies an entry within its session: its id, or its place as v1 counts.
func (e *piEntry) record(n int32) string {
	if e.ID != "" {
		return e.ID
	}
	return "entry:" + strconv.Itoa(int(n)+1)
}

// ancestors calls yield with the nodes before nodes[cut] of a line, the newest first, until yield says false.
func (r *piReader) ancestors(li, cut int, yield func(li int, n int32) bool) {
	for li >= 0 {
		for i := cut - 1; i >= 0; i-- {
			if !yield(li, r.lines[li].nodes[i]) {
				return
			}
		}
		li, cut = r.lines[li].from, r.lines[li].cut
	}
}
