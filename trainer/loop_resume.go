package trainer

import (
	"context"
	"errors"
	"fmt"

	"github.com/nextstate-rl/nextstate/schemas"
)

// resume ends the update that a former owner began: with the same samples, parent, recipe and seed, on the same engine, and so with the same bytes.
func (o *owner) resume(ctx context.Context, b *Begun) error {
	if engine := b.Started().GetEngine(); engine != o.cfg.EngineName {
		return o.skip(ctx, b, fmt.Sprintf("it was begun on the engine %q, and the trainer was started again with %q, which would give other bytes", engine, o.cfg.EngineName))
	}
	samples, reason, err := o.recall(ctx, b.Samples)
	if err != nil {
		return err
	}
	if reason != "" {
		return o.skip(ctx, b, reason)
	}
	return o.update(ctx, b, samples)
}

// recall reads the samples of an update from the log again. reason says why they cannot be had any more.
func (o *owner) recall(ctx context.Context, used []Used) (samples []*schemas.SampleAssembled, reason string, err error) {
	bounds, err := o.deps.Log.Bounds(ctx, schemas.TopicSamples)
	if err != nil {
		return nil, "", err
	}
	for _, u := range used {
		if u.Partition >= len(bounds) || u.Offset >= bounds[u.Partition].Next || u.Offset < bounds[u.Partition].First {
			return nil, fmt.Sprintf("sample %s is no longer in the log, and the trainer was stopped before it was trained", u.SampleID), nil
		}
		e, err := o.at(ctx, u)
		if errors.Is(err, schemas.ErrTruncated) {
			return nil, fmt.Sprintf("sample %s is no longer in the log, and the trainer was stopped before it was trained", u.SampleID), nil
		}
		if err != nil {
			return nil, "", err
		}
		sample, ok := e.Payload.(*schemas.SampleAssembled)
		if !ok || e.ID != u.SampleID {
			return nil, fmt.Sprintf("the log does not hold sample %s where it was: partition %d, offset %d", u.SampleID, u.Partition, u.Offset), nil
		}
		samples = append(samples, sample)
	}
	return samples, "", nil
}

// at reads one record.
func (o *owner) at(ctx context.Context, u Used) (e schemas.Event, err error) {
	cursor, err := o.deps.Log.Open(ctx, schemas.TopicSamples, u.Partition, u.Offset)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, cursor.Close()) }()
	records, err := cursor.Next(ctx, 1)
	if err != nil {
		return e, err
	}
	return schemas.Decode(records[0])
}
