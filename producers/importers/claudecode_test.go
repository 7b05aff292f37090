package importers_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/producers/importers"
	"github.com/nextstate-rl/nextstate/schemas"
)

// action finds the one action with a response id (or, without one, an id of its record).
func action(t *testing.T, events []schemas.Event, record string) (schemas.Event, *schemas.ActionTaken) {
	t.Helper()
	for _, e := range events {
		if a, ok := e.Payload.(*schemas.ActionTaken); ok && a.GetAttributes()["record"] == record {
			return e, a
		}
	}
	t.Fatalf("no action of record %s", record)
	return schemas.Event{}, nil
}

// nextState is what the world said after the action of a record, one word a part: its kind's first letter and its text's beginning.
func nextState(t *testing.T, events []schemas.Event, record string) string {
	t.Helper()
	turn, _ := action(t, events, record)
	var said []string
	for _, e := range events {
		n, ok := e.Payload.(*schemas.NextStateObserved)
		if !ok || n.GetTurnId() != turn.ID {
			continue
		}
		if e.Session != turn.Session {
			t.Errorf("the next state of %s is in session %s", record, e.Session)
		}
		for _, o := range n.GetObservations() {
			kind := strings.ToLower(strings.TrimPrefix(o.GetKind().String(), "OBSERVATION_KIND_"))
			words := ""
			for _, p := range o.GetMessage().GetParts() {
				if p.GetBlob() != nil {
					words += "[blob]"
				}
				words += p.GetText()
			}
			said = append(said, kind+": "+words[:min(len(words), 40)])
		}
	}
	return strings.Join(said, " | ")
}

// told is an action's context and what it leaves, in short.
func told(a *schemas.ActionTaken) string {
	var b strings.Builder
	if a.GetContext().ParentTurnId != nil {
		b.WriteString("+")
	}
	for _, m := range a.GetContext().GetMessages() {
		b.WriteString("<" + strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "ROLE_"))[:1] + ">")
		for _, p := range m.GetParts() {
			if text := p.GetText(); text != "" {
				b.WriteString(text[:min(len(text), 30)])
			} else {
				b.WriteString("[blob]")
			}
		}
	}
	return b.String()
}

func fixture(t *testing.T, parts ...string) ([]schemas.Event, importers.Report) {
	t.Helper()
	return importFile(t, importers.Options{}, filepath.Join(append([]string{"testdata"}, parts...)...))
}

// Goal: a call in several records is one action with the last record's usage, parallel results are both its next state, and what the harness
// wrote is nobody's reply. Method: the basics fixture, against what a reader of the file would say.
func TestClaudeBasics(t *testing.T) {
	events, report := fixture(t, "claudecode", "basics.jsonl")
	if report.Actions != 6 || report.Sessions != 1 || report.Malformed != 1 || report.Unknown != 1 || report.Feedback != 2 || report.Branches != 0 {
		t.Errorf("report %+v", report)
	}
	_, a := action(t, events, "msg_b1")
	if len(a.GetResponse().GetToolCalls()) != 2 || a.GetResponse().GetReasoning() == "" || a.GetUsage().GetOutputTokens() != 61 ||
		a.GetUsage().GetInputTokens() != 1023 || a.GetUsage().GetCachedTokens() != 900 {
		t.Errorf("first action %v", a)
	}
	for record, want := range map[string]string{
		"msg_b1": "tool_result: package cart\n\nfunc Total(items []Item, c | tool_result: Exit code 1\n--- FAIL: TestCoupon (0.00s)",
		"msg_b3": "user_reply: No, a coupon is a percentage, not an amo",
		"msg_b4": "user_reply: Also add a test for it.",
		"msg_b5": "tool_result: The user doesn't want to proceed with th | user_reply: Never delete the folder. Only add the te",
		"msg_b7": "user_reply: perfect, thanks!",
	} {
		if got := nextState(t, events, record); got != want {
			t.Errorf("%s: %q, want %q", record, got, want)
		}
	}
	if _, a := action(t, events, "msg_b2"); a.GetFinishReason() != schemas.FinishReason_FINISH_REASON_TOOL_CALLS {
		t.Errorf("end_turn beside a call: %v", a.GetFinishReason())
	}
	if _, a := action(t, events, "msg_b4"); a.GetFinishReason() != schemas.FinishReason_FINISH_REASON_ABORTED {
		t.Errorf("interrupted: %v", a.GetFinishReason())
	}
	for _, e := range events {
		if n, ok := e.Payload.(*schemas.NextStateObserved); ok {
			for _, o := range n.GetObservations() {
				if text := o.GetMessage().GetParts()[0].GetText(); strings.Contains(text, "system-reminder") {
					t.Errorf("a reminder is in a next state: %q", text)
				}
				if fails := strings.HasPrefix(o.GetMessage().GetParts()[0].GetText(), "Exit code 1"); fails != (o.ExitCode != nil && o.GetExitCode() == 1) {
					t.Errorf("exit code %v", o)
				}
			}
		}
	}
}

// Goal: a rewind is a branch that carries its full context and names the turn that it left; a replay at the same time is none; behind a
// compaction the context begins anew, and the action before it is answered by the first reply after it. Method: by hand.
func TestClaudeRewind(t *testing.T) {
	events, report := fixture(t, "claudecode", "rewind.jsonl")
	if report.Sessions != 2 || report.Branches != 1 || report.Actions != 6 {
		t.Errorf("report %+v", report)
	}
	left, _ := action(t, events, "msg_w1")
	e, a := action(t, events, "msg_w2")
	if e.Session != "rewind@w-u2" || a.GetParentTurnId() != left.ID || a.GetParentSession() != "rewind" {
		t.Errorf("branch %s of %s in %s", e.Session, a.GetParentTurnId(), a.GetParentSession())
	}
	if got := told(a); got != "<u>Write a haiku about rain.<a>Rain on the tin roof.<u>Make it longer." {
		t.Errorf("the branch's context is %q", got)
	}
	if _, a := action(t, events, "msg_w6"); told(a) != "<u>This session continues an earl<u>Now one about wind." {
		t.Errorf("the context behind the compaction is %q", told(a))
	}
	for record, want := range map[string]string{
		"msg_w1": "user_reply: Rather: make it about snow.",
		"msg_w5": "user_reply: Now one about wind.",
		"msg_w6": "user_reply: Lovely.",
	} {
		if got := nextState(t, events, record); got != want {
			t.Errorf("%s: %q, want %q", record, got, want)
		}
	}
	events, report = fixture(t, "claudecode", "root.jsonl")
	if main, _ := action(t, events, "msg_o2"); main.Session != "root" || report.Branches != 1 {
		t.Errorf("a rewind to the beginning: the newest line is session %s, %d branches", main.Session, report.Branches)
	}
	events, _ = fixture(t, "claudecode", "preserved.jsonl")
	if _, a := action(t, events, "msg_p4"); told(a) != "<u>Summary of all.<a>Second answer.<u>Keep going.<a>Kept going.<u>And now?" {
		t.Errorf("the context behind a compaction that kept records is %q", told(a))
	}
}

// Goal: sub-agents are side sessions that name the call which started them, wherever their records are: inline, in files of their own, below
// a workflow's run, in a stream. Method: the fixtures' calls against the parent turns.
func TestClaudeSubAgents(t *testing.T) {
	check := func(events, all []schemas.Event, session, call string) {
		t.Helper()
		want, _ := action(t, all, call)
		found := false
		for _, e := range events {
			a, ok := e.Payload.(*schemas.ActionTaken)
			if !ok || e.Session != session {
				continue
			}
			if a.GetKind() != schemas.TurnKind_TURN_KIND_SIDE {
				t.Errorf("%s: a main turn", session)
			}
			if !found && (a.GetParentTurnId() != want.ID || a.GetParentSession() != want.Session) {
				t.Errorf("%s: parent %s in %q, want %s", session, a.GetParentTurnId(), a.GetParentSession(), want.ID)
			}
			found = true
		}
		if !found {
			t.Errorf("%s: no actions", session)
		}
	}
	inline, report := fixture(t, "claudecode", "sidechain.jsonl")
	if report.Actions != 3 || report.SideTurns != 4 || report.NextStates["tool_result"] != 3 {
		t.Errorf("report %+v", report)
	}
	check(inline, inline, "side@agent-ag1", "msg_s1")
	check(inline, inline, "side@agent-ag2", "msg_s2")
	check(inline, inline, "side@agent-ag3", "msg_s2")
	stream, _ := fixture(t, "claudecode", "stream.jsonl")
	check(stream, stream, "stream@agent-toolu_1", "msg_1")
	tour, _ := fixture(t, "claudecode", "tour.jsonl")
	web, _ := fixture(t, "claudecode", "tour", "subagents", "agent-web1.jsonl")
	check(web, tour, "tour@agent-web1", "msg_t1")
	sweep, _ := fixture(t, "claudecode", "tour", "subagents", "workflows", "wf_7", "agent-sweep1.jsonl")
	check(sweep, tour, "tour@agent-sweep1", "msg_t2")
}

// Goal: text typed while the agent worked is a reply once, whether an attachment, a queue operation or both have it; a resumed session goes on
// with the context of the old one and repeats none of its turns. Method: the fixtures, by hand.
func TestClaudeSteeringAndResume(t *testing.T) {
	events, _ := fixture(t, "claudecode", "steering.jsonl")
	for record, want := range map[string]string{
		"msg_q1": "tool_result: migrating... | user_reply: wait, the parser first",
		"msg_q2": "user_reply: and keep a log",
		"msg_q3": "user_reply: like in this picture[blob]",
		"msg_q4": "user_reply: good",
	} {
		if got := nextState(t, events, record); got != want {
			t.Errorf("%s: %q, want %q", record, got, want)
		}
	}
	events, report := fixture(t, "claudecode", "resumed.jsonl")
	e, a := action(t, events, "msg_r3")
	before, _ := action(t, events, "msg_r2")
	if report.Actions != 3 || e.Session != "new" || a.GetParentSession() != "old" || a.GetParentTurnId() != before.ID ||
		told(a) != "<u>Name the repository.<a>lighthouse<u>Too long.<a>lamp<u>I like it. Create it." {
		t.Errorf("resumed: %d actions, %s, %v, %q", report.Actions, e.Session, a.GetParentSession(), told(a))
	}
}

// Goal: each bad line is one dead letter with its line, and the rest goes on. Method: the broken fixture.
func TestClaudeBroken(t *testing.T) {
	events, report := fixture(t, "claudecode", "broken.jsonl")
	var lines []uint64
	for _, e := range events {
		if d, ok := e.Payload.(*schemas.DeadLettered); ok {
			lines = append(lines, d.GetFile().GetLine())
		}
	}
	if got := fmt.Sprint(lines); got != "[7 8 10 11 12 14 15 19 21]" || report.Actions != 4 || report.Sessions != 2 || report.Unknown != 2 {
		t.Errorf("dead letters of lines %s, report %+v", got, report)
	}
}

// Goal: an import while the session is being written, and one later, give the same events for what was complete. Method: every prefix of
// whole lines of the fixtures without rewinds, whose actions must be among those of the whole file, unless more records of the same model
// call came.
func TestTranscriptsGrow(t *testing.T) {
	for _, path := range []string{"testdata/claudecode/steering.jsonl", "testdata/claudecode/tour.jsonl", "testdata/pi/v1.jsonl", "testdata/pi/openclaw.jsonl"} {
		whole, _ := importFile(t, importers.Options{}, path)
		ids := map[string]bool{}
		for _, e := range whole {
			ids[e.ID] = true
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.SplitAfter(content, []byte("\n"))
		for n := 1; n < len(lines); n++ {
			part := bytes.Join(lines[:n], nil)
			var log collector
			opts := importers.Options{Tenant: "acme", Format: strings.Split(path, "/")[1]}
			if _, err := importers.ImportReader(t.Context(), opts, filepath.Base(path), bytes.NewReader(part), &log); err != nil {
				t.Fatal(err)
			}
			for _, e := range log.events {
				if e.Kind() == "ActionTaken" && !ids[e.ID] {
					t.Errorf("%s: the first %d lines give an action that the whole file does not", path, n)
				}
			}
		}
	}
}

// endless is a file that is computed where it is read: line i, all of one length. It stands for a transcript of any size.
type endless struct {
	head  string
	line  func(i int64) string
	width int64
	lines int64
}

func (f *endless) Size() int64 { return int64(len(f.head)) + f.width*f.lines }

func (f *endless) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) && off < f.Size() {
		s, at := f.head, off
		if off >= int64(len(f.head)) {
			i := (off - int64(len(f.head))) / f.width
			s, at = f.line(i), off-int64(len(f.head))-i*f.width
		}
		c := copy(p[n:], s[at:])
		n, off = n+c, off+int64(c)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *endless) Read([]byte) (int, error) { return 0, fs.ErrInvalid }

// heapPeak is an Appender that keeps nothing and notes the live heap now and then.
type heapPeak struct {
	appends int
	peak    uint64
}

func (h *heapPeak) Append(context.Context, ...schemas.Record) error {
	if h.appends++; h.appends%16 == 0 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		h.peak = max(h.peak, m.HeapAlloc)
	}
	return nil
}

// Goal: a tree needs memory for its index only. Method: sessions of 100 MB, computed as they are read; the live heap grows by less than 64 MiB.
func TestTreesInConstantMemory(t *testing.T) {
	filler := strings.Repeat("the output of a command; ", 240)
	claude := &endless{width: 6500, lines: 16_000, line: func(i int64) string {
		s := fmt.Sprintf(`{"type":"user","uuid":"%08d","parentUuid":"%08d","sessionId":"big","message":{"role":"user","content":"%s`, i, i-1, filler)
		if i%2 == 1 {
			s = fmt.Sprintf(`{"type":"assistant","uuid":"%08d","parentUuid":"%08d","sessionId":"big","message":{"id":"m%d","role":"assistant","content":"%s`, i, i-1, i, filler)
		}
		return s + strings.Repeat(".", 6500-len(s)-4) + "\"}}\n"
	}}
	pi := &endless{head: `{"type":"session","version":3,"id":"big"}` + "\n", width: 6500, lines: 16_000, line: func(i int64) string {
		role := []string{"user", "assistant"}[i%2]
		s := fmt.Sprintf(`{"type":"message","id":"%08d","parentId":"%08d","message":{"role":"%s","content":"%s`, i, i-1, role, filler)
		return s + strings.Repeat(".", 6500-len(s)-4) + "\"}}\n"
	}}
	for name, file := range map[string]*endless{"claudecode": claude, "pi": pi} {
		t.Run(name, func(t *testing.T) {
			runtime.GC()
			var before runtime.MemStats
			runtime.ReadMemStats(&before)
			log := &heapPeak{}
			report, err := importers.ImportReader(t.Context(), importers.Options{Tenant: "acme"}, "big.jsonl", file, log)
			if err != nil {
				t.Fatal(err)
			}
			if report.Format != name || report.Actions != 8_000 || report.Malformed != 0 || report.Branches != 0 || log.peak == 0 {
				t.Fatalf("report %+v", report)
			}
			if grown := int64(log.peak) - int64(before.HeapAlloc); grown > 64<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			} else {
				t.Logf("%d actions of %d MiB: the heap grew by %d KiB", report.Actions, file.Size()>>20, grown>>10)
			}
		})
	}
}

// fuzzTree: no bytes make a reader of trees panic or hang; what it writes is consistent: ids are unique, next states and parents name turns,
// and a second import gives the same. Seeds are the fixtures of the format.
func fuzzTree(f *testing.F, format string) {
	f.Helper()
	err := filepath.WalkDir(filepath.Join("testdata", format), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".jsonl" {
			return err
		}
		content, err := os.ReadFile(path)
		f.Add(content)
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		opts := importers.Options{Tenant: "acme", Format: format, EndSessions: len(content)%2 == 0}
		var first, second collector
		report, err := importers.ImportReader(t.Context(), opts, "fuzz.jsonl", bytes.NewReader(content), &first)
		if err != nil {
			return // a broken archive
		}
		if _, err := importers.ImportReader(t.Context(), opts, "fuzz.jsonl", bytes.NewReader(content), &second); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(golden(t, first.events, report), golden(t, second.events, report)) {
			t.Error("a second import gives other events")
		}
		turns := map[string]string{}
		for _, e := range first.events {
			switch p := e.Payload.(type) {
			case *schemas.ActionTaken:
				if _, twice := turns[e.ID]; twice {
					t.Errorf("two actions have the id %s", e.ID)
				}
				turns[e.ID] = e.Session
				if c := p.GetContext(); c.ParentTurnId != nil && turns[c.GetParentTurnId()] != e.Session {
					t.Errorf("the parent of %s is no earlier turn of its session", e.ID)
				}
			case *schemas.NextStateObserved:
				if turns[p.GetTurnId()] != e.Session {
					t.Errorf("a next state answers no turn of its session")
				}
			}
		}
	})
}

func FuzzClaudeCode(f *testing.F) { fuzzTree(f, "claudecode") }
func FuzzPi(f *testing.F)         { fuzzTree(f, "pi") }
