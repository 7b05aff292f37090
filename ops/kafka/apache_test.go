package kafka_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/embedded/apache"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/logtest"
)

// Goal: the log on Apache Kafka is a schemas.Log, the fencing of a former owner by the broker included, and what it acknowledged survives
// kill -9 of the only broker, with the group's commits. Method: the common suite; then records and commits, a kill, a restart, and the same log
// object, which has to find its way back by itself.
func TestLogOnApacheKafka(t *testing.T) {
	c := apache.ForTest(t, 1, quietLogger(t))
	if c == nil {
		return
	}
	logtest.Run(t, func(t *testing.T) logtest.Harness { return harness(t, c.Brokers(), 1) })
	t.Run("SurvivesKill", func(t *testing.T) {
		l := open(t, config(c.Brokers(), 1))
		ctx, cancel := context.WithCancel(t.Context())
		// starts gets what a handler of partition 0 began from, once it has committed 3.
		starts, owned := make(chan schemas.Commit, 100), make(chan error, 1)
		go func() {
			owned <- l.Own(ctx, "pair", schemas.TopicTurns, func(own context.Context, claim schemas.Claim) error {
				if claim.Partition() == 0 {
					if err := claim.Commit(own, schemas.Commit{Offset: 3, Note: "kept"}); err != nil {
						return err
					}
					starts <- claim.Committed()
				}
				<-own.Done()
				return nil
			})
		}()
		if got := <-starts; got.Offset != -1 {
			t.Errorf("a new group starts from %+v", got)
		}
		var rs []schemas.Record
		for i := range 100 {
			rs = append(rs, schemas.Record{Topic: schemas.TopicTurns, Key: fmt.Appendf(nil, "acme/%d", i)})
		}
		if err := l.Append(t.Context(), rs...); err != nil {
			t.Fatal(err)
		}
		if err := c.Kill(0); err != nil {
			t.Fatal(err)
		}
		appended := make(chan error, 1)
		go func() { appended <- l.Append(t.Context(), rs...) }() // has to wait for the broker
		if err := c.Restart(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := <-appended; err != nil {
			t.Errorf("an append over the restart: %v", err)
		}
		bounds, err := l.Bounds(t.Context(), schemas.TopicTurns)
		if err != nil {
			t.Fatal(err)
		}
		total := int64(0)
		for _, b := range bounds {
			total += b.Next
		}
		if total < 200 {
			t.Errorf("%d records after the restart, want at least the 200 that were acknowledged", total)
		}
		if got := <-starts; got != (schemas.Commit{Offset: 3, Note: "kept"}) {
			t.Errorf("after the restart the owner starts from %+v, want offset 3", got)
		}
		cancel()
		if err := <-owned; err != nil {
			t.Error(err)
		}
	})
}

// Goal: with three copies of everything the log takes and keeps appends while one node is down. Method: three nodes, the first killed between
// two appends; everything acknowledged is read back from the other two.
func TestThreeNodesSurviveTheLossOfOne(t *testing.T) {
	c := apache.ForTest(t, 3, quietLogger(t))
	if c == nil {
		return
	}
	cfg := config(c.Brokers(), 3)
	cfg.Topics = []string{schemas.TopicTurns}
	l := open(t, cfg)
	batch := func(from int) []schemas.Record {
		var rs []schemas.Record
		for i := from; i < from+50; i++ {
			rs = append(rs, schemas.Record{Topic: schemas.TopicTurns, Key: fmt.Appendf(nil, "acme/%d", i)})
		}
		return rs
	}
	if err := l.Append(t.Context(), batch(0)...); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(0); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), batch(50)...); err != nil {
		t.Fatalf("append while one of three nodes is down: %v", err)
	}
	bounds, err := l.Bounds(t.Context(), schemas.TopicTurns)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for p, b := range bounds {
		cur, err := l.Open(t.Context(), schemas.TopicTurns, p, b.First)
		if err != nil {
			t.Fatal(err)
		}
		for at := b.First; at < b.Next; {
			rs, err := cur.Next(t.Context(), 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rs {
				found[string(r.Key)], at = true, r.Offset+1
			}
		}
		if err := cur.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(found) != 100 {
		t.Errorf("%d different records are in the log, want the 100 that were acknowledged", len(found))
	}
}
