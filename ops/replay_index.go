package ops

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// history reads the whole of a partition: from Kafka what it retains, from ClickHouse what it does not.
type history struct {
	log   schemas.Reader
	store schemas.Reader
}

func (s *System) history(source string) (history, error) {
	h := history{log: s.Log, store: sink.NewHistory(s.ClickHouse)}
	switch source {
	case "", "auto":
	case "kafka":
		h.store = nil
	case "clickhouse":
		h.log = nil
	default:
		return h, fmt.Errorf("source %q is not known; use auto, kafka or clickhouse", source)
	}
	return h, nil
}

// partitions is how many partitions a topic has.
func (h history) partitions(ctx context.Context, topic string) (int, error) {
	n := 0
	for _, r := range []schemas.Reader{h.log, h.store} {
		if r == nil {
			continue
		}
		bounds, err := r.Bounds(ctx, topic)
		if err != nil {
			return 0, err
		}
		n = max(n, len(bounds))
	}
	return n, nil
}

// each calls do with every record of a partition in offset order. What is appended meanwhile is not read.
func (h history) each(ctx context.Context, topic string, partition int, do func(schemas.Record) error) error {
	if h.log != nil {
		b, err := bounds(ctx, h.log, topic, partition)
		if err != nil {
			return err
		}
		if b.First > 0 && h.store != nil {
			if err := h.read(ctx, h.store, topic, partition, 0, b.First, do); err != nil {
				return err
			}
		}
		return h.read(ctx, h.log, topic, partition, b.First, b.Next, do)
	}
	b, err := bounds(ctx, h.store, topic, partition)
	if err != nil {
		return err
	}
	return h.read(ctx, h.store, topic, partition, 0, b.Next, do)
}

func bounds(ctx context.Context, r schemas.Reader, topic string, partition int) (schemas.Bounds, error) {
	all, err := r.Bounds(ctx, topic)
	if err != nil || partition >= len(all) {
		return schemas.Bounds{}, err
	}
	return all[partition], nil
}

// read walks the records with from <= offset < to. The history may have gaps (repeated events are stored once), so its last record can lie
// before to: the stored bounds tell where it ends.
func (h history) read(ctx context.Context, r schemas.Reader, topic string, partition int, from, to int64, do func(schemas.Record) error) error {
	b, err := bounds(ctx, r, topic, partition)
	if err != nil {
		return err
	}
	to = min(to, b.Next)
	if from >= to {
		return nil
	}
	cursor, err := r.Open(ctx, topic, partition, max(from, b.First))
	if err != nil {
		return err
	}
	defer cursor.Close()
	for {
		records, err := cursor.Next(ctx, 5000)
		if err != nil {
			return err
		}
		for _, rec := range records {
			if rec.Offset >= to {
				return nil
			}
			if err := do(rec); err != nil {
				return err
			}
			if rec.Offset == to-1 {
				return nil
			}
		}
	}
}

// entry is one derived record as it was: enough to compare, and where to read it again.
type entry struct {
	hash   [16]byte
	offset int64
	topic  uint8
	seen   bool
}

// recorded is what the pipeline derived in one partition: the first record with each id.
type recorded struct {
	topics  []string
	entries map[uuid.UUID]*entry
	// turns are the offsets of the TurnClosed events, by id.
	turns map[uuid.UUID]int64
	// votes and hints of judges and finders that ask a model, by turn.
	votes map[string][]*schemas.VoteCast
	hints map[string][]*schemas.HintVoteCast
}

var derivedTopics = []string{schemas.TopicTurns, schemas.TopicVerdicts, schemas.TopicHints, schemas.TopicSamples}

// load reads the derived topics of one partition.
func (h history) load(ctx context.Context, partition int) (*recorded, error) {
	r := &recorded{
		topics: derivedTopics, entries: map[uuid.UUID]*entry{}, turns: map[uuid.UUID]int64{},
		votes: map[string][]*schemas.VoteCast{}, hints: map[string][]*schemas.HintVoteCast{},
	}
	for t, topic := range r.topics {
		err := h.each(ctx, topic, partition, func(rec schemas.Record) error { return r.add(uint8(t), rec) }) //nolint:gosec // four topics
		if err != nil {
			return nil, fmt.Errorf("read %s, partition %d: %w", topic, partition, err)
		}
	}
	return r, nil
}

func (r *recorded) add(topic uint8, rec schemas.Record) error {
	e, err := schemas.Decode(rec)
	if err != nil {
		// No event, whatever its headers say: it is in the dead letters. Were its id believed, it would hide the event that has it.
		return nil
	}
	id, err := uuid.Parse(e.ID)
	if err != nil || r.entries[id] != nil {
		return err
	}
	r.entries[id] = &entry{hash: hashRecord(rec), offset: rec.Offset, topic: topic}
	switch p := e.Payload.(type) {
	case *schemas.TurnClosed:
		r.turns[id] = rec.Offset
	case *schemas.VoteCast:
		if p.GetJudge() != "rules" {
			r.votes[p.GetTurnId()] = append(r.votes[p.GetTurnId()], p)
		}
	case *schemas.HintVoteCast:
		if p.GetFinder() != "rules" {
			r.hints[p.GetTurnId()] = append(r.hints[p.GetTurnId()], p)
		}
	}
	return nil
}

// hashRecord covers everything that derivation decides: key, time, headers in order, value.
func hashRecord(r schemas.Record) [16]byte {
	h := sha256.New()
	var n [8]byte
	part := func(b []byte) {
		for i, l := 0, len(b); i < 8; i++ {
			n[i] = byte(l >> (8 * i))
		}
		h.Write(n[:])
		h.Write(b)
	}
	part(r.Key)
	part([]byte(r.Time.UTC().Format(time.RFC3339Nano)))
	for _, x := range r.Headers {
		part([]byte(x.Key))
		part(x.Value)
	}
	part(r.Value)
	var sum [16]byte
	copy(sum[:], h.Sum(nil))
	return sum
}

// event reads a recorded event again.
func (h history) event(ctx context.Context, topic string, partition int, offset int64) (schemas.Event, error) {
	for _, r := range []schemas.Reader{h.log, h.store} {
		if r == nil {
			continue
		}
		cursor, err := r.Open(ctx, topic, partition, offset)
		if errors.Is(err, schemas.ErrTruncated) {
			continue
		}
		if err != nil {
			return schemas.Event{}, err
		}
		records, err := cursor.Next(ctx, 1)
		err = errors.Join(err, cursor.Close())
		if err != nil {
			return schemas.Event{}, err
		}
		if len(records) > 0 && records[0].Offset == offset {
			return schemas.Decode(records[0])
		}
	}
	return schemas.Event{}, fmt.Errorf("%s %d:%d is in neither the log nor the history", topic, partition, offset)
}
