package personas

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/guard"
)

const (
	// TurnsMax is the most turns of a session.
	TurnsMax = 8
	// heldOutAtOnce is how many held-out problems a policy is asked at once: together they are decoded faster.
	heldOutAtOnce = 4
)

// Plan says who talks about what, for how long. It is not changed by what it is used for, and safe for concurrent use as far as its functions are.
type Plan struct {
	Persona Persona
	// Half is where the problems come from.
	Half Half
	// Sessions is the most sessions, Turns the most replies that the persona judges in one (at most TurnsMax), Aligned how many first replies in a row
	// must satisfy it (Run).
	Sessions, Turns, Aligned int
	// Seed decides problems, words and sampling.
	Seed uint64
	// Temperature and MaxTokens of every reply.
	Temperature float64
	MaxTokens   int
	// Prefix begins the sessions' ids, the persona's name follows; two runs against one log need different ones.
	Prefix string
	// User is sent as the user of every request; empty: none is.
	User string
	// Control is a policy version that never changes ("base"). It answers the first message of each session too, aside. Empty: none.
	Control string

	// Fluency is the mean log-prob, in nats a token at temperature 1, of a reply after context under the base model. Nil: not checked.
	Fluency func(ctx context.Context, context []Message, reply string) (meanLogprob float64, err error)
	// Recall lets a memory change an opening before the policy (not the control) gets it. It must not keep or change messages. Nil: no memory.
	Recall func(ctx context.Context, user string, messages []Message) ([]Message, error)
	// Learned is told every correction that the persona says. Nil: nobody is.
	Learned func(ctx context.Context, user, correction string) error
	// Phrased puts what the persona says into other words. Nil: it says the words of its script.
	Phrased *Phrased
}

// Validate reports a value out of range.
func (p *Plan) Validate() error {
	var errs []error
	if p.Persona.Opening == nil {
		errs = append(errs, errors.New("no persona: take one by its name"))
	}
	if _, err := p.Half.stories(); err != nil {
		errs = append(errs, err)
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
	if p.Temperature < 0 || p.MaxTokens < guard.Tokens {
		errs = append(errs, fmt.Errorf("temperature %g and %d tokens a reply: the temperature is not negative, and %d tokens are the least that counts", p.Temperature, p.MaxTokens, guard.Tokens))
	}
	if p.Prefix == "" {
		errs = append(errs, errors.New("no prefix for the sessions' ids"))
	}
	if p.Phrased != nil {
		errs = append(errs, p.Phrased.Validate())
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
	Problem   Problem
	Reply     Reply
	Judgement Judgement
	// BaseLogprob is Plan.Fluency of the reply, in nats a token, after the context that the policy got; nil: not checked.
	BaseLogprob *float64
	// Seconds is how long the reply took.
	Seconds float64
}

// First is the reply that counts.
func (s *Session) First() Turn { return s.Turns[0] }

// Talk holds session i (1 to Sessions): the first message, corrections until the persona is satisfied or its turns are used up, a last word, and the end.
// Sessions of different personas may be held at once. On an error, what was said stays in the log and the session is not ended there.
func (p *Plan) Talk(ctx context.Context, c *Client, i int) (*Session, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if i < 1 || i > p.Sessions {
		return nil, fmt.Errorf("session %d of %d", i, p.Sessions)
	}
	problems, err := p.problems(0)
	if err != nil {
		return nil, err
	}
	s := &Session{Index: i, ID: fmt.Sprintf("%s-%s-%03d", p.Prefix, p.Persona.Name, i), Problem: problems.asked[i-1]}
	opening := p.Persona.Opening(problems.examples, s.Problem)
	if p.Control != "" {
		turn, err := p.turn(ctx, c, s.Problem, Ask{Model: p.Control, Session: s.ID + "-control", Side: true, Messages: opening}, p.draw(i, 0))
		if err != nil {
			return nil, fmt.Errorf("session %s, control: %w", s.ID, err)
		}
		s.Control = &turn
	}
	if err := p.converse(ctx, c, s, opening); err != nil {
		return nil, fmt.Errorf("session %s, turn %d: %w", s.ID, len(s.Turns)+1, err)
	}
	return s, c.End(ctx, s.ID)
}

// converse is the conversation with the policy itself.
func (p *Plan) converse(ctx context.Context, c *Client, s *Session, opening []Message) error {
	messages, err := p.recall(ctx, opening)
	if err != nil {
		return err
	}
	words := p.Persona.speech(p.Seed, s.Index)
	for {
		turn, err := p.turn(ctx, c, s.Problem, Ask{Model: "policy", Session: s.ID, Messages: messages}, p.draw(s.Index, len(s.Turns)))
		if err != nil {
			return err
		}
		s.Turns = append(s.Turns, turn)
		last := turn.Judgement.Satisfied() || len(s.Turns) == p.Turns
		said, err := p.say(ctx, words.answer(turn.Judgement, last), turn.Judgement)
		if err != nil {
			return err
		}
		messages = append(slices.Clip(messages), Message{"assistant", turn.Reply.Text}, Message{"user", said})
		if last {
			break
		}
	}
	// What the persona says last is the next state of the last judged reply. A chat answers it; nobody reads that, so it is one token long.
	ask := Ask{Model: "policy", Session: s.ID, Messages: messages, User: p.User, Temperature: p.Temperature, MaxTokens: 1, Seed: p.draw(s.Index, len(s.Turns))}
	if _, err := c.Complete(ctx, ask); err != nil {
		return fmt.Errorf("last word: %w", err)
	}
	return nil
}

// say phrases a line of the script, and tells the memory if it is a correction.
func (p *Plan) say(ctx context.Context, line string, j Judgement) (string, error) {
	if p.Phrased != nil {
		phrased, err := p.Phrased.Phrase(ctx, line)
		if err != nil {
			return "", err
		}
		line = phrased
	}
	if p.Learned != nil && j.Complaint != "" {
		if err := p.Learned(ctx, p.User, line); err != nil {
			return "", fmt.Errorf("the correction could not be remembered: %w", err)
		}
	}
	return line, nil
}

// HeldOut asks a model ("policy", or a version) for first replies to n problems that no session of any persona is about, aside: they are recorded and not
// learned from. Fluency and Recall apply as in a session, several at once. On an error the turns are not to be used.
func (p *Plan) HeldOut(ctx context.Context, c *Client, model string, n int) ([]Turn, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	problems, err := p.problems(n)
	if err != nil {
		return nil, err
	}
	turns := make([]Turn, len(problems.heldOut))
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(heldOutAtOnce)
	for i, q := range problems.heldOut {
		asking.Go(func() error {
			messages, err := p.recall(ctx, p.Persona.Opening(problems.examples, q))
			if err != nil {
				return fmt.Errorf("held-out problem %d: %w", i+1, err)
			}
			id := fmt.Sprintf("%s-%s-heldout-%s-%03d", p.Prefix, p.Persona.Name, model, i+1)
			if turns[i], err = p.turn(ctx, c, q, Ask{Model: model, Session: id, Side: true, Messages: messages}, p.draw(p.Sessions+1+i, 0)); err != nil {
				return fmt.Errorf("held-out problem %d: %w", i+1, err)
			}
			return nil
		})
	}
	return turns, asking.Wait()
}

// allotted problems of one persona.
type allotted struct {
	examples       [Examples]Problem
	asked, heldOut []Problem
}

// problems are the persona's share: those of a seed go round by persona, so that no two personas talk about the same one.
func (p *Plan) problems(heldOut int) (allotted, error) {
	personas := Names()
	all, err := Problems(p.Half, p.Seed, Examples+len(personas)*(p.Sessions+heldOut))
	if err != nil {
		return allotted{}, err
	}
	a := allotted{examples: [Examples]Problem(all)} // the examples are never asked about
	own := max(0, slices.Index(personas, p.Persona.Name))
	for i := Examples + own; i < len(all); i += len(personas) {
		a.asked = append(a.asked, all[i])
	}
	a.asked, a.heldOut = a.asked[:p.Sessions], a.asked[p.Sessions:]
	return a, nil
}

func (p *Plan) recall(ctx context.Context, opening []Message) ([]Message, error) {
	if p.Recall == nil {
		return opening, nil
	}
	messages, err := p.Recall(ctx, p.User, opening)
	if err != nil {
		return nil, fmt.Errorf("the memory does not answer: %w", err)
	}
	return messages, nil
}

// turn asks for one reply and judges it.
func (p *Plan) turn(ctx context.Context, c *Client, q Problem, a Ask, seed int64) (Turn, error) {
	a.User, a.Temperature, a.MaxTokens, a.Seed = p.User, p.Temperature, p.MaxTokens, seed
	start := time.Now()
	r, err := c.Complete(ctx, a)
	if err != nil {
		return Turn{}, err
	}
	t := Turn{Problem: q, Reply: r, Judgement: p.Persona.Judge(r, q), Seconds: time.Since(start).Seconds()}
	if p.Fluency == nil || r.Text == "" {
		return t, nil
	}
	plain, err := p.Fluency(ctx, a.Messages, r.Text)
	if err != nil {
		return Turn{}, fmt.Errorf("the base model does not score: %w", err)
	}
	t.BaseLogprob = &plain
	best := plain
	if plain < FluencyFloor { // in the form that the persona asks for, the base model speaks only when it is asked to
		hinted, err := p.Fluency(ctx, p.Persona.Hinted(a.Messages), r.Text)
		if err != nil {
			return Turn{}, fmt.Errorf("the base model does not score: %w", err)
		}
		best = max(plain, hinted)
	}
	if best < FluencyFloor && t.Judgement.Guard == "" {
		t.Judgement.Guard = fmt.Sprintf("not fluent (%.2f nats a token under the base model)", best)
	}
	return t, nil
}

// draw is the seed of the sampling: that of run, persona, session and turn. The control draws as the policy does.
func (p *Plan) draw(session, turn int) int64 {
	return stream(p.Seed, p.Persona.Name, uint64(session)<<8|uint64(turn)).Int64() //nolint:gosec // both are small and not negative
}

// stream is a source of random numbers for one purpose of a run.
func stream(seed uint64, name string, n uint64) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d", name, n)
	return rand.New(rand.NewPCG(seed, h.Sum64())) //nolint:gosec // no secret
}
