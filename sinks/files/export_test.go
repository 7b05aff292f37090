package files_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
	"github.com/nextstate-rl/nextstate/sinks/files"
)

var update = flag.Bool("update", false, "write the golden files")

var day = time.Date(2026, 5, 1, 12, 0, 0, 123_000_000, time.UTC)

func ptr[T any](v T) *T { return &v }

func text(role schemas.Role, s string) *schemas.Message {
	return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: s}}}}
}

func event(session, name string, at time.Time, p proto.Message) schemas.Event {
	return schemas.Event{ID: schemas.ContentID(session, name), Source: "test/1", Tenant: "acme", Session: session, Time: at, LogTime: day, Payload: p}
}

// filled is one event of each kind, with many fields set.
func filled() []schemas.Event {
	turn := schemas.ContentID("s", "action")
	action := &schemas.ActionTaken{
		Kind: schemas.TurnKind_TURN_KIND_MAIN, Model: "m", PolicyVersion: ptr("base"), Attributes: map[string]string{"b": "2", "a": "1", "c": "3"},
		Context:  &schemas.Context{Messages: []*schemas.Message{text(schemas.Role_ROLE_USER, "hi")}, Tools: []*schemas.Tool{{Name: "t"}}},
		Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT, Parts: []*schemas.Part{{Content: &schemas.Part_Blob{Blob: &schemas.Blob{Sha256: make([]byte, 32), MediaType: "image/png", SizeBytes: ptr(uint64(5))}}}}, ToolCalls: []*schemas.ToolCall{{Id: "1", Name: "t", Arguments: "{}"}}},
		Tokens:   &schemas.Tokens{ResponseIds: []uint32{5, 6}, Logprobs: []float32{-1, -2}, TopK: &schemas.TopK{K: 1, Ids: []uint32{5, 6}, Logprobs: []float32{-1, -2}}},
		Sampling: &schemas.Sampling{Temperature: ptr(0.5)}, Usage: &schemas.Usage{InputTokens: ptr(uint64(9))},
	}
	observation := &schemas.Observation{Kind: schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, Message: text(schemas.Role_ROLE_TOOL, "no"), ExitCode: ptr(int32(2)), Tests: &schemas.TestVerdict{Failed: ptr(uint32(1)), FailedNames: []string{"x"}}}
	feedback := &schemas.FeedbackGiven{TurnId: ptr(turn), Score: ptr(1.0)}
	outcome := &schemas.OutcomeReported{Score: 0.5, Checker: "c", Success: ptr(true)}
	teacher := &schemas.TeacherScored{TurnId: turn, Hint: "h", TeacherVersion: "base", Temperature: 1, Logprobs: []float32{-3, -4}}
	return []schemas.Event{
		event("s", "action", day, action),
		event("s", "next", day.Add(time.Hour), &schemas.NextStateObserved{Observations: []*schemas.Observation{observation}}),
		event("s", "feedback", time.Time{}, feedback),
		event("s", "outcome", day, outcome),
		event("s", "end", day, &schemas.SessionEnded{Reason: "done"}),
		event("s", "closed", day, &schemas.TurnClosed{TurnId: turn, Action: action, NextState: []*schemas.Observation{observation}, Feedback: []*schemas.FeedbackGiven{feedback}, Outcome: outcome, CloseReason: schemas.CloseReason_CLOSE_REASON_OUTCOME}),
		event("s", "vote", day, &schemas.VoteCast{TurnId: turn, Judge: "rules", Vote: ptr(int32(-1))}),
		event("s", "judged", day, &schemas.TurnJudged{TurnId: turn, Score: ptr(int32(0)), MeanVote: -0.5}),
		event("s", "hint vote", day, &schemas.HintVoteCast{TurnId: turn, Finder: "rules", Decision: ptr(int32(1)), Hint: "h"}),
		event("s", "teacher", day, teacher),
		event("s", "hint", day, &schemas.HintSelected{TurnId: turn, Hint: "h", Candidates: []string{"h"}, Teacher: teacher}),
		event("s", "no hint", day, &schemas.HintAbsent{TurnId: turn, Reason: "none"}),
		event("s", "sample", day, &schemas.SampleAssembled{TurnId: turn, Kind: schemas.SampleKind_SAMPLE_KIND_DIRECTIVE, Response: action.GetResponse(), Tokens: action.GetTokens(), Teacher: teacher}),
		event("s", "skip", day, &schemas.TurnSkipped{TurnId: turn, Reason: "r"}),
		event("t", "update", day, &schemas.UpdateStarted{Update: 1, SampleIds: []string{turn}}),
		event("t", "policy", day, &schemas.PolicyPublished{Update: 1, PeftSha256: make([]byte, 32), Metrics: map[string]float64{"loss": 1, "kl": 2, "a": 3}}),
		event("t", "back", day, &schemas.PolicyRolledBack{ToVersion: "base"}),
		event("t", "skipped", day, &schemas.UpdateSkipped{Update: 2, UpdateId: turn, Reason: "r"}),
		event("t", "stood", day, &schemas.HintStood{User: "u", Hint: "h", TurnId: turn}),
		event("t", "withdrawn", day, &schemas.HintWithdrawn{User: "u", HintId: turn}),
		event("t", "rehearsal", day, &schemas.RehearsalEnded{HintIds: []string{turn}, SampleIds: []string{turn}, Seconds: map[string]float64{"sample": 1}}),
		event("t", "eval", day, &schemas.EvaluationStarted{Arm: "hybrid", Personas: []string{"student"}}),
		event("t", "reply", day, &schemas.ReplyEvaluated{Arm: "hybrid", Persona: "student", Phase: schemas.ReplyPhase_REPLY_PHASE_LIVE, BaseLogprob: ptr(-1.5)}),
		event("t", "eval end", day, &schemas.EvaluationEnded{Arm: "hybrid", Outcome: "aligned", AlignedAt: map[string]uint32{"joint": 3}}),
		event("t", "dead", day, &schemas.DeadLettered{Stage: "import", Reason: "r", Value: []byte{0xff}, Origin: &schemas.DeadLettered_File{File: &schemas.FilePosition{Name: "f", Line: 2}}}),
	}
}

// logOf is a log that holds the events twice, and a record that is none.
func logOf(t *testing.T, events []schemas.Event) *memlog.Log {
	t.Helper()
	log := memlog.New(2)
	for range 2 {
		for _, e := range events {
			r, err := schemas.Encode(e)
			if err != nil {
				t.Fatal(err)
			}
			if err := log.Append(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := log.Append(t.Context(), schemas.Record{Topic: schemas.TopicTurns, Key: []byte("acme/s"), Value: []byte("junk")}); err != nil {
		t.Fatal(err)
	}
	return log
}

// Goal: JSONL holds every event once, readable by DecodeJSON, and the same log gives the same bytes. Method: every kind, twice in the log, is
// exported twice, as a stream and as files.
func TestJSONL(t *testing.T) {
	events := filled()
	log := logOf(t, events)
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		report, err := files.Export(t.Context(), files.Options{Format: files.JSONL, Writer: w}, log)
		if err != nil {
			t.Fatal(err)
		}
		if report.Events != int64(len(events)) || report.Duplicates != int64(len(events)) || report.Undecodable != 1 || report.Read != report.Total {
			t.Errorf("report %+v for %d events", report, len(events))
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two exports differ")
	}
	byID := map[string]schemas.Event{}
	for _, e := range events {
		byID[e.ID] = e
	}
	for line := range strings.Lines(first.String()) {
		e, err := schemas.DecodeJSON([]byte(line), "", "")
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if want := byID[e.ID]; !proto.Equal(e.Payload, want.Payload) || !e.Time.Equal(want.Time) || e.Session != want.Session {
			t.Errorf("read back %v, want %v", e, want)
		}
		delete(byID, e.ID)
	}
	if len(byID) > 0 {
		t.Errorf("%d events are missing", len(byID))
	}
	dir := t.TempDir()
	report, err := files.Export(t.Context(), files.Options{Format: files.JSONL, Dir: dir}, log)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Files) != len(schemas.Topics()) {
		t.Errorf("files %v", report.Files)
	}
	var together int
	for _, name := range report.Files {
		b, err := os.ReadFile(name) //nolint:gosec // a file of the test
		if err != nil {
			t.Fatal(err)
		}
		together += len(b)
	}
	if together != first.Len() {
		t.Errorf("the files hold %d bytes, the stream %d", together, first.Len())
	}
}

// Goal: Parquet files have typed columns that any reader understands, and the same log gives the same bytes. Method: export every kind twice, compare
// bytes, read the values back without the writer's types.
func TestParquet(t *testing.T) {
	events := filled()
	log := logOf(t, events)
	var bytesOf [2]map[string][]byte
	for i := range bytesOf {
		dir := t.TempDir()
		report, err := files.Export(t.Context(), files.Options{Format: files.Parquet, Dir: dir}, log)
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Files) != len(schemas.Kinds()) {
			t.Errorf("%d files for %d kinds", len(report.Files), len(schemas.Kinds()))
		}
		bytesOf[i] = map[string][]byte{}
		for _, name := range report.Files {
			b, err := os.ReadFile(name) //nolint:gosec // a file of the test
			if err != nil {
				t.Fatal(err)
			}
			bytesOf[i][filepath.Base(name)] = b
		}
	}
	for name, b := range bytesOf[0] {
		if !bytes.Equal(b, bytesOf[1][name]) {
			t.Errorf("two exports of %s differ", name)
		}
	}
	row := readOne(t, bytesOf[0]["turn_closed.parquet"])
	for path, want := range map[string]any{
		"event.id": schemas.ContentID("s", "closed"), "event.kind": "TurnClosed", "data.close_reason": "outcome", "data.action.model": "m",
		"data.outcome.score": 0.5, "data.action.tokens.response_ids.list.element": []any{int32(5), int32(6)},
		"data.action.attributes.list.element.key": []any{"a", "b", "c"}, "data.next_state.list.element.exit_code": []any{int32(2)},
		"data.end_reason": nil, "event.time": day.UnixMicro(), "data.next_state.list.element.tests.failed": []any{int64(1)},
	} {
		if got, want := row[path], want; !equal(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

func equal(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// readOne reads the only row of a file as column path to value, or values for repeated ones.
func readOne(t *testing.T, b []byte) map[string]any {
	t.Helper()
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if f.NumRows() != 1 {
		t.Fatalf("%d rows, want 1", f.NumRows())
	}
	rows := f.RowGroups()[0].Rows()
	defer func() {
		if err := rows.Close(); err != nil {
			t.Error(err)
		}
	}()
	buffer := make([]parquet.Row, 1)
	if _, err := rows.ReadRows(buffer); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	columns := f.Schema().Columns()
	out := map[string]any{}
	for _, v := range buffer[0] {
		path := strings.Join(columns[v.Column()], ".")
		var value any
		switch {
		case v.IsNull():
		case v.Kind() == parquet.Int32:
			value = v.Int32()
		case v.Kind() == parquet.Int64:
			value = v.Int64()
		case v.Kind() == parquet.Double:
			value = v.Double()
		default:
			value = v.String()
		}
		if !strings.Contains(path, ".list.") {
			out[path] = value
		} else {
			list, _ := out[path].([]any)
			out[path] = append(list, value)
		}
	}
	return out
}

// Goal: the columns that people build on do not change by accident. Method: the schemas of all files against a golden file.
func TestParquetSchemas(t *testing.T) {
	const golden = "testdata/parquet_schemas.txt"
	got := files.Schemas()
	if *update {
		if err := os.MkdirAll("testdata", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the schemas differ from %s; run with -update if that is meant:\n%s", golden, got)
	}
	for _, k := range schemas.Kinds() {
		if !strings.Contains(got, files.Snake(k.Name)+".parquet:") {
			t.Errorf("%s has no Parquet schema", k.Name)
		}
	}
}

// Goal: filters choose by topic, kind and time. Method: counts for each.
func TestFilters(t *testing.T) {
	log := logOf(t, filled())
	for name, c := range map[string]struct {
		options files.Options
		want    int64
	}{
		"topic":     {files.Options{Topics: []string{schemas.TopicPolicies}}, 4},
		"kind":      {files.Options{Kinds: []string{"ActionTaken", "VoteCast"}}, 2},
		"from":      {files.Options{From: day.Add(time.Minute)}, 1},
		"to":        {files.Options{To: day}, 0},
		"all of it": {files.Options{From: day, To: day.Add(24 * time.Hour)}, 25},
	} {
		t.Run(name, func(t *testing.T) {
			c.options.Format, c.options.Writer = files.JSONL, io.Discard
			report, err := files.Export(t.Context(), c.options, log)
			if err != nil || report.Events != c.want {
				t.Errorf("%d events, %v; want %d", report.Events, err, c.want)
			}
		})
	}
}

// broken fails to open a topic.
type broken struct {
	schemas.Reader
	topic string
}

var errBroken = errors.New("broken")

func (b broken) Open(ctx context.Context, topic string, partition int, offset int64) (schemas.Cursor, error) {
	if topic == b.topic {
		return nil, errBroken
	}
	return b.Reader.Open(ctx, topic, partition, offset)
}

// Goal: an export that fails leaves the folder as it was. Method: the last topic cannot be read; an older file of the same name must stay, and
// nothing new may be there.
func TestAllOrNothing(t *testing.T) {
	log := logOf(t, filled())
	for _, format := range []files.Format{files.JSONL, files.Parquet} {
		dir := t.TempDir()
		old := filepath.Join(dir, "interactions.jsonl")
		if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := files.Export(t.Context(), files.Options{Format: format, Dir: dir}, broken{log, schemas.TopicDeadLetters})
		if !errors.Is(err, errBroken) {
			t.Errorf("error %v", err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(old) //nolint:gosec // a file of the test
		if err != nil || string(b) != "old" || len(entries) != 1 {
			t.Errorf("%s: %d files, the old one %q, %v", format, len(entries), b, err)
		}
	}
}

// Goal: wrong options are refused in words. Method: one wrong option each.
func TestOptions(t *testing.T) {
	for want, o := range map[string]files.Options{
		"use jsonl or parquet":   {Format: "csv", Dir: "x"},
		"either a folder":        {Format: files.JSONL},
		"give a folder":          {Format: files.Parquet, Writer: io.Discard},
		"topics are":             {Format: files.JSONL, Writer: io.Discard, Topics: []string{"x"}},
		"kinds are named":        {Format: files.JSONL, Writer: io.Discard, Kinds: []string{"x"}},
		"from must be before to": {Format: files.JSONL, Writer: io.Discard, From: day, To: day},
	} {
		if _, err := files.Export(t.Context(), o, memlog.New(1)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
