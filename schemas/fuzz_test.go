package schemas_test

import (
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
)

// FuzzDecode shows that no record crashes the decoder, and that an event which it accepts can be written and read again without change.
// Method: any type, envelope and value; seeds are one full event of each kind.
func FuzzDecode(f *testing.F) {
	for _, kind := range schemas.Kinds() {
		e := (&sampler{}).event(kind)
		r, err := schemas.Encode(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(kind.Name, e.ID, e.Tenant, e.Session, "2026-01-02T03:04:05.6Z", e.TraceParent, r.Value)
	}
	f.Add("Nothing", "", "", "", "", "", []byte("\xff"))
	f.Fuzz(func(t *testing.T, kind, id, tenant, session, at, traceparent string, value []byte) {
		header := func(k, v string) schemas.Header { return schemas.Header{Key: k, Value: []byte(v)} }
		r := schemas.Record{Key: schemas.Key(tenant, session), Value: value, Headers: []schemas.Header{
			header("ce_specversion", "1.0"), header("ce_id", id), header("ce_type", "nextstate.v1."+kind), header("ce_source", "fuzz"),
			header("ce_subject", session), header("ce_time", at), header("ce_tenant", tenant), header("traceparent", traceparent),
		}}
		e, err := schemas.Decode(r)
		if err != nil {
			if dead, err := schemas.Encode(schemas.DeadLetter("fuzz", err.Error(), r)); err != nil {
				t.Fatalf("what cannot be read cannot be dead-lettered: %v", err)
			} else if _, err := schemas.Decode(dead); err != nil {
				t.Fatalf("the dead letter cannot be read: %v", err)
			}
			return
		}
		first, err := schemas.Encode(e)
		if err != nil {
			t.Fatalf("accepted, but cannot be written: %v", err)
		}
		again, err := schemas.Decode(first)
		if err != nil || !sameEvent(e, again) {
			t.Fatalf("changed by writing and reading: %v", err)
		}
		second, err := schemas.Encode(again)
		if err != nil || differs(first, second) != "" {
			t.Fatalf("the second encoding differs: %v %s", err, differs(first, second))
		}
		if _, err := schemas.EncodeJSON(e); err != nil {
			t.Fatalf("accepted, but has no JSON form: %v", err)
		}
	})
}

// FuzzDecodeJSON shows the same of the JSON form.
func FuzzDecodeJSON(f *testing.F) {
	for _, kind := range schemas.Kinds() {
		text, err := schemas.EncodeJSON((&sampler{}).event(kind))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"type":"OutcomeReported","subject":"s","data":{"score":"Infinity"}}`))
	f.Add([]byte(`{"type":"SessionEnded","subject":"\ud800","data":` + strings.Repeat(`{"a":`, 200)))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := schemas.DecodeJSON(text, "acme", "fuzz")
		if err != nil {
			return
		}
		r, err := schemas.Encode(e)
		if err != nil {
			return // larger than the log takes
		}
		fromLog, err := schemas.Decode(r)
		if err != nil || !sameEvent(e, fromLog) {
			t.Fatalf("changed by the log: %v", err)
		}
		out, err := schemas.EncodeJSON(e)
		if err != nil {
			t.Fatal(err)
		}
		again, err := schemas.DecodeJSON(out, "other", "other")
		if err != nil || !sameEvent(e, again) {
			t.Fatalf("changed by writing and reading: %v\n%s", err, out)
		}
	})
}
