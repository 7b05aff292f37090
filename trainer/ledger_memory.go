package trainer

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Shelf is where ledgers in memory of one tenant meet: for tests, and for training from the history, where nothing has to survive. Safe for concurrent
// use.
type Shelf struct {
	mu      sync.Mutex
	free    chan struct{} // holds one token while nobody has claimed
	epoch   uint64
	state   State
	samples map[string]bool
}

// NewShelf makes an empty one.
func NewShelf() *Shelf {
	s := &Shelf{free: make(chan struct{}, 1), samples: map[string]bool{}}
	s.free <- struct{}{}
	return s
}

// Abandon gives the claim free without the holder's knowledge, as when its connection or its process is lost.
func (s *Shelf) Abandon() {
	select {
	case s.free <- struct{}{}:
	default: // nobody holds it
	}
}

// Outcomes returns how many updates were begun, and the published versions in order.
func (s *Shelf) Outcomes() (updates uint64, versions []Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Updates, slices.Clone(s.state.Versions)
}

// LedgerMemory is one holder's view of a Shelf.
type LedgerMemory struct {
	shelf *Shelf
	epoch uint64
}

// NewLedgerMemory returns a ledger on the shelf.
func NewLedgerMemory(s *Shelf) *LedgerMemory { return &LedgerMemory{shelf: s} }

var _ Ledger = (*LedgerMemory)(nil)

// Claim implements Ledger.
func (l *LedgerMemory) Claim(ctx context.Context) (*State, error) {
	s := l.shelf
	s.mu.Lock()
	mine := l.epoch != 0 && l.epoch == s.epoch && len(s.free) == 0
	s.mu.Unlock()
	if !mine {
		select {
		case <-s.free:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	l.epoch = s.epoch
	c := State{Low: slices.Clone(s.state.Low), Updates: s.state.Updates, Versions: slices.Clone(s.state.Versions), Outbox: slices.Clone(s.state.Outbox)}
	if s.state.Open != nil {
		open := *s.state.Open
		c.Open = &open
	}
	return &c, nil
}

// locked runs f with the shelf locked, unless the ledger is fenced.
func (l *LedgerMemory) locked(ctx context.Context, f func(*Shelf) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.shelf.mu.Lock()
	defer l.shelf.mu.Unlock()
	if l.epoch == 0 || l.epoch != l.shelf.epoch {
		return ErrFenced
	}
	return f(l.shelf)
}

// Used implements Ledger.
func (l *LedgerMemory) Used(ctx context.Context, ids []string) (map[string]bool, error) {
	used := map[string]bool{}
	err := l.locked(ctx, func(s *Shelf) error {
		for _, id := range ids {
			if s.samples[id] {
				used[id] = true
			}
		}
		return nil
	})
	return used, err
}

// Begin implements Ledger.
func (l *LedgerMemory) Begin(ctx context.Context, b Begun) error {
	if err := b.check(); err != nil {
		return err
	}
	return l.locked(ctx, func(s *Shelf) error {
		if n := b.Started().GetUpdate(); s.state.Open != nil || n != s.state.Updates+1 {
			return fmt.Errorf("ledger: update %d cannot begin after update %d", n, s.state.Updates)
		}
		seen := map[string]bool{}
		for _, u := range b.Samples {
			if s.samples[u.SampleID] || seen[u.SampleID] {
				return fmt.Errorf("ledger: sample %s counts in an update already", u.SampleID)
			}
			seen[u.SampleID] = true
		}
		for id := range seen {
			s.samples[id] = true
		}
		s.state.Updates++
		s.state.Open, s.state.Low = &b, slices.Clone(b.Low)
		s.state.Outbox = append(s.state.Outbox, b.Event)
		return nil
	})
}

// Finish implements Ledger.
func (l *LedgerMemory) Finish(ctx context.Context, f Finished) error {
	update, version, _, err := f.outcome()
	if err != nil {
		return err
	}
	return l.locked(ctx, func(s *Shelf) error {
		if s.state.Open == nil || s.state.Open.Started().GetUpdate() != update {
			return fmt.Errorf("ledger: update %d is not open", update)
		}
		s.state.Open = nil
		if version != nil {
			s.state.Versions = append(s.state.Versions, *version)
		}
		s.state.Outbox = append(s.state.Outbox, f.Event)
		return nil
	})
}

// versionIn is what a ledger keeps of a PolicyPublished.
func versionIn(e schemas.Event) Version {
	v := Version{ID: e.ID}
	if p, ok := e.Payload.(*schemas.PolicyPublished); ok {
		copy(v.Checkpoint[:], p.GetCheckpointSha256())
	}
	return v
}

// Delivered implements Ledger.
func (l *LedgerMemory) Delivered(ctx context.Context, eventID string) error {
	return l.locked(ctx, func(s *Shelf) error {
		s.state.Outbox = slices.DeleteFunc(s.state.Outbox, func(e schemas.Event) bool { return e.ID == eventID })
		return nil
	})
}

// Release implements Ledger.
func (l *LedgerMemory) Release(context.Context) error {
	l.shelf.mu.Lock()
	mine := l.epoch != 0 && l.epoch == l.shelf.epoch
	l.epoch = 0
	l.shelf.mu.Unlock()
	if mine {
		l.shelf.Abandon()
	}
	return nil
}
