package logtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Harness is one log under test.
type Harness struct {
	// Log is empty: its topics hold no records and its groups no commits. The suite uses the topics of schemas.Topics.
	Log schemas.Log
	// Partitions is the number of partitions of each topic, at least 2.
	Partitions int
	// Peer opens the same log once more, as another process would. It may return Log where that is the same.
	Peer func(t *testing.T) schemas.Log
	// Truncate drops the records of a partition before offset, as retention does.
	Truncate func(t *testing.T, topic string, partition int, offset int64)
	// LoseAck makes the next append through Log be applied and its acknowledgement be lost.
	LoseAck func(t *testing.T)
}

// Run runs the suite; open is called once for each test. Owners that do not let go should be fenced within seconds.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"Bytes", testBytes},
		{"OrderOfAKey", testOrder},
		{"Large", testLarge},
		{"OpenAtOffsets", testOpen},
		{"Truncated", testTruncated},
		{"Cancelled", testCancelled},
		{"Bounds", testBounds},
		{"ConcurrentAppends", testConcurrent},
		{"LostAck", testLostAck},
		{"OwnsEveryPartitionOnce", testOwn},
		{"PartitionsMove", testMove},
		{"RestartContinues", testRestart},
		{"FailureStartsOver", testFailure},
		{"FormerOwnerIsFenced", testFenced},
		{"CommitsAreChecked", testCommitChecked},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

// patience ends a test that hangs. It is no bound on how fast a log has to be.
const patience = 90 * time.Second

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// until waits for cond, which only looks.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func mustAppend(t *testing.T, l schemas.Log, rs ...schemas.Record) {
	t.Helper()
	if err := l.Append(limited(t), rs...); err != nil {
		t.Fatalf("append: %v", err)
	}
}

// keyIn returns a key that belongs to the partition; different n give different keys.
func keyIn(partition, partitions, n int) []byte {
	for i := 0; ; i++ {
		k := fmt.Appendf(nil, "acme/s%d.%d", n, i)
		if schemas.PartitionOf(k, partitions) == partition {
			return k
		}
	}
}

// numbered returns n records of one partition with the values "from".."from+n-1".
func numbered(h Harness, topic string, partition, from, n int) []schemas.Record {
	key := keyIn(partition, h.Partitions, 0)
	rs := make([]schemas.Record, n)
	for i := range rs {
		rs[i] = schemas.Record{Topic: topic, Key: key, Value: fmt.Append(nil, from+i)}
	}
	return rs
}

// read returns n records of a partition from offset on.
func read(t *testing.T, l schemas.Log, topic string, partition int, offset int64, n int) []schemas.Record {
	t.Helper()
	c, err := l.Open(limited(t), topic, partition, offset)
	if err != nil {
		t.Fatalf("open %s/%d at %d: %v", topic, partition, offset, err)
	}
	defer closeCursor(t, c)
	return next(t, c, n)
}

// next returns the next n records of a cursor, with copied bytes.
func next(t *testing.T, c schemas.Cursor, n int) []schemas.Record {
	t.Helper()
	var out []schemas.Record
	for len(out) < n {
		rs, err := c.Next(limited(t), n-len(out))
		if err != nil {
			t.Fatalf("after %d of %d records: %v", len(out), n, err)
		}
		if len(rs) == 0 || len(rs) > n-len(out) {
			t.Fatalf("Next(%d) returned %d records", n-len(out), len(rs))
		}
		for _, r := range rs {
			r.Key, r.Value = append([]byte(nil), r.Key...), append([]byte(nil), r.Value...)
			out = append(out, r)
		}
	}
	return out
}

func closeCursor(t *testing.T, c schemas.Cursor) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("closing the cursor: %v", err)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}
