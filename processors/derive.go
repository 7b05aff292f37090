package processors

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/nextstate-rl/nextstate/schemas"
)

// DeriveOptions configure a derivation in memory. Give the judges and finders that the live stages have, models replaced by RecordedJudge and
// RecordedFinder, and the same bounds.
type DeriveOptions struct {
	Pair     PairConfig
	Evaluate EvaluateConfig
	Direct   DirectConfig
	// TurnOffset says at which offset of turns a turn was recorded, so that verdicts come out with the same bytes. Nil, or not ok: the
	// turns are counted from 0.
	TurnOffset func(turnID string) (offset int64, ok bool)
}

// Validate reports a value out of range.
func (o DeriveOptions) Validate() error {
	return errors.Join(o.Pair.Validate(), o.Evaluate.Validate(), o.Direct.Validate())
}

// Derive derives everything from the interactions of one partition, given in offset order with their positions and log times, with the
// same processors as the stages. It calls emit for each derived event, a turn's events in the order TurnClosed, votes, TurnJudged, hint
// votes, HintSelected or HintAbsent, sample; so each topic's events come in the order of the log. Sessions still open at the end stay
// open, as they do live. It streams: memory is that of the open sessions. It ends with the first error of events, emit or ctx.
func Derive(ctx context.Context, events iter.Seq2[schemas.Event, error], o DeriveOptions, emit func(schemas.Event) error) error {
	if err := o.Validate(); err != nil {
		return err
	}
	d := derivation{
		o: o, emit: emit,
		pair: NewPair(o.Pair), evaluate: NewEvaluate(o.Evaluate), direct: NewDirect(o.Direct),
	}
	for e, err := range events {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.interaction(ctx, e); err != nil {
			return fmt.Errorf("event %s at offset %d: %w", e.ID, e.Position.Offset, err)
		}
	}
	return nil
}

// derivation is one partition on its way through all stages.
type derivation struct {
	o        DeriveOptions
	emit     func(schemas.Event) error
	pair     *Pair
	evaluate *Evaluate
	direct   *Direct
	turns    int64
}

func (d *derivation) interaction(ctx context.Context, e schemas.Event) error {
	outputs, err := d.process(ctx, StagePair, d.pair, e)
	if err != nil {
		return err
	}
	for _, out := range outputs {
		if turn, ok := out.Payload.(*schemas.TurnClosed); ok {
			if err := d.turn(ctx, out, turn, e.Position.Partition); err != nil {
				return err
			}
		}
	}
	return nil
}

// turn takes one TurnClosed, which was emitted already, through the other three stages.
func (d *derivation) turn(ctx context.Context, e schemas.Event, turn *schemas.TurnClosed, partition int) error {
	e.Position = schemas.Position{Topic: schemas.TopicTurns, Partition: partition, Offset: d.turns}
	d.turns++
	if d.o.TurnOffset != nil {
		if offset, ok := d.o.TurnOffset(turn.GetTurnId()); ok {
			e.Position.Offset = offset
		}
	}
	verdicts, err := d.process(ctx, StageEvaluate, d.evaluate, e)
	if err != nil {
		return err
	}
	hints, err := d.process(ctx, StageDirect, d.direct, e)
	if err != nil {
		return err
	}
	judged, hint := verdicts[len(verdicts)-1], hints[len(hints)-1]
	if judged.Kind() == "DeadLettered" || hint.Kind() == "DeadLettered" {
		return nil // live, assemble would find no verdict or hint either
	}
	return d.emit(Assemble(e, judged, hint))
}

// process is what the runner does with one event: outputs, or the dead letter. All of it is emitted.
func (d *derivation) process(ctx context.Context, stage string, p Processor, e schemas.Event) ([]schemas.Event, error) {
	outputs, err := guarded(ctx, p, e)
	switch {
	case IsPermanent(err):
		outputs = []schemas.Event{refuse(stage, err.Error(), e)}
	case err != nil:
		return nil, err
	}
	for _, out := range outputs {
		if err := d.emit(out); err != nil {
			return nil, err
		}
	}
	return outputs, nil
}
