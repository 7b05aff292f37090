package schemas_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nextstate-rl/nextstate/schemas"
)

var update = flag.Bool("update", false, "add golden files for kinds and fields that have none; existing files never change")

// golden is a record as it was once written, and the event that it must always mean.
type golden struct {
	Topic   string          `json:"topic"`
	Time    time.Time       `json:"time"`
	Key     string          `json:"key"`
	Headers [][2]string     `json:"headers"`
	Value   []byte          `json:"value"`
	Event   json.RawMessage `json:"event"`
}

func (g golden) record() schemas.Record {
	r := schemas.Record{Topic: g.Topic, Time: g.Time, Key: []byte(g.Key), Value: g.Value}
	for _, h := range g.Headers {
		r.Headers = append(r.Headers, schemas.Header{Key: h[0], Value: []byte(h[1])})
	}
	return r
}

// TestGolden shows that every record that was ever written is still read as the same event and written as the same bytes. Method: the
// files testdata/golden/KIND.N.json, which are kept for good. Together the files of a kind must set each of its fields, so that a new
// field needs a new file: go test ./schemas -run TestGolden -update adds it.
func TestGolden(t *testing.T) {
	all, err := filepath.Glob("testdata/golden/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range schemas.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			missing := map[protoreflect.FullName]bool{}
			declared(kind.New().ProtoReflect().Descriptor(), missing)
			n := 1
			for ; ; n++ {
				path := goldenPath(kind, n)
				i := slices.Index(all, path)
				if i < 0 {
					break
				}
				all = slices.Delete(all, i, i+1)
				set := map[protoreflect.FullName]bool{}
				collect(checkGolden(t, path).Payload.ProtoReflect(), set)
				maps.DeleteFunc(missing, func(f protoreflect.FullName, _ bool) bool { return set[f] })
			}
			for ; *update && len(missing) > 0 && n < 5; n++ {
				e := addGolden(t, kind, n)
				set := map[protoreflect.FullName]bool{}
				collect(e.Payload.ProtoReflect(), set)
				maps.DeleteFunc(missing, func(f protoreflect.FullName, _ bool) bool { return set[f] })
			}
			if len(missing) > 0 {
				t.Errorf("no golden file sets %v: add one with go test ./schemas -run TestGolden -update", slices.Sorted(maps.Keys(missing)))
			}
		})
	}
	if len(all) > 0 {
		t.Errorf("%v: of no kind in the table, or a number is missing before it; a kind that was ever written must stay readable", all)
	}
}

func goldenPath(kind schemas.Kind, n int) string {
	return filepath.Join("testdata", "golden", fmt.Sprintf("%s.%d.json", kind.Name, n))
}

func checkGolden(t *testing.T, path string) schemas.Event {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	e, err := schemas.Decode(g.record())
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if len(e.Payload.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("%s: a field of it is not known any more", path)
	}
	again, err := schemas.Encode(e)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if diff := differs(again, g.record()); diff != "" {
		t.Errorf("%s: written again, the %s differs", path, diff)
	}
	e.Position = schemas.Position{}
	text, err := schemas.EncodeJSON(e)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := json.Compact(&want, g.Event); err != nil {
		t.Fatal(err)
	}
	if !sameJSON(t, text, want.Bytes()) {
		t.Errorf("%s: read as\n%s\nwant\n%s", path, text, want.Bytes())
	}
	fromJSON, err := schemas.DecodeJSON(want.Bytes(), "", "")
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	fromJSON.LogTime = e.LogTime
	if !sameEvent(fromJSON, e) {
		t.Errorf("%s: the JSON form means another event", path)
	}
	return e
}

// sameJSON compares up to the escaping of strings.
func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	p, errP := json.Marshal(x)
	q, errQ := json.Marshal(y)
	return errP == nil && errQ == nil && bytes.Equal(p, q)
}

func differs(a, b schemas.Record) string {
	switch {
	case a.Topic != b.Topic:
		return "topic"
	case !a.Time.Equal(b.Time):
		return "time"
	case !bytes.Equal(a.Key, b.Key):
		return "key"
	case !bytes.Equal(a.Value, b.Value):
		return "value"
	case !slices.EqualFunc(a.Headers, b.Headers, func(x, y schemas.Header) bool { return x.Key == y.Key && bytes.Equal(x.Value, y.Value) }):
		return "headers"
	}
	return ""
}

func addGolden(t *testing.T, kind schemas.Kind, n int) schemas.Event {
	t.Helper()
	s := sampler{variant: n - 1}
	e := s.event(kind)
	e.LogTime = time.Date(2026, 1, 2, 3, 4, 6, 789_000_000, time.UTC)
	r, err := schemas.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	g := golden{Topic: r.Topic, Time: r.Time, Key: string(r.Key), Value: r.Value}
	for _, h := range r.Headers {
		g.Headers = append(g.Headers, [2]string{h.Key, string(h.Value)})
	}
	if g.Event, err = schemas.EncodeJSON(e); err != nil {
		t.Fatal(err)
	}
	raw, err := json.MarshalIndent(g, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(goldenPath(kind, n)), 0o750); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(goldenPath(kind, n), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644) // never overwrites
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(strings.TrimSpace(string(raw)) + "\n")
	if closeErr := f.Close(); err != nil || closeErr != nil {
		t.Fatal(err, closeErr)
	}
	return e
}
