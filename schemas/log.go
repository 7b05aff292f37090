package schemas

import (
	"context"
	"errors"
	"time"
)

// Record is one record of the log, as stored. Records that were read belong to the reader until its next call.
type Record struct {
	Topic     string
	Partition int
	Offset    int64
	// Time is the record's timestamp with millisecond precision. Zero on append: the log takes the current time.
	Time    time.Time
	Key     []byte
	Headers []Header
	Value   []byte
}

// Header is one record header.
type Header struct {
	Key   string
	Value []byte
}

// Errors of a log that callers act on.
var (
	// ErrFenced: this owner is no longer the owner of the partition. Stop; whatever was not committed will be done again by the new one.
	ErrFenced = errors.New("fenced: the partition has another owner")
	// ErrTruncated: the records asked for are no longer retained. The history in ClickHouse has them.
	ErrTruncated = errors.New("records are no longer retained by the log")
	// ErrTooLarge: the log will never take this record. Permanent.
	ErrTooLarge = errors.New("record is too large for the log")
)

// Appender writes to the log.
type Appender interface {
	// Append writes the records to the partitions that their keys choose, those of one partition in order. It returns nil when every
	// record is acknowledged as durable. On an error any subset may be in the log: appending again is safe because ids are deduplicated.
	// Safe for concurrent use. The records stay the caller's.
	Append(ctx context.Context, records ...Record) error
}

// Reader reads the log without owning anything.
type Reader interface {
	// Open returns a cursor on one partition. ErrTruncated when offset is before the first retained record.
	Open(ctx context.Context, topic string, partition int, offset int64) (Cursor, error)
	// Bounds returns the retained range of each partition, by partition number.
	Bounds(ctx context.Context, topic string) ([]Bounds, error)
}

// Cursor walks one partition. For one goroutine.
type Cursor interface {
	// Next waits for at least one record and returns those that are there, at most max, in offset order. ctx ends the wait with its error.
	Next(ctx context.Context, max int) ([]Record, error)
	Close() error
}

// Bounds of a partition: the first retained offset and the offset after the last record. Empty when equal.
type Bounds struct{ First, Next int64 }

// Owner gives out partitions.
type Owner interface {
	// Own joins the consumer group and calls own once for each partition of topic that the group assigns to this member, each in a
	// goroutine of its own, until ctx ends. own returns when its ctx ends (the partition goes elsewhere) or with an error: the member then
	// leaves, backs off and joins again, and own starts over from the last commit. Own returns nil when ctx ends.
	Own(ctx context.Context, group, topic string, own func(ctx context.Context, claim Claim) error) error
	// Committed returns the group's commit of each partition of topic, by partition number.
	Committed(ctx context.Context, group, topic string) ([]Commit, error)
}

// Claim is the ownership of one partition by one member of a group.
type Claim interface {
	Topic() string
	Partition() int
	// Committed is the last commit of the group, read after ownership began.
	Committed() Commit
	// Commit records progress. ErrFenced when the partition has another owner by now; other errors may be retried.
	Commit(ctx context.Context, c Commit) error
}

// Commit is a group's progress in one partition.
type Commit struct {
	// Offset is the next record to read; -1: nothing committed yet, start at the first retained record.
	Offset int64
	// Note is for the owner's own use; at most 4,000 bytes.
	Note string
}

// Log is the whole log: append and read, and who reads what. The in-memory log, the embedded broker and Apache Kafka pass the same suite
// (schemas/logtest).
type Log interface {
	Appender
	Reader
	Owner
}
