package logtest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Goal: what is read is what was appended, to the byte. Method: records with every awkward kind of key, value, header and time, in one
// call for several partitions; then each partition is read and compared.
func testBytes(t *testing.T, h Harness) {
	when := time.UnixMilli(1_700_000_000_123).UTC()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	sent := []schemas.Record{
		{Topic: schemas.TopicTurns, Key: []byte("acme/a"), Value: all, Time: when, Headers: []schemas.Header{{Key: "ce_id", Value: all}, {Key: "ce_id", Value: []byte("again")}, {Key: "", Value: []byte{}}}},
		{Topic: schemas.TopicTurns, Key: []byte("acme/b"), Value: []byte{}, Time: when.Add(-time.Hour)},
		{Topic: schemas.TopicTurns, Key: []byte("acme/c"), Value: nil, Time: when.Add(999_999 * time.Nanosecond)},
		{Topic: schemas.TopicTurns, Key: []byte{}, Value: []byte("empty key"), Time: when},
		{Topic: schemas.TopicTurns, Key: nil, Value: []byte("no key"), Time: when},
		{Topic: schemas.TopicTurns, Key: all, Value: bytes.Repeat([]byte("abc"), 50_000), Time: when},
		{Topic: schemas.TopicTurns, Key: []byte("acme/now"), Value: []byte("the log takes the time")},
	}
	mustAppend(t, h.Log, sent...)
	want := make([][]schemas.Record, h.Partitions)
	for _, r := range sent {
		p := schemas.PartitionOf(r.Key, h.Partitions)
		want[p] = append(want[p], r)
	}
	for p, rs := range want {
		for i, got := range read(t, h.Log, schemas.TopicTurns, p, 0, len(rs)) {
			r := rs[i]
			if got.Topic != r.Topic || got.Partition != p || got.Offset != int64(i) {
				t.Errorf("record %q is at %s/%d offset %d, want %s/%d offset %d", r.Key, got.Topic, got.Partition, got.Offset, r.Topic, p, i)
			}
			if !bytes.Equal(got.Key, r.Key) || !bytes.Equal(got.Value, r.Value) {
				t.Errorf("record %q: key or value differ: %.60q %.60q", r.Key, got.Key, got.Value)
			}
			if r.Time.IsZero() && got.Time.Before(when) {
				t.Errorf("record %q was not given a time", r.Key)
			}
			if !r.Time.IsZero() && !got.Time.Equal(r.Time.Truncate(time.Millisecond)) {
				t.Errorf("record %q has the time %v, want %v", r.Key, got.Time, r.Time)
			}
			if len(got.Headers) != len(r.Headers) {
				t.Fatalf("record %q has %d headers, want %d", r.Key, len(got.Headers), len(r.Headers))
			}
			for k, hd := range r.Headers {
				if got.Headers[k].Key != hd.Key || !bytes.Equal(got.Headers[k].Value, hd.Value) {
					t.Errorf("record %q: header %d is %q=%q, want %q=%q", r.Key, k, got.Headers[k].Key, got.Headers[k].Value, hd.Key, hd.Value)
				}
			}
		}
	}
}

// Goal: the records of a key have the order in which they were appended, across calls and batches, and are all in one partition. Method:
// several keys, their records interleaved, in calls of growing size up to more than one request holds.
func testOrder(t *testing.T, h Harness) {
	const keys, each = 5, 3000
	var rs []schemas.Record
	for i := range each {
		for k := range keys {
			rs = append(rs, schemas.Record{Topic: schemas.TopicInteractions, Key: fmt.Appendf(nil, "acme/%d", k), Value: fmt.Append(nil, i)})
		}
	}
	for n, rest := 1, rs; len(rest) > 0; n *= 7 {
		n = min(n, len(rest))
		mustAppend(t, h.Log, rest[:n]...)
		rest = rest[n:]
	}
	last := map[string]int{}
	total := 0
	for p, b := range mustBounds(t, h.Log, schemas.TopicInteractions) {
		total += int(b.Next)
		for i, r := range read(t, h.Log, schemas.TopicInteractions, p, 0, int(b.Next)) {
			if r.Offset != int64(i) {
				t.Fatalf("partition %d: record %d has offset %d", p, i, r.Offset)
			}
			if want := schemas.PartitionOf(r.Key, h.Partitions); want != p {
				t.Fatalf("key %q is in partition %d, want %d", r.Key, p, want)
			}
			n, err := strconv.Atoi(string(r.Value))
			if err != nil || n != last[string(r.Key)] {
				t.Fatalf("key %q: value %q, want %d", r.Key, r.Value, last[string(r.Key)])
			}
			last[string(r.Key)]++
		}
	}
	if total != keys*each {
		t.Errorf("%d records in the log, want %d", total, keys*each)
	}
}

// Goal: large records go through whole and too large ones are refused for good without harming others. Method: 9 MiB that do not
// compress, between small ones; one byte too many; then another small one.
func testLarge(t *testing.T, h Harness) {
	key := keyIn(1, h.Partitions, 0)
	large := make([]byte, 9<<20)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(large) // never fails
	rec := func(v []byte) schemas.Record {
		return schemas.Record{Topic: schemas.TopicDeadLetters, Key: key, Value: v}
	}
	mustAppend(t, h.Log, rec([]byte("before")), rec(large), rec([]byte("after")))
	err := h.Log.Append(limited(t), rec(make([]byte, schemas.MaxRecordBytes+1)))
	wantError(t, "too large", err, schemas.ErrTooLarge)
	mustAppend(t, h.Log, rec([]byte("later")))
	got := read(t, h.Log, schemas.TopicDeadLetters, 1, 0, 4)
	for i, want := range [][]byte{[]byte("before"), large, []byte("after"), []byte("later")} {
		if !bytes.Equal(got[i].Value, want) {
			t.Errorf("record %d has %d bytes, %.20q..., want %d", i, len(got[i].Value), got[i].Value, len(want))
		}
	}
}

// Goal: a cursor starts where it was opened, waits at the end, and waits before an offset that does not exist yet. Method: open in the
// middle, at the end and two beyond it, then append.
func testOpen(t *testing.T, h Harness) {
	ctx := limited(t)
	mustAppend(t, h.Log, numbered(h, schemas.TopicHints, 0, 0, 10)...)
	if got := read(t, h.Log, schemas.TopicHints, 0, 7, 3); got[0].Offset != 7 || string(got[2].Value) != "9" {
		t.Errorf("opened at 7: first offset %d, last value %q", got[0].Offset, got[2].Value)
	}
	for _, bad := range []struct {
		topic     string
		partition int
		offset    int64
	}{{schemas.TopicHints, h.Partitions, 0}, {schemas.TopicHints, -1, 0}, {schemas.TopicHints, 0, -1}, {"", 0, 0}} {
		if c, err := h.Log.Open(ctx, bad.topic, bad.partition, bad.offset); err == nil {
			t.Errorf("%q/%d could be opened at %d", bad.topic, bad.partition, bad.offset)
			closeCursor(t, c)
		}
	}
	var wg sync.WaitGroup
	for _, start := range []int64{10, 12} {
		c, err := h.Log.Open(ctx, schemas.TopicHints, 0, start)
		if err != nil {
			t.Fatalf("open at %d of 10: %v", start, err)
		}
		wg.Go(func() {
			rs, err := c.Next(ctx, 1)
			if err != nil || rs[0].Offset != start || string(rs[0].Value) != fmt.Sprint(start) {
				t.Errorf("opened at %d: %d records, error %v", start, len(rs), err)
			}
		})
		defer closeCursor(t, c)
	}
	mustAppend(t, h.Log, numbered(h, schemas.TopicHints, 0, 10, 5)...)
	wg.Wait()
}

// Goal: whoever asks for records that are no longer retained hears so, instead of getting later ones. Method: truncate at 6 of 10, then
// open before, at and after it.
func testTruncated(t *testing.T, h Harness) {
	mustAppend(t, h.Log, numbered(h, schemas.TopicTurns, 1, 0, 5)...)
	mustAppend(t, h.Log, numbered(h, schemas.TopicTurns, 1, 5, 5)...)
	h.Truncate(t, schemas.TopicTurns, 1, 6)
	if b := mustBounds(t, h.Log, schemas.TopicTurns)[1]; b != (schemas.Bounds{First: 6, Next: 10}) {
		t.Errorf("bounds are %+v, want 6 to 10", b)
	}
	for _, offset := range []int64{0, 5} {
		c, err := h.Log.Open(limited(t), schemas.TopicTurns, 1, offset)
		if err == nil {
			closeCursor(t, c)
		}
		wantError(t, fmt.Sprint("open at ", offset), err, schemas.ErrTruncated)
	}
	for _, offset := range []int64{6, 8} {
		if got := read(t, h.Log, schemas.TopicTurns, 1, offset, 2); got[0].Offset != offset {
			t.Errorf("opened at %d: first offset %d", offset, got[0].Offset)
		}
	}
	mustAppend(t, h.Log, numbered(h, schemas.TopicTurns, 1, 10, 1)...)
	if got := read(t, h.Log, schemas.TopicTurns, 1, 10, 1); string(got[0].Value) != "10" {
		t.Errorf("offset 10 holds %q", got[0].Value)
	}
}

// Goal: a context that ends ends the call with its error, and nothing else. Method: every call with a context that is over, and a wait
// that is interrupted; then the same cursor reads on.
func testCancelled(t *testing.T, h Harness) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, "Append", h.Log.Append(over, numbered(h, schemas.TopicTurns, 0, 0, 1)...), context.Canceled)
	_, err := h.Log.Bounds(over, schemas.TopicTurns)
	wantError(t, "Bounds", err, context.Canceled)
	_, err = h.Log.Open(over, schemas.TopicTurns, 0, 0)
	wantError(t, "Open", err, context.Canceled)
	_, err = h.Log.Committed(over, "g", schemas.TopicTurns)
	wantError(t, "Committed", err, context.Canceled)
	if err := h.Log.Own(over, "g", schemas.TopicTurns, func(context.Context, schemas.Claim) error { return nil }); err != nil {
		t.Errorf("Own with a context that is over: %v, want nil", err)
	}
	// An append that ended with its context may be in the log or not, so go on in another partition.
	c, err := h.Log.Open(limited(t), schemas.TopicTurns, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeCursor(t, c)
	waiting, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	_, err = c.Next(waiting, 1)
	wantError(t, "Next", err, context.DeadlineExceeded)
	mustAppend(t, h.Log, numbered(h, schemas.TopicTurns, 1, 0, 1)...)
	if rs := next(t, c, 1); string(rs[0].Value) != "0" {
		t.Errorf("after the interruption: %q", rs[0].Value)
	}
}

// Goal: Bounds tells what is there, by partition. Method: an empty topic, then records in one partition.
func testBounds(t *testing.T, h Harness) {
	if got := mustBounds(t, h.Log, schemas.TopicSamples); len(got) != h.Partitions || got[0] != (schemas.Bounds{}) {
		t.Fatalf("empty topic: %+v, want %d empty partitions", got, h.Partitions)
	}
	mustAppend(t, h.Log, numbered(h, schemas.TopicSamples, 1, 0, 3)...)
	got := mustBounds(t, h.Peer(t), schemas.TopicSamples)
	if got[1] != (schemas.Bounds{First: 0, Next: 3}) || got[0] != (schemas.Bounds{}) {
		t.Errorf("three records in partition 1: %+v", got)
	}
}

func mustBounds(t *testing.T, l schemas.Log, topic string) []schemas.Bounds {
	t.Helper()
	b, err := l.Bounds(limited(t), topic)
	if err != nil {
		t.Fatalf("bounds of %s: %v", topic, err)
	}
	return b
}

// Goal: concurrent appends lose nothing, double nothing, and keep the order of each. Method: writers with a key each, all to the same
// partition, in calls of different sizes.
func testConcurrent(t *testing.T, h Harness) {
	const writers, each = 8, 300
	ctx := limited(t)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			key := keyIn(0, h.Partitions, w)
			for i := 0; i < each; {
				n := min(1+i%(w+2), each-i)
				rs := make([]schemas.Record, n)
				for k := range rs {
					rs[k] = schemas.Record{Topic: schemas.TopicVerdicts, Key: key, Value: fmt.Append(nil, i+k)}
				}
				if err := h.Log.Append(ctx, rs...); err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
				clear(rs[0].Value) // the records are the caller's again
				i += n
			}
		})
	}
	wg.Wait()
	if b := mustBounds(t, h.Log, schemas.TopicVerdicts)[0]; b.Next != writers*each {
		t.Fatalf("%d records in the log, want %d", b.Next, writers*each)
	}
	seen := map[string]int{}
	for _, r := range read(t, h.Log, schemas.TopicVerdicts, 0, 0, writers*each) {
		if want := strconv.Itoa(seen[string(r.Key)]); string(r.Value) != want {
			t.Fatalf("key %q: value %q, want %q", r.Key, r.Value, want)
		}
		seen[string(r.Key)]++
	}
}

// Goal: an append whose acknowledgement was lost loses nothing and keeps the order of what is first seen, whether the log repeats it or
// its caller. Method: lose one acknowledgement of three calls; repeat the call as long as it fails.
func testLostAck(t *testing.T, h Harness) {
	for i := range 3 {
		if i == 1 {
			h.LoseAck(t)
		}
		for {
			err := h.Log.Append(limited(t), numbered(h, schemas.TopicTurns, 0, 5*i, 5)...)
			if err == nil {
				break
			}
			if limited(t).Err() != nil {
				t.Fatalf("append: %v", err)
			}
		}
	}
	n := int(mustBounds(t, h.Log, schemas.TopicTurns)[0].Next)
	seen, first := map[string]bool{}, 0
	for _, r := range read(t, h.Log, schemas.TopicTurns, 0, 0, n) {
		if seen[string(r.Value)] {
			continue
		}
		seen[string(r.Value)] = true
		if string(r.Value) != strconv.Itoa(first) {
			t.Fatalf("%q is first seen where %d is due", r.Value, first)
		}
		first++
	}
	if first != 15 {
		t.Errorf("%d different records, want 15", first)
	}
	if n != 20 {
		t.Errorf("%d records in the log, want 20: the five whose acknowledgement was lost are there twice", n)
	}
}
