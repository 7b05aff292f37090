package importers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// atifFormat reads ATIF trajectories (Harbor and others), official or not.
func atifFormat() Format {
	return Format{Name: "atif", Detect: detectATIF, Read: readATIF}
}

func detectATIF(p Probe) bool {
	return p.Any(func(o *Shape) bool {
		if o != nil && o.Type == '[' && len(o.Items()) > 0 {
			o = o.Items()[0]
		}
		if strings.HasPrefix(o.Key("schema_version").String(), "ATIF-") {
			return true
		}
		for _, step := range o.Key("steps").Items() {
			switch step.Key("source").String() {
			case "system", "user", "agent":
				return step.Has("step_id")
			}
		}
		return false
	})
}

func readATIF(ctx context.Context, src *Source, out *Emitter) error {
	return src.documents(ctx, out, func(doc *Source) error {
		t := &atifTrajectory{out: out, src: doc, turnOf: map[string]Turn{}, heldResults: map[string]atifHeld{}}
		return t.read(ctx, doc.Probe.Root())
	})
}

// atifRoot is what a trajectory says about itself.
type atifRoot struct {
	sessionID, trajectoryID string
	continued               bool
	Agent                   struct {
		Name      string          `json:"name"`
		Version   string          `json:"version"`
		ModelName string          `json:"model_name"`
		Model     string          `json:"model"` // unofficial writers
		Tools     json.RawMessage `json:"tool_definitions"`
		Extra     struct {
			ParentSession string          `json:"parent_session_id"`
			Temperature   json.RawMessage `json:"temperature"`
		} `json:"extra"`
	}
}

// atifTrajectory is one trajectory being read, step by step.
type atifTrajectory struct {
	out  *Emitter
	src  *Source
	root atifRoot
	s    *Session
	side bool
	// Parent of a sub-agent.
	parentSession string
	parentTurn    string

	last    Turn
	lastAt  time.Time
	record  string
	pending []*schemas.Observation
	// open are the calls of the last actions that no result has answered.
	open map[string]bool
	// handover: the context was just managed; user steps belong to that until the next action.
	handover bool
	// turnOf finds the turn that started a sub-agent, by every name that its reference has.
	turnOf map[string]Turn
	refs   []string
	// heldResults came before the step that lists their call.
	heldResults map[string]atifHeld
	sequence    int // of held results
}

func (t *atifTrajectory) read(ctx context.Context, shape *Shape) error {
	if shape == nil || shape.Type != '{' {
		return t.out.Malformed(ctx, t.out.line, "a trajectory is an object", nil)
	}
	if err := t.readRoot(shape); err != nil {
		return t.broken(ctx, err)
	}
	t.openSession()
	whole := true
	if steps := shape.Key("steps"); steps != nil {
		list := &elements{d: t.src.Document(steps.Offset, steps.Line)}
		index := 0
		var err error
		whole, err = list.each(ctx, t.out, func(raw []byte, line int64) error {
			index++
			return t.step(ctx, raw, line, index)
		})
		if err != nil {
			return err
		}
	}
	if err := t.flush(ctx); err != nil {
		return err
	}
	if err := t.dropHeld(ctx); err != nil {
		return err
	}
	if whole && !t.root.continued {
		if err := t.s.End(ctx, t.lastAt, "trajectory complete"); err != nil {
			return err
		}
	}
	if t.root.continued {
		t.s.Leave() // the next file goes on with it
	} else if err := t.s.Done(ctx); err != nil {
		return err
	}
	return t.subagents(ctx, shape)
}

// broken reports a wrong structure as a dead letter, and returns what is no fault of the file's content.
func (t *atifTrajectory) broken(ctx context.Context, err error) error {
	if t.src.failed != nil {
		return t.src.failed
	}
	return t.out.Malformed(ctx, t.out.line, err.Error(), nil)
}

func (t *atifTrajectory) readRoot(shape *Shape) error {
	t.root.sessionID = shape.Key("session_id").String()
	t.root.trajectoryID = shape.Key("trajectory_id").String()
	t.root.continued = shape.Key("continued_trajectory_ref").String() != ""
	raw, err := t.src.value(shape.Key("agent"))
	if err != nil || raw == nil {
		return err
	}
	if err := decode(raw, &t.root.Agent); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

var summarySuffix = regexp.MustCompile(`\.summarization-[^.]*`)

// openSession names the session. One session_id is found in unrelated files, so the trajectory's own id comes first, and else the file is
// part of the name. A continuation and its first part have one name: that of the first part.
func (t *atifTrajectory) openSession() {
	base := t.out.base
	origin := base
	if m := continuation.FindStringSubmatchIndex(base); m != nil {
		origin = base[:m[0]] + base[m[4]:m[5]]
	}
	parent := t.root.Agent.Extra.ParentSession
	if trimmed := summarySuffix.ReplaceAllString(base, ""); parent != "" || trimmed != base {
		t.side = true
		if parent != "" {
			t.parentSession = SessionID(parent + "/" + trimmed)
		}
	}
	if t.s != nil { // an embedded sub-agent: named already
		return
	}
	if origin != base {
		id, exists := t.firstPart(origin)
		if exists {
			t.s = t.out.Continue(t.name(id, origin), Turn{})
			return
		}
		t.s = t.out.Session(t.name("", origin))
		return
	}
	t.s = t.out.Session(t.name(t.root.trajectoryID, base))
}

func (t *atifTrajectory) name(trajectoryID, base string) string {
	if t.src.line > 1 { // one of several documents in the file
		base = fmt.Sprintf("%s:%d", base, t.src.line)
	}
	switch {
	case trajectoryID != "":
		return trajectoryID
	case t.root.sessionID != "":
		return t.root.sessionID + "/" + base
	default:
		return base + "~" + t.src.fingerprint()
	}
}

// fingerprint tells files of one name apart that say nothing of who they are. It hashes the beginning of the document, which stays when the
// file grows, and is the same in a line of its own and in a file of its own.
func (s *Source) fingerprint() string {
	head := make([]byte, 4096)
	n, _ := s.at.ReadAt(head, s.start)                           // a failing disk is reported by the reads that follow
	raw, _ := newDocument(bytes.NewReader(head[:n]), 0, 1).raw() // cut off or not: the beginning is what counts
	return hash6(raw)
}

// firstPart looks at the file that this one continues, for its trajectory id.
func (t *atifTrajectory) firstPart(name string) (trajectoryID string, exists bool) {
	f, err := t.src.Sibling(name)
	if err != nil {
		return "", false
	}
	defer func() { _ = f.Close() }() // nothing was written: closing can lose nothing
	first, err := openSource(name, f, nil)
	if err != nil {
		return "", true
	}
	defer func() { _ = first.close() }()
	return first.Probe.Root().Key("trajectory_id").String(), true
}

// subagents reads the trajectories that this one embeds: sessions of their own, side turns, linked to the turn that started them.
func (t *atifTrajectory) subagents(ctx context.Context, shape *Shape) error {
	list := shape.Key("subagent_trajectories")
	if list == nil || list.Type != '[' {
		return nil
	}
	index := 0
	each := &elements{d: t.src.Document(list.Offset, list.Line)}
	_, err := each.each(ctx, t.out, func(raw []byte, line int64) error {
		index++
		if err := checkObject(raw); err != nil {
			return t.out.Malformed(ctx, line, "sub-agent: "+err.Error(), raw)
		}
		doc, err := t.src.inner(raw, line)
		if err != nil {
			return err
		}
		root := doc.Probe.Root()
		sub := &atifTrajectory{
			out: t.out, src: doc, side: true, parentSession: t.s.ID, turnOf: map[string]Turn{}, heldResults: map[string]atifHeld{},
		}
		id := root.Key("trajectory_id").String()
		if id == "" {
			id = fmt.Sprintf("%s/sub-%d", t.s.ID, index)
		}
		for _, name := range []string{root.Key("trajectory_id").String(), root.Key("session_id").String()} {
			if turn, ok := t.turnOf[name]; ok && name != "" {
				sub.parentTurn = turn.ID
				break
			}
		}
		sub.s = t.out.Session(id)
		return sub.read(ctx, root)
	})
	return err
}

// maxReferences bounds what is remembered of who started whom.
const maxReferences = 10_000

// references collects the names of the sub-agents that a result mentions.
func (t *atifTrajectory) references(raw json.RawMessage) {
	type ref struct {
		TrajectoryID string `json:"trajectory_id"`
		SessionID    string `json:"session_id"`
		Path         string `json:"trajectory_path"`
	}
	var list []ref
	if decode(raw, &list) != nil {
		var one ref
		if decode(raw, &one) != nil {
			return
		}
		list = []ref{one}
	}
	for _, r := range list {
		for _, name := range []string{r.TrajectoryID, r.SessionID, path.Base(r.Path)} {
			if name != "" && name != "." {
				t.refs = append(t.refs, name)
			}
		}
	}
}

// link gives the references of the step that was just read to the newest turn.
func (t *atifTrajectory) link() {
	for _, name := range t.refs {
		if len(t.turnOf) < maxReferences {
			t.turnOf[name] = t.last
		}
	}
	t.refs = t.refs[:0]
}
