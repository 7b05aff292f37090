package schemas

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
)

// Sizes in bytes.
const (
	// MaxEventBytes bounds the encoded payload of one event: larger content belongs into the blob store.
	MaxEventBytes = 8 << 20
	// MaxRecordBytes bounds a record of the log: a dead letter holds a whole foreign record.
	MaxRecordBytes = 10 << 20
	maxSession     = 512
	maxTenant      = 63
	maxSource      = 256
	maxHeaders     = 64
	maxEnvelope    = 4096
	// A dead letter keeps this much of what it describes, so that it always fits into a record.
	maxReason    = 4096
	maxHeaderKey = 256
)

// typePrefix stands before the kind in the CloudEvents type.
const typePrefix = "nextstate.v1."

const (
	timeLayout  = time.RFC3339Nano
	contentType = "application/protobuf"
)

// Encode turns an event into the record that is appended: the envelope in headers (CloudEvents 1.0, Kafka binary mode), the payload in
// deterministic Protobuf. It refuses an event that Decode would refuse.
func Encode(e Event) (Record, error) {
	kind, ok := kindByName[e.Kind()]
	if !ok {
		return Record{}, fmt.Errorf("payload %T is not an event", e.Payload)
	}
	if err := e.validate(); err != nil {
		return Record{}, fmt.Errorf("%s %s: %w", kind.Name, e.ID, err)
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.Payload)
	if err != nil {
		return Record{}, fmt.Errorf("%s %s: %w", kind.Name, e.ID, err)
	}
	if limit := valueLimit(kind); len(value) > limit {
		return Record{}, fmt.Errorf("%s %s: %d bytes, at most %d are allowed: put large content into the blob store: %w",
			kind.Name, e.ID, len(value), limit, ErrTooLarge)
	}
	key, headers := envelope(e, kind)
	return Record{Topic: kind.Topic, Time: e.LogTime, Key: key, Headers: headers, Value: value}, nil
}

// envelope writes key and headers into one buffer, because a stage writes millions of them.
func envelope(e Event, kind Kind) (key []byte, headers []Header) {
	const fixed = len("1.0") + len(typePrefix) + len(timeLayout) + len(contentType) + 1
	buf := make([]byte, 0, fixed+len(e.ID)+len(kind.Name)+len(e.Source)+2*len(e.Session)+2*len(e.Tenant)+len(e.TraceParent))
	cut := func(from int) []byte { return buf[from:len(buf):len(buf)] }
	headers = make([]Header, 0, 9)
	add := func(k, v string) {
		at := len(buf)
		buf = append(buf, v...)
		headers = append(headers, Header{Key: k, Value: cut(at)})
	}
	buf = append(append(append(buf, e.Tenant...), '/'), e.Session...)
	key = cut(0)
	add("ce_specversion", "1.0")
	add("ce_id", e.ID)
	at := len(buf)
	buf = append(append(buf, typePrefix...), kind.Name...)
	headers = append(headers, Header{Key: "ce_type", Value: cut(at)})
	add("ce_source", e.Source)
	add("ce_subject", e.Session)
	if !e.Time.IsZero() {
		at := len(buf)
		buf = e.Time.UTC().AppendFormat(buf, timeLayout)
		headers = append(headers, Header{Key: "ce_time", Value: cut(at)})
	}
	add("ce_tenant", e.Tenant)
	if e.TraceParent != "" {
		add("traceparent", e.TraceParent)
	}
	add("content-type", contentType)
	return key, headers
}

func valueLimit(k Kind) int {
	if k.Name == "DeadLettered" {
		return MaxRecordBytes - 4096
	}
	return MaxEventBytes
}

// Decode turns a record that was read back into its event. Every error is permanent: the record is no event of ours, and the caller
// dead-letters it. The event does not share memory with the record.
func Decode(r Record) (Event, error) {
	e, kind, err := decodeEnvelope(r)
	if err != nil {
		return Event{}, err
	}
	if len(r.Value) > valueLimit(kind) {
		return Event{}, fmt.Errorf("%s: %d bytes, at most %d are allowed", kind.Name, len(r.Value), valueLimit(kind))
	}
	e.Payload = kind.New()
	if err := (proto.UnmarshalOptions{RecursionLimit: 100}).Unmarshal(r.Value, e.Payload); err != nil {
		return Event{}, fmt.Errorf("%s: %w", kind.Name, err)
	}
	if err := e.validate(); err != nil {
		return Event{}, fmt.Errorf("%s: %w", kind.Name, err)
	}
	return e, nil
}

// decodeEnvelope reads the headers only.
func decodeEnvelope(r Record) (Event, Kind, error) {
	if len(r.Headers) > maxHeaders {
		return Event{}, Kind{}, fmt.Errorf("%d headers, at most %d are allowed", len(r.Headers), maxHeaders)
	}
	e := Event{Position: Position{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}, LogTime: r.Time}
	var version, id, typ, source, subject, timestamp, tenant, traceparent []byte
	for _, h := range r.Headers {
		switch h.Key {
		case "ce_specversion":
			version = h.Value
		case "ce_id":
			id = h.Value
		case "ce_type":
			typ = h.Value
		case "ce_source":
			source = h.Value
		case "ce_subject":
			subject = h.Value
		case "ce_time":
			timestamp = h.Value
		case "ce_tenant":
			tenant = h.Value
		case "traceparent":
			traceparent = h.Value
		}
	}
	if string(version) != "1.0" {
		return Event{}, Kind{}, fmt.Errorf("ce_specversion %.20q is not 1.0: no CloudEvents record", version)
	}
	name, ok := bytes.CutPrefix(typ, []byte(typePrefix))
	kind, known := kindByName[string(name)]
	if !ok || !known {
		return Event{}, Kind{}, fmt.Errorf("ce_type %.60q is not known to this version", typ)
	}
	if r.Topic != "" && r.Topic != kind.Topic {
		return Event{}, Kind{}, fmt.Errorf("%s belongs to topic %s, not %s", name, kind.Topic, r.Topic)
	}
	if len(timestamp) > 0 {
		if err := e.Time.UnmarshalText(timestamp); err != nil {
			return Event{}, Kind{}, fmt.Errorf("ce_time %.40q is not RFC 3339", timestamp)
		}
		e.Time = e.Time.UTC()
	}
	if n := len(tenant); len(r.Key) != n+1+len(subject) || !bytes.Equal(r.Key[:n], tenant) || r.Key[n] != '/' || !bytes.Equal(r.Key[n+1:], subject) {
		return Event{}, Kind{}, fmt.Errorf("key %.80q is not tenant/session %.80q", r.Key, Key(string(tenant), string(subject)))
	}
	// One string holds the whole envelope: it lives as long as the event, and is one allocation instead of five.
	if n := len(id) + len(source) + len(tenant) + len(subject) + len(traceparent); n > maxEnvelope {
		return Event{}, Kind{}, fmt.Errorf("%s: an envelope of %d bytes, at most %d are allowed", name, n, maxEnvelope)
	}
	var all strings.Builder
	all.Grow(len(id) + len(source) + len(tenant) + len(subject) + len(traceparent))
	for _, part := range [...][]byte{id, source, tenant, subject, traceparent} {
		all.Write(part)
	}
	rest := all.String()
	take := func(n int) (s string) { s, rest = rest[:n], rest[n:]; return s }
	e.ID, e.Source, e.Tenant = take(len(id)), take(len(source)), take(len(tenant))
	e.Session, e.TraceParent = take(len(subject)), take(len(traceparent))
	return e, kind, nil
}

// CheckTenant reports whether a tenant's name is allowed.
func CheckTenant(tenant string) error {
	if tenant == "" || len(tenant) > maxTenant {
		return fmt.Errorf("tenant %.70q: 1 to %d characters are needed", tenant, maxTenant)
	}
	for i, c := range tenant {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (i == 0 || c != '-' && c != '_') {
			return fmt.Errorf("tenant %.70q: only lower-case letters, digits, '-' and '_' are allowed, the first a letter or digit", tenant)
		}
	}
	return nil
}

// CheckSession reports whether a session id is allowed.
func CheckSession(session string) error {
	if session == "" || len(session) > maxSession {
		return fmt.Errorf("session %.40q...: 1 to %d bytes are needed", session, maxSession)
	}
	if !utf8.ValidString(session) {
		return fmt.Errorf("session %.40q...: not valid UTF-8", session)
	}
	for _, c := range session {
		if c < 0x20 || c == 0x7f {
			return fmt.Errorf("session %.40q...: control characters are not allowed", session)
		}
	}
	return nil
}

// DeadLetter makes the event that keeps a record which stage could not take. Its id depends on the stage and the origin only, so that
// doing it again gives the same event.
func DeadLetter(stage, reason string, r Record) Event {
	tenant, session, ok := SplitKey(r.Key)
	if !ok || CheckTenant(tenant) != nil || CheckSession(session) != nil {
		tenant, session = "unknown", "unknown"
	}
	d := &DeadLettered{
		Stage: stage, Reason: validPrefix(reason, maxReason), Key: truncated(r.Key, 4096),
		Origin: &DeadLettered_Position{Position: &LogPosition{Topic: r.Topic, Partition: uint32(r.Partition), Offset: uint64(r.Offset)}}, //nolint:gosec // positions read from the log are not negative
	}
	if !r.Time.IsZero() {
		ms := r.Time.UnixMilli()
		d.RecordTimeMs = &ms
	}
	for _, h := range r.Headers[:min(len(r.Headers), maxHeaders)] {
		d.Headers = append(d.Headers, &RecordHeader{Key: validPrefix(h.Key, maxHeaderKey), Value: truncated(h.Value, 4096)})
	}
	const room = MaxRecordBytes - 1<<20
	d.Value, d.Truncated = truncated(r.Value, room), len(r.Value) > room
	return Event{
		ID:     DerivedID(stage, "dead", "DeadLettered", fmt.Sprintf("%s:%d:%d", r.Topic, r.Partition, r.Offset), 0),
		Source: stage, Tenant: tenant, Session: session, Payload: d, LogTime: r.Time,
	}
}

func truncated(b []byte, limit int) []byte { return b[:min(len(b), limit)] }

// validPrefix keeps at most limit bytes and replaces what is not UTF-8, which may make it up to three times as long.
func validPrefix(s string, limit int) string {
	return strings.ToValidUTF8(s[:min(len(s), limit)], "\uFFFD")
}
