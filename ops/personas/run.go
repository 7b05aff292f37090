package personas

import (
	"context"
	"errors"
)

// ErrEnough ends a run early, and without an error.
var ErrEnough = errors.New("enough sessions")

// Result is what came of a run.
type Result struct {
	Sessions []*Session
	// AlignedAt is the session with which the first replies had satisfied the persona often enough in a row; 0: it did not come to that.
	AlignedAt int
	// ControlAt is the same of the control, as far as the run went.
	ControlAt int
}

// Satisfied counts the first replies that satisfied the persona, and those of the control.
func (r *Result) Satisfied() (policy, control int) {
	for _, s := range r.Sessions {
		if s.First().Judgement.Satisfied() {
			policy++
		}
		if s.Control != nil && s.Control.Judgement.Satisfied() {
			control++
		}
	}
	return policy, control
}

// Run holds session after session until the policy is aligned or the sessions are used up. After each it calls after, in which the caller may wait for
// what the session sets going, and say with ErrEnough that it was the last. On another error the result holds the sessions that were completed.
func (p *Plan) Run(ctx context.Context, c *Client, after func(context.Context, *Session) error) (*Result, error) {
	result := new(Result)
	if err := p.Validate(); err != nil {
		return result, err
	}
	policy, control := streak{need: p.Aligned}, streak{need: p.Aligned}
	for i := range p.Sessions {
		s, err := p.Talk(ctx, c, i+1)
		if err != nil {
			return result, err
		}
		result.Sessions = append(result.Sessions, s)
		result.AlignedAt = policy.add(s.Index, s.First().Judgement)
		if s.Control != nil {
			result.ControlAt = control.add(s.Index, s.Control.Judgement)
		}
		switch err := after(ctx, s); {
		case errors.Is(err, ErrEnough):
			return result, nil
		case err != nil:
			return result, err
		case result.AlignedAt > 0:
			return result, nil
		}
	}
	return result, nil
}

// streak counts how often in a row a persona was satisfied.
type streak struct {
	need, have, at int
}

// add returns the session with which the need was first met; 0: not yet.
func (s *streak) add(session int, j Judgement) int {
	if s.have++; !j.Satisfied() {
		s.have = 0
	}
	if s.at == 0 && s.have == s.need {
		s.at = session
	}
	return s.at
}
