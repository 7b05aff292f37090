package bench

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
)

// place of a record in the log.
type place struct {
	topic     string
	partition int
	offset    int64
}

// wanted is a row that the history must have.
type wanted struct {
	kind string // empty: no event
	id   string
	hash [32]byte
}

// truth is what the log and derivation say that the history must hold.
type truth struct {
	// rows: each record of the log but repeats of an id.
	rows map[place]wanted
	// first is where an id stands first, for all events.
	first map[string]place
	// interactions by partition, repeats included, in offset order.
	interactions [][]schemas.Event
	// derived are the ids that must have been derived, with the hash of their record; dead letters without.
	derived map[string][32]byte
	kinds   map[string]string // of derived
}

// verify compares the log with what was acknowledged and derivable, then the history with the log.
func (r *crashRun) verify(ctx context.Context) error {
	t, err := r.readLog(ctx)
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	if err := r.derive(ctx, t); err != nil {
		return fmt.Errorf("derive: %w", err)
	}
	r.checkLog(t)
	for _, check := range []func(context.Context, *truth) error{r.checkEvents, r.checkTyped, r.checkViews, r.checkReplay} {
		if err := check(ctx, t); err != nil {
			return fmt.Errorf("read the history: %w", err)
		}
	}
	return nil
}

// readLog reads every topic from its first record.
func (r *crashRun) readLog(ctx context.Context) (*truth, error) {
	t := &truth{rows: map[place]wanted{}, first: map[string]place{}, derived: map[string][32]byte{}, kinds: map[string]string{}}
	for _, topic := range schemas.Topics() {
		bounds, err := r.system.Log.Bounds(ctx, topic)
		if err != nil {
			return nil, err
		}
		if topic == schemas.TopicInteractions {
			t.interactions = make([][]schemas.Event, len(bounds))
		}
		for p, b := range bounds {
			if b.First != 0 {
				r.report.fault(nil, "%s/%d begins at offset %d: the log has dropped records", topic, p, b.First)
			}
		}
		expected := int64(-1)
		at := -1
		err = readAll(ctx, r.system.Log, topic, func(p int, rec schemas.Record) error {
			if at != p {
				at, expected = p, 0
			}
			if rec.Offset != expected {
				r.report.fault(nil, "%s/%d goes from offset %d to %d", topic, p, expected-1, rec.Offset)
			}
			expected = rec.Offset + 1
			r.take(t, rec)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return t, nil
}

// take adds one record of the log.
func (r *crashRun) take(t *truth, rec schemas.Record) {
	at := place{rec.Topic, rec.Partition, rec.Offset}
	e, err := schemas.Decode(rec)
	if err != nil {
		t.rows[at] = wanted{hash: recordHash(rec)}
		for _, s := range ops.Stages() {
			if slices.Contains(s.In, rec.Topic) {
				name := s.Name
				if name == "clickhouse" {
					name = "sink"
				}
				t.derives(schemas.DeadLetter(name, "it cannot be decoded", rec), [32]byte{})
			}
		}
		return
	}
	if rec.Topic == schemas.TopicInteractions {
		t.interactions[rec.Partition] = append(t.interactions[rec.Partition], e)
	}
	if _, known := t.first[e.ID]; known {
		r.report.Repeats++
		return
	}
	t.first[e.ID] = at
	t.rows[at] = wanted{kind: e.Kind(), id: e.ID, hash: recordHash(rec)}
}

// derives notes that an event must have been derived. The first one with an id counts.
func (t *truth) derives(e schemas.Event, hash [32]byte) {
	if _, known := t.derived[e.ID]; !known {
		t.derived[e.ID], t.kinds[e.ID] = hash, e.Kind()
	}
}

// derive finds out what the interactions give.
func (r *crashRun) derive(ctx context.Context, t *truth) error {
	o := processors.DeriveOptions{
		Pair: processors.PairConfig{Idle: idleTimeout},
		TurnOffset: func(turn string) (int64, bool) {
			at, ok := t.first[schemas.DerivedID(processors.StagePair, processors.PairVersion, "TurnClosed", turn, 0)]
			return at.offset, ok
		},
	}
	for _, events := range t.interactions {
		err := processors.Derive(ctx, each(events), o, func(e schemas.Event) error {
			if e.Kind() == "DeadLettered" {
				t.derives(e, [32]byte{}) // the reason's words are the stage's own affair
				return nil
			}
			rec, err := schemas.Encode(e)
			if err != nil {
				return err
			}
			t.derives(e, recordHash(rec))
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.report.Derived = len(t.derived)
	return nil
}

func each(events []schemas.Event) iter.Seq2[schemas.Event, error] {
	return func(yield func(schemas.Event, error) bool) {
		for _, e := range events {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// checkLog holds the log against what was acknowledged and what must have been derived. What the log has lost the history cannot have.
func (r *crashRun) checkLog(t *truth) {
	for id, kind := range r.load.acked {
		if _, ok := t.first[id]; !ok {
			r.report.fault(&r.report.Lost, "%s %s was acknowledged, and the log does not have it", kind, id)
		}
	}
	for id, hash := range t.derived {
		at, ok := t.first[id]
		switch {
		case !ok:
			r.report.fault(&r.report.Missing, "%s %s was not derived", t.kinds[id], id)
		case hash != [32]byte{} && t.rows[at].hash != hash:
			r.report.fault(&r.report.Unexpected, "%s %s at %v is not what derivation gives", t.kinds[id], id, at)
		}
	}
	for id, at := range t.first {
		if _, ok := t.derived[id]; !ok && at.topic != schemas.TopicInteractions {
			r.report.fault(&r.report.Unexpected, "%s %s at %v does not follow from the interactions", t.rows[at].kind, id, at)
		}
	}
}

// checkEvents compares the table events with the log, record by record.
func (r *crashRun) checkEvents(ctx context.Context, t *truth) error {
	rows, err := r.system.ClickHouse.Query(ctx, "SELECT topic, partition, offset, kind, event_id, record_ms, key, header_keys, header_values, value FROM events")
	if err != nil {
		return err
	}
	defer rows.Close()
	places := map[place]int{}
	for rows.Next() {
		var topic, kind, key, value string
		var partition uint32
		var offset uint64
		var id uuid.UUID
		var ms int64
		var names, values []string
		if err := rows.Scan(&topic, &partition, &offset, &kind, &id, &ms, &key, &names, &values, &value); err != nil {
			return err
		}
		at := place{topic, int(partition), int64(offset)} //nolint:gosec // came from an int64
		want, ok := t.rows[at]
		places[at]++
		hash := hashParts(ms, key, value, names, values)
		switch {
		case !ok:
			counter := &r.report.Unexpected
			if _, known := t.first[id.String()]; known {
				counter = &r.report.Duplicated
			}
			r.report.fault(counter, "the history has %s %s at %v, where the log has none or a repeat", kind, id, at)
		case places[at] > 1:
			r.report.fault(&r.report.Duplicated, "the history has %v %d times", at, places[at])
		case want.kind != kind || want.kind != "" && want.id != id.String() || want.hash != hash:
			r.report.fault(&r.report.Unexpected, "the history's row for %v (%s %s) is not the log's record (%s %s)", at, kind, id, want.kind, want.id)
		}
	}
	for at, want := range t.rows {
		if places[at] > 0 {
			continue
		}
		counter := &r.report.Missing
		if _, acked := r.load.acked[want.id]; acked || want.kind == "" {
			counter = &r.report.Lost
		}
		r.report.fault(counter, "the log has %s %s at %v, and the history does not", want.kind, want.id, at)
	}
	return rows.Err()
}

// checkTyped wants each event once in the table of its kind, from the same place.
func (r *crashRun) checkTyped(ctx context.Context, t *truth) error {
	byKind := map[string]map[string]place{}
	for at, want := range t.rows {
		if want.kind == "" {
			continue
		}
		if byKind[want.kind] == nil {
			byKind[want.kind] = map[string]place{}
		}
		byKind[want.kind][want.id] = at
	}
	for _, k := range schemas.Kinds() {
		seen := map[string]int{}
		rows, err := r.system.ClickHouse.Query(ctx, "SELECT event_id, partition, offset FROM "+tableOf(k.Name))
		if err != nil {
			return fmt.Errorf("typed table of %s: %w", k.Name, err)
		}
		for rows.Next() {
			var id uuid.UUID
			var partition uint32
			var offset uint64
			if err := rows.Scan(&id, &partition, &offset); err != nil {
				return err
			}
			seen[id.String()]++
			at, ok := byKind[k.Name][id.String()]
			switch {
			case seen[id.String()] > 1:
				r.report.fault(&r.report.Duplicated, "%s holds %s %d times", tableOf(k.Name), id, seen[id.String()])
			case !ok || at != place{k.Topic, int(partition), int64(offset)}: //nolint:gosec // came from an int64
				r.report.fault(&r.report.Unexpected, "%s holds %s from %d:%d, which stands first at %v", tableOf(k.Name), id, partition, offset, at)
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for id := range byKind[k.Name] {
			if seen[id] == 0 {
				counter := &r.report.Missing
				if _, acked := r.load.acked[id]; acked {
					counter = &r.report.Lost
				}
				r.report.fault(counter, "%s does not hold %s", tableOf(k.Name), id)
			}
		}
	}
	return nil
}

// tableOf spells a kind as its table is: ActionTaken is action_taken.
func tableOf(kind string) string {
	var b strings.Builder
	for i, c := range kind {
		if c >= 'A' && c <= 'Z' && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(c)
	}
	return strings.ToLower(b.String())
}

// checkViews wants what analysts see to add up: a turn is one row, with a verdict, with a hint or none, with a sample or none; every
// message and tool of an action is there.
func (r *crashRun) checkViews(ctx context.Context, t *truth) error {
	turns := uint64(0)
	for _, kind := range t.kinds {
		if kind == "TurnClosed" {
			turns++
		}
	}
	for _, check := range []struct {
		what, query string
		want        uint64
	}{
		{"rows of turns", "SELECT count() FROM turns", turns},
		{"distinct turns of turns", "SELECT uniqExact(turn_id) FROM turns", turns},
		{"turns of sessions", "SELECT toUInt64(sum(turns)) FROM sessions", turns},
		{"turns of rewards", "SELECT toUInt64(sum(turns)) FROM rewards", turns},
		{"turns without an action", "SELECT count() FROM turns WHERE model IS NULL", 0},
		{"turns without a verdict", "SELECT count() FROM turns WHERE verdict_reason IS NULL", 0},
		{"turns without one of hint and no_hint_reason", "SELECT count() FROM turns WHERE (hint IS NULL) = (no_hint_reason IS NULL)", 0},
		{"turns without one of sample and skip_reason", "SELECT count() FROM turns WHERE (sample_id IS NULL) = (skip_reason IS NULL)", 0},
		{"messages of conversations that are missing", "SELECT count() FROM conversations WHERE role = ''", 0},
		{
			"tools of actions that are missing",
			"SELECT count() FROM (SELECT arrayJoin(tool_hashes) AS hash FROM action_taken) WHERE hash NOT IN (SELECT hash FROM tools)", 0,
		},
	} {
		var got uint64
		if err := r.system.ClickHouse.QueryRow(ctx, check.query).Scan(&got); err != nil {
			return fmt.Errorf("%s: %w", check.what, err)
		}
		if got != check.want {
			r.report.fault(nil, "%s: %d, want %d", check.what, got, check.want)
		}
	}
	bad, _, err := ops.Audit(ctx, r.system)
	if err != nil {
		return err
	}
	if len(bad) > 0 {
		r.report.fault(nil, "the audit finds rows twice in %s", strings.Join(bad, ", "))
	}
	return nil
}

// checkReplay wants the replay command's word that all of it is the same, byte for byte, from both stores.
func (r *crashRun) checkReplay(ctx context.Context, _ *truth) error {
	for _, source := range []string{"kafka", "clickhouse"} {
		report, err := ops.Replay(ctx, r.system, ops.ReplayOptions{Source: source, MaxDifferences: 5})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			r.report.fault(nil, "replay from %s: %v", source, err)
		case !report.Equal():
			r.report.fault(nil, "replay from %s: %s: %v", source, report.Line(), report.Differences)
		}
	}
	return nil
}

// recordHash covers the whole record but its place.
func recordHash(rec schemas.Record) [32]byte {
	names, values := make([]string, len(rec.Headers)), make([]string, len(rec.Headers))
	for i, h := range rec.Headers {
		names[i], values[i] = h.Key, string(h.Value)
	}
	return hashParts(rec.Time.UnixMilli(), string(rec.Key), string(rec.Value), names, values)
}

func hashParts(ms int64, key, value string, names, values []string) (sum [32]byte) {
	h := sha256.New()
	part := func(s string) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(ms))) //nolint:gosec // any bits will do
	part(key)
	part(value)
	for i := range names {
		part(names[i])
		part(values[i])
	}
	h.Sum(sum[:0])
	return sum
}
