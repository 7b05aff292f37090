package llama

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/producers/gateway"
)

// Server is llama.cpp in a child. Safe for concurrent use.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	info    Info

	swapping sync.Mutex // swaps are one after the other
	stop     context.CancelFunc
	ended    chan struct{} // closed when the supervisor has

	mu       sync.Mutex
	process  *process // nil while there is none
	down     error    // why there is none
	closed   bool
	adapters map[string]string // of every version but Base that was swapped in: its file
	names    []string          // of the versions that are loaded, newest first
	running  map[verb]int
	service  time.Duration // how long a request is in work, a moving mean
}

// verb tells what a place in the queue is for: a flood of one kind does not keep the other out.
type verb string

const (
	sampling verb = "sample"
	scoring  verb = "score"
)

// Start runs llama.cpp in a child and returns when the model is loaded. ctx bounds the start only; the child runs until Close and is started again
// when it dies. main and TestMain must have called MaybeChild before. A model or library that cannot be used is an error that says why.
func Start(ctx context.Context, cfg Config, logger *slog.Logger, reg prometheus.Registerer) (*Server, error) {
	if os.Args[0] == childName {
		return nil, errors.New("llama: this is the child; main (TestMain in tests) has to call llama.MaybeChild first")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	s := &Server{cfg: cfg, log: logger, metrics: m, ended: make(chan struct{}), adapters: map[string]string{}, running: map[verb]int{}}
	p, err := spawn(ctx, &s.cfg, logger, s.versionsChanged)
	if err != nil {
		return nil, fmt.Errorf("llama: %w", err)
	}
	s.process, s.info = p, p.info
	var life context.Context
	life, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() { // ends with Close
		defer close(s.ended)
		s.supervise(life, p)
	}()
	logger.InfoContext(ctx, "llama.cpp is ready", "pid", p.pid(), "model", s.info.Model, "context_tokens", s.info.Context,
		"took_ms", time.Since(began).Milliseconds())
	return s, nil
}

// Info describes the model.
func (s *Server) Info() Info { return s.info }

// Versions that are loaded, newest first.
func (s *Server) Versions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.names)
}

// Pid of the child, 0 while there is none. It changes when the child is started again.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.pid()
}

// Generate samples a response and calls emit for each token, in order, from the caller's goroutine. An error of emit (which Generate returns) and
// the end of ctx stop it within one step. Other errors are *gateway.PolicyError: 400 (the request), 404 (the version), 429 (the queue is full), 502
// (the model gives no numbers), 503 (the child died; it is being started again). With an error, Result holds what is known.
func (s *Server) Generate(ctx context.Context, r *Request, emit func(Token) error) (Result, error) {
	if err := r.check(&s.info); err != nil {
		return Result{}, err
	}
	g := &generation{Request: *r}
	if r.Seed != nil {
		g.Seeded, g.Seed, g.Request.Seed = true, *r.Seed, nil
	}
	c, err := s.begin(sampling, command{Generate: g})
	if err != nil {
		return Result{}, err
	}
	defer s.end(c)
	var result Result
	for {
		events, err := c.next(ctx)
		if err != nil {
			return result, err
		}
		for _, e := range events {
			switch {
			case e.Started != nil:
				result = *e.Started
				s.metrics.tokens.WithLabelValues("cached").Add(float64(result.Cached))
				s.metrics.tokens.WithLabelValues("prompt").Add(float64(len(r.Prompt) - result.Cached))
			case e.Token != nil:
				s.metrics.tokens.WithLabelValues("sampled").Inc()
				if err := emit(*e.Token); err != nil {
					return result, err
				}
			case e.Done != nil:
				result.Reason = e.Done.Reason
				return result, nil
			case e.Failed != nil:
				return result, e.Failed.policy()
			}
		}
	}
}

// Score gives the log-probs of a response that need not have been sampled. Errors as of Generate.
func (s *Server) Score(ctx context.Context, r *ScoreRequest) (*Scored, error) {
	if err := r.check(&s.info); err != nil {
		return nil, err
	}
	c, err := s.begin(scoring, command{Score: r})
	if err != nil {
		return nil, err
	}
	defer s.end(c)
	for {
		events, err := c.next(ctx)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			switch {
			case e.Started != nil:
				s.metrics.tokens.WithLabelValues("cached").Add(float64(e.Started.Cached))
			case e.Scored != nil:
				s.metrics.tokens.WithLabelValues("scored").Add(float64(len(r.Response)))
				return e.Scored, nil
			case e.Failed != nil:
				return nil, e.Failed.policy()
			}
		}
	}
}

// Swap loads an adapter (a LoRA as GGUF; its scale is alpha/rank as the file says; empty: none) under a version's name and makes it the newest; a
// version that is loaded becomes the newest as it is. Requests in work keep theirs, and nothing waits for the file. A token is sampled with it first:
// an adapter that does not fit or gives no numbers is a 400, and nothing has changed. The file has to stay for as long as the version is wanted: a child that is started again reads it again.
func (s *Server) Swap(ctx context.Context, version, adapter string) error {
	if version == "" {
		return refuse("version", "a policy version needs a name")
	}
	if version == Base && adapter != "" {
		return refuse("version", "%s names the model without an adapter; choose another name", Base)
	}
	s.swapping.Lock()
	defer s.swapping.Unlock()
	s.mu.Lock()
	p, err := s.process, s.unavailable()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := p.swap(ctx, version, adapter); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.adapters[version]; !known && version != Base {
		s.adapters[version] = adapter
	}
	s.metrics.swaps.Inc()
	return nil
}

// Close ends the child. Requests in work fail. It may be called again.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	<-s.ended
	return nil
}

// begin takes a place in the queue and sends the command.
func (s *Server) begin(v verb, c command) (*call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unavailable(); err != nil {
		return nil, err
	}
	if s.running[v] >= s.cfg.Parallel+s.cfg.Queue {
		s.metrics.refused.Inc()
		return nil, &gateway.PolicyError{
			Status: http.StatusTooManyRequests, Code: "rate_limit_exceeded", RetryAfter: s.wait(),
			Message: fmt.Sprintf("%d requests are in work and %d wait; try again later, or raise the engine's parallel or queue", s.cfg.Parallel, s.cfg.Queue),
		}
	}
	s.running[v]++
	s.metrics.running.WithLabelValues(string(v)).Inc()
	call := s.process.open()
	call.verb = v
	call.command = c
	call.command.ID = call.id
	return call, nil
}

// wait estimates when a place in the queue becomes free: the mean time in work over the sequences at once.
func (s *Server) wait() time.Duration {
	return min(max(time.Second, s.service/time.Duration(s.cfg.Parallel)).Round(time.Second), time.Minute)
}

// end gives the place back.
func (s *Server) end(c *call) {
	c.process.close(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[c.verb]--
	s.metrics.running.WithLabelValues(string(c.verb)).Dec()
	if !c.started.IsZero() {
		s.service += (time.Since(c.started) - s.service) / 8
	}
}

// unavailable says why there is no child, or nil. With s.mu held.
func (s *Server) unavailable() error {
	switch {
	case s.closed:
		return &gateway.PolicyError{Status: http.StatusServiceUnavailable, Message: "the policy engine is closed"}
	case s.process == nil:
		return &gateway.PolicyError{Status: http.StatusServiceUnavailable, Message: "the policy engine is being started again; try again later", Cause: s.down}
	}
	return nil
}

func (s *Server) versionsChanged(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = names
	for name := range s.adapters {
		if !slices.Contains(names, name) {
			delete(s.adapters, name)
		}
	}
}
