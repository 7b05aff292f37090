package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
)

// recordedTeacher gives what the teacher said of the turns of one partition. Its scores are large, so none is held: they are read again where the
// index says that they are, in about the order of the log.
type recordedTeacher struct {
	was   *recorded
	pages *pages
}

// lookup is that of processors.RecordedTeacher. The ids of what direct derived from a turn are known, so the index needs no turns.
func (t recordedTeacher) lookup(ctx context.Context, turn string) (scores []*schemas.TeacherScored, absent string, err error) {
	for _, version := range processors.DirectVersions() {
		id := func(kind string, index int) uuid.UUID {
			return uuid.MustParse(schemas.DerivedID(processors.StageDirect, version, kind, turn, index))
		}
		selected, known := t.was.entries[id("HintSelected", 0)]
		if !known {
			continue
		}
		if selected.untaught > 0 {
			return nil, t.was.reasons[selected.untaught-1], nil
		}
		for i := 0; ; i++ {
			at, known := t.was.entries[id("TeacherScored", i)]
			if !known {
				return scores, "", nil
			}
			e, err := t.pages.at(ctx, at.offset)
			if err != nil {
				return nil, "", fmt.Errorf("what the teacher said of turn %s: %w", turn, err)
			}
			s, ok := e.Payload.(*schemas.TeacherScored)
			if !ok {
				return nil, "", fmt.Errorf("what the teacher said of turn %s: hints at %d is a %s", turn, at.offset, e.Kind())
			}
			scores = append(scores, s)
		}
	}
	return nil, "", nil
}

// pages reads events of one partition of one topic by their offsets, which mostly ascend: it reads a page at once. For one goroutine; close it.
type pages struct {
	h         history
	topic     string
	partition int
	cursor    schemas.Cursor
	page      []schemas.Record // the cursor's
}

const pageRecords = 5000

// at reads the event at an offset that is recorded.
func (p *pages) at(ctx context.Context, offset int64) (schemas.Event, error) {
	find := func() (int, bool) {
		return slices.BinarySearchFunc(p.page, offset, func(r schemas.Record, offset int64) int { return int(min(1, max(-1, r.Offset-offset))) })
	}
	i, found := find()
	if !found {
		if err := p.turn(ctx, offset); err != nil {
			return schemas.Event{}, err
		}
		if i, found = find(); !found {
			return schemas.Event{}, fmt.Errorf("%s %d:%d is in neither the log nor the history", p.topic, p.partition, offset)
		}
	}
	return schemas.Decode(p.page[i])
}

// turn reads the page that begins at an offset: from the log, or what it does not retain from the history.
func (p *pages) turn(ctx context.Context, offset int64) error {
	for _, r := range p.h.readers() {
		if err := p.close(); err != nil {
			return err
		}
		cursor, err := r.Open(ctx, p.topic, p.partition, offset)
		if errors.Is(err, schemas.ErrTruncated) {
			continue
		}
		if err != nil {
			return err
		}
		p.cursor = cursor
		if p.page, err = cursor.Next(ctx, pageRecords); err != nil {
			return err
		}
		return nil
	}
	return nil
}

func (p *pages) close() error {
	if p.cursor == nil {
		return nil
	}
	c := p.cursor
	p.cursor, p.page = nil, nil
	return c.Close()
}
