package personas

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

func TestMain(m *testing.M) {
	llama.MaybeChild()
	os.Exit(m.Run())
}

// BenchmarkPersonas measures the base model that is embedded: how often its first replies satisfy each persona, without and with the hint in the context,
// and what is wrong with the others. Method: problems of a half, temperature 0.6, replies of at most 64 tokens; -v shows them.
func BenchmarkPersonas(b *testing.B) {
	m := openBase(b)
	for name, half := range Halves {
		for _, p := range All() {
			for _, situation := range []string{"base", "hinted"} {
				b.Run(name+"/"+p.Name+"/"+situation, func(b *testing.B) {
					plan := &Plan{
						Persona: p, Half: half, Sessions: 1, Turns: 1, Aligned: 1, Seed: 1, Temperature: 0.6, MaxTokens: 64, Prefix: "bench", Fluency: m.fluency,
					}
					if situation == "hinted" {
						plan.Recall = func(_ context.Context, _ string, messages []Message) ([]Message, error) {
							return p.Hinted(messages), nil
						}
					}
					var turns []Turn
					for b.Loop() {
						var err error
						if turns, err = plan.HeldOut(b.Context(), m.client, policy.Base, measured); err != nil {
							b.Fatal(err)
						}
					}
					report(b, turns)
				})
			}
		}
	}
}

// measured problems for each rate.
const measured = 24

func report(b *testing.B, turns []Turn) {
	var satisfied, preference, guard float64
	var replies []string
	for _, t := range turns {
		b.Logf("%s: %.2f %q", t.Judgement, *t.BaseLogprob, t.Reply.Text)
		replies = append(replies, t.Reply.Text)
		for _, c := range []struct {
			holds bool
			share *float64
		}{{t.Judgement.Satisfied(), &satisfied}, {t.Judgement.Complaint == "", &preference}, {t.Judgement.Guard == "", &guard}} {
			if c.holds {
				*c.share += 1 / float64(len(turns))
			}
		}
	}
	b.ReportMetric(satisfied, "satisfied")
	b.ReportMetric(preference, "preference")
	b.ReportMetric(guard, "guard")
	b.ReportMetric(Sameness(replies), "sameness")
}

// base is the embedded base model behind as much of OpenAI's API as personas use.
type base struct {
	engine policy.Engine
	client *Client
	// tokens of the replies, by their text: the scorer needs what was sampled.
	tokens sync.Map
}

func openBase(b *testing.B) *base {
	b.Helper()
	engine, err := policy.Open(b.Context(), policy.Config{
		Model: filepath.Join(assets.ForTest(b, assets.SmolLM2), assets.SmolLM2File), Library: assets.ForTest(b, assets.Llama),
		Llama: llama.Config{Parallel: 12, Context: 1024, Batch: 256, Threads: 1},
	}, slog.New(slog.NewTextHandler(b.Output(), nil)), prometheus.NewRegistry(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = engine.Close() })
	m := &base{engine: engine}
	server := httptest.NewServer(http.HandlerFunc(m.complete))
	b.Cleanup(server.Close)
	m.client = NewClient(server.URL, "")
	return m
}

func (m *base) complete(w http.ResponseWriter, r *http.Request) {
	var a asked
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	tokens := uint32(a.MaxTokens) //nolint:gosec // small
	sampled, err := m.engine.Sample(r.Context(), &gateway.SampleRequest{
		Session: r.Header.Get("X-Nextstate-Session"), Messages: engineMessages(a.Messages), Sampling: &schemas.Sampling{Temperature: &a.Temperature, MaxTokens: &tokens, Seed: &a.Seed},
	}, func(gateway.Piece) error { return nil })
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	text := ""
	for _, p := range sampled.Response.GetParts() {
		text += p.GetText()
	}
	m.tokens.Store(text, sampled.Tokens.GetResponseIds())
	answer(w, text, len(sampled.Tokens.GetResponseIds()))
}

func (m *base) fluency(ctx context.Context, messages []Message, reply string) (float64, error) {
	tokens, ok := m.tokens.Load(reply)
	if !ok {
		return 0, fmt.Errorf("%q was not sampled here", reply)
	}
	scored, err := m.engine.Score(ctx, &policy.ScoreRequest{Version: policy.Base, Messages: engineMessages(messages), Response: tokens.([]uint32), Temperature: 1})
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, l := range scored.Logprobs {
		sum += float64(l)
	}
	return sum / float64(len(scored.Logprobs)), nil
}

func engineMessages(messages []Message) []*schemas.Message {
	var out []*schemas.Message
	for _, m := range messages {
		out = append(out, message(m.Role, m.Content))
	}
	return out
}
