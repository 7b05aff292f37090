package schemas

import (
	"time"

	"google.golang.org/protobuf/proto"
)

// Event is one immutable fact with its envelope (CloudEvents 1.0).
type Event struct {
	// ID is a UUID in its canonical text form: UUIDv7 for source events, UUIDv8 (a hash) for derived and imported ones.
	ID string
	// Source says who wrote it: "client/go", "import/atif", "pair/1".
	Source string
	// Tenant owns the session; lower-case letters, digits, '-' and '_', at most 63.
	Tenant string
	// Session is the CloudEvents subject: a conversation or an episode; at most 512 bytes.
	Session string
	// Time is when it happened, as the producer says; the zero time is "not known". A derived event has the time of its source.
	Time time.Time
	// TraceParent is the W3C trace context; derived events keep that of their source.
	TraceParent string
	// Payload is one of the messages in Kinds.
	Payload proto.Message

	// Position and LogTime are set when the event was read from the log, and ignored by Encode except LogTime: a derived record
	// carries the log time of the record that triggered it, so that the same log gives the same bytes.
	Position Position
	// LogTime is the record's timestamp, with millisecond precision; zero lets the log choose when the event is appended.
	LogTime time.Time
}

// Position is a place in the log.
type Position struct {
	Topic     string
	Partition int
	Offset    int64
}

// Kind returns the event's name in the table of kinds, such as "ActionTaken", or "" for a payload that is no event.
func (e Event) Kind() string {
	if e.Payload == nil {
		return ""
	}
	return string(e.Payload.ProtoReflect().Descriptor().Name())
}

// Derive makes an event that a processor derived from e: same session, tenant, time and trace, and an id that is a pure function of
// the arguments. Index tells several events of one kind from one source apart.
func (e Event) Derive(processor, version string, payload proto.Message, sourceID string, index int) Event {
	d := Event{
		Source: processor + "/" + version, Tenant: e.Tenant, Session: e.Session, Time: e.Time,
		TraceParent: e.TraceParent, Payload: payload, LogTime: e.LogTime,
	}
	d.ID = DerivedID(processor, version, d.Kind(), sourceID, index)
	return d
}
