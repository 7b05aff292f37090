package clickhouse_test

import (
	"context"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
	"github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// quick is a configuration with small batches, so that tests see many ranges.
func quick() clickhouse.Config {
	c := clickhouse.DefaultConfig()
	c.Rows, c.Age, c.RetryMax = 50, 20*time.Millisecond, 200*time.Millisecond
	return c
}

func newSink(t *testing.T, c clickhouse.Config, log schemas.Log, s stores) *clickhouse.Sink {
	t.Helper()
	sink, err := clickhouse.New(c, clickhouse.Stores{Log: log, ClickHouse: s.conn, Postgres: s.pool})
	if err != nil {
		t.Fatal(err)
	}
	return sink
}

// runUntil runs a sink until every topic is committed to its end.
func runUntil(t *testing.T, sink *clickhouse.Sink, log schemas.Log) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sink.Run(ctx) }()
	for !caughtUp(t, log) {
		select {
		case err := <-ended:
			t.Fatalf("the sink ended early: %v", err)
		case <-t.Context().Done():
			t.Fatal("the test ended first")
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func caughtUp(t testing.TB, log schemas.Log) bool {
	t.Helper()
	for _, topic := range schemas.Topics() {
		bounds, err := log.Bounds(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		commits, err := log.Committed(t.Context(), quick().Group(topic), topic)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range bounds {
			if b.Next > b.First && (i >= len(commits) || commits[i].Offset < b.Next) {
				return false
			}
		}
	}
	return true
}

// Goal: every kind reaches its table and the history gives back every record byte for byte. Method: sessions with every kind and every
// field, undecodable records and a second copy of everything go through the sink; tables are counted, records compared.
func TestEveryKind(t *testing.T) {
	s, log := open(t), memlog.New(2)
	events := append(sessionEvents("s0", 4), sessionEvents("s1", 3)...)
	events = append(events, trainingEvents()...)
	want := map[string]uint64{}
	for _, e := range events {
		want[e.Kind()]++
	}
	if len(want) != len(schemas.Kinds()) {
		t.Fatalf("the test writes %d kinds of %d", len(want), len(schemas.Kinds()))
	}
	records := encode(t, events)
	odd := schemas.Record{
		Topic: schemas.TopicTurns, Key: []byte("acme/s0"), Value: []byte("\xff\x00"), Time: start.Truncate(time.Millisecond),
		Headers: []schemas.Header{{Key: "x", Value: []byte{0, 0xff}}, {Key: "x"}},
	}
	records = append(records, odd)
	if err := log.Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	if err := log.Append(t.Context(), records[:len(records)-1]...); err != nil {
		t.Fatal(err)
	}
	runUntil(t, newSink(t, quick(), log, s), log)
	want["DeadLettered"]++ // the odd record's
	for kind, table := range clickhouse.KindTables() {
		if got := one(t, s.conn, "SELECT count() FROM "+table); got != want[kind] {
			t.Errorf("%s: %d rows, want %d", table, got, want[kind])
		}
	}
	if got, want := one(t, s.conn, "SELECT count() FROM events"), uint64(len(records)+1); got != want {
		t.Errorf("events: %d rows, want %d", got, want)
	}
	compareHistory(t, log, s)
}

// compareHistory reads both logs: the history is the log without records that repeat an id.
func compareHistory(t *testing.T, log schemas.Log, s stores) {
	t.Helper()
	history := clickhouse.NewHistory(s.conn)
	for _, topic := range schemas.Topics() {
		bounds, err := log.Bounds(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := history.Bounds(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		for p, b := range bounds {
			var want []schemas.Record
			ids := map[string]bool{}
			for _, r := range readAll(t, log, topic, p, b) {
				if e, err := schemas.Decode(r); err == nil {
					if ids[e.ID] {
						continue
					}
					ids[e.ID] = true
				}
				want = append(want, r)
			}
			if len(want) == 0 {
				continue
			}
			got := readAll(t, history, topic, p, kept[p])
			if len(got) != len(want) {
				t.Errorf("%s/%d: %d records in the history, want %d", topic, p, len(got), len(want))
				continue
			}
			for i := range want {
				if !sameRecord(got[i], want[i]) {
					t.Fatalf("%s/%d: record %d differs:\n got %v\nwant %v", topic, p, want[i].Offset, got[i], want[i])
				}
			}
			compareScans(t, history, topic, p, kept[p], want)
		}
	}
}

// compareScans holds the streamed forms of the history against the records: the bytes, and the hashes that ClickHouse and Go compute.
func compareScans(t *testing.T, history *clickhouse.History, topic string, p int, b schemas.Bounds, want []schemas.Record) {
	t.Helper()
	i, from := 0, want[len(want)/2].Offset
	want = want[len(want)/2:]
	err := history.Scan(t.Context(), topic, p, from, b.Next, func(r schemas.Record) error {
		if i >= len(want) || !sameRecord(r, want[i]) {
			t.Fatalf("%s/%d: scanned record %d differs: %v", topic, p, r.Offset, r)
		}
		i++
		return nil
	})
	if err != nil || i != len(want) {
		t.Fatalf("%s/%d: scanned %d records of %d: %v", topic, p, i, len(want), err)
	}
	digests := map[int64][32]byte{}
	err = history.Digests(t.Context(), topic, p, from, b.Next, func(d clickhouse.Digest) error {
		digests[d.Offset] = d.Hash
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range want {
		_, decodes := schemas.Decode(r)
		if d, ok := digests[r.Offset]; ok != (decodes == nil) || ok && d != clickhouse.DigestOf(r) {
			t.Errorf("%s/%d: digest of record %d: there %t, equal %t", topic, p, r.Offset, ok, d == clickhouse.DigestOf(r))
		}
	}
}

func readAll(t *testing.T, r schemas.Reader, topic string, p int, b schemas.Bounds) []schemas.Record {
	t.Helper()
	if b.First == b.Next {
		return nil
	}
	c, err := r.Open(t.Context(), topic, p, b.First)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	var all []schemas.Record
	for len(all) == 0 || all[len(all)-1].Offset < b.Next-1 {
		records, err := c.Next(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, records...)
	}
	return all
}

func sameRecord(a, b schemas.Record) bool {
	if a.Topic != b.Topic || a.Partition != b.Partition || a.Offset != b.Offset || !a.Time.Equal(b.Time) ||
		string(a.Key) != string(b.Key) || string(a.Value) != string(b.Value) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if a.Headers[i].Key != b.Headers[i].Key || string(a.Headers[i].Value) != string(b.Headers[i].Value) {
			return false
		}
	}
	return true
}
