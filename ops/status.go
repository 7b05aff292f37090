package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// Lag is how far one stage is behind in one topic.
type Lag struct {
	Stage string `json:"stage"`
	Topic string `json:"topic"`
	// Records that the topic holds (retained), and how many of them the stage has not processed.
	Records int64 `json:"records"`
	Lag     int64 `json:"lag"`
	// Partitions of the topic in which the stage has never committed.
	Unstarted int `json:"unstarted,omitempty"`
}

// Status is what `status` shows.
type Status struct {
	Stages []Lag `json:"stages"`
	// Events in the history by kind.
	Events []Count `json:"events"`
	// Dead letters by stage.
	DeadLetters []Count `json:"dead_letters"`
	// Turns in the history, and what became of them.
	Turns TurnCounts `json:"turns"`
	// Sessions that have acted, and the verdicts of the last minutes.
	Sessions SessionCounts `json:"sessions"`
	Recent   Recent        `json:"recent"`
	// Updates and Versions, the newest first; see Serve.
	Updates  []UpdateStatus  `json:"updates"`
	Versions []VersionStatus `json:"versions"`
	Serving  Serving         `json:"serving"`
}

// Count is a number with its name.
type Count struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// TurnCounts says what became of the closed turns.
type TurnCounts struct {
	Closed  uint64 `json:"closed"`
	Good    uint64 `json:"good"`
	Bad     uint64 `json:"bad"`
	Hinted  uint64 `json:"hinted"`
	Samples uint64 `json:"samples"`
	Skipped uint64 `json:"skipped"`
}

// Lags asks the log how far each stage is behind. A stage that only waits for open sessions has no lag.
func Lags(ctx context.Context, log schemas.Log) ([]Lag, error) {
	var lags []Lag
	for _, s := range Stages() {
		for _, topic := range s.In {
			lag, err := lagOf(ctx, log, s.Group(topic), topic)
			if err != nil {
				return nil, fmt.Errorf("lag of %s in %s: %w", s.Name, topic, err)
			}
			lag.Stage = s.Name
			lags = append(lags, lag)
		}
	}
	return lags, nil
}

func lagOf(ctx context.Context, log schemas.Log, group, topic string) (Lag, error) {
	// The commits are read before the bounds: a stage that is ahead of the bounds read first would look negative.
	commits, err := log.Committed(ctx, group, topic)
	if err != nil {
		return Lag{}, err
	}
	bounds, err := log.Bounds(ctx, topic)
	if err != nil {
		return Lag{}, err
	}
	l := Lag{Topic: topic}
	for p, b := range bounds {
		l.Records += b.Next - b.First
		next := b.First
		if p < len(commits) && commits[p].Offset >= 0 {
			next = max(next, processed(commits[p]))
		} else if b.Next > b.First {
			l.Unstarted++
		}
		l.Lag += max(0, b.Next-next)
	}
	return l, nil
}

// processed is the next record that the owner of a commit will process: in the note of stages with state, else the offset itself.
func processed(c schemas.Commit) int64 {
	var note struct {
		Next *int64 `json:"next"`
	}
	if json.Unmarshal([]byte(c.Note), &note) == nil && note.Next != nil {
		return *note.Next
	}
	return c.Offset
}

// WaitCaughtUp returns when no stage lags, twice in a row, and calls progress meanwhile (it may be nil).
func WaitCaughtUp(ctx context.Context, log schemas.Log, progress func([]Lag)) error {
	quiet := 0
	for {
		lags, err := Lags(ctx, log)
		if err == nil {
			if progress != nil {
				progress(lags)
			}
			total := int64(0)
			for _, l := range lags {
				total += l.Lag
			}
			if quiet++; total > 0 {
				quiet = 0
			}
			// Twice: a stage may have appended to a topic after its reader's lag was read.
			if quiet == 2 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the stages to catch up: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ReadStatus asks the log and the history. What is served the gateway knows: ReadServing.
func ReadStatus(ctx context.Context, s *System) (Status, error) {
	lags, err := Lags(ctx, s.Log)
	if err != nil {
		return Status{}, err
	}
	st := Status{Stages: lags, Events: []Count{}, DeadLetters: []Count{}}
	if st.Events, err = s.counts(ctx, "SELECT kind, count() FROM events WHERE kind != '' GROUP BY kind ORDER BY min(topic), kind"); err != nil {
		return Status{}, err
	}
	if st.DeadLetters, err = s.counts(ctx, "SELECT stage, count() FROM dead_letters GROUP BY stage ORDER BY stage"); err != nil {
		return Status{}, err
	}
	t := &st.Turns
	err = s.ClickHouse.QueryRow(ctx, `SELECT (SELECT count() FROM turn_closed), (SELECT countIf(score = 1) FROM turn_judged), (SELECT countIf(score = -1) FROM turn_judged),
		(SELECT count() FROM hint_selected), (SELECT count() FROM sample_assembled), (SELECT count() FROM turn_skipped)`).
		Scan(&t.Closed, &t.Good, &t.Bad, &t.Hinted, &t.Samples, &t.Skipped)
	if err != nil {
		return Status{}, fmt.Errorf("status of the turns: %w", err)
	}
	if err := s.readTraining(ctx, &st); err != nil {
		return Status{}, err
	}
	return st, nil
}

func (s *System) counts(ctx context.Context, query string) ([]Count, error) {
	rows, err := s.ClickHouse.Query(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	defer rows.Close()
	counts := []Count{}
	for rows.Next() {
		var c Count
		if err := rows.Scan(&c.Name, &c.Count); err != nil {
			return nil, err
		}
		counts = append(counts, c)
	}
	return counts, rows.Err()
}

// Audit compares rows with distinct places in every table of the history; it returns the tables that hold a row twice, and all rows.
func Audit(ctx context.Context, s *System) (bad []string, total uint64, err error) {
	tables, err := sink.Audit(ctx, s.ClickHouse)
	if err != nil {
		return nil, 0, err
	}
	for _, t := range tables {
		total += t.Rows
		if !t.Exact() {
			bad = append(bad, t.Table)
		}
	}
	return bad, total, nil
}
