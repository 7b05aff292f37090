package trainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// baseVersion is the policy without an adapter; the first update starts from it.
const baseVersion = "base"

// policy is a version with what the next update needs.
type policy struct {
	version string
	adapter *Adapter
	moments *Moments
}

// publication is everything of a PolicyPublished but its time.
type publication struct {
	begun   *Begun
	recipe  Recipe
	updated *Updated
	metrics map[string]float64
}

// store writes the weights into the blob store: what is published is there before anybody hears of it.
func (p publication) store(ctx context.Context, blobs Blobs) (*schemas.PolicyPublished, error) {
	started := p.begun.Started()
	out := &schemas.PolicyPublished{
		Update: started.GetUpdate(), UpdateId: p.begun.Event.ID, ParentVersion: started.GetParentVersion(), Metrics: p.metrics, BaseModel: p.recipe.BaseModel,
	}
	a := p.updated.Adapter
	for _, file := range []struct {
		sum   *[]byte
		write func(io.Writer) error
	}{
		{&out.PeftSha256, func(w io.Writer) error { return a.WritePEFT(w, p.recipe.BaseModel) }},
		{&out.GgufSha256, a.WriteGGUF},
		{&out.CheckpointSha256, func(w io.Writer) error { return a.WriteCheckpoint(w, p.recipe.BaseModel, p.updated.Moments) }},
	} {
		var data bytes.Buffer
		if err := file.write(&data); err != nil {
			return nil, err
		}
		sum, err := blobs.Put(ctx, data.Bytes())
		if err != nil {
			return nil, fmt.Errorf("the weights of update %d: %w", started.GetUpdate(), err)
		}
		*file.sum = sum[:]
	}
	return out, nil
}

// event is the PolicyPublished of a begun update; its id is the version.
func (p publication) event(tenant string, at time.Time, payload *schemas.PolicyPublished) schemas.Event {
	return envelope(tenant, versionOf(p.begun.Event.ID), at, payload)
}

// load brings the parent of an update: the base model with a fresh adapter, or the checkpoint of a version.
func (o *owner) load(ctx context.Context, version string, recipe Recipe, seed uint64) (*policy, error) {
	fresh := NewAdapter(o.deps.Engine.Layers(), recipe.Rank, recipe.Alpha)
	if own := o.cfg.Recipe; recipe.Rank != own.Rank || recipe.Alpha != own.Alpha || recipe.BaseModel != own.BaseModel {
		return nil, &SetupError{fmt.Errorf("an update was begun with rank %d, alpha %g and the base model %s: start the trainer with these once, so that it ends the update (--train-rank, --train-alpha, --policy-model)",
			recipe.Rank, recipe.Alpha, recipe.BaseModel)}
	}
	if version == baseVersion {
		fresh.Initialise(seed)
		return &policy{version, fresh, NewMoments(fresh)}, nil
	}
	if o.newest != nil && o.newest.version == version {
		return o.newest, nil
	}
	at, known := o.ordinals[version]
	if !known || at == 0 {
		return nil, &SetupError{fmt.Errorf("the parent version %s is not in the ledger: restore the trainer's tables in Postgres", version)}
	}
	r, err := o.deps.Blobs.Open(ctx, o.versions[at-1].Checkpoint)
	if err != nil {
		return nil, fmt.Errorf("the checkpoint of version %s ('nextstate policies rebuild %s --store' computes it again, or roll back): %w", version, version, err)
	}
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("the checkpoint of version %s ('nextstate policies rebuild %s --store' computes it again, or roll back): %w", version, version, err)
	}
	a, m, err := ReadCheckpoint(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("the checkpoint of version %s: %w", version, err)
	}
	if err := fresh.Fits(a); err != nil {
		return nil, &SetupError{fmt.Errorf("version %s does not fit: %w: use the rank, alpha and model that it was trained with, or roll back to base", version, err)}
	}
	return &policy{version, a, m}, nil
}
