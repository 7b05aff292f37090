package logtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	group = "pair"
	topic = schemas.TopicInteractions
)

// ledger notes which member owns which partition.
type ledger struct {
	t      *testing.T
	mu     sync.Mutex
	owners map[int]string
	starts int
}

func newLedger(t *testing.T) *ledger { return &ledger{t: t, owners: map[int]string{}} }

// hold is a handler that owns until it is told to stop.
func (l *ledger) hold(name string) func(context.Context, schemas.Claim) error {
	return func(ctx context.Context, c schemas.Claim) error {
		defer l.take(name, c)()
		<-ctx.Done()
		return ctx.Err()
	}
}

// take notes that name owns the claim, and returns what notes the end of it.
func (l *ledger) take(name string, c schemas.Claim) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Topic() != topic {
		l.t.Errorf("a claim of topic %q, want %q", c.Topic(), topic)
	}
	if other, ok := l.owners[c.Partition()]; ok {
		l.t.Errorf("%s owns partition %d while %s does", name, c.Partition(), other)
	}
	l.owners[c.Partition()] = name
	l.starts++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.owners[c.Partition()] == name {
			delete(l.owners, c.Partition())
		}
	}
}

// counts returns how many partitions each member owns.
func (l *ledger) counts() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := map[string]int{}
	for _, name := range l.owners {
		n[name]++
	}
	return n
}

// member runs Own until stop, which waits for its end.
func member(t *testing.T, l schemas.Log, own func(context.Context, schemas.Claim) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- l.Own(ctx, group, topic, own) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Own ended with %v, want nil", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func mustCommitted(t *testing.T, l schemas.Log) []schemas.Commit {
	t.Helper()
	cs, err := l.Committed(limited(t), group, topic)
	if err != nil {
		t.Fatalf("commits: %v", err)
	}
	return cs
}

// Goal: one member owns every partition, once, and its commits with their notes are the group's. Method: each handler commits its
// partition number; a peer looks.
func testOwn(t *testing.T, h Harness) {
	for p, c := range mustCommitted(t, h.Log) {
		if c != (schemas.Commit{Offset: -1}) {
			t.Errorf("partition %d of a new group: %+v, want offset -1", p, c)
		}
	}
	l := newLedger(t)
	note := func(p int) string { return fmt.Sprintf(`{"next":%d,"text":"ä\u0000"}`, p) }
	stop := member(t, h.Log, func(ctx context.Context, c schemas.Claim) error {
		defer l.take("a", c)()
		if got := c.Committed(); got != (schemas.Commit{Offset: -1}) {
			t.Errorf("partition %d: committed %+v, want offset -1", c.Partition(), got)
		}
		for i := range 3 {
			if err := c.Commit(ctx, schemas.Commit{Offset: int64(100*c.Partition() + i), Note: note(c.Partition())}); err != nil && ctx.Err() == nil {
				t.Errorf("commit: %v", err)
			}
		}
		<-ctx.Done()
		return nil
	})
	peer := h.Peer(t)
	until(t, "every partition has committed", func() bool {
		for p, c := range mustCommitted(t, peer) {
			if c != (schemas.Commit{Offset: int64(100*p + 2), Note: note(p)}) {
				return false
			}
		}
		return true
	})
	if n := l.counts()["a"]; n != h.Partitions || l.starts != h.Partitions {
		t.Errorf("%d partitions are owned after %d handlers began, want %d", n, l.starts, h.Partitions)
	}
	stop()
	if n := len(l.counts()); n != 0 {
		t.Errorf("handlers still ran when Own returned")
	}
}

// Goal: partitions move to a member that joins and back when one leaves, and never have two owners. Method: two clients of the log; the
// ledger objects to two owners at once.
func testMove(t *testing.T, h Harness) {
	l := newLedger(t)
	stopA := member(t, h.Log, l.hold("a"))
	until(t, "a owns all", func() bool { return l.counts()["a"] == h.Partitions })
	stopB := member(t, h.Peer(t), l.hold("b"))
	until(t, "a and b share", func() bool {
		n := l.counts()
		return n["a"] > 0 && n["b"] > 0 && n["a"]+n["b"] == h.Partitions
	})
	stopA()
	until(t, "b owns all", func() bool { return l.counts()["b"] == h.Partitions })
	stopB()
	if n := l.counts(); len(n) != 0 {
		t.Errorf("owners after everybody left: %v", n)
	}
}

// Goal: who owns a partition next goes on where the last owner committed. Method: a member commits and leaves; the next one, through
// another client, sees the commit and its note.
func testRestart(t *testing.T, h Harness) {
	want := schemas.Commit{Offset: 42, Note: "the note"}
	var mu sync.Mutex
	committed := 0
	stop := member(t, h.Log, func(ctx context.Context, c schemas.Claim) error {
		if err := c.Commit(ctx, want); err != nil && ctx.Err() == nil {
			t.Errorf("commit: %v", err)
		}
		mu.Lock()
		committed++
		mu.Unlock()
		<-ctx.Done()
		return nil
	})
	until(t, "all have committed", func() bool { mu.Lock(); defer mu.Unlock(); return committed == h.Partitions })
	stop()
	seen := map[int]schemas.Commit{}
	stop = member(t, h.Peer(t), func(ctx context.Context, c schemas.Claim) error {
		mu.Lock()
		seen[c.Partition()] = c.Committed()
		mu.Unlock()
		<-ctx.Done()
		return nil
	})
	until(t, "all are owned again", func() bool { mu.Lock(); defer mu.Unlock(); return len(seen) == h.Partitions })
	stop()
	for p, got := range seen {
		if got != want {
			t.Errorf("partition %d starts from %+v, want %+v", p, got, want)
		}
	}
}

// Goal: a handler that fails starts over from its last commit, and Own does not end. Method: the handler of one partition commits 1,
// then 2, and fails after each.
func testFailure(t *testing.T, h Harness) {
	var mu sync.Mutex
	var starts []int64
	stop := member(t, h.Log, func(ctx context.Context, c schemas.Claim) error {
		if c.Partition() == 0 {
			from := c.Committed().Offset
			mu.Lock()
			starts = append(starts, from)
			mu.Unlock()
			if from < 2 {
				if err := c.Commit(ctx, schemas.Commit{Offset: max(from, 0) + 1}); err != nil {
					return err
				}
				return errors.New("the handler fails on purpose")
			}
		}
		<-ctx.Done()
		return nil
	})
	until(t, "the handler has begun from offset 2", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(starts) > 0 && starts[len(starts)-1] == 2
	})
	stop()
	if got := fmt.Sprint(starts); got != "[-1 1 2]" {
		t.Errorf("the handler began from %s, want [-1 1 2]", got)
	}
}

// Goal: a former owner that does not know it cannot commit: the group keeps what its successor committed. Method: the first owner of
// partition 0 does not let go when it is told; a second member joins and gets the partition, commits 5, and then the first one commits 1.
func testFenced(t *testing.T, h Harness) {
	ctx := limited(t)
	stubborn, release, outcome := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once sync.Once
	stopA := member(t, h.Log, func(own context.Context, c schemas.Claim) error {
		first := false
		if c.Partition() == 0 {
			once.Do(func() { first = true })
		}
		if !first {
			<-own.Done()
			return nil
		}
		if err := c.Commit(own, schemas.Commit{Offset: 0, Note: "first"}); err != nil {
			t.Errorf("the owner's commit: %v", err)
		}
		close(stubborn)
		<-release
		err := c.Commit(ctx, schemas.Commit{Offset: 1, Note: "former"})
		outcome <- err
		return err
	})
	letGo := sync.OnceFunc(func() { close(release) })
	t.Cleanup(letGo)
	select {
	case <-stubborn:
	case <-ctx.Done():
		t.Fatal("partition 0 was never owned")
	}
	succeeded := make(chan struct{})
	var onceB sync.Once
	stopB := member(t, h.Peer(t), func(own context.Context, c schemas.Claim) error {
		if c.Partition() == 0 {
			if got := c.Committed(); got.Note != "first" && got.Note != "successor" {
				t.Errorf("the successor starts from %+v", got)
			}
			if err := c.Commit(own, schemas.Commit{Offset: 5, Note: "successor"}); err == nil {
				onceB.Do(func() { close(succeeded) })
			}
		}
		<-own.Done()
		return nil
	})
	select {
	case <-succeeded:
	case <-ctx.Done():
		t.Fatal("partition 0 never got another owner")
	}
	letGo()
	wantError(t, "the former owner's commit", <-outcome, schemas.ErrFenced)
	if got := mustCommitted(t, h.Log)[0]; got != (schemas.Commit{Offset: 5, Note: "successor"}) {
		t.Errorf("the group is at %+v, want the successor's 5", got)
	}
	stopA()
	stopB()
}

// Goal: commits that no log can keep are refused, and do not fence. Method: a negative offset, a note that is too long, then a good one.
func testCommitChecked(t *testing.T, h Harness) {
	done := make(chan struct{})
	var once sync.Once
	stop := member(t, h.Log, func(ctx context.Context, c schemas.Claim) error {
		if c.Partition() == 0 {
			once.Do(func() {
				defer close(done)
				for _, bad := range []schemas.Commit{{Offset: -1}, {Offset: 1, Note: strings.Repeat("x", 4001)}} {
					if err := c.Commit(ctx, bad); err == nil || errors.Is(err, schemas.ErrFenced) {
						t.Errorf("commit %d with a note of %d bytes: error %v", bad.Offset, len(bad.Note), err)
					}
				}
				if err := c.Commit(ctx, schemas.Commit{Offset: 1, Note: strings.Repeat("x", 4000)}); err != nil {
					t.Errorf("a good commit: %v", err)
				}
			})
		}
		<-ctx.Done()
		return nil
	})
	select {
	case <-done:
	case <-limited(t).Done():
		t.Fatal("partition 0 was never owned")
	}
	stop()
	if got := mustCommitted(t, h.Log)[0]; got.Offset != 1 || len(got.Note) != 4000 {
		t.Errorf("the group is at %d with a note of %d bytes", got.Offset, len(got.Note))
	}
}
