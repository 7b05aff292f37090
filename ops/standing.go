package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// fold is what a topic says as a whole: it reads on to the end of the topic whenever it is asked to, so that whoever asks sees all that was appended before.
// apply must give an event that it had before no effect. For one goroutine.
type fold struct {
	system *System
	topic  string
	apply  func(schemas.Event)
	next   []int64 // by partition; nil: nothing was read yet
}

// catchUp reads what is new: from the log, and at first what the log retains no longer from ClickHouse, where this process has it.
func (f *fold) catchUp(ctx context.Context) error {
	log := f.system.gatewayLog()
	bounds, err := log.Bounds(ctx, f.topic)
	if err != nil {
		return err
	}
	h := history{log: log}
	if f.next == nil || len(f.next) != len(bounds) {
		if f.system.ClickHouse != nil {
			h.store = sink.NewHistory(f.system.ClickHouse)
		}
		next := make([]int64, len(bounds))
		for p, b := range bounds {
			if err := h.each(ctx, f.topic, p, f.record); err != nil {
				return fmt.Errorf("read %s: %w", f.topic, err)
			}
			next[p] = b.Next // what was appended meanwhile is read again
		}
		f.next = next
		return nil
	}
	for p, b := range bounds {
		err := h.read(ctx, f.topic, p, schemas.Bounds{First: f.next[p], Next: b.Next}, f.record)
		if errors.Is(err, schemas.ErrTruncated) {
			f.next = nil // so long ago: everything is read anew
			return f.catchUp(ctx)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", f.topic, err)
		}
		f.next[p] = b.Next
	}
	return nil
}

// record applies a record; one that is no event is in the dead letters.
func (f *fold) record(r schemas.Record) error {
	if e, err := schemas.Decode(r); err == nil {
		f.apply(e)
	}
	return nil
}

// standingReader answers what stands. Safe for concurrent use.
type standingReader struct {
	mu       sync.Mutex
	fold     fold
	standing *processors.Standing
}

func (s *System) newStandingReader() *standingReader {
	r := &standingReader{standing: processors.NewStanding()}
	r.fold = fold{system: s, topic: schemas.TopicStanding, apply: r.standing.Apply}
	return r
}

// hints are those of a user that are in force, with all that was in the topic before the call.
func (r *standingReader) hints(ctx context.Context, tenant, user string) ([]processors.StandingHint, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fold.catchUp(ctx); err != nil {
		return nil, err
	}
	return r.standing.Hints(tenant, user), nil
}

// ReadStanding reads the whole topic standing.
func ReadStanding(ctx context.Context, s *System) (*processors.Standing, error) {
	r := s.newStandingReader()
	return r.standing, r.fold.catchUp(ctx)
}

// runStand has hints stand, when that is asked for.
func runStand(ctx context.Context, s *System) error {
	if !s.Config.Direct.Standing {
		return nil
	}
	return s.process(ctx, processors.StandStage())
}

// WaitStanding returns when the stage stand has read all samples that are there now. It is none of the stages of WaitCaughtUp, because it is off unless it is
// asked for. Call it while the stage runs.
func WaitStanding(ctx context.Context, s *System) error {
	for {
		lag, err := lagOf(ctx, s.Log, processors.GroupPrefix+processors.StageStand, schemas.TopicSamples)
		if err != nil || lag.Lag == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// WithdrawHint appends HintWithdrawn: the hint teaches no more, neither the turns that are derived from now on nor a rehearsal.
func WithdrawHint(ctx context.Context, s *System, h processors.StandingHint, reason, by string) error {
	if strings.HasPrefix(h.Gone, "withdrawn") {
		return fmt.Errorf("hint %s is withdrawn already", h.ID)
	}
	r, err := schemas.Encode(schemas.Event{
		ID: schemas.NewID(), Source: "cli", Tenant: s.Config.Tenant, Session: processors.StandingSession(h.User), Time: time.Now(),
		Payload: &schemas.HintWithdrawn{User: h.User, HintId: h.ID, Reason: reason, By: by},
	})
	if err != nil {
		return err
	}
	return s.Log.Append(ctx, r)
}

// HintOrigin is where a standing hint comes from, and what it has taught so far, as the history knows it.
type HintOrigin struct {
	processors.StandingHint
	// Session and TurnIndex are those of the turn whose next state held it; Response is what the policy had said, NextState the user's words.
	Session   string `json:"session"`
	TurnIndex uint32 `json:"turn_index"`
	Response  string `json:"response_text"`
	NextState string `json:"next_state_text"`
	// Samples of turns and of rehearsals that were assembled with it in the teacher's context.
	Samples   uint64 `json:"samples"`
	Rehearsed uint64 `json:"rehearsal_samples"`
}

// HintOrigins asks the history about standing hints, in their order. A turn that the history does not hold yet has no session.
func HintOrigins(ctx context.Context, s *System, hints []processors.StandingHint) ([]HintOrigin, error) {
	list := make([]HintOrigin, len(hints))
	for i, h := range hints {
		o := HintOrigin{StandingHint: h}
		rows, err := s.ClickHouse.Query(ctx, `SELECT session, turn_index, arrayStringConcat(next_state_texts, '\n'),
				(SELECT any(response_text) FROM action_taken WHERE tenant = $1 AND event_id = $2)
			FROM turn_closed WHERE tenant = $1 AND turn_id = $2 LIMIT 1`, s.Config.Tenant, h.TurnID)
		if err != nil {
			return nil, fmt.Errorf("the turn of hint %s: %w", h.ID, err)
		}
		for rows.Next() {
			if err = rows.Scan(&o.Session, &o.TurnIndex, &o.NextState, &o.Response); err != nil {
				break
			}
		}
		if err = errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return nil, fmt.Errorf("the turn of hint %s: %w", h.ID, err)
		}
		// A sample names its hints by their text: those of the turn's own and the standing ones, line by line.
		if err := s.ClickHouse.QueryRow(ctx, `SELECT uniqExactIf(event_id, sample_kind != 'rehearsal'), uniqExactIf(event_id, sample_kind = 'rehearsal')
			FROM sample_assembled WHERE tenant = $1 AND user = $2 AND position(ifNull(hint, ''), $3) > 0`, s.Config.Tenant, h.User, h.Hint).Scan(&o.Samples, &o.Rehearsed); err != nil {
			return nil, fmt.Errorf("the samples of hint %s: %w", h.ID, err)
		}
		list[i] = o
	}
	return list, nil
}
