package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Loop is the trainer: it takes minibatches from `samples`, computes updates, and publishes policy versions on `policies`. It may be killed at any
// instruction: what counts is in the ledger, and computing an update again gives the same bytes.
type Loop struct {
	cfg  LoopConfig
	deps LoopDeps
	last computed
}

// computed is the result that was computed last. When only writing it down failed, it is there for the next ownership.
type computed struct {
	updateID string
	began    time.Time
	updated  *Updated
}

// NewLoop checks the settings.
func NewLoop(cfg LoopConfig, deps LoopDeps) (*Loop, error) {
	if err := errors.Join(cfg.Validate(), deps.validate(cfg)); err != nil {
		return nil, err
	}
	return &Loop{cfg: cfg.withDefaults(), deps: deps}, nil
}

// Run trains until ctx ends (nil), or until the settings do not fit what was trained before (*SetupError). While another trainer of the tenant runs, it
// waits. After any other error it claims the ledger again and goes on from what is written there. Call it once at a time.
func (l *Loop) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, l.deps.Ledger.Release(context.WithoutCancel(ctx))) }()
	pause := l.pause()
	for {
		updates, err := l.own(ctx)
		var setup *SetupError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &setup):
			return err
		case updates > 0:
			pause = l.pause() // it got on: what failed now is not what failed before
		}
		l.deps.Metrics.retries.WithLabelValues("claim").Inc()
		l.deps.Logger.Warn("the trainer starts over from its ledger", "error", err)
		pause.sleep(ctx)
	}
}

// backoff is a doubling pause.
type backoff struct{ next, max time.Duration }

func (l *Loop) pause() backoff { return backoff{l.cfg.BackoffMin, l.cfg.BackoffMax} }

func (b *backoff) sleep(ctx context.Context) {
	timer := time.NewTimer(b.next)
	defer timer.Stop()
	b.next = min(2*b.next, b.max)
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// owner is one ownership of the ledger, from a claim to the first error.
type owner struct {
	*Loop
	versions []Version
	// ordinals number the versions in the order of publication; the base is 0.
	ordinals map[string]int
	updates  uint64 // that were begun
	newest   *policy
	head     *head
	intake   *intake
	done     int // updates of this ownership
}

// own claims, and trains until something fails.
func (l *Loop) own(ctx context.Context) (updates int, err error) {
	state, err := l.deps.Ledger.Claim(ctx)
	if err != nil {
		return 0, err
	}
	o := &owner{Loop: l, ordinals: map[string]int{baseVersion: 0}, updates: state.Updates}
	for _, v := range state.Versions {
		o.add(v)
	}
	parent := o.latest()
	if state.Open != nil {
		parent = state.Open.Started().GetParentVersion()
	}
	o.head = newHead(l.cfg.Tenant, l.deps.Log, parent)
	for _, e := range state.Outbox {
		if err := o.deliver(ctx, e); err != nil {
			return 0, err
		}
	}
	if state.Open != nil {
		if err := o.resume(ctx, state.Open); err != nil {
			return o.done, err
		}
	}
	if o.intake, err = newIntake(ctx, o, state.Low); err != nil {
		return o.done, err
	}
	running, ctx := errgroup.WithContext(ctx)
	o.intake.read(ctx, running)
	running.Go(func() error { return o.train(ctx) })
	err = running.Wait()
	return o.done, err
}

// train is the loop itself.
func (o *owner) train(ctx context.Context) error {
	for {
		batch, err := o.intake.minibatch(ctx)
		if err != nil {
			return err
		}
		begun, err := o.begin(ctx, batch)
		if err != nil {
			return err
		}
		samples := make([]*schemas.SampleAssembled, len(batch))
		for i, w := range batch {
			samples[i] = w.sample
		}
		if err := o.update(ctx, begun, samples); err != nil {
			return err
		}
	}
}

func (o *owner) add(v Version) {
	o.versions = append(o.versions, v)
	o.ordinals[v.ID] = len(o.versions)
}

// latest is the version published last.
func (o *owner) latest() string {
	if len(o.versions) == 0 {
		return baseVersion
	}
	return o.versions[len(o.versions)-1].ID
}

// staleness is the number of versions published since the one that sampled; a rehearsal has none.
func (o *owner) staleness(s *schemas.SampleAssembled) int {
	if rehearsal(s) {
		return 0
	}
	return len(o.versions) - o.ordinals[s.GetPolicyVersion()]
}

// begin writes the update down: from now on its samples are used.
func (o *owner) begin(ctx context.Context, batch []*waiting) (*Begun, error) {
	if err := o.head.catchUp(ctx, o.ordinals); err != nil {
		return nil, err
	}
	parent := o.head.version
	// A parent that cannot be loaded is found out before the update is begun, while the settings can still be changed.
	before, err := o.load(ctx, parent, o.cfg.Recipe, o.cfg.Seed)
	if err != nil {
		return nil, err
	}
	o.newest = before
	recipe, err := o.cfg.Recipe.Encode()
	if err != nil {
		return nil, err
	}
	number := o.updates + 1
	started := &schemas.UpdateStarted{Update: number, ParentVersion: parent, Objective: recipe, Seed: o.cfg.Seed, Engine: o.cfg.EngineName}
	b := &Begun{}
	for _, w := range batch {
		started.SampleIds = append(started.SampleIds, w.used.SampleID)
		b.Samples = append(b.Samples, w.used)
	}
	b.Low = o.intake.low(batch)
	b.Event = envelope(o.cfg.Tenant, startedID(o.cfg.Tenant, parent, number), time.Now(), started)
	if err := o.deps.Ledger.Begin(ctx, *b); err != nil {
		return nil, err
	}
	o.updates = number
	o.intake.remove(batch)
	o.deps.Metrics.samples.WithLabelValues("used").Add(float64(len(batch)))
	return b, o.deliver(ctx, b.Event)
}

// update computes a begun update and publishes it, or skips it.
func (o *owner) update(ctx context.Context, b *Begun, samples []*schemas.SampleAssembled) error {
	started := b.Started()
	recipe, err := DecodeRecipe(started.GetObjective())
	if err != nil {
		return &SetupError{err}
	}
	parent, err := o.load(ctx, started.GetParentVersion(), recipe, started.GetSeed())
	if err != nil {
		return err
	}
	if o.last.updateID != b.Event.ID {
		began := time.Now()
		updated, reason, err := o.compute(ctx, recipe.Update(o.deps.Vocabulary, parent.adapter, parent.moments, samples))
		if err != nil {
			return err
		}
		if reason != "" {
			return o.skip(ctx, b, reason)
		}
		o.last = computed{b.Event.ID, began, updated}
	}
	return o.publish(ctx, publication{begun: b, recipe: recipe, updated: o.last.updated}, samples)
}

// publish makes the version known, unless its parent is no longer what is served.
func (o *owner) publish(ctx context.Context, p publication, samples []*schemas.SampleAssembled) error {
	started := p.begun.Started()
	if err := o.patiently(ctx, "policies", math.MaxInt, func() error { return o.head.catchUp(ctx, o.ordinals) }); err != nil {
		return err
	}
	if o.head.version != started.GetParentVersion() {
		return o.skip(ctx, p.begun, fmt.Sprintf("its parent was rolled back to %s while it was computed", o.head.version))
	}
	p.metrics = maps.Clone(p.updated.Metrics)
	p.metrics["staleness_mean"], p.metrics["staleness_max"] = o.stalenessOf(samples)
	var published *schemas.PolicyPublished
	// A full disk is waited for: the update would have to be computed again otherwise, and the older version serves meanwhile.
	if err := o.patiently(ctx, "blobs", math.MaxInt, func() (err error) { published, err = p.store(ctx, o.deps.Blobs); return err }); err != nil {
		return err
	}
	p.metrics["seconds"] = time.Since(o.last.began).Seconds()
	event := p.event(o.cfg.Tenant, time.Now(), published)
	if err := o.deps.Ledger.Finish(ctx, Finished{event}); err != nil {
		return err
	}
	o.add(versionIn(event))
	o.newest = &policy{event.ID, p.updated.Adapter, p.updated.Moments}
	o.observe(p.metrics)
	return o.deliver(ctx, event)
}

// compute runs the update. reason says why it gives no version, which is for good: computing it again would end in the same way.
func (o *owner) compute(ctx context.Context, u Update) (updated *Updated, reason string, err error) {
	err = o.patiently(ctx, "engine", o.cfg.Attempts, func() (err error) {
		updated, err = u.Run(ctx, o.deps.Engine)
		var refused *Refused
		if errors.Is(err, ErrNotFinite) || errors.Is(err, ErrNoGradient) || errors.As(err, &refused) {
			reason, err = err.Error(), nil
		}
		if err == nil && reason == "" {
			if norm := updated.Adapter.Norm(); math.IsNaN(norm) || math.IsInf(norm, 0) {
				reason = fmt.Sprintf("the norm of the new weights is %v", norm)
			}
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		reason, err = fmt.Sprintf("it failed %d times, at last with: %v", o.cfg.Attempts, err), nil
	}
	return updated, reason, err
}

// patiently calls f until it succeeds, at most attempts times.
func (o *owner) patiently(ctx context.Context, action string, attempts int, f func() error) error {
	pause := o.pause()
	for attempt := 1; ; attempt++ {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if attempt >= attempts {
			return err
		}
		o.deps.Metrics.retries.WithLabelValues(action).Inc()
		o.deps.Logger.Warn("a step of the training failed and is tried again", "action", action, "attempt", attempt, "error", err)
		pause.sleep(ctx)
	}
}

// skip ends an update without a version. Its samples are used up.
func (o *owner) skip(ctx context.Context, b *Begun, reason string) error {
	started := b.Started()
	skipped := &schemas.UpdateSkipped{Update: started.GetUpdate(), UpdateId: b.Event.ID, ParentVersion: started.GetParentVersion(), Reason: printable(reason)}
	event := envelope(o.cfg.Tenant, skippedID(b.Event.ID), time.Now(), skipped)
	if err := o.deps.Ledger.Finish(ctx, Finished{event}); err != nil {
		return err
	}
	o.done++
	o.deps.Metrics.updates.WithLabelValues("skipped").Inc()
	o.deps.Logger.Warn("an update was skipped", "update", started.GetUpdate(), "samples", started.GetSampleIds(), "reason", skipped.GetReason())
	return o.deliver(ctx, event)
}

// printable is a reason as an event and Postgres take it: the last words of an engine that died may be anything.
func printable(reason string) string {
	const bytesMax = 4096
	return strings.ReplaceAll(strings.ToValidUTF8(reason[:min(len(reason), bytesMax)], "\uFFFD"), "\x00", "\uFFFD")
}

// deliver appends an event of the outbox.
func (o *owner) deliver(ctx context.Context, e schemas.Event) error {
	record, err := schemas.Encode(e)
	if err != nil {
		return &SetupError{err}
	}
	if err := o.patiently(ctx, "append", math.MaxInt, func() error { return o.deps.Log.Append(ctx, record) }); err != nil {
		return err
	}
	return o.deps.Ledger.Delivered(ctx, e.ID)
}

func (o *owner) stalenessOf(samples []*schemas.SampleAssembled) (mean, most float64) {
	for _, s := range samples {
		n := float64(o.staleness(s))
		mean += n / float64(len(samples))
		most = max(most, n)
	}
	return mean, most
}

func (o *owner) observe(metrics map[string]float64) {
	o.done++
	o.deps.Metrics.updates.WithLabelValues("published").Inc()
	o.deps.Metrics.seconds.Observe(metrics["seconds"])
	for name, v := range metrics {
		o.deps.Metrics.last.WithLabelValues(name).Set(v)
	}
}
