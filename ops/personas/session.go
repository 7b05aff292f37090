package personas

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
)

// TurnsMax is the most turns of a session.
const TurnsMax = 8

// Plan says who talks about what, for how long. All fields but Control are needed.
type Plan struct {
	Persona Persona
	// Sessions is the most sessions, Turns the most replies that the persona judges in one (at most TurnsMax), Aligned how many first replies in a row
	// must satisfy it.
	Sessions, Turns, Aligned int
	// Seed decides problems and sampling.
	Seed uint64
	// Temperature and MaxTokens of every reply.
	Temperature float64
	MaxTokens   int
	// Prefix begins the sessions' ids; two runs against one log need different ones.
	Prefix string
	// Control is a policy version that never changes ("base"). It answers the first message of each session too, aside. Empty: none.
	Control string
}

// Validate reports a value out of range.
func (p Plan) Validate() error {
	var errs []error
	if p.Persona.Opening == nil {
		errs = append(errs, errors.New("no persona: take one by its name"))
	}
	if p.Sessions < 1 {
		errs = append(errs, fmt.Errorf("%d sessions: at least 1 is needed", p.Sessions))
	}
	if p.Turns < 1 || p.Turns > TurnsMax {
		errs = append(errs, fmt.Errorf("%d turns a session: 1 to %d", p.Turns, TurnsMax))
	}
	if p.Aligned < 1 {
		errs = append(errs, fmt.Errorf("aligned after %d sessions: at least 1 is needed", p.Aligned))
	}
	if p.Temperature < 0 || p.MaxTokens < guardTokens {
		errs = append(errs, fmt.Errorf("temperature %g and %d tokens a reply: the temperature is not negative, and %d tokens are the least that counts", p.Temperature, p.MaxTokens, guardTokens))
	}
	if p.Prefix == "" {
		errs = append(errs, errors.New("no prefix for the sessions' ids"))
	}
	return errors.Join(errs...)
}

// Session is a conversation about one problem.
type Session struct {
	// Index counts from 1.
	Index   int
	ID      string
	Problem Problem
	// Turns are the judged replies, at least one.
	Turns []Turn
	// Control is the control's reply to the first message; nil without one.
	Control *Turn
}

// Turn is one judged reply.
type Turn struct {
	Reply     Reply
	Judgement Judgement
}

// First is the reply that counts.
func (s *Session) First() Turn { return s.Turns[0] }

// talk holds session i (from 1): the first message, corrections until the persona is satisfied or its turns are used up, thanks, and the end.
func (p Plan) talk(ctx context.Context, c *Client, i int, examples [Examples]Problem, problem Problem) (*Session, error) {
	s := &Session{Index: i, ID: fmt.Sprintf("%s-%03d", p.Prefix, i), Problem: problem}
	messages := p.Persona.Opening(examples, problem)
	if p.Control != "" {
		turn, err := p.turn(ctx, c, s, Ask{Model: p.Control, Session: s.ID + "-control", Side: true, Messages: messages})
		if err != nil {
			return nil, fmt.Errorf("session %s, control: %w", s.ID, err)
		}
		s.Control = &turn
	}
	for {
		turn, err := p.turn(ctx, c, s, Ask{Model: "policy", Session: s.ID, Messages: messages})
		if err != nil {
			return nil, fmt.Errorf("session %s, turn %d: %w", s.ID, len(s.Turns)+1, err)
		}
		s.Turns = append(s.Turns, turn)
		messages = append(slices.Clip(messages), Message{"assistant", turn.Reply.Text}, Message{"user", p.Persona.Answer(turn.Judgement)})
		if turn.Judgement.Satisfied() || len(s.Turns) == p.Turns {
			break
		}
	}
	// What the persona says last is the next state of the last judged reply. A chat answers it; nobody reads that, so it is one token long.
	if _, err := c.Complete(ctx, p.sampled(Ask{Model: "policy", Session: s.ID, Messages: messages}, s, 1)); err != nil {
		return nil, fmt.Errorf("session %s, last word: %w", s.ID, err)
	}
	return s, c.End(ctx, s.ID)
}

func (p Plan) turn(ctx context.Context, c *Client, s *Session, a Ask) (Turn, error) {
	r, err := c.Complete(ctx, p.sampled(a, s, p.MaxTokens))
	if err != nil {
		return Turn{}, err
	}
	return Turn{r, p.Persona.Judge(r, s.Problem)}, nil
}

// sampled fills in how the reply is sampled. The seed is that of run, session and turn: the control draws as the policy does.
func (p Plan) sampled(a Ask, s *Session, tokens int) Ask {
	draw := rand.New(rand.NewPCG(p.Seed, uint64(s.Index)<<8|uint64(len(s.Turns)))) //nolint:gosec // no secret; both are small and not negative
	a.Temperature, a.MaxTokens, a.Seed = p.Temperature, tokens, draw.Int64()
	return a
}
