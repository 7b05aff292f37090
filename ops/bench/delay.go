package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	// probePace is one event a time: a pace that a loaded machine bears, too.
	probePace = 50 * time.Millisecond
	// pollPace bounds the error of a delay from above: an event is seen at most one query and one pause after it is visible. A faster pace
	// would load ClickHouse more than the events do.
	pollPace = 20 * time.Millisecond
)

// delays in milliseconds, from the acknowledgement of a next state to its row, the row of the turn that it closes, and of the turn's sample.
type delays struct{ event, turn, sample []float64 }

// probe sends sessions event by event and looks when their rows become visible.
func (p *pipeline) probe(ctx context.Context, seed uint64, sessions int, into *delays) error {
	var session []schemas.Event
	for range sessions {
		// Another round of the same seed sends other events: ids are deduplicated.
		session = append(session, GenerateSession(seed^0xde1a4<<32, p.round)...)
		p.round++
	}
	w, err := p.newWatcher(ctx)
	if err != nil {
		return err
	}
	acked := map[string]time.Time{} // by place; the watcher reads it after both have ended
	ends := map[string]string{}     // event id of the next state by turn
	for _, e := range session {
		switch payload := e.Payload.(type) {
		case *schemas.NextStateObserved:
			ends[payload.GetTurnId()] = e.ID
			w.wanted[schemas.TopicInteractions+e.ID] = true
			if p.derives() {
				w.wanted[schemas.TopicTurns+payload.GetTurnId()], w.wanted[schemas.TopicSamples+payload.GetTurnId()] = true, true
				p.turns++
			}
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.run(gctx) })
	g.Go(func() error {
		for _, e := range session {
			r, err := schemas.Encode(e)
			if err != nil {
				return err
			}
			if err := p.Log.Append(gctx, r); err != nil {
				return err
			}
			acked[e.ID] = time.Now()
			if !sleep(gctx, probePace) {
				return gctx.Err()
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	for turn, id := range ends {
		since := func(key string) float64 { return max(0, w.seen[key].Sub(acked[id]).Seconds()*1000) }
		into.event = append(into.event, since(schemas.TopicInteractions+id))
		if p.derives() {
			into.turn = append(into.turn, since(schemas.TopicTurns+turn))
			into.sample = append(into.sample, since(schemas.TopicSamples+turn))
		}
	}
	return nil
}

// watcher asks ClickHouse for new rows, over and over, as an impatient analyst would.
type watcher struct {
	p *pipeline
	// next is the first offset not seen, by topic and partition.
	next map[string][]int64
	// wanted are the topic and event id of interactions, and the topic and turn id of what is derived. seen says when they were visible.
	wanted map[string]bool
	seen   map[string]time.Time
}

func (p *pipeline) newWatcher(ctx context.Context) (*watcher, error) {
	w := &watcher{p: p, next: map[string][]int64{}, wanted: map[string]bool{}, seen: map[string]time.Time{}}
	for _, topic := range []string{schemas.TopicInteractions, schemas.TopicTurns, schemas.TopicSamples} {
		bounds, err := p.Log.Bounds(ctx, topic)
		if err != nil {
			return nil, err
		}
		for _, b := range bounds {
			w.next[topic] = append(w.next[topic], b.Next)
		}
	}
	return w, nil
}

func (w *watcher) run(ctx context.Context) error {
	for len(w.seen) < len(w.wanted) {
		if err := w.look(ctx); err != nil {
			return err
		}
		select {
		case <-time.After(pollPace):
		case <-w.p.ended.Done():
			return fmt.Errorf("a stage has ended: %w", context.Cause(w.p.ended)) //nolint:contextcheck // the cause is that of the process, which has a context of its own
		case <-ctx.Done():
			return fmt.Errorf("%d of %d rows were seen: %w", len(w.seen), len(w.wanted), ctx.Err())
		}
	}
	return nil
}

func (w *watcher) look(ctx context.Context) (err error) {
	var where []string
	for topic, partitions := range w.next {
		for p, next := range partitions {
			where = append(where, fmt.Sprintf("topic = '%s' AND partition = %d AND offset >= %d", topic, p, next))
		}
	}
	rows, err := w.p.ClickHouse.Query(ctx, "SELECT topic, partition, offset, kind, toString(event_id), value FROM events WHERE "+strings.Join(where, " OR "))
	if err != nil {
		return err
	}
	defer func() { err = closing(err, rows.Close) }()
	now := time.Now()
	for rows.Next() {
		var topic, kind, id string
		var partition uint32
		var offset uint64
		var value []byte
		if err := rows.Scan(&topic, &partition, &offset, &kind, &id, &value); err != nil {
			return err
		}
		w.next[topic][partition] = max(w.next[topic][partition], int64(offset)+1) //nolint:gosec // an offset
		if topic != schemas.TopicInteractions {
			if id, err = turnID(kind, value); err != nil {
				return err
			}
		}
		if key := topic + id; w.wanted[key] && w.seen[key].IsZero() {
			w.seen[key] = now
		}
	}
	return rows.Err()
}
