package importers_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/nextstate-rl/nextstate/producers/importers"
	"github.com/nextstate-rl/nextstate/schemas"
)

const oneLine = `{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello."},{"role":"user","content":"Thanks"}]}` + "\n"

// memoryBlobs is a blob store in memory.
type memoryBlobs map[[32]byte][]byte

func (m memoryBlobs) Put(_ context.Context, data []byte) ([32]byte, error) {
	sha := sha256.Sum256(data)
	m[sha] = bytes.Clone(data)
	return sha, nil
}

func kinds(events []schemas.Event) string {
	var names []string
	for _, e := range events {
		names = append(names, e.Kind())
	}
	return strings.Join(names, " ")
}

func actions(events []schemas.Event) []*schemas.ActionTaken {
	var all []*schemas.ActionTaken
	for _, e := range events {
		if a, ok := e.Payload.(*schemas.ActionTaken); ok {
			all = append(all, a)
		}
	}
	return all
}

// Goal: the same content gives the same events however it is delivered: a file, a pipe, gzip, zstd, CRLF, a byte order mark.
// Method: import each and compare the ids and kinds with those of the plain file.
func TestDelivery(t *testing.T) {
	plain, _ := importText(t, importers.Options{}, "chat.jsonl", oneLine)
	if got := kinds(plain); got != "ActionTaken NextStateObserved SessionEnded" {
		t.Fatalf("events: %s", got)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte(oneLine)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"gzip": zipped.Bytes(), "zstd": encoder.EncodeAll([]byte(oneLine), nil),
		"bom": []byte("\xef\xbb\xbf" + oneLine), "crlf": []byte(strings.ReplaceAll(oneLine, "\n", "\r\n") + "\r\n"),
	} {
		for _, reader := range []io.Reader{bytes.NewReader(content), io.MultiReader(bytes.NewReader(content))} {
			var log collector
			report, err := importers.ImportReader(t.Context(), importers.Options{Tenant: "acme"}, "chat.jsonl", reader, &log)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if report.Actions != 1 || len(log.events) != len(plain) {
				t.Fatalf("%s: %+v", name, report)
			}
			for i := range plain {
				if plain[i].ID != log.events[i].ID {
					t.Errorf("%s: event %d has another id", name, i)
				}
			}
		}
	}
}

// Goal: a file that is no transcript is an error that says what was seen and which formats there are. Method: several such files.
func TestUnknownFormat(t *testing.T) {
	for content, want := range map[string]string{
		"":                             "the file is empty",
		"  \n\n":                       "no JSON object",
		"#!/bin/sh\necho":              "it begins #!/bin/sh",
		`{"a":1,"b":2}`:                "keys a, b",
		`[{"x":1}]`:                    "keys x",
		"{\"a\":1}\n{\"a\":2}\n":       "lines of JSON, the first with the keys a",
		"\x00\x01\x02":                 "no JSON object",
		`{"messages":"none"}`:          "keys messages",
		strings.Repeat("[", 5000):      "an array",
		`{"steps":[{"source":"user"}]`: "keys steps",
	} {
		var log collector
		_, err := importers.ImportReader(t.Context(), importers.Options{Tenant: "acme"}, "x", strings.NewReader(content), &log)
		var unknown *importers.UnknownFormatError
		if !errors.As(err, &unknown) || !strings.Contains(err.Error(), want) && want != "an array" || !strings.Contains(err.Error(), "openai") {
			t.Errorf("%.20q: %v, want %q", content, err, want)
		}
		if len(log.events) != 0 {
			t.Errorf("%.20q: events were appended", content)
		}
	}
	for _, format := range importers.FormatNames() {
		for _, content := range []string{"", "\n", "null", "7", "[]", "{}", "[[]]", "x\n{}\n", "{\n"} {
			var log collector
			opts := importers.Options{Tenant: "acme", Format: format, EndSessions: true}
			report, err := importers.ImportReader(t.Context(), opts, "x", strings.NewReader(content), &log)
			if err != nil || report.Actions != 0 || report.Sessions != 0 {
				t.Errorf("%q as %s: %+v, %v", content, format, report, err)
			}
		}
	}
	var log collector
	_, err := importers.ImportReader(t.Context(), importers.Options{Tenant: "acme", Format: "word"}, "x", strings.NewReader(oneLine), &log)
	if err == nil || !strings.Contains(err.Error(), "auto, atif") {
		t.Errorf("a wrong --format: %v", err)
	}
	_, err = importers.ImportReader(t.Context(), importers.Options{Tenant: "No Tenant"}, "x", strings.NewReader(oneLine), &log)
	if err == nil {
		t.Error("a wrong tenant was taken")
	}
}

// Goal: a log of many conversations with a long history is placed by hashes alone. Method: 40 conversations of 30 turns, interleaved, each
// request with its whole history; every one becomes one session with its turns in order.
func TestManyConversations(t *testing.T) {
	histories := make([]string, 40)
	var log strings.Builder
	for turn := range 30 {
		for i := range histories {
			histories[i] += fmt.Sprintf(`{"role":"user","content":"question %d of %d"}`, turn, i)
			fmt.Fprintf(&log, `{"request":{"messages":[%s]},"response":{"id":"r-%d-%d","choices":[{"message":{"role":"assistant","content":"answer %d"}}]}}`+"\n",
				histories[i], i, turn, turn)
			histories[i] += fmt.Sprintf(`,{"role":"assistant","content":"answer %d"},`, turn)
		}
	}
	events, report := importText(t, importers.Options{}, "log.jsonl", log.String())
	if report.Sessions != 40 || report.Actions != 1200 || report.Answered != 40*29 || report.Branches != 0 {
		t.Fatalf("report %+v", report)
	}
	last := map[string]string{}
	for _, e := range events {
		a, ok := e.Payload.(*schemas.ActionTaken)
		if !ok {
			continue
		}
		if a.GetContext().GetParentTurnId() != last[e.Session] || len(a.GetContext().GetMessages()) != 1 {
			t.Fatalf("%s: the context is no delta on the turn before", e.Session)
		}
		last[e.Session] = e.ID
	}
}

// Goal: a line over the cap is one dead letter with its beginning, and the lines around it are imported. Method: a line of 65 MiB between
// two good ones, streamed.
func TestLineTooLong(t *testing.T) {
	long := io.MultiReader(
		strings.NewReader(oneLine+`{"messages":[{"role":"user","content":"`), io.LimitReader(filler{}, 65<<20), strings.NewReader("\"}]}\n"+oneLine),
	)
	var log collector
	report, err := importers.ImportReader(t.Context(), importers.Options{Tenant: "acme"}, "long.jsonl", long, &log)
	if err != nil {
		t.Fatal(err)
	}
	if report.Malformed != 1 || report.Sessions != 2 {
		t.Fatalf("report %+v", report)
	}
	for _, e := range log.events {
		if d, ok := e.Payload.(*schemas.DeadLettered); ok {
			if d.GetFile().GetLine() != 2 || d.GetFile().GetName() != "long.jsonl" || !d.GetTruncated() || !strings.Contains(d.GetReason(), "64 MiB") {
				t.Errorf("dead letter: line %d of %s: %s", d.GetFile().GetLine(), d.GetFile().GetName(), d.GetReason())
			}
			return
		}
	}
	t.Error("no dead letter")
}

// filler reads as an endless text.
type filler struct{}

func (filler) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// Goal: a text that is too large for an event goes to the blob store and the event goes out. Method: a tool result of 9 MiB.
func TestLargeText(t *testing.T) {
	huge := strings.Repeat("output ", 9<<20/7)
	blobs := memoryBlobs{}
	events, report := importText(t, importers.Options{Blobs: blobs}, "large.jsonl",
		`{"messages":[{"role":"user","content":"run"},{"role":"assistant","content":"ok"},{"role":"tool","tool_call_id":"c","content":"`+huge+`"},{"role":"assistant","content":"done"}]}`)
	if report.Actions != 2 || report.NextStates["tool_result"] != 1 || report.Malformed != 0 {
		t.Fatalf("report %+v", report)
	}
	for _, e := range events {
		if n, ok := e.Payload.(*schemas.NextStateObserved); ok {
			blob := n.GetObservations()[0].GetMessage().GetParts()[0].GetBlob()
			if string(blobs[[32]byte(blob.GetSha256())]) != huge || blob.GetSizeBytes() != uint64(len(huge)) {
				t.Error("the blob store does not hold the text")
			}
		}
	}
}

// Goal: images beside a transcript are kept by hash, and a path that leads out of its folder is not followed, by a link neither.
// Method: a trajectory with an image, a path outside, and a link to it.
func TestImagesStayInTheFolder(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret.png")
	for path, content := range map[string]string{secret: "secret", filepath.Join(dir, "a.png"): "picture"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, filepath.Join(dir, "link.png")); err != nil {
		t.Fatal(err)
	}
	part := func(p string) string {
		return fmt.Sprintf(`{"type":"image","source":{"media_type":"image/png","path":%q}}`, p)
	}
	content := `{"schema_version":"ATIF-v1.6","session_id":"s","steps":[{"step_id":1,"source":"user","message":[` +
		strings.Join([]string{part("a.png"), part("../" + filepath.Base(filepath.Dir(secret)) + "/secret.png"), part(secret), part("link.png"), part(".")}, ",") +
		`]},{"step_id":2,"source":"agent","message":"seen"}]}`
	path := filepath.Join(dir, "t.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	blobs := memoryBlobs{}
	events, _ := importFile(t, importers.Options{Blobs: blobs}, path)
	if len(blobs) != 1 || string(blobs[sha256.Sum256([]byte("picture"))]) != "picture" {
		t.Errorf("%d blobs were kept", len(blobs))
	}
	parts := actions(events)[0].GetContext().GetMessages()[0].GetParts()
	if len(parts) != 5 || len(parts[0].GetBlob().GetSha256()) != 32 {
		t.Fatalf("parts: %v", parts)
	}
	for _, p := range parts[1:] {
		if p.GetBlob().GetSha256() != nil {
			t.Errorf("%s has content", p.GetBlob().GetUri())
		}
	}
}

// Goal: --end-sessions ends the sessions of formats that have no end, each once; without it they stay open. Method: a log of pairs.
func TestEndSessions(t *testing.T) {
	log := `{"request":{"messages":[{"role":"user","content":"a"}]},"response":{"id":"r1","choices":[{"message":{"role":"assistant","content":"b"}}]}}
{"request":{"messages":[{"role":"user","content":"c"}]},"response":{"id":"r2","choices":[{"message":{"role":"assistant","content":"d"}}]}}
`
	if events, _ := importText(t, importers.Options{}, "log.jsonl", log); kinds(events) != "ActionTaken ActionTaken" {
		t.Errorf("without: %s", kinds(events))
	}
	events, report := importText(t, importers.Options{EndSessions: true}, "log.jsonl", log)
	if kinds(events) != "ActionTaken ActionTaken SessionEnded SessionEnded" || report.Ended != 2 {
		t.Errorf("with: %s", kinds(events))
	}
}

// failing is a log that fails after some appends.
type failing struct{ left int }

func (f *failing) Append(context.Context, ...schemas.Record) error {
	if f.left--; f.left < 0 {
		return errors.New("the log is full")
	}
	return nil
}

// Goal: an import whose log fails, or whose context ends, stops with that error and does not hang. Method: more lines than the batches in
// flight, and a log that fails at once or later.
func TestLogFails(t *testing.T) {
	many := strings.Repeat(oneLine, 3000)
	for _, left := range []int{0, 2} {
		_, err := importers.ImportReader(t.Context(), importers.Options{Tenant: "acme"}, "many.jsonl", strings.NewReader(many), &failing{left})
		if err == nil || !strings.Contains(err.Error(), "the log is full") {
			t.Errorf("after %d appends: %v", left, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := importers.ImportReader(ctx, importers.Options{Tenant: "acme"}, "many.jsonl", strings.NewReader(many), &collector{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancel: %v", err)
	}
}

// Goal: folders are walked, patterns matched, each file once, and the parts of one trajectory come in order. Method: a folder of files.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.json", "sub/deep/c.jsonl", "t.cont-10.json", "t.cont-2.json", "t.json", ".hidden/x.json", ".dot"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := importers.Files([]string{dir, filepath.Join(dir, "*.json"), filepath.Join(dir, "b.json")})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{"b.json", "sub/deep/c.jsonl", "t.json", "t.cont-2.json", "t.cont-10.json"} {
		want = append(want, filepath.Join(dir, filepath.FromSlash(name)))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("files %q", got)
	}
	if _, err := importers.Files([]string{filepath.Join(dir, "nothing*")}); err == nil {
		t.Error("a pattern that matches nothing is no error")
	}
}

// Goal: progress goes from nothing to the whole file. Method: note the calls of one import.
func TestProgress(t *testing.T) {
	var last, total int64
	opts := importers.Options{Tenant: "acme", Progress: func(done, all int64) {
		if done < last || all < done {
			t.Errorf("%d of %d after %d", done, all, last)
		}
		last, total = done, all
	}}
	content := strings.Repeat(oneLine, 100)
	if _, err := importers.ImportReader(t.Context(), opts, "p.jsonl", strings.NewReader(content), &collector{}); err != nil {
		t.Fatal(err)
	}
	if last != int64(len(content)) || total != last {
		t.Errorf("ended at %d of %d", last, total)
	}
}

// Goal: a session id that the log would refuse still names one session. Method: control characters, length, invalid UTF-8.
func TestSessionID(t *testing.T) {
	for _, id := range []string{"plain", "a\x00b", strings.Repeat("long", 300), "bad\xff", ""} {
		got := importers.SessionID(id)
		if err := schemas.CheckSession(got); err != nil || got != importers.SessionID(id) {
			t.Errorf("%.20q: %q: %v", id, got, err)
		}
	}
	if importers.SessionID("a\x00b") == importers.SessionID("a\x01b") {
		t.Error("two ids became one session")
	}
}
