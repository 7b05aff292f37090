package schemas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
)

// envelopeJSON is the CloudEvents 1.0 JSON form of an event: what HTTP, tail and export speak.
type envelopeJSON struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Type        string          `json:"type"`
	Source      string          `json:"source"`
	Subject     string          `json:"subject"`
	Time        string          `json:"time,omitempty"`
	Tenant      string          `json:"tenant,omitempty"`
	TraceParent string          `json:"traceparent,omitempty"`
	Data        json.RawMessage `json:"data"`
	Topic       string          `json:"topic,omitempty"`
	Partition   *int            `json:"partition,omitempty"`
	Offset      *int64          `json:"offset,omitempty"`
}

// EncodeJSON writes an event as one line of CloudEvents JSON, the payload as protojson. Events that were read carry their position.
func EncodeJSON(e Event) ([]byte, error) {
	data, err := protojson.Marshal(e.Payload)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", e.Kind(), e.ID, err)
	}
	var compact bytes.Buffer // protojson varies its spaces on purpose
	if err := json.Compact(&compact, data); err != nil {
		return nil, fmt.Errorf("%s %s: %w", e.Kind(), e.ID, err)
	}
	j := envelopeJSON{
		SpecVersion: "1.0", ID: e.ID, Type: typePrefix + e.Kind(), Source: e.Source, Subject: e.Session,
		Tenant: e.Tenant, TraceParent: e.TraceParent, Data: compact.Bytes(),
	}
	if !e.Time.IsZero() {
		j.Time = e.Time.UTC().Format(timeLayout)
	}
	if e.Position.Topic != "" {
		j.Topic, j.Partition, j.Offset = e.Position.Topic, &e.Position.Partition, &e.Position.Offset
	}
	return json.Marshal(j)
}

// DecodeJSON reads one event in CloudEvents JSON. tenant is used when the event names none; source when it names none; a missing id gets
// a new UUIDv7, so that only events with an id can be sent again safely. Position fields are ignored.
func DecodeJSON(b []byte, tenant, source string) (Event, error) {
	var j envelopeJSON
	if !utf8.Valid(b) { // encoding/json would put U+FFFD in its place
		return Event{}, errors.New("not valid UTF-8")
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return Event{}, fmt.Errorf("not a CloudEvents object: %w", err)
	}
	if j.SpecVersion != "" && j.SpecVersion != "1.0" {
		return Event{}, fmt.Errorf("specversion %.20q is not 1.0", j.SpecVersion)
	}
	name := j.Type
	if len(name) > len(typePrefix) && name[:len(typePrefix)] == typePrefix {
		name = name[len(typePrefix):]
	}
	kind, ok := kindByName[name]
	if !ok {
		return Event{}, fmt.Errorf("type %.60q is not known; use %sActionTaken, NextStateObserved, FeedbackGiven, OutcomeReported or SessionEnded", j.Type, typePrefix)
	}
	e := Event{ID: j.ID, Source: j.Source, Tenant: j.Tenant, Session: j.Subject, TraceParent: j.TraceParent, Payload: kind.New()}
	if e.Tenant == "" {
		e.Tenant = tenant
	}
	if e.Source == "" {
		e.Source = source
	}
	if e.ID == "" {
		e.ID = NewID()
	}
	if j.Time != "" {
		t, err := time.Parse(timeLayout, j.Time)
		if err != nil {
			return Event{}, fmt.Errorf("time %.40q is not RFC 3339", j.Time)
		}
		e.Time = t.UTC()
	}
	if len(j.Data) == 0 {
		return Event{}, fmt.Errorf("%s: data is missing", kind.Name)
	}
	if err := (protojson.UnmarshalOptions{RecursionLimit: 100}).Unmarshal(j.Data, e.Payload); err != nil {
		return Event{}, fmt.Errorf("%s: %w", kind.Name, err)
	}
	if err := e.validate(); err != nil {
		return Event{}, fmt.Errorf("%s: %w", kind.Name, err)
	}
	return e, nil
}
