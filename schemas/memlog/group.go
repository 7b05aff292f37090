package memlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

// maxNote bounds Commit.Note, as Kafka bounds a commit's metadata.
const maxNote = 4000

type groupKey struct{ group, topic string }

// group is the members of one consumer group in one topic. Partition n belongs to member n modulo their number, in the order in which
// they joined. When that changes a new generation begins, and whoever does not follow in time is no member any more.
type group struct {
	mu         sync.Mutex
	patience   time.Duration
	generation int
	members    []*member
	owners     []*claim // by partition; nil: nobody's
	commits    []schemas.Commit
	// changed is closed and replaced when members or owners change.
	changed chan struct{}
}

// member is one call of Own.
type member struct {
	// stop ends the ownership of all its partitions; nil while it owns none.
	stop context.CancelFunc
	// generation is the last one that it has followed.
	generation int
}

type claim struct {
	g         *group
	member    *member
	topic     string
	partition int
	committed schemas.Commit
}

func (l *Log) group(name, topic string) *group {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := groupKey{name, topic}
	g, ok := l.groups[k]
	if !ok {
		g = &group{patience: l.options.Handover, owners: make([]*claim, l.partitions), commits: make([]schemas.Commit, l.partitions), changed: make(chan struct{})}
		for n := range g.commits {
			g.commits[n] = schemas.Commit{Offset: -1}
		}
		l.groups[k] = g
	}
	return g
}

// change wakes everybody who waits for the group. The caller holds the lock.
func (g *group) change() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// Own implements schemas.Owner.
func (l *Log) Own(ctx context.Context, name, topic string, own func(context.Context, schemas.Claim) error) error {
	if _, err := l.topic(topic); err != nil {
		return err
	}
	g := l.group(name, topic)
	m := &member{}
	for ctx.Err() == nil {
		g.join(m)
		err := l.ownUntilChange(ctx, g, m, topic, own)
		if err == nil {
			continue
		}
		g.leave(m)
		select {
		case <-ctx.Done():
		case <-time.After(l.options.Backoff):
		}
	}
	g.leave(m)
	return nil
}

// join adds m unless it is a member already, and ends everybody's ownership if it does: the partitions are dealt out again.
func (g *group) join(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.Contains(g.members, m) {
		return
	}
	g.members = append(g.members, m)
	g.rebalance()
}

func (g *group) leave(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := slices.Index(g.members, m); at >= 0 {
		g.members = slices.Delete(g.members, at, at+1)
		g.rebalance()
	}
}

// rebalance ends everybody's ownership and begins a new generation. The caller holds the lock.
func (g *group) rebalance() {
	g.generation++
	generation := g.generation
	time.AfterFunc(g.patience, func() { g.evict(generation) })
	for _, m := range g.members {
		if m.stop != nil {
			m.stop()
		}
	}
	g.change()
}

// evict removes the members that have not followed to the generation, and fences them.
func (g *group) evict(generation int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.generation != generation {
		return
	}
	var follow []*member
	for _, m := range g.members {
		if m.generation == generation {
			follow = append(follow, m)
			continue
		}
		for n, c := range g.owners {
			if c != nil && c.member == m {
				g.owners[n] = nil
			}
		}
	}
	if len(follow) < len(g.members) {
		g.members = follow
		g.rebalance()
	}
}

// ownUntilChange owns m's partitions until the group's members change (nil), ctx ends (nil), or a handler fails (its error).
func (l *Log) ownUntilChange(ctx context.Context, g *group, m *member, topic string, own func(context.Context, schemas.Claim) error) error {
	stopCtx, stop := context.WithCancel(ctx)
	defer stop()
	mine, ok := g.begin(m, stop)
	if !ok {
		return nil // evicted since it joined: join again
	}
	eg, runCtx := errgroup.WithContext(stopCtx)
	for _, n := range mine {
		eg.Go(func() error {
			c, err := g.take(runCtx, m, topic, n)
			if err != nil {
				return nil // the ownership ended before it began
			}
			defer g.release(c)
			if err := own(runCtx, c); err != nil {
				return fmt.Errorf("memlog: owner of %s/%d: %w", topic, n, err)
			}
			if runCtx.Err() == nil {
				return fmt.Errorf("memlog: owner of %s/%d returned while it owned it", topic, n)
			}
			return nil
		})
	}
	if len(mine) == 0 {
		<-stopCtx.Done()
	}
	err := eg.Wait()
	if stopCtx.Err() != nil {
		// Handlers end with all sorts of errors when their context does; a real one will come again after the new assignment.
		return nil
	}
	return err
}

// begin returns m's partitions in the current generation and notes how they are taken from it; not ok when m is no member.
func (g *group) begin(m *member, stop context.CancelFunc) (mine []int, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.Index(g.members, m)
	if at < 0 {
		return nil, false
	}
	m.stop, m.generation = stop, g.generation
	for n := at; n < len(g.owners); n += len(g.members) {
		mine = append(mine, n)
	}
	return mine, true
}

// take makes m the owner of partition n once the former owner has let go or was evicted.
func (g *group) take(ctx context.Context, m *member, topic string, n int) (*claim, error) {
	for {
		g.mu.Lock()
		if err := ctx.Err(); err != nil {
			g.mu.Unlock()
			return nil, err
		}
		if g.owners[n] == nil {
			c := &claim{g: g, member: m, topic: topic, partition: n, committed: g.commits[n]}
			g.owners[n] = c
			g.mu.Unlock()
			return c, nil
		}
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}

func (g *group) release(c *claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.owners[c.partition] == c {
		g.owners[c.partition] = nil
		g.change()
	}
}

func (c *claim) Topic() string             { return c.topic }
func (c *claim) Partition() int            { return c.partition }
func (c *claim) Committed() schemas.Commit { return c.committed }

// Commit implements schemas.Claim.
func (c *claim) Commit(ctx context.Context, to schemas.Commit) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if to.Offset < 0 {
		return errors.New("memlog: commit of a negative offset")
	}
	if len(to.Note) > maxNote {
		return fmt.Errorf("memlog: the note of a commit has %d bytes, at most %d are allowed", len(to.Note), maxNote)
	}
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	if c.g.owners[c.partition] != c {
		return fmt.Errorf("memlog: commit of %s/%d: %w", c.topic, c.partition, schemas.ErrFenced)
	}
	c.g.commits[c.partition] = to
	return nil
}

// Committed implements schemas.Owner.
func (l *Log) Committed(ctx context.Context, name, topic string) ([]schemas.Commit, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if _, err := l.topic(topic); err != nil {
		return nil, err
	}
	g := l.group(name, topic)
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]schemas.Commit(nil), g.commits...), nil
}
