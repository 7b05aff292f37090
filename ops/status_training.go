package ops

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/nextstate-rl/nextstate/ops/policy"
)

// Bounds of what status lists.
const (
	// recentMinutes is the span of Status.Recent.
	recentMinutes = 10
	// updatesListed and versionsListed are the newest ones.
	updatesListed  = 10
	versionsListed = 12
)

// SessionCounts says how many sessions have acted. A session has ended when nothing was done in it after its end, or after the silence that closed it.
type SessionCounts struct {
	Open  uint64 `json:"open"`
	Ended uint64 `json:"ended"`
}

// Recent counts the turns that were judged in the last minutes, by verdict.
type Recent struct {
	Minutes  int    `json:"minutes"`
	Good     uint64 `json:"good"`
	Bad      uint64 `json:"bad"`
	Neutral  uint64 `json:"neutral"`
	Unjudged uint64 `json:"unjudged"`
}

// UpdateStatus is one update of the policy.
type UpdateStatus struct {
	Update  uint64 `json:"update"`
	ID      string `json:"id"`
	Parent  string `json:"parent_version"`
	Samples uint64 `json:"samples"`
	// Version came of it; empty: none yet, or it was skipped.
	Version string `json:"version,omitempty"`
	// Skipped says why no version came of it; empty: it was not skipped.
	Skipped   string     `json:"skipped,omitempty"`
	Started   time.Time  `json:"started_at"`
	Published *time.Time `json:"published_at,omitempty"`
	// Metrics by name, those that are finite; empty until the version is published.
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// VersionStatus is one policy version: where it comes from, how its turns were judged, whether it is served.
type VersionStatus struct {
	ID string `json:"id"`
	// Update that it came of; 0: the base model; absent: published elsewhere.
	Update    *uint64    `json:"update,omitempty"`
	Parent    string     `json:"parent_version,omitempty"`
	Published *time.Time `json:"published_at,omitempty"`
	// Turns are the closed main turns that it answered.
	Turns   uint64 `json:"turns"`
	Good    uint64 `json:"good"`
	Bad     uint64 `json:"bad"`
	Neutral uint64 `json:"neutral"`
	Hinted  uint64 `json:"hinted"`
	// MeanScore of the judged turns; absent: none was judged.
	MeanScore *float64 `json:"mean_score,omitempty"`
	// Served: who asks for `policy` gets it. Loaded: it answers who asks for it by its id.
	Served bool `json:"served,omitempty"`
	Loaded bool `json:"loaded,omitempty"`
}

// readTraining fills in what the history says about sessions, updates and versions.
func (s *System) readTraining(ctx context.Context, st *Status) error {
	// The order of the tables begins with the session, so each part of the union is grouped as it is read.
	err := s.ClickHouse.QueryRow(ctx, `SELECT countIf(over < acted), countIf(over >= acted) FROM
		(SELECT tenant, session, max(at) AS acted FROM (SELECT tenant, session, record_time AS at FROM action_taken) GROUP BY tenant, session) AS a
		ANY LEFT JOIN (SELECT tenant, session, max(at) AS over FROM
			(SELECT tenant, session, record_time AS at FROM session_ended UNION ALL SELECT tenant, session, record_time AS at FROM turn_closed WHERE close_reason = 'idle')
			GROUP BY tenant, session) AS e ON e.tenant = a.tenant AND e.session = a.session`).Scan(&st.Sessions.Open, &st.Sessions.Ended)
	if err != nil {
		return fmt.Errorf("status of the sessions: %w", err)
	}
	r := &st.Recent
	r.Minutes = recentMinutes
	err = s.ClickHouse.QueryRow(ctx, `SELECT countIf(score = 1), countIf(score = -1), countIf(score = 0), countIf(score IS NULL)
		FROM turn_judged WHERE record_time >= now64(3) - toIntervalMinute($1)`, r.Minutes).Scan(&r.Good, &r.Bad, &r.Neutral, &r.Unjudged)
	if err != nil {
		return fmt.Errorf("status of the recent turns: %w", err)
	}
	if st.Updates, err = s.updates(ctx); err != nil {
		return fmt.Errorf("status of the updates: %w", err)
	}
	if st.Versions, err = s.versions(ctx); err != nil {
		return fmt.Errorf("status of the versions: %w", err)
	}
	return nil
}

// updates are the tenant's newest ones, the newest first.
func (s *System) updates(ctx context.Context) ([]UpdateStatus, error) {
	rows, err := s.ClickHouse.Query(ctx, `SELECT u.update, toString(u.update_id), u.parent_version, ifNull(u.version, ''), k.reason, u.samples, u.started_at, u.published_at, u.metrics
		FROM updates AS u ANY LEFT JOIN update_skipped AS k ON k.tenant = u.tenant AND k.update_id = u.update_id
		WHERE u.tenant = $1 ORDER BY u.update DESC, u.started_at DESC LIMIT $2`, s.Config.Tenant, updatesListed)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	updates := []UpdateStatus{}
	for rows.Next() {
		var u UpdateStatus
		if err := rows.Scan(&u.Update, &u.ID, &u.Parent, &u.Version, &u.Skipped, &u.Samples, &u.Started, &u.Published, &u.Metrics); err != nil {
			return nil, err
		}
		// JSON has no way to say NaN.
		maps.DeleteFunc(u.Metrics, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
		updates = append(updates, u)
	}
	return updates, rows.Err()
}

// versions are the tenant's newest ones that were published or have answered, the newest first.
func (s *System) versions(ctx context.Context) ([]VersionStatus, error) {
	rows, err := s.ClickHouse.Query(ctx, `SELECT version, anyIf(n, n IS NOT NULL) AS number, max(parent), max(at), sum(turns), sum(good), sum(bad), sum(neutral), sum(hinted),
			if(sum(turns) > sum(unjudged), (toFloat64(sum(good)) - toFloat64(sum(bad))) / (sum(turns) - sum(unjudged)), NULL)
		FROM
		(
			SELECT toString(event_id) AS version, toNullable(update) AS n, parent_version AS parent, toNullable(record_time) AS at, record_time AS seen,
				0 AS turns, 0 AS good, 0 AS bad, 0 AS neutral, 0 AS unjudged, 0 AS hinted FROM policy_published WHERE tenant = $1
			UNION ALL
			SELECT policy_version, update, '', NULL, last_turn, turns, good, bad, neutral, unjudged, hinted FROM rewards_by_version WHERE tenant = $1
		)
		GROUP BY version ORDER BY number DESC NULLS LAST, max(seen) DESC LIMIT $2`, s.Config.Tenant, versionsListed)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	versions := []VersionStatus{}
	for rows.Next() {
		var v VersionStatus
		if err := rows.Scan(&v.ID, &v.Update, &v.Parent, &v.Published, &v.Turns, &v.Good, &v.Bad, &v.Neutral, &v.Hinted, &v.MeanScore); err != nil {
			return nil, err
		}
		versions = append(versions, v)
	}
	return versions, rows.Err()
}

// Serve adds what the gateway serves, and marks the versions with it. A version that the history does not know yet is listed too.
func (st *Status) Serve(serving Serving) {
	st.Serving = serving
	for _, id := range serving.Loaded {
		i := slices.IndexFunc(st.Versions, func(v VersionStatus) bool { return v.ID == id })
		if i < 0 {
			v := VersionStatus{ID: id}
			if id == policy.Base {
				v.Update = new(uint64)
			}
			i, st.Versions = len(st.Versions), append(st.Versions, v)
		}
		st.Versions[i].Loaded, st.Versions[i].Served = true, id == serving.Version
	}
	slices.SortStableFunc(st.Versions, func(a, b VersionStatus) int { return cmp.Compare(number(b), number(a)) })
}

// number orders versions by their update; one without comes last.
func number(v VersionStatus) int64 {
	if v.Update == nil {
		return -1
	}
	return int64(*v.Update) //nolint:gosec // counted from 1, one at a time
}
