package processors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Names of the stages; a stage's consumer group is GroupPrefix and its name.
const (
	StagePair     = "pair"
	StageEvaluate = "evaluate"
	StageDirect   = "direct"
	StageAssemble = "assemble"

	GroupPrefix = "nextstate-"
)

// Processor derives events from events. The runner calls Process once for each decoded record of one partition, in offset order
// (concurrently, and for several partitions, when the stage has Workers > 1). It must be deterministic but for the interfaces that it was
// given. The event is the processor's to keep, not to change; what it returns belongs to the caller, in the order of writing. It may return
// a DeadLettered event for an input that it refuses.
//
// An error made with Permanent dead-letters the record; any other one is retried, so the processor's state must be as before the call.
type Processor interface {
	Process(ctx context.Context, e schemas.Event) ([]schemas.Event, error)
}

// Watermarked is a processor whose state is rebuilt from the log. The runner asks after each chunk: offset is the smallest one that the
// state still needs; open is false when it needs none.
type Watermarked interface {
	LowWatermark() (offset int64, open bool)
}

// Noted is a processor that keeps a little of its position in the commit itself: Note is stored with a commit (at most about 3,000
// bytes) and given to Restore of a new processor, before its first event, when the partition has a new owner.
type Noted interface {
	Note() json.RawMessage
	Restore(note json.RawMessage) error
}

// Stage is one line in the table of stages.
type Stage struct {
	// Name is one of the Stage constants.
	Name string
	// Topic is read; what is written goes where the kinds of the outputs belong.
	Topic string
	// New makes the processor of one claimed partition. If it is an io.Closer, it is closed when the claim ends.
	New func(partition int) (Processor, error)
	// Workers bounds the events that are processed at once. More than 1 needs a processor without state; outputs stay in order.
	Workers int
	// Chunk is how many records are handed on together: many for fast processors, 1 for those that wait.
	Chunk int
}

// Permanent marks an error that trying again cannot cure: the record is dead-lettered.
func Permanent(err error) error { return &permanentError{err} }

type permanentError struct{ err error }

func (p *permanentError) Error() string { return p.err.Error() }
func (p *permanentError) Unwrap() error { return p.err }

// IsPermanent reports whether an error was made with Permanent.
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

// refuse makes the dead letter of an event whose record is no longer at hand. Its bytes are the canonical encoding of the event.
func refuse(stage, reason string, e schemas.Event) schemas.Event {
	r, err := schemas.Encode(e)
	if err != nil {
		// Decode accepted the event, so only its size can be in the way (a foreign encoding can be a little shorter than ours).
		reason = fmt.Sprintf("%s (the bytes are lost: %v)", reason, err)
		r = schemas.Record{Key: schemas.Key(e.Tenant, e.Session), Time: e.LogTime}
	}
	r.Topic, r.Partition, r.Offset = e.Position.Topic, e.Position.Partition, e.Position.Offset
	return schemas.DeadLetter(stage, reason, r)
}
