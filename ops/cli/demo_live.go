package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/ops/policy"
)

// demoTrainWait is longer than any demo: an update begins when it has all its samples, so that the same seed gives the same minibatches.
const demoTrainWait = 24 * time.Hour

// demoAligned is how many first replies in a row must satisfy the persona.
const demoAligned = 3

// live is the demo in which the policy changes while a persona talks to it. One goroutine.
type live struct {
	g        *Globals
	s        *ops.System
	plan     personas.Plan
	gateway  *personas.Client
	learning *ops.Learning
	pace     *ops.Pace
	// no session begins after limit.
	limit time.Time
}

// live runs everything in this process and has the persona talk to it.
func (d Demo) live(ctx context.Context, g *Globals, start time.Time) error {
	persona, err := personas.Named(d.Persona)
	if err != nil {
		return fmt.Errorf("--persona: %w", err)
	}
	l := &live{g: g, learning: ops.NewLearning(g.Tenant), limit: start.Add(d.Limit), plan: personas.Plan{
		Persona: persona, Half: personas.Tuning, Sessions: d.Sessions, Turns: d.Turns, Aligned: demoAligned, Seed: d.Seed, Temperature: d.Temperature, MaxTokens: d.MaxTokens,
		Prefix: "demo", User: persona.Name, Control: policy.Base,
		Phrased: d.Phrasing.phrased(func(err error) { g.printf("      the persona says the words of its script: %v\n", err) }),
	}}
	if err := l.plan.Validate(); err != nil {
		return err
	}
	batch, err := d.training(g)
	if err != nil {
		return err
	}
	l.pace = &ops.Pace{Learning: l.learning, Batch: batch, Published: l.update, Adopted: l.adopted}
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		if s.Attached {
			return fmt.Errorf("process %d already runs with the data folder %s: leave --data away, the demo has its own", s.Endpoints().PID, g.Data)
		}
		l.s = s
		return s.WhileServing(ctx, l.learning, func(ctx context.Context, gateway string) error {
			g.printf("  ready in %.1f s\n\n", time.Since(start).Seconds())
			l.gateway = personas.NewClient(gateway, "")
			l.pace.Versions = l.gateway.Versions
			return l.show(ctx, start)
		})
	})
}

func (l *live) show(ctx context.Context, start time.Time) error {
	g, p := l.g, l.plan.Persona
	g.printf("The %s wants %s.\nAt most %d sessions, each about another problem; %d judged replies a session. ", p.Name, p.Wish, l.plan.Sessions, l.plan.Turns)
	if l.pace.Batch > 0 {
		g.printf("%d samples make an update.\n", l.pace.Batch)
	} else {
		g.printf("Nothing is trained.\n")
	}
	g.printf("The control is the model without updates; it answers the same first messages with the same seeds.\n\n")
	result, err := l.plan.Run(ctx, l.gateway, l.after)
	if err != nil {
		return err
	}
	if err := l.questions(ctx); err != nil {
		return err
	}
	if err := l.trace(ctx); err != nil {
		return err
	}
	l.conclude(result, time.Since(start))
	return nil
}

// after shows a session, waits until its turns were judged, and then for the update that they make possible.
func (l *live) after(ctx context.Context, s *personas.Session) error {
	l.session(s)
	turns := len(s.Turns) + 1 // the reply to the persona's last word counts too
	if err := l.pace.Decided(ctx, map[string]int{s.ID: turns}); err != nil {
		return err
	}
	if _, err := l.pace.Updated(ctx); err != nil {
		return err
	}
	if s.Index < l.plan.Sessions && time.Now().After(l.limit) {
		l.g.printf("The time of --limit is used up: no further session begins.\n")
		return personas.ErrEnough
	}
	return nil
}

func (l *live) update(u ops.UpdateLearned) {
	l.g.printf("      update %d: %d samples, %s\n", u.Number, u.Samples, figures(u.Metrics))
}

func (l *live) adopted(version string, after time.Duration) {
	l.g.printf("      version %s is served (%.1f s later)\n", short(version), after.Seconds())
}

// session shows the first reply, what the persona thought of it, and what came of the others.
func (l *live) session(s *personas.Session) {
	first := s.First()
	line := fmt.Sprintf("%3d  %-8s  %s %s", s.Index, short(first.Reply.Version), mark(first.Judgement), first.Judgement)
	if n := len(s.Turns); n > 1 {
		line += fmt.Sprintf("; corrected, then %s %s", mark(s.Turns[n-1].Judgement), s.Turns[n-1].Judgement)
	}
	l.g.printf("%s\n      %q\n", line, clip(clean(first.Reply.Text), 120))
	if s.Control != nil {
		l.g.printf("      control: %s %s\n", mark(s.Control.Judgement), s.Control.Judgement)
	}
}

func mark(j personas.Judgement) string {
	if j.Satisfied() {
		return "✓"
	}
	return "✗"
}

// short is a version in a column.
func short(version string) string {
	if len(version) == 36 { // a UUID
		return version[:8]
	}
	return clip(version, 12)
}

// figures are the metrics of an update that tell the most.
func figures(m map[string]float64) string {
	var parts []string
	for _, f := range []struct{ name, text, form string }{
		{"reward_mean", "reward", "%+.2f"},
		{"loss", "loss", "%.3f"},
		{"loss_dir", "directive", "%.3f"},
		{"grad_norm", "gradient", "%.3f"},
		{"entropy", "entropy", "%.2f"},
		{"staleness_max", "staleness", "%.0f"},
		{"tokens", "tokens", "%.0f"},
		{"seconds", "seconds", "%.1f"},
	} {
		if v, ok := m[f.name]; ok {
			parts = append(parts, f.text+" "+fmt.Sprintf(f.form, v))
		}
	}
	return strings.Join(parts, ", ")
}

// liveQuestions are asked of the history when the sessions are over.
var liveQuestions = []question{
	{"How did each version do, by its first replies and all others?", `SELECT policy_version, turns, good, bad, hinted, round(mean_score, 2) AS mean_score
FROM rewards_by_version ORDER BY first_turn`},
	{"What was each update made of?", "SELECT `update`, samples, round(reward_mean, 2) AS reward, round(loss, 3) AS loss, round(teacher_fraction, 2) AS with_hint,\n" +
		"       round(grad_norm, 3) AS grad_norm, round(seconds, 1) AS seconds, substring(version, 1, 8) AS version\nFROM updates ORDER BY `update`"},
	{"What did it learn from?", `SELECT hint, count() AS turns, round(avg(score), 2) AS mean_score
FROM turns WHERE hint IS NOT NULL GROUP BY hint ORDER BY turns DESC LIMIT 4`},
}

func (l *live) questions(ctx context.Context) error {
	if err := l.s.WaitStored(ctx); err != nil {
		return err
	}
	for _, q := range liveQuestions {
		l.g.printf("\n%s\n\n%s\n\n", q.text, q.sql)
		if err := queryHTTP(ctx, l.s.ClickHouseHTTP, q.sql, "PrettyCompactMonoBlock", l.g.out); err != nil {
			return err
		}
	}
	return nil
}

// tracedSamples are shown of the newest update.
const tracedSamples = 2

// trace shows what the newest version was made of, as far as one update goes.
func (l *live) trace(ctx context.Context) error {
	published := l.learning.Now().Published
	if len(published) == 0 {
		return nil
	}
	policies, err := ops.ReadPolicies(ctx, l.s)
	if err != nil {
		return err
	}
	newest := published[len(published)-1]
	version, ok := policies.Version(newest.Version)
	if !ok {
		return fmt.Errorf("version %s was published and is not in the topic policies: its retention (--kafka-retention) is too short for this demo", newest.Version)
	}
	trace, err := ops.TracePolicy(ctx, l.s, policies, version)
	if err != nil {
		return err
	}
	l.g.printf("\nWhat is behind the newest version? (nextstate policies trace; here %d of the %d samples of its last update)\n\n", min(tracedSamples, newest.Samples), newest.Samples)
	for _, sample := range trace.Updates[0].Samples[:min(tracedSamples, len(trace.Updates[0].Samples))] {
		PoliciesTrace{Width: 110}.print(l.g, sample)
	}
	return nil
}

// conclude says what happened, whatever it was.
func (l *live) conclude(r *personas.Result, took time.Duration) {
	policy, control := r.Satisfied()
	n := len(r.Sessions)
	l.g.printf("\nFirst replies that satisfied the %s: %d of %d; the control's: %d of %d.\n", l.plan.Persona.Name, policy, n, control, n)
	switch updates := len(l.learning.Now().Published); {
	case r.AlignedAt > 0:
		l.g.printf("Aligned: the first replies of %d sessions in a row, up to session %d, after %d updates. ", demoAligned, r.AlignedAt, updates)
	default:
		l.g.printf("Not aligned: no %d sessions in a row within %d sessions and %d updates. ", demoAligned, n, updates)
	}
	switch {
	case r.ControlAt > 0:
		l.g.printf("The control came to it too, in session %d, without learning: this run proves little.\n", r.ControlAt)
	default:
		l.g.printf("The control did not come to it.\n")
	}
	l.g.printf("One run with one seed (%d) is an anecdote; another --seed gives another, and so may the same one: what the engine computes beside a reply changes its last bits, and then its words. Arithmetic is not judged: the model is small and often wrong.\n", l.plan.Seed)
	l.g.printf("Done in %.0f s. Next: nextstate up, then nextstate chat; nextstate status --watch; nextstate demo --logs.\n", took.Seconds())
}

// noObjective as --objective: the policy stays as it is.
const noObjective = "none"

// training sets up the trainer, and returns how many samples make an update; 0: nothing is trained.
func (d Demo) training(g *Globals) (batch int, err error) {
	if d.Objective == noObjective {
		g.Train.Engine = ops.NoTraining
		return 0, nil
	}
	g.Train.Engine, g.Train.Preset, g.Train.Seed = ops.TrainONNX, d.Objective, d.Seed
	g.Train.Wait = demoTrainWait
	loop, err := g.settings().Train.Loop(g.Tenant, "any")
	if err != nil {
		return 0, fmt.Errorf("--objective: %w", err)
	}
	return loop.Batch, nil
}
