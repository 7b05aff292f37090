package broker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/nextstate-rl/nextstate/ops/embedded/broker"
)

func logger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
}

func start(t *testing.T, c broker.Config) (*broker.Broker, *kgo.Client) {
	t.Helper()
	b, err := broker.Start(t.Context(), c, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addr()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MaxBufferedRecords(1000), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, client
}

func create(t *testing.T, client *kgo.Client, topic string) {
	t.Helper()
	retention := "1" // one millisecond, which the broker must not act on by itself
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, map[string]*string{"retention.ms": &retention}, topic); err != nil {
		t.Fatal(err)
	}
}

// produce appends n records of size bytes that do not compress, and returns the first error.
func produce(t *testing.T, client *kgo.Client, topic string, n, size int) error {
	t.Helper()
	rng := rand.NewChaCha8([32]byte{})
	var rs []*kgo.Record
	for range n {
		v := make([]byte, size)
		_, _ = rng.Read(v) // never fails
		rs = append(rs, &kgo.Record{Topic: topic, Value: v})
	}
	return client.ProduceSync(t.Context(), rs...).FirstErr()
}

func bounds(t *testing.T, client *kgo.Client, topic string) (first, next int64) {
	t.Helper()
	admin := kadm.NewClient(client)
	f, err := admin.ListStartOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	n, err := admin.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	fo, _ := f.Lookup(topic, 0)
	no, _ := n.Lookup(topic, 0)
	return fo.Offset, no.Offset
}

func commit(t *testing.T, client *kgo.Client, group, topic string, offset int64) {
	t.Helper()
	var to kadm.Offsets
	to.AddOffset(topic, 0, offset, -1)
	if err := kadm.NewClient(client).CommitAllOffsets(t.Context(), group, to); err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// Goal: one process a folder; the port, records and commits survive a restart. Method: a second start on the same folder is refused, a start
// after Close finds everything.
func TestRestart(t *testing.T) {
	c := broker.Config{Dir: t.TempDir(), Fsync: true}
	b, client := start(t, c)
	if _, err := broker.Start(t.Context(), c, logger(t)); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("second start on the same folder: error %v, want one that says it is in use", err)
	}
	create(t, client, "turns")
	if err := produce(t, client, "turns", 10, 100); err != nil {
		t.Fatal(err)
	}
	commit(t, client, "pair", "turns", 7)
	addr := b.Addr()
	client.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b, client = start(t, c)
	if b.Addr() != addr {
		t.Errorf("the address is %s after a restart, %s before", b.Addr(), addr)
	}
	if first, next := bounds(t, client, "turns"); first != 0 || next != 10 {
		t.Errorf("after a restart the log is %d to %d, want 0 to 10", first, next)
	}
	o, err := kadm.NewClient(client).FetchOffsets(t.Context(), "pair")
	if err != nil {
		t.Fatal(err)
	}
	if at, _ := o.Lookup("turns", 0); at.At != 7 {
		t.Errorf("after a restart the group is at %d, want 7", at.At)
	}
}

// Goal: the janitor makes room by deleting what every group has read, and nothing else. Method: far more than MaxBytes is appended; nothing goes
// while nobody has read it, then as far as the slower of two groups, then down to the limit.
func TestJanitorKeepsWhatIsNeeded(t *testing.T) {
	const n = 4000
	b, client := start(t, broker.Config{Dir: t.TempDir(), MaxBytes: 2 << 20, FullBytes: 1 << 40, Interval: 20 * time.Millisecond})
	create(t, client, "turns")
	if err := produce(t, client, "turns", n, 2<<10); err != nil {
		t.Fatal(err)
	}
	until(t, "the janitor has seen the records", func() bool { return b.Bytes() > 7<<20 })
	sweeps(t, b, client)
	if first, _ := bounds(t, client, "turns"); first != 0 {
		t.Fatalf("records before %d are gone though nobody has read any", first)
	}
	commit(t, client, "slow", "turns", 1000)
	commit(t, client, "fast", "turns", n)
	until(t, "the first thousand are gone", func() bool { first, _ := bounds(t, client, "turns"); return first == 1000 })
	sweeps(t, b, client)
	if first, _ := bounds(t, client, "turns"); first != 1000 {
		t.Fatalf("records before %d are gone though one group needs them from 1000 on", first)
	}
	commit(t, client, "slow", "turns", n)
	until(t, "the log is small enough", func() bool { return b.Bytes() <= 2<<20 })
	if first, next := bounds(t, client, "turns"); next != n || first >= next {
		t.Errorf("the log is %d to %d, want some records and the end at %d", first, next, n)
	}
}

// sweeps waits for several sweeps of the janitor: it appends small records until the janitor has noticed each.
func sweeps(t *testing.T, b *broker.Broker, client *kgo.Client) {
	t.Helper()
	for i := range 3 {
		topic := fmt.Sprintf("marker-%d-%d", time.Now().UnixNano(), i)
		create(t, client, topic)
		before := b.Bytes()
		if err := produce(t, client, topic, 1, 10); err != nil {
			t.Fatal(err)
		}
		until(t, "the janitor has seen the marker", func() bool { return b.Bytes() != before })
	}
}

// Goal: old records go, but never the last of a partition, so that offsets survive a restart. Method: a retention of a millisecond; then a restart.
func TestJanitorNeverEmptiesAPartition(t *testing.T) {
	c := broker.Config{Dir: t.TempDir(), Retention: time.Millisecond, Interval: 10 * time.Millisecond}
	b, client := start(t, c)
	create(t, client, "turns")
	if err := produce(t, client, "turns", 100, 10); err != nil {
		t.Fatal(err)
	}
	commit(t, client, "pair", "turns", 100)
	until(t, "all but one are gone", func() bool { first, _ := bounds(t, client, "turns"); return first == 99 })
	sweeps(t, b, client)
	client.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	_, client = start(t, c)
	if first, next := bounds(t, client, "turns"); first != 99 || next != 100 {
		t.Errorf("after a restart the log is %d to %d, want 99 to 100", first, next)
	}
}

// Goal: a log that is full of records that are needed refuses new source events, lets derived ones pass, and takes source events again when
// there is room. Method: fill it past FullBytes, then read everything.
func TestFullLogPushesBack(t *testing.T) {
	b, client := start(t, broker.Config{Dir: t.TempDir(), MaxBytes: 1 << 20, FullBytes: 4 << 20, Interval: 10 * time.Millisecond})
	create(t, client, "a.interactions")
	create(t, client, "a.turns")
	commit(t, client, "pair", "a.interactions", 0)
	until(t, "source events are refused", func() bool {
		err := produce(t, client, "a.interactions", 50, 5<<10)
		if err != nil && !errors.Is(err, kerr.ThrottlingQuotaExceeded) {
			t.Fatal(err)
		}
		return err != nil
	})
	if err := produce(t, client, "a.turns", 1, 10); err != nil {
		t.Errorf("a derived event was refused: %v", err)
	}
	_, next := bounds(t, client, "a.interactions")
	commit(t, client, "pair", "a.interactions", next)
	until(t, "source events are taken again", func() bool { return produce(t, client, "a.interactions", 1, 10) == nil })
	if first, next := bounds(t, client, "a.interactions"); first == 0 || first >= next {
		t.Errorf("the log is %d to %d, want some of its beginning gone and some of it there", first, next)
	}
	if b.Bytes() > 4<<20 {
		t.Errorf("the log still has %d bytes", b.Bytes())
	}
}

// Goal: a configuration that cannot work is refused with the key that is wrong. Method: one wrong value at a time.
func TestConfig(t *testing.T) {
	for want, c := range map[string]broker.Config{
		"broker.dir":        {},
		"broker.partitions": {Dir: "x", Partitions: -1},
		"broker.retention":  {Dir: "x", Retention: -1},
		"broker.full_bytes": {Dir: "x", MaxBytes: 10, FullBytes: 5},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one that names %s", c, err, want)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := broker.Start(over, broker.Config{Dir: t.TempDir()}, logger(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("start with a context that is over: %v", err)
	}
}
