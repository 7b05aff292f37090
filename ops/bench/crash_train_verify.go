package bench

import (
	"bytes"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/producers/blobs"
	"github.com/nextstate-rl/nextstate/schemas"
)

// policyLog is what the topic policies holds.
type policyLog struct {
	// started and published by the number of their update.
	started   map[uint64]schemas.Event
	published map[uint64]schemas.Event
}

// verify compares the log with what was acknowledged, the ledger with the log, and the blob store with both; then it computes the last version again.
func (r *trainCrash) verify(ctx context.Context) error {
	r.report.Samples, r.report.Hostile, r.report.Retries = len(r.load.trainable), r.load.hostile, r.load.tries.Load()
	if err := r.checkDead(ctx); err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	policies, err := r.readPolicies(ctx)
	if err != nil {
		return fmt.Errorf("read policies: %w", err)
	}
	r.checkSamples(policies)
	if err := r.checkLedger(ctx, policies); err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	last, err := r.checkVersions(ctx, policies)
	if err != nil || last == "" {
		return err
	}
	return r.rebuild(ctx, last)
}

// sampleRecords are the records of the topic samples by their place: the id of what can be trained, and "" for a hostile one.
func (r *trainCrash) sampleRecords(ctx context.Context) (map[place]string, error) {
	records := map[place]string{}
	return records, readAll(ctx, r.system.Log, schemas.TopicSamples, func(partition int, rec schemas.Record) error {
		id := ""
		if e, err := schemas.Decode(rec); err == nil && r.load.trainable[e.ID] {
			id = e.ID
		}
		records[place{schemas.TopicSamples, partition, rec.Offset}] = id
		return nil
	})
}

// deadSamples are the places in samples whose records the trainers have dead-lettered.
func (r *trainCrash) deadSamples(ctx context.Context) (map[place]bool, error) {
	dead := map[place]bool{}
	return dead, readAll(ctx, r.system.Log, schemas.TopicDeadLetters, func(_ int, rec schemas.Record) error {
		e, err := schemas.Decode(rec)
		if err != nil {
			return err
		}
		if d, ok := e.Payload.(*schemas.DeadLettered); ok && d.GetStage() == "train" {
			at := d.GetPosition()
			dead[place{at.GetTopic(), int(at.GetPartition()), int64(at.GetOffset())}] = true //nolint:gosec // an offset of this log
		}
		return nil
	})
}

// checkDead wants every record of samples that cannot be trained dead-lettered, and no other.
func (r *trainCrash) checkDead(ctx context.Context) error {
	records, err := r.sampleRecords(ctx)
	if err != nil {
		return err
	}
	dead, err := r.deadSamples(ctx)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for at, id := range records {
		if (id == "") != dead[at] {
			r.report.fault(nil, "the record at %v is sample %q, and that it is dead-lettered is %v", at, id, dead[at])
		}
		delete(dead, at)
		if id == "" {
			continue
		}
		if seen[id] {
			r.report.Repeats++
		}
		seen[id] = true
	}
	for at := range dead {
		r.report.fault(nil, "a dead letter is about %v, where no record is", at)
	}
	for id := range r.load.trainable {
		if !seen[id] {
			r.report.fault(nil, "sample %s was acknowledged, and the log does not have it", id)
		}
	}
	return nil
}

// readPolicies reads the topic. A repeat has to be the same record.
func (r *trainCrash) readPolicies(ctx context.Context) (*policyLog, error) {
	l := &policyLog{started: map[uint64]schemas.Event{}, published: map[uint64]schemas.Event{}}
	first := map[string]schemas.Record{}
	return l, readAll(ctx, r.system.Log, schemas.TopicPolicies, func(_ int, rec schemas.Record) error {
		e, err := schemas.Decode(rec)
		if err != nil {
			return err
		}
		if before, known := first[e.ID]; known {
			r.report.Repeats++
			if !bytes.Equal(before.Value, rec.Value) {
				r.report.fault(nil, "%s %s stands in the log twice, and differs", e.Kind(), e.ID)
			}
			return nil
		}
		rec.Value = bytes.Clone(rec.Value) // the cursor's
		first[e.ID] = rec
		var into map[uint64]schemas.Event
		var number uint64
		switch p := e.Payload.(type) {
		case *schemas.UpdateStarted:
			into, number = l.started, p.GetUpdate()
		case *schemas.PolicyPublished:
			into, number = l.published, p.GetUpdate()
		default:
			r.report.fault(nil, "policies holds %s %s", e.Kind(), e.ID)
			return nil
		}
		if other, known := into[number]; known {
			r.report.fault(nil, "update %d has two events %s: %s and %s", number, e.Kind(), other.ID, e.ID)
			return nil
		}
		into[number] = e
		return nil
	})
}

// checkSamples wants each acknowledged sample in exactly one UpdateStarted, and no other there.
func (r *trainCrash) checkSamples(l *policyLog) {
	used := map[string]uint64{}
	for number, e := range l.started {
		started, _ := e.Payload.(*schemas.UpdateStarted)
		if n := len(started.GetSampleIds()); n == 0 || n > trainBatch {
			r.report.fault(nil, "update %d has %d samples", number, n)
		}
		for _, id := range started.GetSampleIds() {
			if other, known := used[id]; known {
				r.report.fault(&r.report.Repeated, "sample %s is in the updates %d and %d", id, other, number)
			}
			if !r.load.trainable[id] {
				r.report.fault(nil, "update %d has the sample %s, which was never acknowledged", number, id)
			}
			used[id] = number
		}
	}
	for id := range r.load.trainable {
		if _, known := used[id]; !known {
			r.report.fault(&r.report.Unused, "sample %s is in no update", id)
		}
	}
}

// checkLedger wants the ledger to say what the log says: the same updates under numbers without gaps, each published, with the same samples in the same order.
func (r *trainCrash) checkLedger(ctx context.Context, l *policyLog) error {
	if err := r.system.Postgres.QueryRow(ctx, `SELECT epoch FROM trainers WHERE tenant = $1`, Tenant).Scan(&r.report.Takeovers); err != nil {
		return err
	}
	rows, err := r.system.Postgres.Query(ctx, `SELECT u.number, u.update_id::text, u.status, coalesce(u.reason, ''), coalesce(u.version::text, ''),
		array(SELECT s.sample_id::text FROM update_samples s WHERE s.tenant = u.tenant AND s.number = u.number ORDER BY s.ordinal)
		FROM updates u WHERE u.tenant = $1 ORDER BY u.number`, Tenant)
	if err != nil {
		return err
	}
	type line struct {
		Number                       uint64
		UpdateID, Status, Why, Value string
		Samples                      []string
	}
	lines, err := pgx.CollectRows(rows, pgx.RowToStructByPos[line])
	if err != nil {
		return err
	}
	r.report.Updates = len(lines)
	if len(lines) != len(l.started) {
		r.report.fault(nil, "the ledger has %d updates, and the log %d", len(lines), len(l.started))
	}
	for i, u := range lines {
		if u.Number != uint64(i)+1 { //nolint:gosec // a count
			r.report.fault(nil, "update %d of the ledger has the number %d", i+1, u.Number)
		}
		started, published := l.started[u.Number], l.published[u.Number]
		payload, _ := started.Payload.(*schemas.UpdateStarted)
		if u.UpdateID != started.ID || fmt.Sprint(u.Samples) != fmt.Sprint(payload.GetSampleIds()) {
			r.report.fault(nil, "update %d is %s of %v in the ledger, and %s of %v in the log", u.Number, u.UpdateID, u.Samples, started.ID, payload.GetSampleIds())
		}
		if u.Status != "published" || u.Value != published.ID {
			r.report.fault(nil, "update %d is %s as %q in the ledger (%s), and the log has the version %q", u.Number, u.Status, u.Value, u.Why, published.ID)
		}
	}
	return nil
}

// checkVersions wants the versions to be one chain from the base model on, and the files of the newest ones, and of no other, in the blob store: pruning is told to
// end what a killed trainer began. It returns the last one.
func (r *trainCrash) checkVersions(ctx context.Context, l *policyLog) (last string, err error) {
	store, err := blobs.Open(blobs.Config{Dir: r.system.Blobs()})
	if err != nil {
		return "", err
	}
	if _, err := ops.PrunePolicies(ctx, r.system, store, trainKeep); err != nil {
		return "", err
	}
	parent := "base"
	for number := uint64(1); number <= uint64(len(l.started)); number++ {
		started, _ := l.started[number].Payload.(*schemas.UpdateStarted)
		published, ok := l.published[number].Payload.(*schemas.PolicyPublished)
		if !ok {
			r.report.fault(nil, "update %d gave no version", number)
			continue
		}
		r.report.Versions++
		r.report.BusySeconds += published.GetMetrics()["seconds"]
		if started.GetParentVersion() != parent || published.GetParentVersion() != parent || published.GetUpdateId() != l.started[number].ID {
			r.report.fault(nil, "update %d is %s from %s, and its version is from %s by %s; its parent should be %s", number, l.started[number].ID,
				started.GetParentVersion(), published.GetParentVersion(), published.GetUpdateId(), parent)
		}
		parent, last = l.published[number].ID, l.published[number].ID
		for name, sum := range map[string][]byte{"peft": published.GetPeftSha256(), "gguf": published.GetGgufSha256(), "checkpoint": published.GetCheckpointSha256()} {
			if len(sum) != 32 {
				r.report.fault(nil, "the file %s of update %d has the hash %x", name, number, sum)
				continue
			}
			_, err := store.File(ctx, [32]byte(sum))
			if kept := number+trainKeep > uint64(len(l.started)); kept != (err == nil) {
				r.report.fault(nil, "the file %s of update %d, of which the newest %d are kept: %v", name, number, trainKeep, err)
			}
		}
	}
	return last, nil
}
