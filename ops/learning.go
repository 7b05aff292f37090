package ops

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Learning is what a reader of the log knows of one tenant's training: which turns became samples, which samples an update took, what was published. The demo
// and the evaluation wait by it (Pace). Safe for concurrent use.
type Learning struct {
	tenant string

	mu      sync.Mutex
	changed chan struct{}             // closed and replaced at each change
	seen    map[string]bool           // ids of events: the log may hold one twice
	decided map[string]int            // turns of each session that became a sample or were skipped
	samples int                       // turns that became a sample, and rehearsed replies
	refused int                       // samples that the trainer refused
	updates map[string]*UpdateLearned // by the id of UpdateStarted
	newest  string                    // the version that is to be served
	stands  *processors.Standing
	owed    map[string]bool // ids of the HintStood that the samples give, and that did not come yet
	ended   []*schemas.RehearsalEnded
	key     string // the hints of the last rehearsal that was not interrupted
}

// UpdateLearned is one update as the log tells it.
type UpdateLearned struct {
	Number uint64
	// Samples that it took.
	Samples int
	// Version is empty until it was published, with the metrics. Skipped: it came to nothing.
	Version string
	Metrics map[string]float64
	Skipped bool
}

// Learned is what was learned up to a moment.
type Learned struct {
	// Decided turns of each session: those that became a sample or were skipped.
	Decided map[string]int
	// Waiting samples were not taken by an update yet; Running updates have published nothing yet; Skipped ones never will.
	Waiting, Running, Skipped int
	// Published updates, in their order.
	Published []UpdateLearned
	// Newest is the version that is to be served: the one that was published last, or put back after it. Empty: none was published.
	Newest string
	// Rehearsed is what came of the rehearsals. Rehearsable says that other hints stand than were rehearsed last, or will once the stage stand has caught up.
	Rehearsed   []*schemas.RehearsalEnded
	Rehearsable bool
}

// NewLearning knows nothing of the tenant yet: have it Follow the log.
func NewLearning(tenant string) *Learning {
	return &Learning{
		tenant: tenant, changed: make(chan struct{}), seen: map[string]bool{}, decided: map[string]int{}, updates: map[string]*UpdateLearned{},
		stands: processors.NewStanding(), owed: map[string]bool{},
	}
}

// Follow reads the log from its beginning until ctx ends.
func (l *Learning) Follow(ctx context.Context, log schemas.Reader) error {
	readers, ctx := errgroup.WithContext(ctx)
	for _, topic := range []string{schemas.TopicSamples, schemas.TopicPolicies, schemas.TopicStanding, schemas.TopicDeadLetters} {
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

func (l *Learning) read(ctx context.Context, log schemas.Reader, topic string, partition int, from int64) error {
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
			if tenant, _, ok := schemas.SplitKey(r.Key); !ok || tenant != l.tenant {
				continue
			}
			e, err := schemas.Decode(r)
			if err != nil {
				return err
			}
			if err := l.take(ctx, e); err != nil {
				return err
			}
		}
	}
}

// take takes in one event.
func (l *Learning) take(ctx context.Context, e schemas.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen[e.ID] {
		return nil
	}
	l.seen[e.ID] = true
	switch p := e.Payload.(type) {
	case *schemas.SampleAssembled:
		l.samples++
		l.decided[e.Session]++
		stood, err := processors.Stand{}.Process(ctx, e)
		if err != nil {
			return err
		}
		for _, s := range stood {
			if !l.seen[s.ID] {
				l.owed[s.ID] = true
			}
		}
	case *schemas.TurnSkipped:
		l.decided[e.Session]++
	case *schemas.UpdateStarted:
		u := l.update(e.ID)
		u.Number, u.Samples = p.GetUpdate(), len(p.GetSampleIds())
	case *schemas.PolicyPublished:
		u := l.update(p.GetUpdateId())
		u.Number, u.Version, u.Metrics = p.GetUpdate(), e.ID, p.GetMetrics()
		l.newest = e.ID
	case *schemas.PolicyRolledBack:
		l.newest = p.GetToVersion()
	case *schemas.UpdateSkipped:
		u := l.update(p.GetUpdateId())
		u.Number, u.Skipped = p.GetUpdate(), true
	case *schemas.HintStood, *schemas.HintWithdrawn:
		delete(l.owed, e.ID)
		l.stands.Apply(e)
	case *schemas.RehearsalEnded:
		l.ended = append(l.ended, p)
		if !strings.HasPrefix(p.GetReason(), interrupted) {
			l.key = hintsKey(p.GetHintIds())
		}
	case *schemas.DeadLettered:
		if p.GetStage() == "train" {
			l.refused++
		}
	default:
		return nil
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

func (l *Learning) update(id string) *UpdateLearned {
	if l.updates[id] == nil {
		l.updates[id] = new(UpdateLearned)
	}
	return l.updates[id]
}

func (l *Learning) learned() Learned {
	now := Learned{Decided: l.decided, Waiting: l.samples - l.refused, Newest: l.newest, Rehearsed: l.ended}
	stand := hintsKey(hintIDs(rehearsed(l.stands, l.tenant)))
	now.Rehearsable = len(l.owed) > 0 || stand != "" && stand != l.key
	for _, u := range l.updates {
		now.Waiting -= u.Samples
		switch {
		case u.Skipped:
			now.Skipped++
		case u.Version == "":
			now.Running++
		default:
			now.Published = append(now.Published, *u)
		}
	}
	slices.SortFunc(now.Published, func(a, b UpdateLearned) int { return int(a.Number) - int(b.Number) }) //nolint:gosec // small
	return now
}

// Until waits until holds does, which is called under the lock and keeps nothing that it is given. It returns the cause of ctx's end, if that comes first.
func (l *Learning) Until(ctx context.Context, holds func(Learned) bool) error {
	for {
		l.mu.Lock()
		ok, changed := holds(l.learned()), l.changed
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

// Now is what was learned so far; it is the caller's.
func (l *Learning) Now() Learned {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.learned()
	now.Decided, now.Rehearsed = maps.Clone(now.Decided), slices.Clone(now.Rehearsed)
	return now
}
