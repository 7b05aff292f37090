package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/schemas"
)

// crashLoad sends scripted sessions, each record again and again until it is acknowledged, and remembers which were.
type crashLoad struct {
	sender
	seed uint64
	// doors are the ways in; sessions use them in turn. The first one takes what is no event, too.
	doors []schemas.Appender
	// loaders is how many sessions are played at once.
	loaders int
	next    atomic.Int64

	mu    sync.Mutex
	acked map[string]string // id to kind
	// hostile counts acknowledged records that are no events.
	hostile int
}

func newCrashLoad(seed uint64, doors ...schemas.Appender) *crashLoad {
	return &crashLoad{seed: seed, doors: doors, loaders: 10, acked: map[string]string{}}
}

// run plays sessions until stop is closed, and returns when everything that was sent is acknowledged. Sessions that are under way stay open.
func (l *crashLoad) run(ctx context.Context, stop <-chan struct{}) error {
	playing, ctx := errgroup.WithContext(ctx)
	for range l.loaders {
		playing.Go(func() error {
			for {
				n := int(l.next.Add(1)) - 1
				if err := l.play(ctx, stop, n); err != nil {
					return err
				}
				select {
				case <-stop:
					return nil
				default:
				}
			}
		})
	}
	return playing.Wait()
}

// play sends one session at the pace of a quick agent.
func (l *crashLoad) play(ctx context.Context, stop <-chan struct{}, n int) error {
	script, err := crashSession(l.seed, n)
	if err != nil {
		return err
	}
	pace := rand.New(rand.NewPCG(l.seed+1, uint64(n))) //nolint:gosec // reproducible on purpose
	for _, step := range script {
		door := l.doors[n%len(l.doors)]
		if step.id == "" {
			door = l.doors[0]
		}
		if err := l.send(ctx, door, step.record); err != nil {
			return err
		}
		l.mu.Lock()
		if step.id == "" {
			l.hostile++
		} else {
			l.acked[step.id] = step.kind
		}
		l.mu.Unlock()
		select {
		case <-stop:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(10+pace.IntN(110)) * time.Millisecond):
		}
	}
	return nil
}

// sender appends through crashes.
type sender struct {
	// tries counts appends that were not acknowledged and done again.
	tries atomic.Int64
}

// send repeats an append until it is acknowledged.
func (l *sender) send(ctx context.Context, door schemas.Appender, r schemas.Record) error {
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := door.Append(try, r)
		cancel()
		if err == nil {
			return nil
		}
		if refused(err) {
			return fmt.Errorf("the load was refused: %w", err)
		}
		l.tries.Add(1)
		if !sleep(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// refused reports whether an append will never succeed.
func refused(err error) bool {
	if errors.Is(err, client.ErrRefused) || errors.Is(err, schemas.ErrTooLarge) {
		return true
	}
	var partial *client.PartialError
	if errors.As(err, &partial) {
		for _, e := range partial.Errs {
			if errors.Is(e, client.ErrRefused) {
				return true
			}
		}
	}
	return false
}

// acknowledged is how many distinct events are.
func (l *crashLoad) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}
