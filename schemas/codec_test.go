package schemas_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// TestRoundTrip shows that what is encoded is decoded as the same event, in both forms, and that the same event gives the same bytes.
// Method: 200 random events of each kind, with optional fields left out at random.
func TestRoundTrip(t *testing.T) {
	s := sampler{rng: rand.New(rand.NewPCG(1, 2))} //nolint:gosec // a seeded test
	for _, kind := range schemas.Kinds() {
		taken := 0
		for range 200 {
			e := s.event(kind)
			e.LogTime = time.UnixMilli(1_767_000_000_000)
			r, err := schemas.Encode(e)
			if err != nil {
				continue // a required field was left out
			}
			taken++
			got, err := schemas.Decode(r)
			if err != nil || !sameEvent(got, e) {
				t.Fatalf("%s: %v\n got %v\nwant %v", kind.Name, err, got, e)
			}
			clear(r.Value)
			for _, h := range r.Headers {
				clear(h.Value)
			}
			if !sameEvent(got, e) {
				t.Fatalf("%s: the event shares memory with its record", kind.Name)
			}
			r, again := mustEncode(t, e), mustEncode(t, got)
			if diff := differs(r, again); diff != "" {
				t.Fatalf("%s: the %s differs from one encoding to the next", kind.Name, diff)
			}
			text, err := schemas.EncodeJSON(e)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.ContainsRune(text, '\n') {
				t.Fatalf("%s: JSON of more than one line", kind.Name)
			}
			fromJSON, err := schemas.DecodeJSON(text, "", "")
			fromJSON.LogTime = e.LogTime
			if err != nil || !sameEvent(fromJSON, e) {
				t.Fatalf("%s: JSON: %v\n%s", kind.Name, err, text)
			}
		}
		if taken < 20 {
			t.Errorf("%s: only %d of 200 random events are valid: the test shows little", kind.Name, taken)
		}
	}
}

func mustEncode(t *testing.T, e schemas.Event) schemas.Record {
	t.Helper()
	r, err := schemas.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestKinds shows that the table of kinds is whole. Method: each line against the topics and the messages' names.
func TestKinds(t *testing.T) {
	used := map[string]bool{}
	for _, k := range schemas.Kinds() {
		used[k.Topic] = true
		if name := (schemas.Event{Payload: k.New()}).Kind(); name != k.Name {
			t.Errorf("line %s makes a %s", k.Name, name)
		}
		if got, ok := schemas.KindByName(k.Name); !ok || got.Topic != k.Topic {
			t.Errorf("%s is not found by its name", k.Name)
		}
		if k.New() == k.New() {
			t.Errorf("%s: New gives the same message twice", k.Name)
		}
	}
	for _, topic := range schemas.Topics() {
		if !used[topic] {
			t.Errorf("topic %s has no kind", topic)
		}
		delete(used, topic)
	}
	if len(used) > 0 {
		t.Errorf("topics %v are not listed", used)
	}
	if _, ok := schemas.KindByName("Message"); ok {
		t.Error("Message is no kind")
	}
}

// TestDecodeRefuses shows that each way in which a record can be wrong is an error that says so. Method: one change to a good record for each.
func TestDecodeRefuses(t *testing.T) {
	good := (&sampler{}).event(schemas.Kinds()[0])
	header := func(key, value string) func(*schemas.Record) {
		return func(r *schemas.Record) {
			for i := range r.Headers {
				if r.Headers[i].Key == key {
					r.Headers[i].Value = []byte(value)
				}
			}
		}
	}
	value := func(b []byte) func(*schemas.Record) { return func(r *schemas.Record) { r.Value = b } }
	deep := []byte{}
	for range 50_000 { // groups of an unknown field, each inside the other
		deep = protowire.AppendTag(deep, 900, protowire.StartGroupType)
	}
	for want, change := range map[string]func(*schemas.Record){
		"ce_specversion":        header("ce_specversion", "2.0"),
		"no CloudEvents":        func(r *schemas.Record) { r.Headers = nil },
		"headers, at most":      func(r *schemas.Record) { r.Headers = make([]schemas.Header, 65) },
		"not known to this":     header("ce_type", "nextstate.v2.ActionTaken"),
		`"SessionEnded"`:        header("ce_type", "SessionEnded"),
		"belongs to topic":      func(r *schemas.Record) { r.Topic = schemas.TopicTurns },
		"canonical form":        header("ce_id", strings.ToUpper(good.ID)),
		"RFC 3339":              header("ce_time", "yesterday"),
		"1970":                  header("ce_time", "1969-12-31T23:59:59Z"),
		"is not tenant/session": func(r *schemas.Record) { r.Key = []byte("acme-1/other") },
		"acme-1session": func(r *schemas.Record) {
			r.Key = []byte(strings.Replace(string(r.Key), "/", "", 1))
			r.Key = append(r.Key, "-acme-1session"...)
		},
		"an envelope of":           header("ce_source", strings.Repeat("x", 5000)),
		"source":                   header("ce_source", ""),
		"source: 1 to":             header("ce_source", "\xff"),
		"traceparent":              header("traceparent", "a\nb"),
		"invalid UTF-8":            value([]byte("\x22\x02\xc3\x28")),
		"invalid wire":             func(r *schemas.Record) { r.Value = r.Value[:len(r.Value)-1] },
		"kind: TURN_KIND":          value(nil),
		"ActionTaken: proto":       value(deep),
		"at most 8388608":          value(make([]byte, schemas.MaxEventBytes+1)),
		"entries for 2 response":   value(withTokens(t, &schemas.Tokens{ResponseIds: []uint32{1, 2}, Logprobs: []float32{-1}})),
		"a finite number":          value(withTokens(t, &schemas.Tokens{ResponseIds: []uint32{1}, Logprobs: []float32{float32(math.NaN())}})),
		"0 or 1 is needed":         value(withTokens(t, &schemas.Tokens{ResponseIds: []uint32{1}, Mask: []uint32{2}})),
		"not 1 x 4294967295":       value(withTokens(t, &schemas.Tokens{ResponseIds: []uint32{1}, TopK: &schemas.TopK{K: math.MaxUint32}})),
		"id 7 twice in row 0":      value(withTokens(t, &schemas.Tokens{ResponseIds: []uint32{1}, TopK: &schemas.TopK{K: 2, Ids: []uint32{7, 7}, Logprobs: []float32{-1, -1}}})),
		"id 5 twice in row 0":      value(withTokens(t, &schemas.Tokens{ResponseIds: []uint32{1}, TopK: longRow()})),
		"messages: 100001 entries": value(withMessages(t, 100_001)),
	} {
		r := mustEncode(t, good)
		change(&r)
		if _, err := schemas.Decode(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %.200v", want, err)
		}
	}
}

func longRow() *schemas.TopK {
	k := &schemas.TopK{K: 40, Logprobs: make([]float32, 40)}
	for i := range uint32(39) {
		k.Ids = append(k.Ids, i)
	}
	k.Ids = append(k.Ids, 5)
	return k
}

func plainAction() *schemas.ActionTaken {
	return &schemas.ActionTaken{
		Kind: schemas.TurnKind_TURN_KIND_MAIN, Context: &schemas.Context{}, Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT},
	}
}

func withTokens(t *testing.T, tokens *schemas.Tokens) []byte {
	t.Helper()
	a := plainAction()
	a.Tokens = tokens
	return marshal(t, a)
}

func withMessages(t *testing.T, n int) []byte {
	t.Helper()
	a := plainAction()
	for range n {
		a.Context.Messages = append(a.Context.Messages, &schemas.Message{Role: schemas.Role_ROLE_USER})
	}
	return marshal(t, a)
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestEncodeRefuses shows that nothing is written that could not be read back. Method: one bad event for each rule of the envelope.
func TestEncodeRefuses(t *testing.T) {
	for want, change := range map[string]func(*schemas.Event){
		"not an event":       func(e *schemas.Event) { e.Payload = &schemas.Message{} },
		"<nil> is not":       func(e *schemas.Event) { e.Payload = nil },
		"payload is missing": func(e *schemas.Event) { e.Payload = (*schemas.FeedbackGiven)(nil) },
		"canonical":          func(e *schemas.Event) { e.ID = "{01890a5d-ac96-774b-bcce-b302099a8057}" },
		"tenant":             func(e *schemas.Event) { e.Tenant = "Acme" },
		"a letter or digit":  func(e *schemas.Event) { e.Tenant = "-acme" },
		"1 to 63":            func(e *schemas.Event) { e.Tenant = strings.Repeat("a", 64) },
		"1 to 512":           func(e *schemas.Event) { e.Session = "" },
		"control":            func(e *schemas.Event) { e.Session = "a\x00b" },
		"not valid UTF-8":    func(e *schemas.Event) { e.Session = "\xff" },
		"1970":               func(e *schemas.Event) { e.Time = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("west", -7200)) },
		"too large for the": func(e *schemas.Event) {
			e.Payload = &schemas.SessionEnded{Reason: strings.Repeat("x", schemas.MaxEventBytes)}
		},
		"contains invalid UTF": func(e *schemas.Event) { e.Payload = &schemas.SessionEnded{Reason: "\xff"} },
		"observations[1]": func(e *schemas.Event) {
			e.Payload = &schemas.SessionEnded{Reason: "x", Observations: []*schemas.Observation{{Kind: 1}, nil}}
		},
	} {
		e := (&sampler{}).event(schemas.Kinds()[0])
		change(&e)
		if _, err := schemas.Encode(e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %.200v", want, err)
		}
	}
}

// TestDecodeJSONRefuses shows that each way in which HTTP input can be wrong is an error that says so.
func TestDecodeJSONRefuses(t *testing.T) {
	for want, text := range map[string]string{
		"not a CloudEvents object": `[]`,
		"end of JSON":              `{"type":`,
		"after top-level":          `{} {}`,
		"not valid UTF-8":          "{\"subject\":\"\xff\"}",
		"specversion":              `{"specversion":"0.3"}`,
		"is not known; use":        `{"type":"Nothing"}`,
		"data is missing":          `{"type":"SessionEnded","subject":"s"}`,
		"RFC 3339":                 `{"type":"SessionEnded","subject":"s","time":"now","data":{"reason":"x"}}`,
		"unknown field":            `{"type":"SessionEnded","subject":"s","data":{"reasons":"x"}}`,
		"reason is needed":         `{"type":"SessionEnded","subject":"s","data":{}}`,
		"session":                  `{"type":"SessionEnded","data":{"reason":"x"}}`,
		"canonical":                `{"id":"1","type":"SessionEnded","subject":"s","data":{"reason":"x"}}`,
		"invalid value":            `{"type":"OutcomeReported","subject":"s","data":{"score":1e999}}`,
		"a finite number":          `{"type":"OutcomeReported","subject":"s","data":{"score":"NaN"}}`,
		"exceeded max depth":       `{"type":"SessionEnded","subject":"s","data":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`,
		"unexpected token [":       `{"type":"SessionEnded","subject":"s","data":` + strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000) + `}`,
	} {
		if _, err := schemas.DecodeJSON([]byte(text), "acme", "http"); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "\u00a0", " "), want) {
			t.Errorf("%s: %.200v", want, err)
		}
	}
	e, err := schemas.DecodeJSON([]byte(`{"type":"SessionEnded","subject":"s","data":{"reason":"x"}}`), "acme", "http")
	if err != nil || e.Tenant != "acme" || e.Source != "http" || schemas.CheckID(e.ID) != nil || !e.Time.IsZero() {
		t.Errorf("defaults: %+v %v", e, err)
	}
}

// TestIDs shows that ids never change: they are the identity of everything that was ever derived or imported. Method: vectors computed
// by a program in another language from the rule in ids.go.
func TestIDs(t *testing.T) {
	const source = "01890a5d-ac96-774b-bcce-b302099a8057"
	for got, want := range map[string]string{
		schemas.DerivedID("pair", "1", "TurnClosed", source, 0):                            "8c8d2192-ccd5-896e-b744-d9c1684096cb",
		schemas.DerivedID("evaluate", "2", "VoteCast", source, 258):                        "78f456d4-4e4f-8bc4-a596-786c5117484a",
		schemas.ContentID("atif", "session", "3"):                                          "7296915a-6a06-8d1c-886c-f9e73aef94f4",
		schemas.ContentID("atif", "session3", ""):                                          "c9b5756b-10ee-8d98-94fd-1a9e8637ee39",
		schemas.DerivedID("pair", "dead", "DeadLettered", "interactions:2:7", 0):           "457e8d21-2390-8471-9b0a-10259d571584",
		schemas.Event{ID: source}.Derive("pair", "1", &schemas.TurnClosed{}, source, 0).ID: "8c8d2192-ccd5-896e-b744-d9c1684096cb",
	} {
		if got != want || schemas.CheckID(got) != nil {
			t.Errorf("id %s, want %s", got, want)
		}
	}
	if a, b := schemas.NewID(), schemas.NewID(); a == b || a[14] != '7' || schemas.CheckID(a) != nil {
		t.Errorf("new ids %s and %s", a, b)
	}
	for _, bad := range []string{"", source[:35], source + "0", strings.ToUpper(source), strings.ReplaceAll(source, "-", "0"), strings.Replace(source, "0", "g", 1)} {
		if schemas.CheckID(bad) == nil {
			t.Errorf("%q passes for an id", bad)
		}
	}
}

// TestKey shows that a key and its parts belong together, a slash in the session included.
func TestKey(t *testing.T) {
	for _, session := range []string{"s", "a/b/c", "/", "\u00fc"} {
		tenant, got, ok := schemas.SplitKey(schemas.Key("acme", session))
		if !ok || tenant != "acme" || got != session {
			t.Errorf("%q: %q %q %v", session, tenant, got, ok)
		}
	}
	if _, _, ok := schemas.SplitKey([]byte("no separator")); ok {
		t.Error("a key without a separator was split")
	}
}

// TestDerive shows that a derived event keeps what the log's determinism rests on.
func TestDerive(t *testing.T) {
	from := (&sampler{}).event(schemas.Kinds()[0])
	from.LogTime = time.UnixMilli(5)
	d := from.Derive("pair", "1", &schemas.HintAbsent{}, from.ID, 0)
	if d.Source != "pair/1" || d.Tenant != from.Tenant || d.Session != from.Session || !d.Time.Equal(from.Time) ||
		!d.LogTime.Equal(from.LogTime) || d.TraceParent != from.TraceParent || d.ID == from.ID {
		t.Errorf("%+v", d)
	}
}

// TestDeadLetter shows that any record can be kept as a dead letter that is itself a good event, the same each time. Method: records with
// hostile keys, headers, values and sizes.
func TestDeadLetter(t *testing.T) {
	large := make([]byte, schemas.MaxRecordBytes)
	many := make([]schemas.Header, 500)
	for i := range many {
		many[i] = schemas.Header{Key: strings.Repeat("\xff", 5000), Value: large[:9000]}
	}
	for name, r := range map[string]schemas.Record{
		"empty":  {},
		"normal": {Topic: "turns", Partition: 3, Offset: 9, Time: time.UnixMilli(77), Key: []byte("acme/s"), Value: []byte("x")},
		"large":  {Topic: "turns", Key: large, Value: large, Headers: many},
		"key":    {Topic: "turns", Key: []byte("\xff/\x00")},
	} {
		e := schemas.DeadLetter("pair", strings.Repeat("why \xff ", 10_000), r)
		got, err := schemas.Decode(mustEncode(t, e))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if again := schemas.DeadLetter("pair", "another reason", r); again.ID != e.ID {
			t.Errorf("%s: the id depends on more than the origin", name)
		}
		d := got.Payload.(*schemas.DeadLettered)
		if d.GetPosition().GetTopic() != r.Topic || d.GetTruncated() != (len(d.GetValue()) < len(r.Value)) || !bytes.HasPrefix(r.Value, d.GetValue()) {
			t.Errorf("%s: the origin or the bytes are lost", name)
		}
		if wantTenant := map[bool]string{true: "acme", false: "unknown"}[name == "normal"]; got.Tenant != wantTenant {
			t.Errorf("%s: tenant %s", name, got.Tenant)
		}
	}
}
