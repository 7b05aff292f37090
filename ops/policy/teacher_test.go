package policy_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// arithmetic is an engine with a vocabulary of 9: its logits are a hash of the version, the conversation, the response so far and the token. It can
// only be asked to score; faults are what the first calls answer.
type arithmetic struct {
	policy.Engine
	versions []string

	mu     sync.Mutex
	faults []error
	asked  []*policy.ScoreRequest
}

const arithmeticVocabulary = 9

// logprobs is log softmax(logits / temperature) after the first n response tokens: [vocabulary] nats.
func (a *arithmetic) logprobs(r *policy.ScoreRequest, n int) []float32 {
	logits := make([]float64, arithmeticVocabulary)
	sum := 0.0
	for v := range logits {
		h := fnv.New64a()
		fmt.Fprint(h, r.Version, r.Tools, r.Response[:n], v)
		for _, m := range r.Messages {
			fmt.Fprint(h, m.GetRole(), m.GetParts()[0].GetText(), "\x00")
		}
		logits[v] = 5 * float64(h.Sum64()>>11) / (1 << 53) / r.Temperature
		sum += math.Exp(logits[v])
	}
	out := make([]float32, len(logits))
	for v := range logits {
		out[v] = float32(logits[v] - math.Log(sum))
	}
	return out
}

func (a *arithmetic) Score(_ context.Context, r *policy.ScoreRequest) (*policy.Scored, error) {
	a.mu.Lock()
	a.asked = append(a.asked, r)
	var fault error
	if len(a.faults) > 0 {
		fault, a.faults = a.faults[0], a.faults[1:]
	}
	a.mu.Unlock()
	if fault != nil {
		return nil, fault
	}
	if !slices.Contains(a.versions, r.Version) {
		return nil, &gateway.PolicyError{Status: http.StatusNotFound, Message: "version " + r.Version + " is not loaded"}
	}
	s := &policy.Scored{Version: r.Version, TopK: &schemas.TopK{K: uint32(r.TopK)}} //nolint:gosec // small
	for i, id := range r.Response {
		logprobs := a.logprobs(r, i)
		s.Logprobs = append(s.Logprobs, logprobs[id])
		ids := make([]uint32, arithmeticVocabulary)
		for v := range ids {
			ids[v] = uint32(v) //nolint:gosec // small
		}
		slices.SortStableFunc(ids, func(x, y uint32) int { return int(math.Copysign(1, float64(logprobs[y]-logprobs[x]))) })
		for _, v := range ids[:r.TopK] {
			s.TopK.Ids, s.TopK.Logprobs = append(s.TopK.Ids, v), append(s.TopK.Logprobs, logprobs[v])
		}
		if r.At != nil {
			var row []float32
			for _, v := range r.At[i] {
				row = append(row, logprobs[v])
			}
			s.At = append(s.At, row)
		}
	}
	return s, nil
}

func (a *arithmetic) Versions(context.Context) ([]gateway.Version, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.faults) > 0 {
		fault := a.faults[0]
		a.faults = a.faults[1:]
		return nil, fault
	}
	var all []gateway.Version
	for _, v := range a.versions {
		all = append(all, gateway.Version{ID: v})
	}
	return all, nil
}

// taught is a turn that version "v1" sampled: three tokens at temperature 0.7, with its top-2.
func taught() *schemas.TurnClosed {
	text := func(role schemas.Role, s string) *schemas.Message {
		return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: s}}}}
	}
	return &schemas.TurnClosed{Action: &schemas.ActionTaken{
		Context:  &schemas.Context{Messages: []*schemas.Message{text(schemas.Role_ROLE_SYSTEM, "Be kind."), text(schemas.Role_ROLE_USER, "2 + 2?")}, Tools: []*schemas.Tool{{Name: "calculator"}}},
		Response: text(schemas.Role_ROLE_ASSISTANT, "4"), PolicyVersion: proto.String("v1"), Sampling: &schemas.Sampling{Temperature: proto.Float64(0.7)},
		Tokens: &schemas.Tokens{ResponseIds: []uint32{3, 8, 1}, TopK: &schemas.TopK{K: 2, Ids: []uint32{3, 4, 8, 2, 5, 1}, Logprobs: []float32{-.1, -3, -.2, -2, -.4, -1}}},
	}}
}

func ask(turn *schemas.TurnClosed, candidates ...string) processors.TeacherQuery {
	return processors.TeacherQuery{Turn: turn, Candidates: candidates, Context: func(context.Context) (*schemas.Context, error) {
		return turn.GetAction().GetContext(), nil
	}}
}

func newTeacher(t *testing.T, e policy.Engine, cfg policy.TeacherConfig) *policy.Teacher {
	t.Helper()
	cfg.BackoffMin, cfg.BackoffMax = time.Microsecond, time.Millisecond
	teacher, err := policy.NewTeacher(e, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return teacher
}

// TestTeacherAsks: the original tokens are scored under each hint, at the temperature of the sample, by the version that the configuration names,
// with the student's k and at the student's ids. Method: the arithmetic engine; each number is computed again from the conversation with the hint.
func TestTeacherAsks(t *testing.T) {
	hints := []string{"Show the steps.", "Show each step of the work."}
	for version, want := range map[policy.TeacherVersion]string{"": "base", policy.Reference: "base", policy.Newest: "v2", policy.Sampling: "v1"} {
		e := &arithmetic{versions: []string{"v2", "v1", "base"}}
		turn := taught()
		scores, err := newTeacher(t, e, policy.TeacherConfig{Version: version}).Score(t.Context(), ask(turn, hints...))
		if err != nil {
			t.Fatal(err)
		}
		for i, hint := range hints {
			a := turn.GetAction()
			r := &policy.ScoreRequest{
				Version: want, Messages: processors.AppendHint(a.GetContext().GetMessages(), hint), Tools: a.GetContext().GetTools(),
				Response: a.GetTokens().GetResponseIds(), Temperature: 0.7, TopK: 2,
			}
			if got := r.Messages[1].GetParts()[0].GetText(); got != "2 + 2?\n\n[user's hint / instruction]\n"+hint {
				t.Fatalf("the hint went to %q", got)
			}
			s := scores[i]
			if s.GetTeacherVersion() != want || s.GetTemperature() != 0.7 || s.GetTopK().GetK() != 2 || len(s.GetLogprobsAtStudent()) != 6 {
				t.Fatalf("%q, hint %d: %v", version, i, s)
			}
			for at, id := range r.Response {
				logprobs := e.logprobs(r, at)
				if s.GetLogprobs()[at] != logprobs[id] || s.GetTopK().GetLogprobs()[2*at] != slices.Max(logprobs) {
					t.Errorf("%q, hint %d, position %d: %v", version, i, at, s)
				}
				for j, v := range a.GetTokens().GetTopK().GetIds()[2*at : 2*at+2] {
					if s.GetLogprobsAtStudent()[2*at+j] != logprobs[v] {
						t.Errorf("%q, hint %d, position %d: at the student's id %d %v, want %v", version, i, at, v, s.GetLogprobsAtStudent()[2*at+j], logprobs[v])
					}
				}
			}
		}
	}
}

// TestTeacherWithoutStudentTopK: a student without top-k is scored with the configured k, and nothing is given at ids that it does not have. Method:
// one such turn.
func TestTeacherWithoutStudentTopK(t *testing.T) {
	turn := taught()
	turn.Action.Tokens.TopK = nil
	scores, err := newTeacher(t, &arithmetic{versions: []string{"base"}}, policy.TeacherConfig{}).Score(t.Context(), ask(turn, "Show the steps."))
	if err != nil || scores[0].GetTopK().GetK() != 4 || scores[0].LogprobsAtStudent != nil {
		t.Errorf("%v, %v", scores, err)
	}
}

// busy is an answer that may pass.
func busy(status int) error { return &gateway.PolicyError{Status: status, Message: "busy"} }

// TestTeacherFaults states which failures pass, which mean that there is no teacher, and which have failed for good. Method: engines whose first
// answers are faults, and turns with nothing to score; the error as direct sees it.
func TestTeacherFaults(t *testing.T) {
	change := func(f func(a *schemas.ActionTaken)) *schemas.TurnClosed {
		turn := taught()
		f(turn.Action)
		return turn
	}
	always := slices.Repeat([]error{busy(503)}, 100)
	for name, c := range map[string]struct {
		turn   *schemas.TurnClosed
		cfg    policy.TeacherConfig
		faults []error
		want   string // "" scored, "failed: ..." for good, else the reason of NoTeacher
		asked  int
	}{
		"what passes":             {taught(), policy.TeacherConfig{}, []error{busy(429), busy(503), busy(502), busy(504), errors.New("connection reset"), context.DeadlineExceeded}, "", 7},
		"what does not":           {taught(), policy.TeacherConfig{Attempts: 4}, always, "failed: after 4 attempts: busy", 4},
		"versions that pass":      {taught(), policy.TeacherConfig{Version: policy.Newest}, []error{busy(503)}, "", 1},
		"no versions":             {taught(), policy.TeacherConfig{Version: policy.Newest, Attempts: 3}, always, "failed: after 3 attempts: busy", 0},
		"too long with its hint":  {taught(), policy.TeacherConfig{}, []error{&gateway.PolicyError{Status: 400, Message: "the context is full"}}, "the policy engine refuses: the context is full", 1},
		"a version that is gone":  {change(func(a *schemas.ActionTaken) { a.PolicyVersion = proto.String("v0") }), policy.TeacherConfig{Version: policy.Sampling}, nil, "the policy engine refuses: version v0 is not loaded", 1},
		"a version never known":   {change(func(a *schemas.ActionTaken) { a.PolicyVersion = nil }), policy.TeacherConfig{Version: policy.Sampling}, nil, "the action names no policy version", 0},
		"no tokens":               {change(func(a *schemas.ActionTaken) { a.Tokens = nil }), policy.TeacherConfig{}, nil, "the action has no token ids", 0},
		"greedy":                  {change(func(a *schemas.ActionTaken) { a.Sampling.Temperature = proto.Float64(0) }), policy.TeacherConfig{}, nil, "temperature 0", 0},
		"interrupted":             {change(func(a *schemas.ActionTaken) { a.UntrainableReason = proto.String("interrupted") }), policy.TeacherConfig{}, nil, "the turn is not trained: interrupted", 0},
		"no temperature is known": {change(func(a *schemas.ActionTaken) { a.Sampling = nil }), policy.TeacherConfig{}, nil, "the sampling temperature is not known", 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := &arithmetic{versions: []string{"v1", "base"}, faults: c.faults}
			scores, err := newTeacher(t, e, c.cfg).Score(t.Context(), ask(c.turn, "Show the steps."))
			got := ""
			switch {
			case processors.IsPermanent(err):
				got = "failed: " + err.Error()
			case err != nil:
				got = err.Error()
			case len(scores) != 1 || len(scores[0].GetLogprobs()) != 3:
				t.Errorf("scored %v", scores)
			}
			if got != c.want || len(e.asked) != c.asked {
				t.Errorf("%q after %d queries, want %q after %d", got, len(e.asked), c.want, c.asked)
			}
		})
	}
	t.Run("an ended context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		e := &arithmetic{versions: []string{"base"}, faults: always}
		teacher, err := policy.NewTeacher(e, policy.TeacherConfig{BackoffMin: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Millisecond, cancel)
		if _, err := teacher.Score(ctx, ask(taught(), "Show the steps.", "Show each step of the work.")); !errors.Is(err, context.Canceled) || processors.IsPermanent(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a context that cannot be had", func(t *testing.T) {
		q := ask(taught(), "Show the steps.")
		q.Context = func(context.Context) (*schemas.Context, error) { return nil, processors.NoTeacher("no parent") }
		if _, err := newTeacher(t, &arithmetic{versions: []string{"base"}}, policy.TeacherConfig{}).Score(t.Context(), q); err == nil || err.Error() != "no parent" {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an unknown teacher", func(t *testing.T) {
		if _, err := policy.NewTeacher(&arithmetic{}, policy.TeacherConfig{Version: "oldest"}); err == nil || !strings.Contains(err.Error(), "oldest") {
			t.Errorf("got %v", err)
		}
	})
}

// counting is an engine that notes how many queries it has at once.
type counting struct {
	arithmetic
	now, most int
}

func (c *counting) Score(ctx context.Context, r *policy.ScoreRequest) (*policy.Scored, error) {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	time.Sleep(time.Millisecond)
	defer func() {
		c.mu.Lock()
		c.now--
		c.mu.Unlock()
	}()
	return c.arithmetic.Score(ctx, r)
}

// TestTeacherIsBounded: candidates and turns are scored at once, but never more than Concurrency. Method: ten turns at once, three candidates each.
func TestTeacherIsBounded(t *testing.T) {
	e := &counting{arithmetic: arithmetic{versions: []string{"base"}}}
	teacher := newTeacher(t, e, policy.TeacherConfig{Concurrency: 3})
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			if _, err := teacher.Score(t.Context(), ask(taught(), "The first hint.", "The second hint.", "The third hint.")); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if e.most < 2 || e.most > 3 || len(e.asked) != 30 {
		t.Errorf("%d queries, at most %d at once", len(e.asked), e.most)
	}
}
