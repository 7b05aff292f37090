package bench

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// appendRecords is how many records one append of fill holds.
const appendRecords = 1000

// encoded generates whole sessions with at least n events, and their records.
func (e *Env) encoded(n int) ([]schemas.Event, []schemas.Record, error) {
	var events []schemas.Event
	for session := 0; len(events) < n; session++ {
		events = append(events, GenerateSession(e.Seed, session)...)
	}
	records := make([]schemas.Record, 0, len(events))
	for _, event := range events {
		r, err := schemas.Encode(event)
		if err != nil {
			return nil, nil, err
		}
		records = append(records, r)
	}
	return events, records, nil
}

// filler appends one generated session after the other.
type filler struct {
	log     schemas.Appender
	seed    uint64
	session int
	batch   []schemas.Record
}

// fill appends whole sessions with at least n events, and returns how many.
func (f *filler) fill(ctx context.Context, n int) (done int, err error) {
	for done+len(f.batch) < n {
		for _, event := range GenerateSession(f.seed, f.session) {
			r, err := schemas.Encode(event)
			if err != nil {
				return done, err
			}
			f.batch = append(f.batch, r)
		}
		f.session++
		if len(f.batch) < appendRecords && done+len(f.batch) < n {
			continue
		}
		if err := f.log.Append(ctx, f.batch...); err != nil {
			return done, err
		}
		done += len(f.batch)
		f.batch = f.batch[:0]
	}
	return done, nil
}

func (e *Env) fill(ctx context.Context, log schemas.Appender, n int) (int, error) {
	f := filler{log: log, seed: e.Seed}
	return f.fill(ctx, n)
}

// turnID reads which turn a derived event is about.
func turnID(kind string, value []byte) (string, error) {
	k, ok := schemas.KindByName(kind)
	if !ok {
		return "", fmt.Errorf("a row has the unknown kind %q", kind)
	}
	payload := k.New()
	if err := proto.Unmarshal(value, payload); err != nil {
		return "", fmt.Errorf("%s: %w", kind, err)
	}
	about, ok := payload.(interface{ GetTurnId() string })
	if !ok {
		return "", fmt.Errorf("%s is about no turn", kind)
	}
	return about.GetTurnId(), nil
}
