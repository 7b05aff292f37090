package ops

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// Bounds on what sessions wait for: their own signals, an update, and a new version's way into the engine.
const (
	decisionsWait   = 10 * time.Minute
	publicationWait = 10 * time.Minute
	adoptionWait    = time.Minute
	adoptionPoll    = 50 * time.Millisecond
	// rehearsalMargin is what a rehearsal takes beyond its budget: the replies that the guard looks at, before and after, and an update at work.
	rehearsalMargin = 5 * time.Minute
)

// Pace waits between sessions for what they set going, so that each begins with all that the ones before it taught. One goroutine.
type Pace struct {
	Learning *Learning
	// Versions lists what the gateway serves, at least one version, the one that it answers with first.
	Versions func(context.Context) ([]string, error)
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
	waiting, cancel := context.WithTimeoutCause(ctx, decisionsWait,
		fmt.Errorf("the turns of the session were not judged within %s: see nextstate deadletters list", decisionsWait))
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
	waiting, cancel := context.WithTimeout(ctx, publicationWait)
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
			return w, fmt.Errorf("%d samples wait and no update was published within %s (%d running): see the log of the trainer with --log-level info", now.Waiting, publicationWait, now.Running)
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
		if err := p.served(ctx); err != nil {
			return w, err
		}
		w.Serving += time.Since(start)
	}
}

// Rehearsed waits until the hints that stand were rehearsed, if a rehearsal is due, and for what it taught to be served. most bounds the rehearsal itself.
func (p *Pace) Rehearsed(ctx context.Context, most time.Duration) error {
	most += rehearsalMargin
	waiting, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("the rehearsal did not end within %s: see the log of the stage rehearse with --log-level info", most))
	defer cancel()
	if err := p.Learning.Until(waiting, func(now Learned) bool { return !now.Rehearsable }); err != nil {
		return err
	}
	_, err := p.Updated(ctx)
	return err
}

// served waits until the gateway answers with the version that is to be served.
func (p *Pace) served(ctx context.Context) error {
	start := time.Now()
	for {
		versions, err := p.Versions(ctx)
		if err != nil {
			return err
		}
		newest := p.Learning.Now().Newest
		if versions[0] == newest {
			if p.Adopted != nil {
				p.Adopted(newest, time.Since(start))
			}
			return nil
		}
		if time.Since(start) > adoptionWait {
			return fmt.Errorf("version %s was published and is not served after %s; %s still is: see the log of the engine with --log-level info", newest, adoptionWait, versions[0])
		}
		select {
		case <-time.After(adoptionPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// WhileServing runs all stages of this process and follows its training, for as long as do works. do is given the address of the gateway, once it listens.
func (s *System) WhileServing(ctx context.Context, l *Learning, do func(ctx context.Context, gateway string) error) error {
	running, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() error { return RunStages(ctx, s) })
	running.Go(func() error { return l.Follow(ctx, s.Log) })
	running.Go(func() error {
		defer stop()
		select {
		case <-s.Listening():
		case <-ctx.Done():
			return nil // a stage failed, and says why
		}
		return do(ctx, "http://"+s.Endpoints().HTTP)
	})
	return running.Wait()
}

// WaitStored waits until the history has every record of the log.
func (s *System) WaitStored(ctx context.Context) error {
	for {
		lags, err := Lags(ctx, s.Log)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(lags, func(l Lag) bool { return l.Stage == "clickhouse" && l.Lag > 0 }) {
			return nil
		}
		select {
		case <-time.After(storedPoll):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// storedPoll is how often the sink's progress is asked for.
const storedPoll = 100 * time.Millisecond
