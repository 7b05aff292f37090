package llama

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Goal: the same seed gives the same tokens, another one others; a response ends at its end ids, at its maximum, and where the context is full.
// Method: repeat, compare; then make a token that was sampled the end.
func TestSeedsAndEnds(t *testing.T) {
	s := start(t, config(t))
	r := &Request{Prompt: prompt(t, 3, 30), Temperature: 1, Seed: seeded(5), MaxTokens: 12}
	first, _ := generate(t, s, r)
	again, result := generate(t, s, r)
	if !slices.Equal(ids(first), ids(again)) || result.Cached != 29 {
		t.Errorf("%v and %v with one seed; %d tokens were cached", ids(first), ids(again), result.Cached)
	}
	r.Seed = seeded(6)
	if other, _ := generate(t, s, r); slices.Equal(ids(first), ids(other)) {
		t.Error("two seeds gave the same tokens")
	}
	r.Seed, r.EndIDs = seeded(5), []uint32{first[4].ID}
	want := slices.Index(ids(first), first[4].ID) + 1
	if ended, result := generate(t, s, r); len(ended) != want || result.Reason != ReasonEnded {
		t.Errorf("%d tokens, want %d; %+v", len(ended), want, result)
	}
	full, result := generate(t, s, &Request{Prompt: prompt(t, 4, 500)})
	if len(full) != 12 || result.Reason != ReasonContext {
		t.Errorf("%d tokens to a full context, want 12; %+v", len(full), result)
	}
	if _, err := s.Score(t.Context(), &ScoreRequest{Prompt: prompt(t, 4, 500), Response: ids(full), Temperature: 1}); err != nil {
		t.Errorf("a response that filled the context cannot be scored: %v", err)
	}
}

// Goal: a session's next turn finds its prefix in the cache and gets the tokens that it would get without. Method: turn, other sessions, next turn; the
// same on a server that has seen nothing. All prompts are short of the kernel's limit (see tolerance), so the tokens are equal.
func TestPrefixReuse(t *testing.T) {
	s, fresh := start(t, config(t)), start(t, config(t))
	first := &Request{Session: "a", Prompt: prompt(t, 5, 25), MaxTokens: 10}
	tokens, _ := generate(t, s, first)
	for i := range 4 {
		generate(t, s, &Request{Session: "b", Prompt: prompt(t, uint64(20+i), 40), MaxTokens: 3})
	}
	next := &Request{Session: "a", Prompt: slices.Concat(first.Prompt, ids(tokens), prompt(t, 6, 20)), MaxTokens: 12, Temperature: 0.8, Seed: seeded(1)}
	got, result := generate(t, s, next)
	if result.Cached != 34 { // the last token of a response was never decoded
		t.Errorf("%d tokens of the prompt were cached, want 34", result.Cached)
	}
	want, result := generate(t, fresh, next)
	if result.Cached != 0 || !slices.Equal(ids(got), ids(want)) {
		t.Errorf("with a cached prefix %v, without %v", ids(got), ids(want))
	}
	if d := apart(sampled(got), sampled(want)); d > tolerance/10 {
		t.Errorf("%.4f nats apart", d)
	}
}

// Goal: scoring under a second hint reuses the common prompt and gives what it gives without. Method: two hints after a long prompt, the second also on
// a server that has seen nothing.
func TestScoreReusesPrompt(t *testing.T) {
	s, fresh := start(t, config(t)), start(t, config(t))
	base, response := prompt(t, 7, 200), prompt(t, 10, 30)
	var got *Scored
	var r *ScoreRequest
	for _, hint := range []uint64{8, 9} {
		r = &ScoreRequest{Prompt: slices.Concat(base, prompt(t, hint, 10)), Response: response, Temperature: 0.7, TopK: 4}
		var err error
		if got, err = s.Score(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	want, err := fresh.Score(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if d := apart(got.Logprobs, want.Logprobs); d > tolerance {
		t.Errorf("%.4f nats apart", d)
	}
	var cached dto.Metric
	if err := s.metrics.tokens.WithLabelValues("cached").Write(&cached); err != nil {
		t.Fatal(err)
	}
	if n := cached.GetCounter().GetValue(); n != 200 {
		t.Errorf("%v tokens were reused, want the 200 of the common prompt", n)
	}
}

// Goal: many at once, stopped at random, all get what they get alone, and leave no place taken. Method: 24 requests and some scores on 8 sequences, a third
// cancelled by ctx, a third by emit (seeded); the rest against their tokens alone; then the server is idle and works.
func TestConcurrentAndCancelled(t *testing.T) {
	cfg := config(t)
	cfg.Queue = 64
	s := start(t, cfg)
	errStop := errors.New("stop")
	alone := map[int][]uint32{}
	request := func(i int) *Request {
		return &Request{Prompt: prompt(t, uint64(100+i%6), 10+6*(i%6)), MaxTokens: 6 + i%6, Temperature: 0.7, Seed: seeded(int64(i % 6)), RecordTopK: 2}
	}
	for i := range 6 {
		tokens, _ := generate(t, s, request(i))
		alone[i] = ids(tokens)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var differ atomic.Int32
	var all sync.WaitGroup
	for i := range 24 {
		kind, after := i%3, rng.IntN(6)
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var got []uint32
			_, err := s.Generate(ctx, request(i), func(one Token) error {
				got = append(got, one.ID)
				switch {
				case kind == 1 && len(got) > after:
					cancel()
				case kind == 2 && len(got) > after:
					return errStop
				}
				return nil
			})
			switch {
			case kind == 0 && err != nil, kind == 1 && !errors.Is(err, context.Canceled), kind == 2 && !errors.Is(err, errStop):
				t.Errorf("request %d: %v", i, err)
			case !slices.Equal(got, alone[i%6][:len(got)]):
				differ.Add(1)
			}
		})
		if i%8 == 0 {
			all.Go(func() {
				if _, err := s.Score(t.Context(), &ScoreRequest{Prompt: prompt(t, uint64(i), 50), Response: prompt(t, 1, 60), Temperature: 1, TopK: 3}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	// Another company changes the shape of the batch, and with it the last bits of the logits: a near tie may fall the other way.
	if n := differ.Load(); n > 4 {
		t.Errorf("%d of 24 responses are not those of a request alone", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[sampling] != 0 || s.running[scoring] != 0 || len(s.process.calls) != 0 {
		t.Errorf("places are still taken: %v, %d calls", s.running, len(s.process.calls))
	}
}

// Goal: a full queue refuses at once with 429 and a time to come back, and a place that is given up is free at once. Method: one sequence, a queue of one;
// fill both, one more; cancel; again.
func TestQueue(t *testing.T) {
	cfg := config(t)
	cfg.Parallel, cfg.Queue = 1, 1
	s := start(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	began, all := make(chan struct{}, 2), sync.WaitGroup{}
	for range 2 {
		all.Go(func() {
			_, err := s.Generate(ctx, &Request{Prompt: prompt(t, 1, 10)}, func(Token) error {
				select {
				case began <- struct{}{}:
				default:
				}
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a cancelled request: %v", err)
			}
		})
	}
	<-began
	for { // until both have their place
		s.mu.Lock()
		n := s.running[sampling]
		s.mu.Unlock()
		if n == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_, _, err := collect(t.Context(), s, &Request{Prompt: prompt(t, 1, 10), MaxTokens: 1})
	if status(err) != http.StatusTooManyRequests {
		t.Errorf("a full queue: %v", err)
	}
	if _, err := s.Score(t.Context(), &ScoreRequest{Version: "none", Prompt: prompt(t, 1, 10), Response: prompt(t, 1, 1), Temperature: 1}); status(err) != http.StatusNotFound {
		t.Errorf("a score beside a full queue of samples: %v", err)
	}
	cancel()
	all.Wait()
	generate(t, s, &Request{Prompt: prompt(t, 1, 10), MaxTokens: 1})
}

// Goal: a response held to JSON is a JSON object, whatever the temperature. Method: some seeds; responses that reached their maximum are the beginning of
// one, which the decoder cannot tell, so the others are decoded.
func TestJSON(t *testing.T) {
	s := start(t, config(t))
	tok := words(t)
	whole := 0
	for seed := range int64(3) {
		r := &Request{Prompt: prompt(t, 30, 12), Temperature: 0.9, Seed: &seed, MaxTokens: 80, JSON: true}
		tokens, result := generate(t, s, r)
		said := ids(tokens)
		if result.Reason == ReasonEnded {
			said = said[:len(said)-1]
		}
		text := tok.Decode(said)
		if !strings.HasPrefix(text, "{") {
			t.Errorf("seed %d: %q", seed, text)
		}
		if result.Reason != ReasonEnded {
			continue
		}
		whole++
		var object map[string]any
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			t.Errorf("seed %d: %v: %q", seed, err, text)
		}
	}
	if whole == 0 {
		t.Error("no response came to its end")
	}
}

// Goal: the estimate of when to come back is at least a second and at most a minute. Method: service times from nothing to an hour.
func TestWait(t *testing.T) {
	for service, want := range map[time.Duration]time.Duration{0: time.Second, 40 * time.Second: 5 * time.Second, time.Hour: time.Minute} {
		s := &Server{cfg: Config{Parallel: 8}, service: service}
		if got := s.wait(); got != want {
			t.Errorf("%v in work: %v, want %v", service, got, want)
		}
	}
}
