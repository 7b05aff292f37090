package clickhouse

import (
	"encoding/hex"

	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/schemas"
)

func updateStarted(t *table, _ *Batch) func(row) {
	update, parent, samples := newCells[uint64](t, "update"), newCells[string](t, "parent_version"), newLists[[]uuid.UUID](t, "sample_ids")
	objective, seed, engine := newCells[string](t, "objective"), newCells[uint64](t, "seed"), newCells[string](t, "engine")
	return func(r row) {
		u, ok := r.Payload.(*schemas.UpdateStarted)
		if !ok {
			return
		}
		update.add(u.GetUpdate())
		parent.add(u.GetParentVersion())
		samples.add(parseIDs(u.GetSampleIds()))
		objective.add(u.GetObjective())
		seed.add(u.GetSeed())
		engine.add(u.GetEngine())
	}
}

func policyPublished(t *table, _ *Batch) func(row) {
	update, updateID, parent := newCells[uint64](t, "update"), newCells[string](t, "update_id"), newCells[string](t, "parent_version")
	peft, gguf, checkpoint := newCells[string](t, "peft_sha256"), newCells[string](t, "gguf_sha256"), newCells[*string](t, "checkpoint_sha256")
	base, metrics := newCells[string](t, "base_model"), newLists[map[string]float64](t, "metrics")
	return func(r row) {
		p, ok := r.Payload.(*schemas.PolicyPublished)
		if !ok {
			return
		}
		update.add(p.GetUpdate())
		updateID.add(p.GetUpdateId())
		parent.add(p.GetParentVersion())
		peft.add(hex.EncodeToString(p.GetPeftSha256()))
		gguf.add(hex.EncodeToString(p.GetGgufSha256()))
		if p.CheckpointSha256 != nil {
			sum := hex.EncodeToString(p.GetCheckpointSha256())
			checkpoint.add(&sum)
		} else {
			checkpoint.add(nil)
		}
		base.add(p.GetBaseModel())
		metrics.add(p.GetMetrics())
	}
}

func policyRolledBack(t *table, _ *Batch) func(row) {
	from, to := newCells[string](t, "from_version"), newCells[string](t, "to_version")
	reason, by := newCells[string](t, "reason"), newCells[string](t, "by")
	return func(r row) {
		p, ok := r.Payload.(*schemas.PolicyRolledBack)
		if !ok {
			return
		}
		from.add(p.GetFromVersion())
		to.add(p.GetToVersion())
		reason.add(p.GetReason())
		by.add(p.GetBy())
	}
}

func deadLettered(t *table, _ *Batch) func(row) {
	stage, reason := newCells[string](t, "stage"), newCells[string](t, "reason")
	topic, partition, offset := newCells[*string](t, "origin_topic"), newCells[*uint32](t, "origin_partition"), newCells[*uint64](t, "origin_offset")
	file, line, key := newCells[*string](t, "origin_file"), newCells[*uint64](t, "origin_line"), newCells[string](t, "origin_key")
	value, truncated := newCells[string](t, "value"), newCells[bool](t, "truncated")
	return func(r row) {
		d, ok := r.Payload.(*schemas.DeadLettered)
		if !ok {
			return
		}
		stage.add(d.GetStage())
		reason.add(d.GetReason())
		var o struct {
			topic, file  *string
			partition    *uint32
			offset, line *uint64
		}
		if p := d.GetPosition(); p != nil {
			o.topic, o.partition, o.offset = &p.Topic, &p.Partition, &p.Offset
		}
		if f := d.GetFile(); f != nil {
			o.file, o.line = &f.Name, &f.Line
		}
		topic.add(o.topic)
		partition.add(o.partition)
		offset.add(o.offset)
		file.add(o.file)
		line.add(o.line)
		key.add(string(d.GetKey()))
		value.add(string(d.GetValue()))
		truncated.add(d.GetTruncated())
	}
}
