package ops

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/guard"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	// rehearsalTopK is how many of the teacher's likeliest tokens a sample holds at each position.
	rehearsalTopK = 16
	// slotAttempts is how often a reply to a prompt is sampled until the guard lets one pass; slotsPerSample bounds the prompts that are tried for one sample.
	slotAttempts   = 3
	slotsPerSample = 2
	// engineAttempts is how often a busy engine is asked.
	engineAttempts = 8
)

// parallel is how many replies are sampled at once: all sequences of the engine but one, which is for whoever comes.
func (r *rehearser) parallel() int { return max(1, r.system.Config.Policy.Llama.Parallel-1) }

// minibatch makes the samples of one update from the next slots of the mix, in their order, and says which slot comes next. Prompts without a reply that the
// guard lets pass are passed over, so there may be fewer samples than a batch.
func (r *rehearser) minibatch(ctx context.Context, u *underWay, pool *promptPool, next int) ([]schemas.Event, int, error) {
	var samples []schemas.Event
	for end := next + slotsPerSample*r.batch; len(samples) < r.batch && next < end; {
		made := make([]*schemas.SampleAssembled, min(r.batch-len(samples), end-next))
		work, inner := errgroup.WithContext(ctx)
		work.SetLimit(r.parallel())
		for i := range made {
			s := pool.slot(next + i)
			work.Go(func() (err error) {
				made[i], err = r.sample(inner, s, pool.id)
				return err
			})
		}
		if err := work.Wait(); err != nil {
			return nil, next, errors.Join(ctx.Err(), err)
		}
		next += len(made)
		for _, s := range made {
			if s != nil {
				samples = append(samples, r.event(s, sampleID(u.id, u.samples+len(samples))))
			}
		}
	}
	return samples, next, nil
}

// event is the envelope of a sample. Its turn is itself: no turn of a session is behind it.
func (r *rehearser) event(s *schemas.SampleAssembled, id string) schemas.Event {
	s.TurnId, s.Teacher.TurnId = id, id
	session := "rehearsal/" + s.GetUser()
	if s.GetUser() == "" {
		session = "rehearsal"
	} else if schemas.CheckSession(session) != nil {
		session = "rehearsal/" + schemas.ContentID("user", s.GetUser())
	}
	return schemas.Event{ID: id, Source: rehearseSource, Tenant: r.system.Config.Tenant, Session: session, Time: time.Now(), Payload: s}
}

// sample makes the sample of a slot: a reply of the frozen reference with the hint, its log-probs there, and the prompt without the hint. Nil: no reply passed
// the guard, or the engine refuses the prompt.
func (r *rehearser) sample(ctx context.Context, s slot, id string) (*schemas.SampleAssembled, error) {
	messages, least := s.prompt.messages, 1
	if s.hint != "" {
		messages, least = processors.AppendHint(messages, s.hint), r.cfg.MinTokens
	}
	for attempt := range slotAttempts {
		reply, err := r.reply(ctx, policy.Base, prompt{messages: messages, tools: s.prompt.tools}, seedOf(id, s.n, attempt))
		if err != nil {
			return nil, passOver(err)
		}
		if passes(reply, least, s.prompt) {
			return r.taught(ctx, s, messages, reply)
		}
	}
	return nil, nil //nolint:nilnil // no reply passed
}

// passes says whether a reply of at least so many tokens counts as an answer to a prompt.
func passes(reply *gateway.Sampled, least int, p prompt) bool {
	text := textOf(reply.Response)
	return guard.Form(text, len(reply.Tokens.GetResponseIds()), least) == "" && guard.About(text, p.particular) == ""
}

// taught scores a reply in the context with the hint. The prompt without it is what the engine's template makes of the messages; to be told it, one token is
// scored there.
func (r *rehearser) taught(ctx context.Context, s slot, hinted []*schemas.Message, reply *gateway.Sampled) (*schemas.SampleAssembled, error) {
	response, temperature := reply.Tokens.GetResponseIds(), reply.Sampling.GetTemperature()
	ask := &policy.ScoreRequest{Version: policy.Base, Messages: hinted, Tools: s.prompt.tools, Response: response, Temperature: temperature, TopK: rehearsalTopK}
	scored, err := patientlyAsked(ctx, func() (*policy.Scored, error) { return r.engine.Score(ctx, ask) })
	if err != nil {
		return nil, passOver(err)
	}
	plain := &policy.ScoreRequest{Version: policy.Base, Messages: s.prompt.messages, Tools: s.prompt.tools, Response: response[:1], Temperature: temperature}
	without, err := patientlyAsked(ctx, func() (*policy.Scored, error) { return r.engine.Score(ctx, plain) })
	if err != nil {
		return nil, passOver(err)
	}
	if len(without.Prompt) == 0 || scored.TopK == nil || len(scored.Logprobs) != len(response) {
		return nil, errors.New("the policy engine gave no token ids of the prompt, or no top-k: rehearse needs the embedded one")
	}
	sample := &schemas.SampleAssembled{
		Kind: schemas.SampleKind_SAMPLE_KIND_REHEARSAL, Response: reply.Response, Model: reply.Model,
		Tokens:   &schemas.Tokens{PromptIds: without.Prompt, ResponseIds: response},
		Sampling: &schemas.Sampling{Temperature: &temperature, Seed: reply.Sampling.Seed, MaxTokens: reply.Sampling.MaxTokens},
		Teacher: &schemas.TeacherScored{
			Hint: s.hint, TeacherVersion: policy.Base, Temperature: temperature, Logprobs: scored.Logprobs, TopK: scored.TopK,
		},
	}
	if s.user != "" {
		sample.User, sample.Hint, sample.Standing = &s.user, &s.hint, &s.hint
	}
	return sample, nil
}

// share is the share of replies to the held-out prompts, without a hint, that the guard lets pass. It waits until the version is served. Each prompt has its own
// seed, the same for all versions.
func (r *rehearser) share(ctx context.Context, held []prompt, version string) (float64, error) {
	if err := r.served(ctx, version); err != nil {
		return 0, err
	}
	passed := make([]int, len(held))
	work, inner := errgroup.WithContext(ctx)
	work.SetLimit(r.parallel())
	for i, p := range held {
		work.Go(func() error {
			reply, err := r.reply(inner, version, p, seedOf("guard", i, 0))
			if err != nil {
				return passOver(err)
			}
			if passes(reply, r.cfg.MinTokens, p) {
				passed[i] = 1
			}
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return 0, err
	}
	sum := 0
	for _, n := range passed {
		sum += n
	}
	return float64(sum) / float64(len(held)), nil
}

// served waits until the engine has a version.
func (r *rehearser) served(ctx context.Context, version string) error {
	for deadline := time.Now().Add(servedWait); ; {
		loaded, err := r.engine.Versions(ctx)
		if err == nil && (version == policy.Base || slices.ContainsFunc(loaded, func(v gateway.Version) bool { return v.ID == version })) {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("version %s is not served %s after it was published", version, servedWait), err)
		}
		if err := sleepFor(ctx, rehearsePoll); err != nil {
			return err
		}
	}
}

// reply samples one.
func (r *rehearser) reply(ctx context.Context, version string, p prompt, seed int64) (*gateway.Sampled, error) {
	most := uint32(r.cfg.MaxTokens) //nolint:gosec // Validate bounds it
	ask := &gateway.SampleRequest{
		Version: version, Messages: p.messages, Tools: p.tools,
		Sampling: &schemas.Sampling{Temperature: proto.Float64(r.cfg.Temperature), MaxTokens: &most, Seed: &seed},
	}
	return patientlyAsked(ctx, func() (*gateway.Sampled, error) {
		return r.engine.Sample(ctx, ask, func(gateway.Piece) error { return nil })
	})
}

// patientlyAsked asks an engine again that is busy, or starts again.
func patientlyAsked[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	pause := rehearsePoll
	for attempt := 1; ; attempt++ {
		answer, err := ask()
		var p *gateway.PolicyError
		busy := errors.As(err, &p) && (p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable)
		if !busy || attempt == engineAttempts {
			return answer, err
		}
		if err := sleepFor(ctx, pause); err != nil {
			return answer, err
		}
		pause *= 2
	}
}

// passOver turns a refusal of a prompt (it is too long, or its tools cannot be rendered) into nil: that prompt is left out.
func passOver(err error) error {
	var p *gateway.PolicyError
	if errors.As(err, &p) && (p.Status == http.StatusBadRequest || p.Status == http.StatusRequestEntityTooLarge) {
		return nil
	}
	return err
}

// textOf is the text of a message.
func textOf(m *schemas.Message) string {
	var b strings.Builder
	for _, p := range m.GetParts() {
		b.WriteString(p.GetText())
	}
	return b.String()
}
