package processors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nextstate-rl/nextstate/schemas"
)

// aheadMax bounds the terminal events that are read beyond the one looked for. Terminal events come in the order of turns but for
// repeats and partly failed appends, so one that is missing after so many is not coming (its record was lost to retention).
const aheadMax = 50_000

// Join assembles samples over the log: for the turn at offset o of its partition it advances through the same partition of verdicts and of
// hints to the first terminal event with turn_offset o, so that it needs no memory of turns. For one partition and one goroutine.
type Join struct {
	verdicts, hints side
}

// side is one of the two topics that the turns are joined with.
type side struct {
	log       schemas.Reader
	topic     string
	partition int
	cursor    schemas.Cursor
	// next is the next offset to read.
	next   int64
	unread []schemas.Record
	// ahead holds terminal events of later turns that were read already, the first of each.
	ahead map[uint64]placed
}

// placed is a terminal event with its own offset.
type placed struct {
	event  schemas.Event
	offset int64
}

// NewJoin makes the processor of one partition of turns. It reads verdicts and hints from log, and must be closed.
func NewJoin(log schemas.Reader, partition int) *Join {
	on := func(topic string) side {
		return side{log: log, topic: topic, partition: partition, next: -1, ahead: map[uint64]placed{}}
	}
	return &Join{verdicts: on(schemas.TopicVerdicts), hints: on(schemas.TopicHints)}
}

// AssembleStage is assemble's line in the table of stages.
func AssembleStage(log schemas.Reader) Stage {
	return Stage{
		Name: StageAssemble, Topic: schemas.TopicTurns, Workers: 1, Chunk: 1,
		New: func(partition int) (Processor, error) { return NewJoin(log, partition), nil },
	}
}

// Process implements Processor. It waits until the turn's verdict and hint are in the log.
func (j *Join) Process(ctx context.Context, e schemas.Event) ([]schemas.Event, error) {
	if _, ok := e.Payload.(*schemas.TurnClosed); !ok {
		return nil, Permanent(fmt.Errorf("assemble takes TurnClosed, not %s", e.Kind()))
	}
	o := uint64(e.Position.Offset) //nolint:gosec // an offset is not negative
	judged, err := j.verdicts.find(ctx, o)
	if err != nil {
		return nil, err
	}
	hint, err := j.hints.find(ctx, o)
	if err != nil {
		return nil, err
	}
	j.verdicts.forget(o)
	j.hints.forget(o)
	return []schemas.Event{Assemble(e, judged, hint)}, nil
}

// Close implements io.Closer.
func (j *Join) Close() error { return errors.Join(j.verdicts.close(), j.hints.close()) }

// joinNote is where the two cursors start again.
type joinNote struct {
	Verdicts int64 `json:"verdicts"`
	Hints    int64 `json:"hints"`
}

// Note implements Noted.
func (j *Join) Note() json.RawMessage {
	return fmt.Appendf(nil, `{"verdicts":%d,"hints":%d}`, j.verdicts.position(), j.hints.position())
}

// Restore implements Noted.
func (j *Join) Restore(text json.RawMessage) error {
	var n joinNote
	if err := json.Unmarshal(text, &n); err != nil {
		return err
	}
	j.verdicts.next, j.hints.next = n.Verdicts, n.Hints
	return nil
}

// find returns the first terminal event of the turn at offset o. Looking again for the same o gives the same event until forget.
func (s *side) find(ctx context.Context, o uint64) (schemas.Event, error) {
	for {
		if p, ok := s.ahead[o]; ok {
			return p.event, nil
		}
		if len(s.ahead) >= aheadMax {
			return schemas.Event{}, Permanent(fmt.Errorf("%s holds %d terminal events of later turns but none of this one: replay the turn from the history", s.topic, len(s.ahead)))
		}
		r, err := s.read(ctx)
		if err != nil {
			return schemas.Event{}, err
		}
		e, err := schemas.Decode(r)
		if err != nil {
			continue // the topic's own readers dead-letter it; it is no terminal event of ours
		}
		at, ok := turnOffset(e)
		if !ok || at < o {
			continue // a vote, or the repeat of a turn that is done
		}
		if _, known := s.ahead[at]; !known {
			s.ahead[at] = placed{e, r.Offset}
		}
	}
}

// forget drops what belongs to turns up to o.
func (s *side) forget(o uint64) {
	delete(s.ahead, o)
	if len(s.ahead) == 0 {
		return
	}
	for at := range s.ahead {
		if at < o {
			delete(s.ahead, at)
		}
	}
}

// turnOffset reads which record of turns a terminal event belongs to.
func turnOffset(e schemas.Event) (uint64, bool) {
	switch p := e.Payload.(type) {
	case *schemas.TurnJudged:
		return p.GetTurnOffset(), true
	case *schemas.HintSelected:
		return p.GetTurnOffset(), true
	case *schemas.HintAbsent:
		return p.GetTurnOffset(), true
	}
	return 0, false
}

// position is where a new owner starts to read: the first record that is still needed.
func (s *side) position() int64 {
	position := s.next
	for _, p := range s.ahead {
		position = min(position, p.offset)
	}
	return position
}

// read returns the next record, and waits for it.
func (s *side) read(ctx context.Context) (schemas.Record, error) {
	for len(s.unread) == 0 {
		if s.cursor == nil {
			if err := s.open(ctx); err != nil {
				return schemas.Record{}, err
			}
		}
		records, err := s.cursor.Next(ctx, 500)
		if err != nil {
			// What failed once may be over for this cursor: the next attempt opens a new one at the same place.
			return schemas.Record{}, errors.Join(err, s.close())
		}
		s.unread = records
	}
	r := s.unread[0]
	s.unread = s.unread[1:]
	s.next = r.Offset + 1
	return r, nil
}

func (s *side) open(ctx context.Context) (err error) {
	if s.next >= 0 {
		s.cursor, err = s.log.Open(ctx, s.topic, s.partition, s.next)
		if err == nil || !errors.Is(err, schemas.ErrTruncated) {
			return err
		}
	}
	bounds, err := s.log.Bounds(ctx, s.topic)
	if err != nil {
		return err
	}
	if s.partition >= len(bounds) {
		return fmt.Errorf("topic %s has %d partitions and turns has more: give all topics the same number", s.topic, len(bounds))
	}
	s.next = bounds[s.partition].First
	s.cursor, err = s.log.Open(ctx, s.topic, s.partition, s.next)
	return err
}

func (s *side) close() error {
	if s.cursor == nil {
		return nil
	}
	c := s.cursor
	s.cursor, s.unread = nil, nil
	return c.Close()
}
