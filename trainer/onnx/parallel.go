package onnx

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/trainer"
)

// Several packs are computed at once, each by one thread: no thread waits for another within an operator, and the result of a pack does not depend on their number.

// run is one pack's share of the sequences of a call: at is the index of the first.
type run struct {
	at        int
	sequences []trainer.Sequence
	tokens    int // inputs of the graph: all tokens but the last of each sequence, and what several have in common once
}

// runs checks the sequences and puts as many into a pack as PackTokens allows, in order: more where most of a sequence is there already.
func (e *Engine) runs(sequences []trainer.Sequence) (list []run, err error) {
	wanted := 0
	for i, s := range sequences {
		if i == 0 && len(s.Wanted) > 0 {
			wanted = len(s.Wanted[0])
		}
		if err := check(s, e.model, wanted); err != nil {
			return nil, fmt.Errorf("sequence %d: %w", i, err)
		}
	}
	for at, s := range sequences {
		whole := len(s.Tokens) - 1
		if n := len(list); n > 0 {
			last, more := &list[n-1], whole-common(sequences[at-1], s)
			most := e.cfg.PackTokens
			if 2*more <= whole {
				most *= sharedPack
			}
			if last.tokens+more <= most {
				last.sequences, last.tokens = sequences[last.at:at+1], last.tokens+more
				continue
			}
		}
		list = append(list, run{at, sequences[at : at+1], whole})
	}
	return list, nil
}

// sharedPack is how many times PackTokens a pack may have as long as a further sequence adds less than half of its tokens: computing these twice costs more than
// attention's look at all pairs.
const sharedPack = 3

// parallel calls do for 0 to n-1 in as many goroutines as the engine has threads, each begun in order. worker is a number of its own for each goroutine.
func (e *Engine) parallel(ctx context.Context, n int, do func(ctx context.Context, worker, i int) error) error {
	working, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for worker := range min(n, e.cfg.Threads) {
		working.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := do(ctx, worker, i); err != nil {
					return err
				}
			}
		})
	}
	return working.Wait()
}

// queue lets n goroutines pass one after the other, in their order.
type queue []chan struct{}

func newQueue(n int) queue {
	q := make(queue, n+1)
	for i := range q {
		q[i] = make(chan struct{})
	}
	close(q[0])
	return q
}

// wait returns when it is i's turn; done ends it.
func (q queue) wait(ctx context.Context, i int) error {
	select {
	case <-q[i]:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q queue) done(i int) { close(q[i+1]) }
