package policy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// TeacherVersion says which policy version the teacher is.
type TeacherVersion string

// The teachers.
const (
	// Reference is the model without adapter, which never changes: a teacher that shares the weights that are trained drifts with them, and the
	// replies fall into loops.
	Reference TeacherVersion = "reference"
	// Newest is the newest version when the turn is scored.
	Newest TeacherVersion = "newest"
	// Sampling is the version that sampled the response.
	Sampling TeacherVersion = "sampling"
)

// TeacherVersions lists what may be configured, the default first.
func TeacherVersions() []TeacherVersion { return []TeacherVersion{Reference, Newest, Sampling} }

// TeacherConfig configures a Teacher. Zero values have the defaults.
type TeacherConfig struct {
	// Version is who teaches. Default Reference.
	Version TeacherVersion
	// TopK is k where the student has no top-k of its own. Default 4.
	TopK int
	// Concurrency bounds the queries at once, over all turns. Default 4.
	Concurrency int
	// Attempts bounds how often one query is tried; then it has failed for good. Default 10, over about a minute.
	Attempts int
	// Timeout of one query. Default 2 minutes.
	Timeout time.Duration
	// BackoffMin and BackoffMax bound the doubling pause between attempts. Defaults 250 ms and 15 s.
	BackoffMin, BackoffMax time.Duration
}

// Validate reports a value out of range.
func (c TeacherConfig) Validate() error {
	switch c.Version {
	case "", Reference, Newest, Sampling:
	default:
		return fmt.Errorf("teacher: the version %q is not known; use one of %v", c.Version, TeacherVersions())
	}
	if c.TopK < 0 || c.Concurrency < 0 || c.Attempts < 0 || c.Timeout < 0 || c.BackoffMin < 0 || c.BackoffMax < 0 {
		return errors.New("teacher: top_k, concurrency, attempts, timeout, backoff_min and backoff_max must not be negative; 0 means the default")
	}
	return nil
}

func (c TeacherConfig) withDefaults() TeacherConfig {
	orInt := func(v *int, otherwise int) {
		if *v == 0 {
			*v = otherwise
		}
	}
	orTime := func(v *time.Duration, otherwise time.Duration) {
		if *v == 0 {
			*v = otherwise
		}
	}
	if c.Version == "" {
		c.Version = Reference
	}
	orInt(&c.TopK, 4)
	orInt(&c.Concurrency, 4)
	orInt(&c.Attempts, 10)
	orTime(&c.Timeout, 2*time.Minute)
	orTime(&c.BackoffMin, 250*time.Millisecond)
	orTime(&c.BackoffMax, 15*time.Second)
	c.BackoffMax = max(c.BackoffMax, c.BackoffMin)
	return c
}

// Teacher has the policy engine score the original response tokens under each candidate hint (algorithm, section 3). Safe for concurrent use.
type Teacher struct {
	engine Engine
	cfg    TeacherConfig
	slots  chan struct{}
}

var _ processors.Teacher = (*Teacher)(nil)

// NewTeacher makes a teacher; the engine stays the caller's.
func NewTeacher(engine Engine, cfg TeacherConfig) (*Teacher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Teacher{engine: engine, cfg: cfg, slots: make(chan struct{}, cfg.Concurrency)}, nil
}

// Score implements processors.Teacher. Turns that cannot be trained are not scored. What the engine refuses (Status 400, 404, 413) has no teacher,
// with the engine's words as the reason; what may pass is tried again, and then has failed.
func (t *Teacher) Score(ctx context.Context, q processors.TeacherQuery) ([]*schemas.TeacherScored, error) {
	action := q.Turn.GetAction()
	if reason := untaught(action); reason != "" {
		return nil, processors.NoTeacher(reason)
	}
	whole, err := q.Context(ctx)
	if err != nil {
		return nil, err
	}
	version, err := t.version(ctx, action)
	if err != nil {
		return nil, err
	}
	scores := make([]*schemas.TeacherScored, len(q.Candidates))
	work, inner := errgroup.WithContext(ctx)
	work.SetLimit(t.cfg.Concurrency)
	for i, hint := range q.Candidates {
		r := t.request(action, whole, hint, version)
		work.Go(func() error {
			scored, err := retried(inner, t, func(ctx context.Context) (*Scored, error) { return t.engine.Score(ctx, r) })
			if err != nil {
				return err
			}
			scores[i], err = teacherScored(r, scored)
			return err
		})
	}
	if err := work.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	return scores, nil
}

// untaught says why an action has nothing to teach; empty: it has.
func untaught(a *schemas.ActionTaken) string {
	switch {
	case len(a.GetTokens().GetResponseIds()) == 0:
		return "the action has no token ids"
	case a.UntrainableReason != nil:
		return "the turn is not trained: " + a.GetUntrainableReason()
	case a.GetSampling() == nil || a.GetSampling().Temperature == nil:
		return "the sampling temperature is not known"
	case !(a.GetSampling().GetTemperature() > 0):
		return fmt.Sprintf("temperature %g", a.GetSampling().GetTemperature())
	}
	return ""
}

// version is the concrete version that all candidates of a turn are scored by.
func (t *Teacher) version(ctx context.Context, a *schemas.ActionTaken) (string, error) {
	switch t.cfg.Version {
	case Newest:
		all, err := retried(ctx, t, t.engine.Versions)
		if err == nil && len(all) == 0 {
			err = processors.NoTeacher("the policy engine has no version loaded")
		}
		if err != nil {
			return "", err
		}
		return all[0].ID, nil
	case Sampling:
		if a.GetPolicyVersion() == "" {
			return "", processors.NoTeacher("the action names no policy version")
		}
		return a.GetPolicyVersion(), nil
	default:
		return Base, nil
	}
}

// request puts the hint into the context, and asks for the teacher's own top-k and for its log-probs at the student's.
func (t *Teacher) request(a *schemas.ActionTaken, whole *schemas.Context, hint, version string) *ScoreRequest {
	r := &ScoreRequest{
		Version: version, Messages: processors.AppendHint(whole.GetMessages(), hint), Tools: whole.GetTools(),
		Response: a.GetTokens().GetResponseIds(), Temperature: a.GetSampling().GetTemperature(), TopK: t.cfg.TopK,
	}
	if student := a.GetTokens().GetTopK(); student != nil {
		r.TopK, r.At = int(student.GetK()), make([][]uint32, len(r.Response))
		for i := range r.At {
			r.At[i] = student.GetIds()[i*r.TopK : (i+1)*r.TopK]
		}
	}
	return r
}

// teacherScored brings an engine's answer into the event's form. direct checks the numbers; here it is the shape that would be lost.
func teacherScored(r *ScoreRequest, s *Scored) (*schemas.TeacherScored, error) {
	out := &schemas.TeacherScored{TeacherVersion: s.Version, Temperature: r.Temperature, Logprobs: s.Logprobs, TopK: s.TopK}
	if out.TeacherVersion == "" {
		out.TeacherVersion = r.Version
	}
	if s.At == nil {
		return out, nil
	}
	if len(s.At) != len(r.At) {
		return nil, processors.Permanent(fmt.Errorf("the engine gave log-probs at %d positions, not at %d", len(s.At), len(r.At)))
	}
	for i, row := range s.At {
		if len(row) != len(r.At[i]) {
			return nil, processors.Permanent(fmt.Errorf("the engine gave %d log-probs at position %d, not %d", len(row), i, len(r.At[i])))
		}
		out.LogprobsAtStudent = append(out.LogprobsAtStudent, row...)
	}
	return out, nil
}

// retried asks the engine until it answers, refuses, or the attempts are used up. The error is one of processors.Teacher's: ctx's own when it ended.
func retried[T any](ctx context.Context, t *Teacher, ask func(context.Context) (T, error)) (T, error) {
	var none T
	pause := t.cfg.BackoffMin
	for attempt := 1; ; attempt++ {
		answer, err := once(ctx, t, ask)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return none, ctx.Err()
		}
		var p *gateway.PolicyError
		if errors.As(err, &p) {
			switch p.Status {
			case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge:
				return none, processors.NoTeacher("the policy engine refuses: " + p.Message)
			}
		}
		if attempt >= t.cfg.Attempts {
			return none, processors.Permanent(fmt.Errorf("after %d attempts: %w", attempt, err))
		}
		wait := pause
		if p != nil {
			wait = min(max(pause, p.RetryAfter), t.cfg.BackoffMax)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return none, ctx.Err()
		}
		pause = min(2*pause, t.cfg.BackoffMax)
	}
}

// once asks when a slot is free.
func once[T any](ctx context.Context, t *Teacher, ask func(context.Context) (T, error)) (answer T, err error) {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return answer, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	return ask(ctx)
}
