package policytest

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// testCancel: the end of ctx ends the sampling with what came until then, and the engine goes on.
func testCancel(t *testing.T, e policy.Engine, f Abilities) {
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		pieces := 0
		s, err := e.Sample(ctx, f.request(1.5, 400), func(gateway.Piece) error {
			if pieces++; pieces == 3 {
				cancel()
			}
			return nil
		})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		if s != nil && (s.FinishReason != schemas.FinishReason_FINISH_REASON_ABORTED || s.Version == "") {
			t.Errorf("an aborted response has the finish reason %v, version %q", s.FinishReason, s.Version)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := trySample(ended, e, f.request(1, 5)); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	check(t, sample(t, e, f.request(1, 5)), f, 1)
}

// testEmit: an error of emit comes back, nothing is emitted after it, and the engine goes on.
func testEmit(t *testing.T, e policy.Engine, f Abilities) {
	gone := errors.New("the client went away")
	pieces := 0
	s, err := e.Sample(t.Context(), f.request(1.5, 400), func(gateway.Piece) error {
		if pieces++; pieces >= 4 {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) || pieces != 4 {
		t.Errorf("error %v after %d pieces", err, pieces)
	}
	if s == nil || s.FinishReason != schemas.FinishReason_FINISH_REASON_ABORTED {
		t.Errorf("the response until then: %v", s)
	}
	check(t, sample(t, e, f.request(1, 5)), f, 1)
}

// testUnknown: a version that was never loaded is 404, for both verbs.
func testUnknown(t *testing.T, e policy.Engine, f Abilities) {
	r := f.request(1, 5)
	r.Version = "no-such-version"
	_, err := trySample(t.Context(), e, r)
	status(t, err, http.StatusNotFound, "")
	if len(f.Scores) > 0 {
		_, err = e.Score(t.Context(), &policy.ScoreRequest{Version: r.Version, Messages: r.Messages, Response: []uint32{5}, Temperature: f.Scores[0]})
		status(t, err, http.StatusNotFound, "")
	}
}

// testOverflow: a conversation longer than any context is refused by OpenAI's code, and the engine goes on.
func testOverflow(t *testing.T, e policy.Engine, f Abilities) {
	r := f.request(1, 5)
	r.Messages[1] = Message(schemas.Role_ROLE_USER, strings.Repeat("word ", 60_000))
	_, err := trySample(t.Context(), e, r)
	status(t, err, http.StatusBadRequest, "context_length_exceeded")
	check(t, sample(t, e, f.request(1, 5)), f, 1)
}

// testSwap: a swap while requests run makes new requests use the new version; those in work keep theirs and end well; each version can still be
// asked for; a version that is loaded becomes the newest again.
func testSwap(t *testing.T, e policy.Engine, f Abilities) {
	before := sample(t, e, f.request(0, 16))
	if before.Version != policy.Base {
		t.Fatalf("the first version is %q", before.Version)
	}
	var work errgroup.Group
	started := make(chan struct{})
	start := sync.OnceFunc(func() { close(started) })
	for range 2 {
		work.Go(func() error {
			defer start() // a request that fails at once holds nothing up
			s, err := e.Sample(t.Context(), f.request(1.5, 80), func(gateway.Piece) error {
				start()
				return nil
			})
			if err == nil && s.Version != policy.Base {
				t.Errorf("a request that began before the swap says version %q", s.Version)
			}
			return err
		})
	}
	<-started
	if err := e.Swap(t.Context(), "second", f.Adapter); err != nil {
		t.Fatalf("Swap: %v", err)
	}
	after := sample(t, e, f.request(0, 16))
	if after.Version != "second" {
		t.Errorf("after the swap the version is %q", after.Version)
	}
	if err := work.Wait(); err != nil {
		t.Errorf("a request in work: %v", err)
	}
	list, err := e.Versions(t.Context())
	if err != nil || len(list) != 2 || list[0].ID != "second" || list[1].ID != policy.Base || list[0].Model == "" {
		t.Errorf("versions: %v, %v", list, err)
	}
	r := f.request(0, 16)
	r.Version = policy.Base
	if s := sample(t, e, r); s.Version != policy.Base || s.text() != before.text() {
		t.Errorf("base by name: version %q, %q; before the swap %q", s.Version, s.text(), before.text())
	}
	checkAdapter(t, e, f, before)
	if err := e.Swap(t.Context(), policy.Base, ""); err != nil {
		t.Fatalf("Swap back: %v", err)
	}
	if s := sample(t, e, f.request(0, 16)); s.Version != policy.Base {
		t.Errorf("after the swap back the version is %q", s.Version)
	}
	if err := e.Swap(t.Context(), "second", f.Adapter); err != nil {
		t.Fatalf("Swap to a version that is loaded: %v", err)
	}
	if s := sample(t, e, f.request(0, 16)); s.Version != "second" || s.text() != after.text() {
		t.Errorf("second again: version %q, %q; before %q", s.Version, s.text(), after.text())
	}
}

// checkAdapter: an adapter changes log-probs, and only those of its own version.
func checkAdapter(t *testing.T, e policy.Engine, f Abilities, before taken) {
	t.Helper()
	if len(f.Scores) == 0 {
		return
	}
	score := func(version string) []float32 {
		s, err := e.Score(t.Context(), &policy.ScoreRequest{
			Version: version, Prompt: before.Tokens.GetPromptIds(), Response: before.Tokens.GetResponseIds(), Temperature: f.Scores[0],
		})
		if err != nil {
			t.Fatalf("Score by %s: %v", version, err)
		}
		return s.Logprobs
	}
	base, second := score(policy.Base), score("second")
	differs := 0.0
	for i := range base {
		differs = max(differs, math.Abs(float64(base[i]-second[i])))
	}
	if adapted := f.Adapter != ""; adapted != (differs > f.Tolerance) {
		t.Errorf("between the versions log-probs differ by up to %g nats; an adapter: %t", differs, adapted)
	}
}

// testTools: tools are taken, a conversation with a call and its result is understood, and calls that the model makes are consistent.
func testTools(t *testing.T, e policy.Engine, f Abilities) {
	r := f.request(1, 16)
	r.Tools = []*schemas.Tool{{
		Name: "get_weather", Description: proto.String("Weather of a city"),
		Parameters: proto.String(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
	}}
	r.Messages = append(r.Messages,
		&schemas.Message{Role: schemas.Role_ROLE_ASSISTANT, ToolCalls: []*schemas.ToolCall{{Id: "call_1", Name: "get_weather", Arguments: `{"city":"Oslo"}`}}},
		&schemas.Message{Role: schemas.Role_ROLE_TOOL, ToolCallId: proto.String("call_1"), Parts: Message(0, `{"sky":"clear"}`).Parts},
	)
	s := sample(t, e, r)
	check(t, s, f, 1)
	var calls []*schemas.ToolCall
	for _, p := range s.pieces {
		calls = append(calls, p.ToolCalls...)
	}
	if len(calls) != len(s.Response.GetToolCalls()) {
		t.Errorf("%d calls were emitted, the response has %d", len(calls), len(s.Response.GetToolCalls()))
	}
	if called := s.FinishReason == schemas.FinishReason_FINISH_REASON_TOOL_CALLS; called != (len(calls) > 0) {
		t.Errorf("finish reason %v with %d calls", s.FinishReason, len(calls))
	}
	r.ToolChoice = "none"
	if s := sample(t, e, r); len(s.Response.GetToolCalls()) > 0 {
		t.Errorf("calls with tool_choice none: %v", s.Response.GetToolCalls())
	}
}

// testConcurrent: eight at once, sampling, scoring and one swapping, each get answers of their own; run with -race.
func testConcurrent(t *testing.T, e policy.Engine, f Abilities) {
	alone := sample(t, e, f.request(0, 16))
	var work errgroup.Group
	for i := range 8 {
		work.Go(func() error {
			r := f.request(1, 16)
			r.Sampling.Seed = proto.Int64(int64(i))
			s, err := trySample(t.Context(), e, r)
			if err != nil {
				return err
			}
			check(t, s, f, 1)
			if slices.Contains(f.Scores, 1) {
				scored, err := e.Score(t.Context(), &policy.ScoreRequest{Prompt: s.Tokens.GetPromptIds(), Response: s.Tokens.GetResponseIds(), Temperature: 1})
				if err != nil {
					return err
				}
				if len(scored.Logprobs) != len(s.Tokens.GetResponseIds()) {
					t.Errorf("%d log-probs for %d tokens", len(scored.Logprobs), len(s.Tokens.GetResponseIds()))
				}
			}
			return nil
		})
	}
	work.Go(func() error { return e.Swap(t.Context(), "third", "") })
	if err := work.Wait(); err != nil {
		t.Fatal(err)
	}
	if s := sample(t, e, f.request(0, 16)); s.text() != alone.text() {
		t.Errorf("afterwards %q, before %q", s.text(), alone.text())
	}
}

// testClosed: after Close nothing is sampled, and Close again does no harm.
func testClosed(t *testing.T, e policy.Engine, f Abilities) {
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := trySample(t.Context(), e, f.request(1, 5)); err == nil {
		t.Error("a closed engine samples")
	}
	if err := e.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
}
