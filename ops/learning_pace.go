package ops

import (
	"context"
	"fmt"
	"time"
)

// Bounds on what sessions wait for: their own signals, an update, and a new version's way into the engine.
const (
	signalsWait = 2 * time.Minute
	updateWait  = 10 * time.Minute
	servedWait  = 30 * time.Second
	servedPoll  = 50 * time.Millisecond
)

// Pace waits between sessions for what they set going, so that each begins with all that the ones before it taught. One goroutine.
type Pace struct {
	Learning *Learning
	// Served is the version that the gateway answers with.
	Served func(context.Context) (string, error)
	// Batch is the number of samples of an update; 0: nothing is trained.
	Batch int
	// Published and Adopted are told of each update, and of each version that is served, with the wait for it. They may be nil.
	Published func(UpdateLearned)
	Adopted   func(version string, after time.Duration)

	told int // published updates
}

// Waited is where the time of a wait went.
type Waited struct{ Training, Serving time.Duration }

// Decided waits until the signals of so many turns of each session were derived.
func (p *Pace) Decided(ctx context.Context, turns map[string]int) error {
	waiting, cancel := context.WithTimeoutCause(ctx, signalsWait,
		fmt.Errorf("the turns of the session were not judged within %s: see nextstate deadletters list", signalsWait))
	defer cancel()
	return p.Learning.Until(waiting, func(now Learned) bool {
		for session, n := range turns {
			if now.Decided[session] < n {
				return false
			}
		}
		return true
	})
}

// Updated waits until no update runs and too few samples wait for another one, and the newest version is served.
func (p *Pace) Updated(ctx context.Context) (w Waited, err error) {
	if p.Batch == 0 {
		return w, nil
	}
	waiting, cancel := context.WithTimeout(ctx, updateWait)
	defer cancel()
	for {
		start := time.Now()
		err := p.Learning.Until(waiting, func(now Learned) bool {
			return len(now.Published) > p.told || now.Running == 0 && now.Waiting < p.Batch
		})
		w.Training += time.Since(start)
		now := p.Learning.Now()
		if err != nil {
			if ctx.Err() != nil {
				return w, context.Cause(ctx)
			}
			return w, fmt.Errorf("%d samples wait and no update was published within %s (%d running): see the log of the trainer with --log-level info", now.Waiting, updateWait, now.Running)
		}
		if len(now.Published) == p.told {
			return w, nil
		}
		for _, u := range now.Published[p.told:] {
			if p.Published != nil {
				p.Published(u)
			}
		}
		p.told = len(now.Published)
		start = time.Now()
		if err := p.served(ctx, now.Published[p.told-1].Version); err != nil {
			return w, err
		}
		w.Serving += time.Since(start)
	}
}

// served waits until the gateway answers with a version, or with one that was published after it.
func (p *Pace) served(ctx context.Context, version string) error {
	start := time.Now()
	for {
		served, err := p.Served(ctx)
		if err != nil {
			return err
		}
		if served == version || p.later(served) {
			if p.Adopted != nil {
				p.Adopted(served, time.Since(start))
			}
			return nil
		}
		if time.Since(start) > servedWait {
			return fmt.Errorf("version %s was published and is not served after %s; %s still is: see the log of the engine with --log-level info", version, servedWait, served)
		}
		select {
		case <-time.After(servedPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// later says that a version was published after all that were told.
func (p *Pace) later(version string) bool {
	for _, u := range p.Learning.Now().Published[p.told:] {
		if u.Version == version {
			return true
		}
	}
	return false
}
