package ops

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// PolicyTrace is what a version was made of: every update from the base model on, newest first, with its samples and the turns behind them.
type PolicyTrace struct {
	Version string        `json:"version"`
	Updates []TraceUpdate `json:"updates"`
	// Missing counts samples that the history does not hold (yet).
	Missing int `json:"samples_missing"`
}

// TraceUpdate is one update with what it learned from.
type TraceUpdate struct {
	*PolicyVersion
	Samples []TraceSample `json:"samples"`
}

// TraceSample is a sample, its turn, and the signals that were derived of it.
type TraceSample struct {
	Sample        string  `json:"sample_id"`
	Session       string  `json:"session"`
	Turn          string  `json:"turn_id"`
	Index         uint32  `json:"turn_index"`
	Kind          string  `json:"sample_kind"`
	Reward        float64 `json:"reward"`
	PolicyVersion string  `json:"policy_version"`
	// Score, Judge and Reason are the verdict's; Score is nil when nobody could be asked.
	Score  *int8  `json:"score"`
	Judge  string `json:"judge"`
	Reason string `json:"verdict_reason"`
	// Hint and Finder are the directive signal; empty when there is none.
	Hint   string `json:"hint"`
	Finder string `json:"finder"`
	// Response is what the policy said, Calls the tools that it called with their arguments, NextState what the world answered.
	Response  string     `json:"response_text"`
	Calls     []string   `json:"calls"`
	NextState string     `json:"next_state_text"`
	Time      *time.Time `json:"event_time"`
}

// traceSamples looks at the turns of the samples only: all joins are on their ids. A rehearsal's sample has no turn: its reply is found by its content.
const traceSamples = `
SELECT toString(s.event_id), s.session, toString(s.turn_id), s.turn_index, s.sample_kind, s.reward, if(s.sample_kind = 'rehearsal', ifNull(s.teacher_version, ''), ifNull(s.policy_version, '')),
    j.score, ifNull(j.judge, ''), ifNull(j.reason, ''), ifNull(h.hint, ifNull(s.hint, '')), ifNull(h.finder, ''),
    ifNull(a.response_text, ifNull(m.text, '')), a.calls, ifNull(c.text, ''), s.event_time
FROM (SELECT * FROM sample_assembled WHERE tenant = ? AND event_id IN (?) LIMIT 1 BY event_id) AS s
ANY LEFT JOIN (SELECT turn_id, score, judge, reason FROM turn_judged WHERE tenant = ? AND turn_id IN (SELECT turn_id FROM sample_assembled WHERE event_id IN (?))) AS j
    ON j.turn_id = s.turn_id
ANY LEFT JOIN (SELECT turn_id, hint, finder FROM hint_selected WHERE tenant = ? AND turn_id IN (SELECT turn_id FROM sample_assembled WHERE event_id IN (?))) AS h
    ON h.turn_id = s.turn_id
ANY LEFT JOIN (SELECT event_id, response_text, arrayMap((name, arguments) -> concat(name, ' ', arguments), call_names, call_arguments) AS calls
    FROM action_taken WHERE tenant = ? AND event_id IN (SELECT turn_id FROM sample_assembled WHERE event_id IN (?))) AS a
    ON a.event_id = s.turn_id
ANY LEFT JOIN (SELECT turn_id, arrayStringConcat(next_state_texts, '\n') AS text FROM turn_closed
    WHERE tenant = ? AND turn_id IN (SELECT turn_id FROM sample_assembled WHERE event_id IN (?))) AS c ON c.turn_id = s.turn_id
ANY LEFT JOIN (SELECT hash, text FROM messages WHERE tenant = ? AND hash IN (SELECT response_hash FROM sample_assembled WHERE event_id IN (?) AND sample_kind = 'rehearsal')) AS m
    ON m.hash = s.response_hash
SETTINGS join_use_nulls = 1`

// TracePolicy asks the history what a version was made of.
func TracePolicy(ctx context.Context, s *System, p *Policies, v *PolicyVersion) (PolicyTrace, error) {
	t := PolicyTrace{Version: v.Version}
	for _, made := range p.Ancestry(v.Version) {
		u := TraceUpdate{PolicyVersion: made, Samples: []TraceSample{}}
		if len(made.SampleIDs) > 0 {
			samples, err := s.traceSamples(ctx, made.SampleIDs)
			if err != nil {
				return t, fmt.Errorf("the samples of update %d: %w", made.Update, err)
			}
			for _, id := range made.SampleIDs { // in the order of the minibatch
				if sample, known := samples[id]; known {
					u.Samples = append(u.Samples, sample)
				} else {
					t.Missing++
				}
			}
		}
		t.Updates = append(t.Updates, u)
	}
	return t, nil
}

func (s *System) traceSamples(ctx context.Context, ids []string) (map[string]TraceSample, error) {
	var args []any
	for range strings.Count(traceSamples, "IN (?)") {
		args = append(args, s.Config.Tenant, ids)
	}
	rows, err := s.ClickHouse.Query(ctx, traceSamples, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[string]TraceSample{}
	for rows.Next() {
		var r TraceSample
		if err := rows.Scan(
			&r.Sample, &r.Session, &r.Turn, &r.Index, &r.Kind, &r.Reward, &r.PolicyVersion, &r.Score, &r.Judge, &r.Reason, &r.Hint, &r.Finder,
			&r.Response, &r.Calls, &r.NextState, &r.Time,
		); err != nil {
			return nil, err
		}
		found[r.Sample] = r
	}
	return found, rows.Err()
}
