package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
)

// RehearseConfig of the stage rehearse. Zero values of numbers mean the defaults.
type RehearseConfig struct {
	On bool
	// Updates is how many minibatches (TrainConfig.Batch) of replies a rehearsal makes at most. Default 8.
	Updates int
	// Times is how many rehearsals a hint takes part in as a reason for one, those of older hints of its user about the same subject counted in: a user who says
	// the same in every session would have the policy practise it for ever. Default 2.
	Times int
	// Seconds bounds the sampling and the training of a rehearsal, in wall time. Default 300.
	Seconds int
	// Replies and Anchors say what a round consists of: Replies of each user who is rehearsed, then Anchors. Defaults 4 and 2.
	Replies, Anchors int
	// Prompts is a JSONL file of prompts of the same kind as the users' own; empty: none.
	Prompts string
	// Temperature of the replies. Default 0.6.
	Temperature float64
	// MaxTokens cuts a reply; MinTokens is the least length that the guard lets pass. Defaults 64 and 20.
	MaxTokens, MinTokens int
	// Quiet is how long nobody must have been served before a rehearsal begins. Default 2 s.
	Quiet time.Duration
}

// Bounds of rehearsals that are not settings.
const (
	// rehearsedUsers is how many users a rehearsal is for: those with the newest hints.
	rehearsedUsers = 8
	// interruptedMax is how often a rehearsal of the same hints may be interrupted before it is left.
	interruptedMax = 3
	// guardEvery is how many updates of a rehearsal are made between two looks of the guard.
	guardEvery = 4
	// guardFall is by how much the share of held-out replies that the guard lets pass may fall; else the last version that it let pass is put back.
	guardFall = 0.25
	// rehearsePoll is how often the topics are looked at.
	rehearsePoll = 250 * time.Millisecond
	// historyWait is how long a hint waits for its user's turns to be in the history; then the others are rehearsed without that user.
	historyWait = time.Minute
	// unlockWait bounds the last statement of an ownership.
	unlockWait = 5 * time.Second
)

// Validate reports the first setting that cannot work.
func (c RehearseConfig) Validate() error {
	if c.Updates < 0 || c.Times < 0 || c.Seconds < 0 || c.Replies < 0 || c.Anchors < 0 || c.MaxTokens < 0 || c.MinTokens < 0 || c.Quiet < 0 {
		return errors.New("--rehearse-updates, -times, -seconds, -mix, -max-tokens, -min-tokens and -quiet must not be negative; 0 means the default")
	}
	if c.Temperature < 0 || math.IsNaN(c.Temperature) || math.IsInf(c.Temperature, 0) {
		return fmt.Errorf("--rehearse-temperature %v: a number above 0 is needed; 0 means the default", c.Temperature)
	}
	if d := c.withDefaults(); d.MinTokens > d.MaxTokens {
		return fmt.Errorf("--rehearse-min-tokens %d: no reply of at most %d tokens (--rehearse-max-tokens) would pass", d.MinTokens, d.MaxTokens)
	}
	return nil
}

// Budget bounds the sampling and the training of one rehearsal.
func (c RehearseConfig) Budget() time.Duration {
	return time.Duration(c.withDefaults().Seconds) * time.Second
}

func (c RehearseConfig) withDefaults() RehearseConfig {
	for v, otherwise := range map[*int]int{&c.Updates: 8, &c.Times: 2, &c.Seconds: 300, &c.MaxTokens: 64, &c.MinTokens: 20} {
		if *v == 0 {
			*v = otherwise
		}
	}
	if c.Replies == 0 {
		c.Replies, c.Anchors = 4, 2
	}
	if c.Temperature == 0 {
		c.Temperature = 0.6
	}
	if c.Quiet == 0 {
		c.Quiet = 2 * time.Second
	}
	return c
}

// rehearser makes rehearsals, one at a time over all processes of a tenant. For one goroutine.
type rehearser struct {
	system *System
	engine policy.Engine
	idle   func() bool
	cfg    RehearseConfig
	batch  int
	file   []filePrompt
	logger *slog.Logger

	topic   fold // standing
	stands  *processors.Standing
	ended   map[string]bool // ids of RehearsalEnded
	last    string          // the hints of the last rehearsal that was not interrupted
	stopped map[string]int  // how often a rehearsal of these hints was interrupted
	held    [][]string      // the hints of each rehearsal that made samples and was not interrupted
	updates *updateLog

	ends       int64 // of interactions, summed over the partitions
	quietSince time.Time
}

// runRehearse is the stage, when it is asked for.
func runRehearse(ctx context.Context, s *System) error {
	if !s.Config.Rehearse.On {
		return nil
	}
	r, err := s.newRehearser()
	if err != nil {
		return err
	}
	for pause := time.Second; ctx.Err() == nil; pause = min(2*pause, time.Minute) {
		if err := r.own(ctx); err != nil && ctx.Err() == nil {
			r.logger.Warn("the rehearsal stopped and is looked at again", "pause", pause, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

func (s *System) newRehearser() (*rehearser, error) {
	if name := s.Config.Policy.Engine; s.Policy == nil || name != "" && name != policy.Engines[0].Name {
		return nil, fmt.Errorf("--rehearse needs the embedded policy in the same process: run it in 'up' with --policy-engine %s and without --upstream-url", policy.Engines[0].Name)
	}
	loop, err := s.trainLoop()
	if err != nil {
		return nil, err
	}
	r := &rehearser{
		system: s, engine: s.Policy, idle: func() bool { return true }, cfg: s.Config.Rehearse.withDefaults(), batch: max(loop.Batch, 1),
		logger: s.Telemetry.Logger.With("stage", "rehearse"),
	}
	if r.file, err = readPrompts(r.cfg.Prompts); err != nil {
		return nil, fmt.Errorf("--rehearse-prompts: %w", err)
	}
	if a, ok := s.Policy.(*attended); ok { // what a rehearsal samples is nobody's request
		r.engine, r.idle = a.Engine, a.idle
	}
	r.forget()
	return r, nil
}

// forget has the topics be read anew.
func (r *rehearser) forget() {
	r.stands, r.ended, r.stopped, r.last, r.held = processors.NewStanding(), map[string]bool{}, map[string]int{}, "", nil
	r.topic = fold{system: r.system, topic: schemas.TopicStanding, apply: r.apply}
	r.updates = newUpdateLog(r.system)
	r.ends, r.quietSince = -1, time.Now()
}

// apply takes an event of the topic standing.
func (r *rehearser) apply(e schemas.Event) {
	r.stands.Apply(e)
	p, ok := e.Payload.(*schemas.RehearsalEnded)
	if !ok || e.Tenant != r.system.Config.Tenant || r.ended[e.ID] {
		return
	}
	r.ended[e.ID] = true
	key := hintsKey(p.GetHintIds())
	if strings.HasPrefix(p.GetReason(), interrupted) {
		r.stopped[key]++
		return
	}
	r.last = key
	if len(p.GetSampleIds()) > 0 {
		r.held = append(r.held, p.GetHintIds())
	}
}

// hintsKey names a set of hints.
func hintsKey(ids []string) string { return strings.Join(slices.Sorted(slices.Values(ids)), ",") }

// own waits until no other process of the tenant rehearses, ends what a killed one left, and rehearses whenever there is something to rehearse. The lock is the
// connection's: it ends with the process, and when it is lost, so are the statements about the rehearsal.
func (r *rehearser) own(ctx context.Context) error {
	conn, err := r.system.Postgres.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	lock := "rehearse/" + r.system.Config.Tenant
	for {
		var mine bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", lock).Scan(&mine); err != nil {
			return err
		}
		if mine {
			break
		}
		if err := sleepFor(ctx, 2*time.Second); err != nil {
			return err
		}
	}
	defer func() {
		// A connection that still works goes back to the pool, and must not keep the lock.
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockWait)
		defer cancel()
		_, _ = conn.Exec(release, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", lock) // without a connection there is no lock
	}()
	r.forget()
	if err := r.endInterrupted(ctx, conn); err != nil {
		return err
	}
	for {
		if err := sleepFor(ctx, rehearsePoll); err != nil {
			return err
		}
		users, due, err := r.due(ctx)
		if err != nil {
			return err
		}
		if !due {
			continue
		}
		if reason := r.needless(users); reason != "" {
			err = r.leave(ctx, conn, users, reason)
		} else {
			err = r.rehearse(ctx, conn, users)
		}
		if err != nil {
			return err
		}
		r.quietSince = time.Now()
	}
}

func sleepFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// rehearsedUser is a user with the hints that are rehearsed, the newest first.
type rehearsedUser struct {
	name  string
	hints []processors.StandingHint
}

// due says whose hints are to be rehearsed now: others stand than were rehearsed last, and nobody is served.
func (r *rehearser) due(ctx context.Context) ([]rehearsedUser, bool, error) {
	quiet, err := r.quiet(ctx)
	if err != nil || !quiet {
		return nil, false, err
	}
	if err := r.topic.catchUp(ctx); err != nil {
		return nil, false, err
	}
	users := r.users()
	key := hintsKey(hintIDs(users))
	if key == "" || key == r.last {
		return nil, false, nil
	}
	pin, err := Pin(ctx, r.system) // what is learned would not be served, and the guard could not look at it
	return users, err == nil && pin == "", err
}

// needless says why what is due is not rehearsed; empty: it is.
func (r *rehearser) needless(users []rehearsedUser) string {
	if r.stopped[hintsKey(hintIDs(users))] >= interruptedMax {
		return fmt.Sprintf("left: it was interrupted %d times", interruptedMax)
	}
	for _, u := range users {
		for _, h := range u.hints {
			if r.times(h) < r.cfg.Times {
				return ""
			}
		}
	}
	return fmt.Sprintf("left: each hint, or an older one about the same subject, was in %d rehearsals", r.cfg.Times)
}

// times counts the rehearsals that held a hint, or another one of its user about the same subject.
func (r *rehearser) times(h processors.StandingHint) (n int) {
	alike := map[string]bool{}
	for _, other := range r.stands.All(r.system.Config.Tenant) {
		alike[other.ID] = other.User == h.User && processors.SameSubject(other.Hint, h.Hint)
	}
	for _, ids := range r.held {
		if slices.ContainsFunc(ids, func(id string) bool { return alike[id] }) {
			n++
		}
	}
	return n
}

// leave ends a rehearsal that was due before it begins, so that it is due no more, and the log says why.
func (r *rehearser) leave(ctx context.Context, conn *pgxpool.Conn, users []rehearsedUser, reason string) error {
	if err := r.updates.fold.catchUp(ctx); err != nil {
		return err
	}
	u := underWay{id: r.nextID(users), hintIDs: hintIDs(users), from: r.updates.newest()}
	return r.end(ctx, conn, u, &schemas.RehearsalEnded{Reason: reason, ToVersion: u.from})
}

// nextID is the event id of the RehearsalEnded to come: it derives from the hints and the number of rehearsals before.
func (r *rehearser) nextID(users []rehearsedUser) string {
	return schemas.DerivedID("rehearse", "1", "RehearsalEnded", r.system.Config.Tenant+"/"+hintsKey(hintIDs(users)), len(r.ended))
}

// quiet says that nobody has been served for a while: no request is in work, and no interaction came.
func (r *rehearser) quiet(ctx context.Context) (bool, error) {
	bounds, err := r.system.Log.Bounds(ctx, schemas.TopicInteractions)
	if err != nil {
		return false, err
	}
	ends := int64(0)
	for _, b := range bounds {
		ends += b.Next
	}
	if ends != r.ends || !r.idle() {
		r.ends, r.quietSince = ends, time.Now()
	}
	return time.Since(r.quietSince) >= r.cfg.Quiet, nil
}

// users are those who are rehearsed now.
func (r *rehearser) users() []rehearsedUser { return rehearsed(r.stands, r.system.Config.Tenant) }

// rehearsed are a tenant's users with hints in force, the ones with the newest hints, by name.
func rehearsed(stands *processors.Standing, tenant string) []rehearsedUser {
	var users []rehearsedUser
	for _, name := range stands.Users(tenant) {
		if hints := stands.Hints(tenant, name); len(hints) > 0 {
			users = append(users, rehearsedUser{name, hints})
		}
	}
	slices.SortStableFunc(users, func(a, b rehearsedUser) int { return b.hints[0].Time.Compare(a.hints[0].Time) })
	users = users[:min(len(users), rehearsedUsers)]
	slices.SortFunc(users, func(a, b rehearsedUser) int { return strings.Compare(a.name, b.name) })
	return users
}

func hintIDs(users []rehearsedUser) []string {
	var ids []string
	for _, u := range users {
		for _, h := range u.hints {
			ids = append(ids, h.ID)
		}
	}
	return ids
}

// underWay is the row of a rehearsal.
type underWay struct {
	id      string
	hintIDs []string
	from    string
	// good is the newest version that the guard let pass; seen and share are the one that it looked at last, and what it saw.
	good, seen         string
	guardBefore, share float64
	samples            int
}

// fell says how far the guard fell with the version that it looked at last; empty: it let it pass.
func (u *underWay) fell() string {
	if u.guardBefore-u.share <= guardFall {
		return ""
	}
	return fmt.Sprintf("the guard fell from %.2f to %.2f of the held-out replies", u.guardBefore, u.share)
}

func (r *rehearser) begin(ctx context.Context, conn *pgxpool.Conn, u underWay) error {
	_, err := conn.Exec(ctx, "INSERT INTO rehearsals (tenant, rehearsal_id, hint_ids, from_version, good_version, guard_before) VALUES ($1, $2, $3::uuid[], $4, $5, $6)",
		r.system.Config.Tenant, u.id, u.hintIDs, u.from, u.good, u.guardBefore)
	return err
}

// note writes down how many samples may be in the log, before they are appended, and the version to go back to.
func (r *rehearser) note(ctx context.Context, conn *pgxpool.Conn, u underWay) error {
	tag, err := conn.Exec(ctx, "UPDATE rehearsals SET samples = $3, good_version = $4 WHERE tenant = $1 AND rehearsal_id = $2", r.system.Config.Tenant, u.id, u.samples, u.good)
	if err == nil && tag.RowsAffected() != 1 {
		err = errors.New("the row of the rehearsal is gone: another process rehearses for this tenant")
	}
	return err
}

func (r *rehearser) left(ctx context.Context, conn *pgxpool.Conn) (u underWay, there bool, err error) {
	err = conn.QueryRow(ctx, `SELECT rehearsal_id::text, hint_ids::text[], from_version, coalesce(nullif(good_version, ''), from_version), guard_before, samples
		FROM rehearsals WHERE tenant = $1`, r.system.Config.Tenant).Scan(&u.id, &u.hintIDs, &u.from, &u.good, &u.guardBefore, &u.samples)
	if errors.Is(err, pgx.ErrNoRows) {
		return u, false, nil
	}
	return u, err == nil, err
}

// end appends RehearsalEnded, and forgets the row. A process that is killed between the two ends it again, under the same id.
func (r *rehearser) end(ctx context.Context, conn *pgxpool.Conn, u underWay, ended *schemas.RehearsalEnded) error {
	ended.HintIds, ended.FromVersion, ended.GuardBefore = u.hintIDs, u.from, u.guardBefore
	for i := range u.samples {
		ended.SampleIds = append(ended.SampleIds, sampleID(u.id, i))
	}
	record, err := schemas.Encode(schemas.Event{
		ID: u.id, Source: rehearseSource, Tenant: r.system.Config.Tenant, Session: "rehearsal", Time: time.Now(), Payload: ended,
	})
	if err != nil {
		return err
	}
	if err := r.system.Log.Append(ctx, record); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "DELETE FROM rehearsals WHERE tenant = $1 AND rehearsal_id = $2", r.system.Config.Tenant, u.id); err != nil {
		return err
	}
	r.logger.InfoContext(ctx, "a rehearsal ended", "reason", ended.GetReason(), "samples", u.samples, "from", u.from, "to", ended.GetToVersion(),
		"guard_before", u.guardBefore, "guard_after", ended.GetGuardAfter())
	return r.topic.catchUp(ctx)
}
