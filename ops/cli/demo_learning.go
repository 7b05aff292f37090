package cli

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

// learning is what a reader of the log knows of the training: which turns became samples, which samples an update took, what was published. Safe for
// concurrent use.
type learning struct {
	mu      sync.Mutex
	changed chan struct{}          // closed and replaced at each change
	seen    map[string]bool        // ids of events: the log may hold one twice
	decided map[string]int         // turns of each session that became a sample or were skipped
	samples int                    // turns that became a sample
	refused int                    // samples that the trainer refused
	updates map[string]*demoUpdate // by the id of UpdateStarted
}

// demoUpdate is one update as the log tells it.
type demoUpdate struct {
	number uint64
	// samples that it took.
	samples int
	// version is empty until it was published, with the metrics.
	version string
	metrics map[string]float64
}

func newLearning() *learning {
	return &learning{changed: make(chan struct{}), seen: map[string]bool{}, decided: map[string]int{}, updates: map[string]*demoUpdate{}}
}

// follow reads the log until ctx ends.
func (l *learning) follow(ctx context.Context, log schemas.Reader) error {
	readers, ctx := errgroup.WithContext(ctx)
	for _, topic := range []string{schemas.TopicSamples, schemas.TopicPolicies, schemas.TopicDeadLetters} {
		bounds, err := log.Bounds(ctx, topic)
		if err != nil {
			return err
		}
		for partition, b := range bounds {
			readers.Go(func() error { return l.read(ctx, log, topic, partition, b.First) })
		}
	}
	return readers.Wait()
}

func (l *learning) read(ctx context.Context, log schemas.Reader, topic string, partition int, from int64) error {
	cursor, err := log.Open(ctx, topic, partition, from)
	if err != nil {
		return err
	}
	defer cursor.Close()
	for {
		records, err := cursor.Next(ctx, 100)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, r := range records {
			e, err := schemas.Decode(r)
			if err != nil {
				return err
			}
			l.take(e)
		}
	}
}

// take takes in one event.
func (l *learning) take(e schemas.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen[e.ID] {
		return
	}
	l.seen[e.ID] = true
	switch p := e.Payload.(type) {
	case *schemas.SampleAssembled:
		l.samples++
		l.decided[e.Session]++
	case *schemas.TurnSkipped:
		l.decided[e.Session]++
	case *schemas.UpdateStarted:
		u := l.update(e.ID)
		u.number, u.samples = p.GetUpdate(), len(p.GetSampleIds())
	case *schemas.PolicyPublished:
		u := l.update(p.GetUpdateId())
		u.number, u.version, u.metrics = p.GetUpdate(), e.ID, p.GetMetrics()
	case *schemas.DeadLettered:
		if p.GetStage() == "train" {
			l.refused++
		}
	default:
		return
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *learning) update(id string) *demoUpdate {
	if l.updates[id] == nil {
		l.updates[id] = new(demoUpdate)
	}
	return l.updates[id]
}

// trained is what was learned so far.
type trained struct {
	// waiting samples were not taken by an update yet; running updates have published nothing yet.
	waiting, running int
	// published updates, in their order.
	published []demoUpdate
}

func (l *learning) trained() trained {
	t := trained{waiting: l.samples - l.refused}
	for _, u := range l.updates {
		t.waiting -= u.samples
		if u.version == "" {
			t.running++
		} else {
			t.published = append(t.published, *u)
		}
	}
	slices.SortFunc(t.published, func(a, b demoUpdate) int { return int(a.number) - int(b.number) }) //nolint:gosec // small
	return t
}

// until waits for a condition on what was learned; holds gets it under the lock.
func (l *learning) until(ctx context.Context, holds func(trained, map[string]int) bool) error {
	for {
		l.mu.Lock()
		ok, changed := holds(l.trained(), l.decided), l.changed
		l.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// now is what was learned so far.
func (l *learning) now() trained {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trained()
}
