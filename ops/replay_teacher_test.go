package ops_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// scoring is a policy engine that can only be a teacher: with two tokens in its vocabulary, the log-prob of one is a hash of the conversation. It
// refuses conversations with "refuse" in them, and gives nonsense for those with "broken".
type scoring struct {
	policy.Engine
	asked atomic.Int64
}

func (s *scoring) Score(_ context.Context, r *policy.ScoreRequest) (*policy.Scored, error) {
	s.asked.Add(1)
	var text strings.Builder
	for _, m := range r.Messages {
		for _, p := range m.GetParts() {
			text.WriteString(p.GetText())
		}
	}
	if strings.Contains(text.String(), "refuse") {
		return nil, &gateway.PolicyError{Status: http.StatusBadRequest, Message: "the conversation is too long"}
	}
	out := &policy.Scored{Version: r.Version, TopK: &schemas.TopK{K: 1}}
	for i, id := range r.Response {
		h := fnv.New64a()
		fmt.Fprint(h, text.String(), i)
		p := (0.5 + float64(h.Sum64()%1000)) / 1001 // of token 1
		logprobs := []float32{float32(math.Log1p(-p)), float32(math.Log(p))}
		best := uint32(0)
		if p > 0.5 {
			best = 1
		}
		if strings.Contains(text.String(), "broken") {
			logprobs[id] = float32(math.NaN())
		}
		out.Logprobs = append(out.Logprobs, logprobs[id])
		out.TopK.Ids, out.TopK.Logprobs = append(out.TopK.Ids, best), append(out.TopK.Logprobs, logprobs[best])
		out.At = append(out.At, []float32{logprobs[r.At[i][0]]})
	}
	return out, nil
}

// hintServer is a model that finds hints, other ones at each call.
func hintServer(t *testing.T, asked *atomic.Int64) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		words := fmt.Sprintf("\\boxed{1} [HINT_START]Mind detail %d of the matter.[HINT_END]", asked.Add(1))
		body := map[string]any{"model": "m", "choices": []any{map[string]any{"message": map[string]any{"content": words}}}}
		if err := json.NewEncoder(w).Encode(body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// talk appends sessions of a few turns with tokens, each of which continues the one before, and is corrected.
func talk(log schemas.Appender) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := client.New(log, client.Config{Tenant: "default", Source: "test"})
		if err != nil {
			return err
		}
		for n, topic := range []string{"sums", "refuse", "broken", "cities", "rivers", "untold"} {
			s := c.Session(topic)
			said := []*schemas.Message{client.User("Let us talk about " + topic)}
			for turn := range 4 {
				a := &schemas.ActionTaken{
					Kind: schemas.TurnKind_TURN_KIND_MAIN, Context: client.Context(said...), Response: client.Assistant(fmt.Sprintf("answer %d", turn)),
					PolicyVersion: proto.String("v1"), Sampling: &schemas.Sampling{Temperature: proto.Float64(0.6)},
				}
				if topic != "untold" {
					a.Tokens = &schemas.Tokens{TopK: &schemas.TopK{K: 1}}
					for i := range 3 + n {
						id := uint32((i + turn) % 2) //nolint:gosec // 0 or 1
						a.Tokens.ResponseIds = append(a.Tokens.ResponseIds, id)
						a.Tokens.TopK.Ids, a.Tokens.TopK.Logprobs = append(a.Tokens.TopK.Ids, id), append(a.Tokens.TopK.Logprobs, -0.1)
					}
				}
				if _, err := s.Action(ctx, a); err != nil {
					return err
				}
				reply := fmt.Sprintf("No, say more about detail %d", turn)
				if err := s.NextState(ctx, []*schemas.Observation{client.Reply(reply)}); err != nil {
					return err
				}
				said = append(said, a.GetResponse(), client.User(reply))
			}
			if err := s.End(ctx, "over", nil); err != nil {
				return err
			}
		}
		return c.Close(ctx)
	}
}

// TestReplayOfATeacher. Goal: what a teacher said, and why it said nothing, is derived again byte for byte, from Kafka and from ClickHouse, and no
// model is asked; rejudging asks again. Method: conversations with tokens through the real system with an engine of arithmetic as the teacher and a
// server that finds hints, both counted; some turns are refused, some get nonsense, some have no tokens.
func TestReplayOfATeacher(t *testing.T) {
	var hints atomic.Int64
	engine := &scoring{}
	cfg := config(t)
	cfg.Direct.Finders, cfg.Direct.Selection = []string{"openai"}, processors.TokenOptimal
	cfg.Model = ops.ModelConfig{URL: hintServer(t, &hints), Model: "m", Votes: 3, Concurrency: 3, Timeout: time.Minute}
	s := open(t, cfg)
	s.Policy = engine
	caughtUp(t, s, talk(s.Log))

	var whole, refused, broken, untold, dead, scores uint64
	if err := s.ClickHouse.QueryRow(t.Context(), `SELECT countIf(teacher_version = 'base' AND selection = 'token_optimal'), countIf(teacher_absent_reason LIKE '%too long'),
		countIf(teacher_absent_reason LIKE 'the teacher failed:%NaN%'), countIf(teacher_absent_reason = 'the action has no token ids'),
		(SELECT count() FROM dead_letters WHERE stage = 'direct'), (SELECT count() FROM teacher_scored) FROM hint_selected`).Scan(&whole, &refused, &broken, &untold, &dead, &scores); err != nil {
		t.Fatal(err)
	}
	if whole != 12 || refused != 4 || broken != 4 || untold != 4 || dead != 4 || scores != 36 {
		t.Fatalf("%d turns with a teacher, %d refused, %d broken, %d without tokens, %d dead letters, %d scores", whole, refused, broken, untold, dead, scores)
	}
	asked, found := engine.asked.Load(), hints.Load()
	for _, source := range []string{"auto", "kafka", "clickhouse"} {
		report, err := ops.Replay(t.Context(), s, ops.ReplayOptions{Source: source})
		if err != nil {
			t.Fatal(err)
		}
		if !report.Equal() || report.Same < 24*5+36 {
			t.Errorf("replay from %s: %+v", source, report)
		}
	}
	s.Policy = nil // what was said does not depend on who could be asked now
	if report, err := ops.Replay(t.Context(), s, ops.ReplayOptions{}); err != nil || !report.Equal() {
		t.Errorf("replay without an engine: %+v, %v", report, err)
	}
	if engine.asked.Load() != asked || hints.Load() != found {
		t.Errorf("a replay asked %d scores and %d hints", engine.asked.Load()-asked, hints.Load()-found)
	}
	s.Policy = engine
	report, err := ops.Replay(t.Context(), s, ops.ReplayOptions{Rejudge: true})
	if err != nil {
		t.Fatal(err)
	}
	if engine.asked.Load() == asked || hints.Load() != found+72 || report.Changed == 0 {
		t.Errorf("rejudging asked %d scores and %d hints: %s", engine.asked.Load()-asked, hints.Load()-found, report.Line())
	}
}
