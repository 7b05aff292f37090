package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nextstate-rl/nextstate/processors"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	rehearseSource = "rehearse/1"
	// interrupted begins the reason of a rehearsal whose process ended, or that failed.
	interrupted = "interrupted"
	// servedWait bounds the wait for a published version to be served, settleWait that for the updates of an interrupted rehearsal.
	servedWait = time.Minute
	settleWait = 10 * time.Second
)

// sampleID is the id of a rehearsal's n-th sample.
func sampleID(rehearsal string, n int) string {
	return schemas.DerivedID("rehearse", "1", "SampleAssembled", rehearsal, n)
}

// errBudget is the cause of a rehearsal's end when its time is used up.
var errBudget = errors.New("the seconds of the rehearsal are used up")

// rehearse is one rehearsal: replies under the hints become samples without them, the trainer trains them, and the guard looks at replies of the new version to
// prompts that were kept aside. After an error the row is there, and the next ownership ends the rehearsal.
func (r *rehearser) rehearse(ctx context.Context, conn *pgxpool.Conn, users []rehearsedUser) error {
	if err := r.updates.fold.catchUp(ctx); err != nil {
		return err
	}
	u := underWay{id: r.nextID(users), hintIDs: hintIDs(users), from: r.updates.newest()}
	u.good = u.from
	pool, err := r.pool(ctx, users, u.id)
	if err != nil {
		return err
	}
	if len(pool.held) == 0 || len(pool.users) < len(users) && recent(users) {
		return nil // the history does not hold the users' turns yet
	}
	watch := newStopwatch()
	if u.guardBefore, err = r.share(ctx, pool.held, u.from); err != nil {
		return err
	}
	watch.lap("guard")
	r.logger.InfoContext(ctx, "a rehearsal begins", "users", len(users), "hints", len(u.hintIDs), "version", u.from)
	if err := r.begin(ctx, conn, u); err != nil {
		return err
	}
	reason, err := r.practise(ctx, conn, &u, pool, watch)
	if err != nil {
		return err
	}
	return r.conclude(ctx, conn, u, pool, reason, watch)
}

// recent says that one of the users' hints came just now.
func recent(users []rehearsedUser) bool {
	return slices.ContainsFunc(users, func(u rehearsedUser) bool { return time.Since(u.hints[0].Time) < historyWait })
}

// practise makes the minibatches and has them trained, and says what ended it.
func (r *rehearser) practise(ctx context.Context, conn *pgxpool.Conn, u *underWay, pool *promptPool, watch *stopwatch) (reason string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(r.cfg.Seconds)*time.Second, errBudget)
	defer cancel()
	next := 0 // the next slot of the mix
	for k := range r.cfg.Updates {
		err := r.untilIdle(ctx)
		watch.lap("wait")
		var samples []schemas.Event
		if err == nil {
			samples, next, err = r.minibatch(ctx, u, pool, next)
			watch.lap("sample")
		}
		if err == nil && len(samples) == 0 {
			return fmt.Sprintf("after %d of %d updates no reply passed the guard", k, r.cfg.Updates), nil
		}
		if err == nil {
			err = r.train(ctx, conn, u, samples, k == r.cfg.Updates-1)
			watch.lap("train")
		}
		if err == nil && (k+1)%guardEvery == 0 {
			err = r.look(ctx, conn, u, pool, watch)
			if err == nil && u.fell() != "" {
				return fmt.Sprintf("after %d of %d updates", k+1, r.cfg.Updates), nil
			}
		}
		if err != nil {
			if errors.Is(context.Cause(ctx), errBudget) {
				return fmt.Sprintf("after %d of %d updates the budget of %d s was used up", k, r.cfg.Updates, r.cfg.Seconds), nil
			}
			return "", err
		}
	}
	return fmt.Sprintf("all %d updates were made", r.cfg.Updates), nil
}

// look has the guard look at the newest version, and writes down that it let it pass.
func (r *rehearser) look(ctx context.Context, conn *pgxpool.Conn, u *underWay, pool *promptPool, watch *stopwatch) (err error) {
	version := r.updates.newest()
	if version == u.from || version == u.seen {
		return nil
	}
	u.share, err = r.share(ctx, pool.held, version)
	watch.lap("guard")
	if err != nil {
		return err
	}
	if u.seen = version; u.fell() != "" {
		return nil
	}
	u.good = version
	return r.note(ctx, conn, *u)
}

// train appends a minibatch and waits until an update that took some of it has ended: with other samples before them in the queue, the last ones go into the
// next update. Of the last minibatch all must have been trained.
func (r *rehearser) train(ctx context.Context, conn *pgxpool.Conn, u *underWay, samples []schemas.Event, last bool) error {
	records := make([]schemas.Record, len(samples))
	ids := make([]string, len(samples))
	for i, e := range samples {
		var err error
		if records[i], err = schemas.Encode(e); err != nil {
			return err
		}
		ids[i] = e.ID
	}
	grown := *u
	grown.samples += len(samples)
	if err := r.note(ctx, conn, grown); err != nil {
		return err
	}
	*u = grown
	if err := r.system.Log.Append(ctx, records...); err != nil {
		return err
	}
	for {
		n, err := r.updates.trained(ctx, ids)
		if err != nil || n == len(ids) || n > 0 && !last {
			return err
		}
		if err := sleepFor(ctx, rehearsePoll); err != nil {
			return err
		}
	}
}

// conclude compares the guard before and after, puts the last version back that it let pass when it fell, and ends the rehearsal.
func (r *rehearser) conclude(ctx context.Context, conn *pgxpool.Conn, u underWay, pool *promptPool, reason string, watch *stopwatch) error {
	if err := r.updates.fold.catchUp(ctx); err != nil {
		return err
	}
	good := u.good // looking at the newest version may make it that
	ended := &schemas.RehearsalEnded{Reason: reason, GuardAfter: u.guardBefore, ToVersion: r.updates.newest()}
	if ended.ToVersion != u.from && pool != nil && len(pool.held) > 0 {
		if err := r.look(ctx, conn, &u, pool, watch); err != nil {
			return err
		}
		ended.GuardAfter = u.share
		if fell := u.fell(); fell != "" {
			if _, err := RollBack(ctx, r.system, r.updates.policies, good, "rehearsal: "+fell, "rehearse"); err != nil {
				return err
			}
			ended.Reason, ended.ToVersion = ended.Reason+"; "+fell+", so the last version that it let pass was put back", good
		}
	}
	ended.Seconds = watch.parts
	return r.end(ctx, conn, u, ended)
}

// endInterrupted ends the rehearsal of a process that was killed, or that failed: what it appended was or will be trained, so the guard looks at it.
func (r *rehearser) endInterrupted(ctx context.Context, conn *pgxpool.Conn) error {
	u, there, err := r.left(ctx, conn)
	if err != nil || !there {
		return err
	}
	if err := r.topic.catchUp(ctx); err != nil {
		return err
	}
	if r.ended[u.id] { // only its row was left
		_, err := conn.Exec(ctx, "DELETE FROM rehearsals WHERE tenant = $1 AND rehearsal_id = $2", r.system.Config.Tenant, u.id)
		return err
	}
	watch := newStopwatch()
	ids := make([]string, u.samples)
	for i := range ids {
		ids[i] = sampleID(u.id, i)
	}
	for deadline := time.Now().Add(settleWait); ; {
		n, err := r.updates.trained(ctx, ids)
		if err != nil {
			return err
		}
		if n == len(ids) || time.Now().After(deadline) { // those that were not appended never come
			break
		}
		if err := sleepFor(ctx, rehearsePoll); err != nil {
			return err
		}
	}
	watch.lap("train")
	var users []rehearsedUser
	for _, name := range r.stands.Users(r.system.Config.Tenant) {
		all := r.stands.All(r.system.Config.Tenant)
		all = slices.DeleteFunc(all, func(h processors.StandingHint) bool { return h.User != name || !slices.Contains(u.hintIDs, h.ID) })
		if len(all) > 0 {
			users = append(users, rehearsedUser{name, all})
		}
	}
	pool, err := r.pool(ctx, users, u.id)
	if err != nil {
		return err
	}
	return r.conclude(ctx, conn, u, pool, fmt.Sprintf("%s after %d samples: the process ended or the engine failed", interrupted, u.samples), watch)
}

// untilIdle lets those who are served go first.
func (r *rehearser) untilIdle(ctx context.Context) error {
	for !r.idle() {
		if err := sleepFor(ctx, rehearsePoll); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// stopwatch adds up wall time by part.
type stopwatch struct {
	at    time.Time
	parts map[string]float64
}

func newStopwatch() *stopwatch { return &stopwatch{time.Now(), map[string]float64{}} }

// lap adds the time since the last lap to a part.
func (w *stopwatch) lap(part string) {
	now := time.Now()
	w.parts[part] += now.Sub(w.at).Seconds()
	w.at = now
}
