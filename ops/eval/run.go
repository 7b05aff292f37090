package eval

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/embed"
	"github.com/nextstate-rl/nextstate/ops/eval/memory"
	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/schemas"
)

// hold holds one run from the base model on, in a system of its own on the servers of the evaluation. control says whether the held-out problems are put to the base
// model too.
func (e *evaluation) hold(ctx context.Context, r Run, control bool) (err error) {
	l := &live{cfg: e.cfg, run: r, began: time.Now(), took: spent{}, tell: e.tell, eta: e.eta, streaks: make([]streak, len(e.cfg.Personas))}
	batch, err := r.batch()
	if err != nil {
		return err
	}
	if path := promptsFile(e.host.Config, r.Seed); r.settings.Rehearse.On && r.settings.Rehearse.Prompts == path {
		if err := e.cfg.writePrompts(path, r.Seed); err != nil {
			return err
		}
	}
	c := r.settings.Config
	c.Tenant = r.Tenant // whoever talks to this gateway without a key, the trainer, and the version that is served
	if l.s, err = ops.Open(ctx, c, ops.NeedAll, e.progress); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.s.Close()) }()
	l.diary = diary{l.s.Log, r}
	closeMemory, err := l.plan(ctx)
	if err != nil {
		return err
	}
	defer closeMemory()
	learning := ops.NewLearning(r.Tenant)
	l.pace = &ops.Pace{Learning: learning, Batch: batch}
	return l.s.WhileServing(ctx, learning, func(ctx context.Context, gateway string) error {
		l.client = personas.NewClient(gateway, "")
		l.pace.Versions = l.client.Versions
		l.took[partStart] += time.Since(l.began)
		return l.whole(ctx, control)
	})
}

// plan makes the personas' plans, with the fluency of their replies and, in an arm that has one, the memory. Call the returned function at the end.
func (l *live) plan(ctx context.Context) (closeMemory func(), err error) {
	closeMemory = func() {}
	fluent, err := newFluency(ctx, l.s)
	if err != nil {
		return closeMemory, err
	}
	var store *memory.Store
	if l.run.settings.Memory {
		child, err := l.s.Embedder(ctx)
		if err != nil {
			return closeMemory, fmt.Errorf("the memory's embeddings: %w", err)
		}
		closeMemory, store = child.Close, memory.New(child)
	}
	for _, name := range l.cfg.Personas {
		persona, err := personas.Named(name)
		if err != nil {
			return closeMemory, err
		}
		p := l.cfg.plan(persona, l.run.Seed)
		if fluent != nil {
			p.Fluency = fluent.mean
		}
		if store != nil {
			p.Recall, p.Learned = store.Recall, store.Learned
		}
		l.plans = append(l.plans, p)
	}
	return closeMemory, nil
}

var _ memory.Embedder = (*embed.Child)(nil)

// whole is the run from its first event to its last one.
func (l *live) whole(ctx context.Context, control bool) error {
	// The session of the two events is no conversation: it is named so that nobody takes it for one.
	const session = "evaluation"
	err := l.diary.note(ctx, session, &schemas.EvaluationStarted{
		Arm: l.run.Arm, Seed: l.run.Seed, Personas: l.cfg.Personas, Sessions: uint32(l.cfg.Sessions), Half: l.cfg.Half.String(), //nolint:gosec // small
		Settings: l.run.Settings, BaseModel: l.run.settings.BaseModel(),
	})
	if err != nil {
		return err
	}
	end, err := l.sessions(ctx)
	if err != nil {
		return err
	}
	if err := l.heldOut(ctx, control); err != nil {
		return err
	}
	l.took.rest(time.Since(l.began))
	err = l.diary.note(ctx, session, &schemas.EvaluationEnded{
		Arm: l.run.Arm, Seed: l.run.Seed, Outcome: end.outcome, Sessions: uint32(end.sessions), AlignedAt: l.alignedAt(), //nolint:gosec // small
		Updates: uint32(len(l.pace.Learning.Now().Published)), Seconds: l.took.seconds(), //nolint:gosec // small
	})
	if err != nil {
		return err
	}
	l.tell("  %s %d  %s, sessions %d, updates %d; %.0f s: %s", l.run.Arm, l.run.Seed, end.outcome, end.sessions, len(l.pace.Learning.Now().Published), l.took.total().Seconds(), l.took)
	return l.s.WaitStored(ctx)
}
