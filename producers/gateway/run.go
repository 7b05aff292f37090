package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
)

// run is one completion at work: it samples every choice at once, and records what came of each.
type run struct {
	g          *Gateway
	q          *completion
	version    string
	exchange   *sessions.Exchange // nil: nothing is recorded
	responseID string
	start      time.Time
	header     http.Header // of the answer

	mu    sync.Mutex // guards what follows, and makes the calls of reply one at a time
	reply reply
	// spoken is when the client was last sent something; spoke is false before the first token.
	spoken time.Time
	spoke  bool
	// calls are the ids of the tool calls that were sent, by choice.
	calls [][]string
}

// outcome is what became of one choice.
type outcome struct {
	sampled *Sampled
	err     error
}

// Reasons to end a sampling, besides the policy's own.
var (
	// errClient wraps what writing to the client returned.
	errClient = errors.New("the client does not take the answer")
	// errSecondCall ends a response that may hold one tool call only.
	errSecondCall = errors.New("a second tool call")
	// errSibling ends the choices beside one that failed.
	errSibling = errors.New("another choice of the same request failed")
)

func (r *run) do(ctx context.Context) *fault {
	outcomes := r.sample(ctx)
	all := make([]*Sampled, len(outcomes))
	failed := failure(outcomes)
	for i, o := range outcomes {
		all[i] = o.sampled
	}
	gone := ctx.Err() != nil || errors.Is(failed, errClient)
	var keep *sessions.Stored
	if failed == nil {
		var err error
		if keep, err = r.reply.tail(all); err != nil { // it writes nothing yet
			failed = err
		}
	}
	recorded := r.record(ctx, outcomes, keep, gone)
	switch {
	case gone:
		return r.silent()
	case failed != nil:
		return r.reply.fail(r.g.policyFault(failed))
	case recorded != nil:
		return r.reply.fail(recorded)
	}
	if err := r.reply.close(); err != nil {
		r.g.logger.Debug("the client did not take the end of its answer", "error", err)
	}
	return nil
}

// silent ends a request that has nobody to answer to. The status is for the metrics.
func (r *run) silent() *fault {
	return r.reply.fail(&fault{status: statusClientGone, code: "cancelled", message: "the client went away"})
}

// failure is the error that made the request fail; those that it caused in the other choices do not count.
func failure(outcomes []outcome) error {
	var first error
	for _, o := range outcomes {
		if o.err != nil && (first == nil || errors.Is(first, errSibling)) {
			first = o.err
		}
	}
	return first
}

// sample runs all choices side by side until each has ended. One that fails ends the others.
func (r *run) sample(ctx context.Context) []outcome {
	ctx, stop := context.WithTimeout(ctx, r.g.cfg.SampleTimeout)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	r.g.metrics.sampling.Add(float64(r.q.choices))
	defer r.g.metrics.sampling.Sub(float64(r.q.choices))
	outcomes := make([]outcome, r.q.choices)
	var choices, beats sync.WaitGroup
	for i := range outcomes {
		choices.Go(func() {
			s, err := r.choice(ctx, i)
			if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errSibling) || errors.Is(cause, errClient)) {
				err = cause
			} else if err != nil {
				cancel(errSibling)
			}
			outcomes[i] = outcome{s, err}
		})
	}
	beats.Go(func() { r.beat(ctx, cancel) })
	choices.Wait()
	cancel(nil)
	beats.Wait()
	return outcomes
}

// beat tells a client that waits that it is not forgotten.
func (r *run) beat(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(r.g.cfg.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r.mu.Lock()
			var err error
			if now.Sub(r.spoken) >= r.g.cfg.Heartbeat {
				err = r.reply.beat()
				r.spoken = now
			}
			r.mu.Unlock()
			if err != nil {
				cancel(fmt.Errorf("%w: %w", errClient, err))
				return
			}
		}
	}
}

// choice samples one choice to its end.
func (r *run) choice(ctx context.Context, i int) (*Sampled, error) {
	req := &SampleRequest{
		Version: r.version, Messages: r.q.messages, Tools: r.q.tools, ToolChoice: r.q.toolChoice, Sampling: r.q.sampling,
		JSON: r.q.json, Schema: r.q.schema, TopLogprobs: r.q.topLogprobs,
	}
	if r.exchange != nil {
		req.Session = r.exchange.Session()
	}
	if i > 0 { // a place of its own in the engine's cache
		req.Session = fmt.Sprintf("%s~%d", req.Session, i)
	}
	s, err := r.g.policy.Sample(ctx, req, func(p Piece) error { return r.emit(ctx, i, &p) })
	if s != nil {
		r.nameCalls(i, s.Response)
	}
	if errors.Is(err, errSecondCall) && s != nil {
		s.Response.ToolCalls = s.Response.GetToolCalls()[:min(1, len(s.Response.GetToolCalls()))]
		s.FinishReason = schemas.FinishReason_FINISH_REASON_TOOL_CALLS
		s.Untrainable = "a second tool call was cut off: the request allows one"
		err = nil
	}
	if err == nil && s == nil {
		err = errors.New("the policy returned no response")
	}
	if err != nil {
		return s, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoken = time.Now()
	if err := r.reply.ended(i, s); err != nil {
		return s, fmt.Errorf("%w: %w", errClient, err)
	}
	return s, nil
}

// emit hands a token on to the client.
func (r *run) emit(ctx context.Context, i int, p *Piece) error {
	r.g.metrics.tokens.Inc()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r.spoken = time.Now()
	if !r.spoke {
		r.spoke = true
		r.g.metrics.first.Observe(r.spoken.Sub(r.start).Seconds())
	}
	sent := len(r.calls[i])
	for n, call := range p.ToolCalls {
		if r.q.oneCall && sent+n > 0 {
			p.ToolCalls = p.ToolCalls[:n]
			if n > 0 {
				break
			}
			return errSecondCall
		}
		if call.GetId() == "" {
			call.Id = newCallID()
		}
		r.calls[i] = append(r.calls[i], call.GetId())
	}
	if err := r.reply.piece(i, p); err != nil {
		return fmt.Errorf("%w: %w", errClient, err)
	}
	return nil
}

// nameCalls gives the calls of a response the ids under which they were sent.
func (r *run) nameCalls(i int, m *schemas.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, call := range m.GetToolCalls() {
		switch {
		case n < len(r.calls[i]):
			call.Id = r.calls[i][n]
		case call.GetId() == "":
			call.Id = newCallID()
		}
	}
}

func newCallID() string { return "call_" + schemas.NewID() }

// record appends the turn of every choice of which something was sampled; an answer that was given is recorded, whoever is still there. It
// returns a fault when the client must not be given the end of its answer, since it would take the turn for recorded.
func (r *run) record(ctx context.Context, outcomes []outcome, keep *sessions.Stored, gone bool) *fault {
	if r.exchange == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.g.cfg.AppendTimeout)
	defer cancel()
	failed := failure(outcomes) != nil
	var errs error
	for i, o := range outcomes {
		if o.sampled == nil || o.err != nil && nothing(o.sampled) {
			r.exchange.Drop(i)
			continue
		}
		action := r.action(i, o)
		switch {
		case o.err == nil && failed:
			untrainable(action, "the request failed: its answer was not given whole")
		case o.err != nil && gone:
			action.FinishReason = schemas.FinishReason_FINISH_REASON_ABORTED
			untrainable(action, "interrupted: the client went away")
		case errors.Is(o.err, errSibling):
			action.FinishReason = schemas.FinishReason_FINISH_REASON_ABORTED
			untrainable(action, "interrupted: "+errSibling.Error())
		case o.err != nil:
			action.FinishReason = schemas.FinishReason_FINISH_REASON_ERROR
			untrainable(action, "interrupted: the policy failed")
		}
		var answer *sessions.Stored
		if i == len(outcomes)-1 {
			answer = keep
		}
		errs = errors.Join(errs, r.exchange.Finish(ctx, i, action, answer))
	}
	if errs == nil {
		return nil
	}
	return r.lost(errs)
}

// lost decides about an answer whose turn could not be recorded.
func (r *run) lost(err error) *fault {
	r.header.Set(headerRecorded, "false")     // says nothing when the headers are gone
	if errors.Is(err, sessions.ErrTooLarge) { // nobody can mend it: the answer is here, and worth more than its record
		r.g.countUnrecorded("answer", err)
		return nil
	}
	return r.g.notRecorded(err)
}

// nothing: not a token was sampled, nor said.
func nothing(s *Sampled) bool {
	m := s.Response
	return len(s.Tokens.GetResponseIds()) == 0 && len(m.GetParts()) == 0 && len(m.GetToolCalls()) == 0 && m.GetReasoning() == ""
}

func untrainable(a *schemas.ActionTaken, reason string) {
	a.UntrainableReason = &reason
}

// action is the event of one choice, as far as the gateway knows it.
func (r *run) action(i int, o outcome) *schemas.ActionTaken {
	s := o.sampled
	a := &schemas.ActionTaken{
		Response: s.Response, Model: s.Model, Tokens: s.Tokens, Sampling: s.Sampling, FinishReason: s.FinishReason, Usage: s.Usage,
	}
	if a.Response == nil {
		a.Response = &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}
	}
	if s.Version != "" {
		a.PolicyVersion = &s.Version
	}
	if i == 0 { // the others have turns of their own, and the response has one id
		a.ResponseId = &r.responseID
	}
	if s.Untrainable != "" {
		untrainable(a, s.Untrainable)
	}
	return a
}
