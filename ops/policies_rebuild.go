package ops

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/blobs"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
	"github.com/nextstate-rl/nextstate/trainer"
)

// RebuiltVersion says how a version that was computed again compares with the published one.
type RebuiltVersion struct {
	Version string `json:"version"`
	Update  uint64 `json:"update"`
	Samples int    `json:"samples"`
	// Files by name; true: byte for byte as published.
	Files map[string]bool `json:"files"`
}

// Same says that all files are as published.
func (r RebuiltVersion) Same() bool {
	for _, same := range r.Files {
		if !same {
			return false
		}
	}
	return true
}

// RebuildPolicy computes a version again from the base model on: every update with the samples, the recipe and the seed that stand in the log and the history.
// It compares the bytes of each version with what was published, and calls done after each. The same bytes
// need the same model file, and a processor with the same vector instructions.
func RebuildPolicy(ctx context.Context, s *System, p *Policies, v *PolicyVersion, done func(RebuiltVersion)) error {
	return s.rebuild(ctx, p, v, nil, done)
}

// RestorePolicy does the same, and puts the version's files that are as published into the blob store again. Pruning leaves the version alone until ReleaseRebuilt.
func RestorePolicy(ctx context.Context, s *System, p *Policies, v *PolicyVersion, done func(RebuiltVersion)) error {
	store, err := s.OpenBlobs()
	if err != nil {
		return err
	}
	if err := s.keepRebuilt(ctx, v.Version); err != nil {
		return err
	}
	return s.rebuild(ctx, p, v, store, done)
}

// rebuild computes the versions from the base model to v; the files of v go into a blob store unless it is nil.
func (s *System) rebuild(ctx context.Context, p *Policies, v *PolicyVersion, into *blobs.Directory, done func(RebuiltVersion)) error {
	path := p.Ancestry(v.Version)
	slices.Reverse(path)
	if first := path[0]; first.Parent != policy.Base {
		return fmt.Errorf("version %s, from which %s descends, is in neither the log nor the history", first.Parent, v.Version)
	}
	samples, err := s.samplesOf(ctx, path)
	if err != nil {
		return err
	}
	r := rebuilding{system: s}
	defer r.close()
	for _, made := range path {
		if err := r.update(ctx, made, samples); err != nil {
			return fmt.Errorf("update %d: %w", made.Update, err)
		}
		var store *blobs.Directory
		if made == v {
			store = into
		}
		rebuilt, err := made.compare(ctx, store, r.adapter, r.moments)
		if err != nil {
			return fmt.Errorf("update %d: %w", made.Update, err)
		}
		done(rebuilt)
	}
	return nil
}

// rebuilding is how far a version is computed again.
type rebuilding struct {
	system  *System
	engine  *trainEngine // nil before the first update
	adapter *trainer.Adapter
	moments *trainer.Moments
}

// update computes the next update.
func (r *rebuilding) update(ctx context.Context, made *PolicyVersion, samples map[string]*schemas.SampleAssembled) error {
	recipe, err := trainer.DecodeRecipe(string(made.Objective))
	if err != nil {
		return err
	}
	if r.engine == nil {
		if r.engine, err = r.system.newTrainEngine(ctx, recipe); err != nil {
			return err
		}
	}
	if r.adapter == nil {
		r.adapter = trainer.NewAdapter(r.engine.Layers(), recipe.Rank, recipe.Alpha)
		r.adapter.Initialise(made.Seed)
		r.moments = trainer.NewMoments(r.adapter)
	}
	var taken []*schemas.SampleAssembled
	for _, id := range made.SampleIDs {
		taken = append(taken, samples[id])
	}
	updated, err := recipe.Update(r.engine.vocabulary, r.adapter, r.moments, taken).Run(ctx, r.engine)
	if err != nil {
		return err
	}
	r.adapter, r.moments = updated.Adapter, updated.Moments
	return nil
}

func (r *rebuilding) close() {
	if r.engine != nil {
		r.engine.Close()
	}
}

// compare writes the files of a version again. Those that are as published are put into the store unless it is nil.
func (v *PolicyVersion) compare(ctx context.Context, store *blobs.Directory, a *trainer.Adapter, m *trainer.Moments) (RebuiltVersion, error) {
	r := RebuiltVersion{Version: v.Version, Update: v.Update, Samples: len(v.SampleIDs), Files: map[string]bool{}}
	for _, file := range []struct {
		name, hash string
		write      func(io.Writer) error
	}{
		{"peft", v.PEFT, func(w io.Writer) error { return a.WritePEFT(w, v.BaseModel) }},
		{"gguf", v.GGUF, a.WriteGGUF},
		{"checkpoint", v.Checkpoint, func(w io.Writer) error { return a.WriteCheckpoint(w, v.BaseModel, m) }},
	} {
		if file.hash == "" { // never published
			continue
		}
		var data bytes.Buffer
		if err := file.write(&data); err != nil {
			return r, err
		}
		sum := sha256.Sum256(data.Bytes())
		r.Files[file.name] = hex.EncodeToString(sum[:]) == file.hash
		if !r.Files[file.name] || store == nil {
			continue
		}
		if _, err := store.Put(ctx, data.Bytes()); err != nil {
			return r, err
		}
	}
	return r, nil
}

// samplesOf finds the samples of all updates in the log and the history, by id.
func (s *System) samplesOf(ctx context.Context, updates []*PolicyVersion) (map[string]*schemas.SampleAssembled, error) {
	found := map[string]*schemas.SampleAssembled{}
	missing := map[string]bool{}
	for _, u := range updates {
		if len(u.SampleIDs) == 0 {
			return nil, fmt.Errorf("the UpdateStarted of update %d is in neither the log nor the history", u.Update)
		}
		for _, id := range u.SampleIDs {
			missing[id] = true
		}
	}
	h := history{log: s.Log, store: sink.NewHistory(s.ClickHouse)}
	partitions, err := h.partitions(ctx, schemas.TopicSamples)
	if err != nil {
		return nil, err
	}
	take := func(r schemas.Record) error {
		if !missing[header(r, "ce_id")] {
			return nil
		}
		e, err := schemas.Decode(r)
		if err != nil {
			return nil //nolint:nilerr // no event: it is in the dead letters
		}
		if sample, ok := e.Payload.(*schemas.SampleAssembled); ok && e.Tenant == s.Config.Tenant {
			found[e.ID] = sample
			delete(missing, e.ID)
			if len(missing) == 0 {
				return errAll
			}
		}
		return nil
	}
	for partition := range partitions {
		if err := h.each(ctx, schemas.TopicSamples, partition, take); err != nil && !errors.Is(err, errAll) {
			return nil, err
		}
	}
	for id := range missing {
		return nil, fmt.Errorf("%d samples are in neither the log nor the history, one of them %s", len(missing), id)
	}
	return found, nil
}

// errAll ends a search that has everything.
var errAll = errors.New("all were found")
