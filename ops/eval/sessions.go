package eval

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/schemas"
)

// live is a run at work. One goroutine.
type live struct {
	cfg    Config
	run    Run
	s      *ops.System
	client *personas.Client
	plans  []personas.Plan
	diary  diary
	pace   *ops.Pace
	tell   func(format string, args ...any)
	// eta is what is left at most, for the progress line, given the mean time of a session and the sessions that are left.
	eta func(session time.Duration, left int) string

	began time.Time
	took  spent
	// streaks by persona.
	streaks []streak
	// updates that were published up to the last session.
	updates int
}

// streak is how many first replies in a row satisfied a persona.
type streak struct {
	have int
	// from is the session with which the first long enough streak began; 0: there was none yet.
	from int
}

func (s *streak) add(session int, satisfied bool) {
	if s.have++; !satisfied {
		s.have = 0
	}
	if s.from == 0 && s.have == aligned {
		s.from = session - aligned + 1
	}
}

// ending is how a run came to its end.
type ending struct {
	outcome  string
	sessions int
}

// The outcomes.
const (
	outcomeAligned  = "aligned"
	outcomeSessions = "sessions"
	outcomeTime     = "time"
)

// sessions holds joint session after joint session, until every persona is aligned, the cap is reached, or the time is over.
func (l *live) sessions(ctx context.Context) (ending, error) {
	var talking time.Duration
	for i := 1; ; i++ {
		start := time.Now()
		if err := l.session(ctx, i); err != nil {
			return ending{}, fmt.Errorf("joint session %d: %w", i, err)
		}
		talking += time.Since(start)
		switch {
		case l.aligned():
			return ending{outcomeAligned, i}, nil
		case i == l.cfg.Sessions:
			return ending{outcomeSessions, i}, nil
		case l.cfg.TimeLimit > 0 && time.Since(l.began) > l.cfg.TimeLimit:
			l.tell("  the time limit of the run (%s) is used up after %d sessions: it counts as not aligned within %d", l.cfg.TimeLimit, i, l.cfg.Sessions)
			return ending{outcomeTime, i}, nil
		}
		if left := l.eta(talking/time.Duration(i), l.cfg.Sessions-i); left != "" {
			l.tell("      %s", left)
		}
	}
}

func (l *live) aligned() bool {
	for _, s := range l.streaks {
		if s.from == 0 {
			return false
		}
	}
	return true
}

// alignedAt is the session of each persona's alignment, and joint when all are.
func (l *live) alignedAt() map[string]uint32 {
	at, joint := map[string]uint32{}, 0
	for k, s := range l.streaks {
		if s.from > 0 {
			at[l.plans[k].Persona.Name] = uint32(s.from) //nolint:gosec // small
		}
		joint = max(joint, s.from)
	}
	if l.aligned() {
		at["joint"] = uint32(joint) //nolint:gosec // small
	}
	return at
}

// session holds joint session i: all personas talk at once, and then everything is waited for that they set going.
func (l *live) session(ctx context.Context, i int) error {
	start, took := time.Now(), spent{}
	held := make([]*personas.Session, len(l.plans))
	talks, talking := errgroup.WithContext(ctx)
	for k := range l.plans {
		talks.Go(func() (err error) {
			held[k], err = l.plans[k].Talk(talking, l.client, i)
			return err
		})
	}
	if err := talks.Wait(); err != nil {
		return err
	}
	took.talked(time.Since(start), held)
	turns := map[string]int{}
	for k, s := range held {
		turns[s.ID] = len(s.Turns) + 1 // the reply to the persona's last word counts too
		l.streaks[k].add(i, s.First().Judgement.Satisfied())
		replies := l.run.replies(l.plans[k].Persona.Name, schemas.ReplyPhase_REPLY_PHASE_LIVE, s.Turns, func(turn int) (int, int) { return i, turn })
		if err := l.diary.note(ctx, s.ID, replies...); err != nil {
			return err
		}
	}
	signals := time.Now()
	if err := l.pace.Decided(ctx, turns); err != nil {
		return err
	}
	took[partSignals] += time.Since(signals)
	waited, err := l.pace.Updated(ctx)
	if err != nil {
		return err
	}
	took[partTraining] += waited.Training
	took[partServing] += waited.Serving
	if rehearse := l.run.settings.Rehearse; rehearse.On {
		start := time.Now()
		if err := l.pace.Rehearsed(ctx, rehearse.Budget()); err != nil {
			return err
		}
		took[partRehearsal] += time.Since(start)
	}
	took.rest(time.Since(start))
	l.took.add(took)
	published := len(l.pace.Learning.Now().Published)
	l.report(i, held, published-l.updates, took)
	l.updates = published
	return nil
}

// report is the line of a joint session.
func (l *live) report(i int, held []*personas.Session, updates int, took spent) {
	var line strings.Builder
	fmt.Fprintf(&line, "  %s %d  session %2d ", l.run.Arm, l.run.Seed, i)
	for k, s := range held {
		fmt.Fprintf(&line, " %s ", l.plans[k].Persona.Name)
		for _, t := range s.Turns {
			line.WriteString(mark(t.Judgement))
		}
		if l.streaks[k].from > 0 {
			fmt.Fprintf(&line, "(aligned at %d)", l.streaks[k].from)
		}
	}
	l.tell("%s  updates %d  %.1f s: %s", line.String(), updates, took.total().Seconds(), took)
}

// mark is a judgement in one character: satisfied, only the guard objects, or not what the persona wants.
func mark(j personas.Judgement) string {
	switch {
	case j.Satisfied():
		return "✓"
	case j.Complaint == "":
		return "·"
	}
	return "✗"
}

// heldOut puts the held-out problems to the newest version, and to the base model unless a run of the same seed did.
func (l *live) heldOut(ctx context.Context, control bool) error {
	if l.cfg.HeldOut == 0 {
		return nil
	}
	start := time.Now()
	unchanged := !l.run.settings.Train.On() && !l.run.settings.Memory // the policy is the control
	if err := l.problems(ctx, "policy", l.plans, heldOutPhases(control && unchanged)...); err != nil {
		return err
	}
	if control && !unchanged {
		var plain []personas.Plan
		for _, p := range l.plans {
			p.Recall, p.Learned = nil, nil
			plain = append(plain, p)
		}
		if err := l.problems(ctx, policy.Base, plain, schemas.ReplyPhase_REPLY_PHASE_HELD_OUT_CONTROL); err != nil {
			return err
		}
	}
	l.took[partHeldOut] += time.Since(start)
	return nil
}

// heldOutPhases are what the replies of the policy count as.
func heldOutPhases(also bool) []schemas.ReplyPhase {
	phases := []schemas.ReplyPhase{schemas.ReplyPhase_REPLY_PHASE_HELD_OUT}
	if also {
		phases = append(phases, schemas.ReplyPhase_REPLY_PHASE_HELD_OUT_CONTROL)
	}
	return phases
}

// problems has all personas put their held-out problems to a model at once.
func (l *live) problems(ctx context.Context, model string, plans []personas.Plan, phases ...schemas.ReplyPhase) error {
	asking, ctx := errgroup.WithContext(ctx)
	for _, p := range plans {
		asking.Go(func() error {
			turns, err := p.HeldOut(ctx, l.client, model, l.cfg.HeldOut)
			if err != nil {
				return fmt.Errorf("held-out problems of %s: %w", p.Persona.Name, err)
			}
			satisfied := 0
			for _, t := range turns {
				if t.Judgement.Satisfied() {
					satisfied++
				}
			}
			l.tell("  %s %d  held out: %s of %s satisfies in %d of %d", l.run.Arm, l.run.Seed, model, p.Persona.Name, satisfied, len(turns))
			for _, phase := range phases {
				if err := l.diary.note(ctx, "eval-"+p.Persona.Name+"-heldout", l.run.replies(p.Persona.Name, phase, turns, func(i int) (int, int) { return i + 1, 0 })...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return asking.Wait()
}
