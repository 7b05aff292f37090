package trainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// ErrFenced is returned (wrapped) by a Ledger that another trainer of the same tenant has claimed since. The former owner claims again.
var ErrFenced = errors.New("fenced: another trainer of this tenant has claimed the ledger")

// Ledger is the trainer's memory: which sample counts in which update, how far `samples` is read, what each update became, and which events still have
// to go to the log. It belongs to one tenant. Every method is one transaction; after an error the caller knows nothing, and claims again. For one
// goroutine. LedgerMemory and LedgerPostgres pass the same suite (TestLedger).
type Ledger interface {
	// Claim waits until no other trainer holds the ledger, takes it, and returns what is in it. Whoever held it before is fenced.
	Claim(ctx context.Context) (*State, error)
	// Used tells which of the samples count in an update already.
	Used(ctx context.Context, ids []string) (map[string]bool, error)
	// Begin writes an update down with its samples and the low watermarks, and puts its UpdateStarted into the outbox. It refuses a number that is
	// not the next one, a second open update, and a sample that is used.
	Begin(ctx context.Context, b Begun) error
	// Finish writes down what the open update became, and puts the event that says it into the outbox.
	Finish(ctx context.Context, f Finished) error
	// Delivered takes an event out of the outbox once the log has it.
	Delivered(ctx context.Context, eventID string) error
	// Release lets another trainer claim at once. The ledger can be claimed again.
	Release(ctx context.Context) error
}

// State is what a Ledger holds when it is claimed.
type State struct {
	// Low are the low watermarks of `samples` by partition: every record before them is dealt with. Shorter than the partitions: 0.
	Low []int64
	// Updates counts the updates that were begun.
	Updates uint64
	// Versions are the published ones in the order of their updates.
	Versions []Version
	// Open is the update that was begun and has no outcome yet; nil when there is none.
	Open *Begun
	// Outbox holds the events that may not be in the log yet, in order.
	Outbox []schemas.Event
}

// Version is a published policy version as the ledger knows it.
type Version struct {
	ID string
	// Checkpoint is the SHA-256 of adapter and optimizer state in the blob store.
	Checkpoint [32]byte
}

// Used is a sample of an update, and where it stands in `samples`.
type Used struct {
	SampleID  string
	Partition int
	Offset    int64
}

// Begun is an update as it is begun.
type Begun struct {
	// Event is its UpdateStarted: number, parent, samples, recipe and seed.
	Event schemas.Event
	// Samples are those of the event, in its order.
	Samples []Used
	// Low are the low watermarks after this update.
	Low []int64
}

// Started is the payload of Event.
func (b *Begun) Started() *schemas.UpdateStarted {
	started, _ := b.Event.Payload.(*schemas.UpdateStarted)
	return started
}

// check refuses what no ledger takes.
func (b *Begun) check() error {
	started := b.Started()
	if started == nil || len(b.Samples) == 0 || len(started.GetSampleIds()) != len(b.Samples) {
		return fmt.Errorf("ledger: an update with %d samples and %d sample ids cannot begin", len(b.Samples), len(started.GetSampleIds()))
	}
	for i, s := range b.Samples {
		if started.GetSampleIds()[i] != s.SampleID {
			return fmt.Errorf("ledger: sample %d of the update is %s and not %s", i, s.SampleID, started.GetSampleIds()[i])
		}
	}
	return nil
}

// Finished is what an update became.
type Finished struct {
	// Event is its PolicyPublished or its UpdateSkipped.
	Event schemas.Event
}

// outcome reads the event: which update ended, and the version, or the reason why there is none.
func (f Finished) outcome() (update uint64, version *Version, skipped string, err error) {
	switch p := f.Event.Payload.(type) {
	case *schemas.PolicyPublished:
		if len(p.GetCheckpointSha256()) == 32 {
			v := versionIn(f.Event)
			return p.GetUpdate(), &v, "", nil
		}
	case *schemas.UpdateSkipped:
		if p.GetReason() != "" {
			return p.GetUpdate(), nil, p.GetReason(), nil
		}
	}
	return 0, nil, "", errors.New("ledger: an update ends with its PolicyPublished, which has a checkpoint, or with its UpdateSkipped, which has a reason")
}

// Identity of the trainer's events.
const (
	eventSource  = "trainer/1"
	eventSession = "policy"
)

// envelope makes an event of the trainer. Its log time is its own time, so that a repeat after a crash is the same record.
func envelope(tenant, id string, at time.Time, payload proto.Message) schemas.Event {
	at = at.UTC().Truncate(time.Millisecond)
	return schemas.Event{ID: id, Source: eventSource, Tenant: tenant, Session: eventSession, Time: at, LogTime: at, Payload: payload}
}

// startedID is the id of an update's UpdateStarted. The tenants of a log all begin with base, so the tenant is part of it.
func startedID(tenant, parent string, update uint64) string {
	return schemas.DerivedID("trainer", "1", "UpdateStarted", fmt.Sprintf("%s/%s/%d", tenant, parent, update), 0)
}

// skippedID is the id of an update's UpdateSkipped.
func skippedID(updateID string) string {
	return schemas.DerivedID("trainer", "1", "UpdateSkipped", updateID, 0)
}

// versionOf is the id of an update's PolicyPublished: the policy version.
func versionOf(updateID string) string {
	return schemas.DerivedID("trainer", "1", "PolicyPublished", updateID, 0)
}
