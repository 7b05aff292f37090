package memlog_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// Goal: a test can rely on each fault doing what its name says. Method: one record under each fault, then count what is in the log.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		fault memlog.Fault
		fails bool
		added int64
	}{{memlog.Applied, false, 1}, {memlog.Refused, true, 0}, {memlog.AckLost, true, 1}, {memlog.Duplicated, false, 2}} {
		l := memlog.New(1)
		l.OnAppend(func([]schemas.Record) memlog.Fault { return c.fault })
		err := l.Append(t.Context(), schemas.Record{Topic: "turns", Key: []byte("a/b")})
		if errors.Is(err, memlog.ErrInjected) != c.fails {
			t.Errorf("fault %d: error %v", c.fault, err)
		}
		b, err := l.Bounds(t.Context(), "turns")
		if err != nil {
			t.Fatal(err)
		}
		if b[0].Next != c.added {
			t.Errorf("fault %d: %d records in the log, want %d", c.fault, b[0].Next, c.added)
		}
	}
}

// Goal: Fence makes an owner a former one that notices only by its commit, and the partition is owned again after that. Method: the
// first claim is fenced before it commits; the second one commits and ends the test.
func TestFence(t *testing.T) {
	l := memlog.New(1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var outcomes []error
	err := l.Own(ctx, "pair", "turns", func(own context.Context, c schemas.Claim) error {
		if len(outcomes) == 0 {
			l.Fence("pair", "turns")
		} else {
			defer cancel()
		}
		err := c.Commit(own, schemas.Commit{Offset: 7})
		outcomes = append(outcomes, err)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(outcomes) != 2 || !errors.Is(outcomes[0], schemas.ErrFenced) || outcomes[1] != nil {
		t.Fatalf("commits ended with %v, want one fenced and one that succeeds", outcomes)
	}
}
