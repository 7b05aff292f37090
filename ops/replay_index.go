package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// history reads the whole of a partition: from Kafka what it retains, from ClickHouse what it does not. One of them can be nil.
type history struct {
	log   schemas.Reader
	store *sink.History
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

// readers are those that are there, the log first.
func (h history) readers() []schemas.Reader {
	var all []schemas.Reader
	if h.log != nil {
		all = append(all, h.log)
	}
	if h.store != nil {
		all = append(all, h.store)
	}
	return all
}

// partitions is how many partitions a topic has.
func (h history) partitions(ctx context.Context, topic string) (int, error) {
	n := 0
	for _, r := range h.readers() {
		bounds, err := r.Bounds(ctx, topic)
		if err != nil {
			return 0, err
		}
		n = max(n, len(bounds))
	}
	return n, nil
}

// ranges says which offsets of a partition are read from ClickHouse, 0 up to stored, and which from Kafka.
func (h history) ranges(ctx context.Context, topic string, partition int) (stored int64, retained schemas.Bounds, err error) {
	if h.log == nil {
		b, err := bounds(ctx, h.store, topic, partition)
		return b.Next, schemas.Bounds{}, err
	}
	retained, err = bounds(ctx, h.log, topic, partition)
	if h.store != nil {
		stored = retained.First
	}
	return stored, retained, err
}

// gap names the offsets between the end of what ClickHouse stores and the beginning of what Kafka retains, if there are any.
func (h history) gap(ctx context.Context, topic string, partition int) (string, error) {
	stored, _, err := h.ranges(ctx, topic, partition)
	if err != nil || stored == 0 || h.log == nil {
		return "", err
	}
	b, err := bounds(ctx, h.store, topic, partition)
	if err != nil || b.Next >= stored {
		return "", err
	}
	return fmt.Sprintf("%s %d: %d to %d", topic, partition, b.Next, stored-1), nil
}

// each calls do with every record of a partition in offset order. What is appended meanwhile is not read.
func (h history) each(ctx context.Context, topic string, partition int, do func(schemas.Record) error) error {
	stored, retained, err := h.ranges(ctx, topic, partition)
	if err != nil {
		return err
	}
	if stored > 0 {
		if err := h.store.Scan(ctx, topic, partition, 0, stored, do); err != nil {
			return err
		}
	}
	return h.read(ctx, topic, partition, retained, do)
}

func bounds(ctx context.Context, r schemas.Reader, topic string, partition int) (schemas.Bounds, error) {
	all, err := r.Bounds(ctx, topic)
	if err != nil || partition >= len(all) {
		return schemas.Bounds{}, err
	}
	return all[partition], nil
}

// read walks what Kafka retained when the bounds were asked.
func (h history) read(ctx context.Context, topic string, partition int, b schemas.Bounds, do func(schemas.Record) error) error {
	if b.First >= b.Next {
		return nil
	}
	cursor, err := h.log.Open(ctx, topic, partition, b.First)
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
			if rec.Offset >= b.Next {
				return nil
			}
			if err := do(rec); err != nil {
				return err
			}
			if rec.Offset == b.Next-1 {
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
	// checked: it was decoded, so that it is an event indeed.
	checked bool
	// untaught is set for a HintSelected without a teacher: the number of its reason, from 1.
	untaught uint32
}

// recorded is what the pipeline derived in one partition: the first record with each id.
type recorded struct {
	topics []string
	// entries are values without pointers: there are millions, and the garbage collector need not look at them.
	entries map[uuid.UUID]entry
	// turns are the offsets of the TurnClosed events, by id.
	turns map[uuid.UUID]int64
	// votes and hints of judges and finders that ask a model, by turn.
	votes map[string][]*schemas.VoteCast
	hints map[string][]*schemas.HintVoteCast
	// reasons are why there was no teacher: a few, which many turns share.
	reasons []string
	numbers map[string]uint32
}

var derivedTopics = []string{schemas.TopicTurns, schemas.TopicVerdicts, schemas.TopicHints, schemas.TopicSamples}

// load reads the derived topics of one partition.
func (h history) load(ctx context.Context, partition int) (*recorded, error) {
	r := &recorded{
		topics: derivedTopics, entries: map[uuid.UUID]entry{}, turns: map[uuid.UUID]int64{},
		votes: map[string][]*schemas.VoteCast{}, hints: map[string][]*schemas.HintVoteCast{}, numbers: map[string]uint32{},
	}
	for t, topic := range r.topics {
		if err := h.loadTopic(ctx, r, uint8(t), topic, partition); err != nil { //nolint:gosec // four topics
			return nil, fmt.Errorf("read %s, partition %d: %w", topic, partition, err)
		}
	}
	return r, nil
}

// loadTopic lets ClickHouse hash what it stores, and hashes here what only Kafka has.
func (h history) loadTopic(ctx context.Context, r *recorded, t uint8, topic string, partition int) error {
	stored, retained, err := h.ranges(ctx, topic, partition)
	if err != nil {
		return err
	}
	if stored > 0 {
		err := h.store.Digests(ctx, topic, partition, 0, stored, func(d sink.Digest) error {
			r.add(t, d)
			return nil
		})
		if err != nil {
			return err
		}
		if topic == schemas.TopicVerdicts || topic == schemas.TopicHints {
			if err := h.store.ModelVotes(ctx, topic, partition, 0, stored, func(value []byte) error { return r.vote(topic, value) }); err != nil {
				return err
			}
		}
		if topic == schemas.TopicHints {
			if err := h.store.Untaught(ctx, partition, 0, stored, r.noTeacher); err != nil {
				return err
			}
		}
	}
	return h.read(ctx, topic, partition, retained, func(rec schemas.Record) error {
		d := sink.Digest{Offset: rec.Offset, Kind: kindOf(rec), Hash: sink.DigestOf(rec)}
		var err error
		if d.ID, err = uuid.Parse(header(rec, "ce_id")); err != nil {
			return nil //nolint:nilerr // no event: it is in the dead letters
		}
		if was, repeated := r.entries[d.ID]; repeated {
			// Headers can lie: a record whose payload is no event must not hide the event that has its id.
			if was.checked {
				return nil
			}
			if _, err := h.event(ctx, r.topics[was.topic], partition, was.offset); !errors.Is(err, errNoEvent) {
				was.checked = true
				r.entries[d.ID] = was
				return err
			}
			delete(r.entries, d.ID)
		}
		r.add(t, d)
		switch d.Kind {
		case "VoteCast", "HintVoteCast":
			if e, err := schemas.Decode(rec); err == nil {
				r.keep(e.Payload)
			}
		case "HintSelected":
			if e, err := schemas.Decode(rec); err == nil {
				if p, ok := e.Payload.(*schemas.HintSelected); ok && p.Teacher == nil {
					return r.noTeacher(d.ID, p.GetTeacherAbsentReason())
				}
			}
		}
		return nil
	})
}

func kindOf(r schemas.Record) string {
	return strings.TrimPrefix(header(r, "ce_type"), "nextstate.v1.")
}

func header(r schemas.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// errNoEvent: a recorded record cannot be decoded. It is in the dead letters, and no processor derived it.
var errNoEvent = errors.New("the record is no event")

// add notes the first record with an id.
func (r *recorded) add(topic uint8, d sink.Digest) {
	if _, repeated := r.entries[d.ID]; repeated {
		return
	}
	r.entries[d.ID] = entry{hash: [16]byte(d.Hash[:16]), offset: d.Offset, topic: topic}
	if d.Kind == "TurnClosed" {
		r.turns[d.ID] = d.Offset
	}
}

// noTeacher notes why a recorded HintSelected has no teacher.
func (r *recorded) noTeacher(id uuid.UUID, reason string) error {
	n, known := r.numbers[reason]
	if !known {
		r.reasons = append(r.reasons, reason)
		n = uint32(len(r.reasons)) //nolint:gosec // fewer than records
		r.numbers[reason] = n
	}
	if e, known := r.entries[id]; known {
		e.untaught = n
		r.entries[id] = e
	}
	return nil
}

// vote keeps what a model said, as ClickHouse has it.
func (r *recorded) vote(topic string, value []byte) error {
	var m proto.Message = new(schemas.VoteCast)
	if topic == schemas.TopicHints {
		m = new(schemas.HintVoteCast)
	}
	if err := proto.Unmarshal(value, m); err != nil {
		return err
	}
	r.keep(m)
	return nil
}

func (r *recorded) keep(m proto.Message) {
	switch p := m.(type) {
	case *schemas.VoteCast:
		if p.GetJudge() != "rules" {
			r.votes[p.GetTurnId()] = append(r.votes[p.GetTurnId()], p)
		}
	case *schemas.HintVoteCast:
		if p.GetFinder() != "rules" {
			r.hints[p.GetTurnId()] = append(r.hints[p.GetTurnId()], p)
		}
	}
}

// unseen are the records that were not derived again, in the order of topics and offsets.
func (r *recorded) unseen() []entry {
	var left []entry
	for _, e := range r.entries {
		if !e.seen {
			left = append(left, e)
		}
	}
	slices.SortFunc(left, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.offset, b.offset))
	})
	return left
}

// event reads a recorded event again.
func (h history) event(ctx context.Context, topic string, partition int, offset int64) (schemas.Event, error) {
	for _, r := range h.readers() {
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
			e, err := schemas.Decode(records[0])
			if err != nil {
				return e, fmt.Errorf("%w: %w", errNoEvent, err)
			}
			return e, nil
		}
	}
	return schemas.Event{}, fmt.Errorf("%s %d:%d is in neither the log nor the history", topic, partition, offset)
}
