package policy_test

import (
	"log/slog"
	"math"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// teacherTolerance is between the log-probs of sampling and of scoring, in nats, in the mean over a response: exactly 0 where the response is scored in
// the cache that it was sampled in; where the prompt was computed again in steps of another size, llama.cpp's kernels round otherwise.
const teacherTolerance = 0.25

// TestTeacherOfTheRealModel. Goal: when the policy was shown the hint already, its teacher says exactly what it said itself: same tokens, same
// context, same temperature, same version; and when it was not, the teacher says something else. Method: the real model samples with a hint in
// the conversation; then it teaches that response under the same hint, and under another.
func TestTeacherOfTheRealModel(t *testing.T) {
	e, err := policy.OpenEmbedded(t.Context(), policy.Config{
		Library: assets.ForTest(t, assets.Llama), Model: filepath.Join(assets.ForTest(t, assets.SmolLM2), assets.SmolLM2File),
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	text := func(role schemas.Role, s string) *schemas.Message {
		return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: s}}}}
	}
	talk := []*schemas.Message{
		text(schemas.Role_ROLE_USER, "How many legs do two cats have?"), text(schemas.Role_ROLE_ASSISTANT, "Eight."), text(schemas.Role_ROLE_USER, "And three dogs?"),
	}
	const hint = "Explain it in two plain sentences."
	sampled := &gateway.Sampled{}
	for seed := int64(0); len(sampled.Tokens.GetResponseIds()) < 12; seed++ {
		sampled, err = e.Sample(t.Context(), &gateway.SampleRequest{
			Messages: processors.AppendHint(talk, hint),
			Sampling: &schemas.Sampling{Temperature: proto.Float64(0.6), Seed: &seed, MaxTokens: proto.Uint32(40)},
		}, func(gateway.Piece) error { return nil })
		if err != nil || seed > 50 {
			t.Fatal(seed, err)
		}
	}
	turn := &schemas.TurnClosed{Action: &schemas.ActionTaken{
		Context: &schemas.Context{Messages: talk}, Response: sampled.Response, PolicyVersion: &sampled.Version, Tokens: sampled.Tokens, Sampling: sampled.Sampling,
	}}
	tokens := turn.GetAction().GetTokens()
	for version, want := range map[policy.TeacherVersion]string{policy.Reference: policy.Base, policy.Newest: sampled.Version, policy.Sampling: sampled.Version} {
		scores, err := newTeacher(t, e, policy.TeacherConfig{Version: version}).Score(t.Context(), ask(turn, hint, "Answer in the form of a poem about the sea, please."))
		if err != nil {
			t.Fatal(err)
		}
		same, other := scores[0], scores[1]
		if same.GetTeacherVersion() != want || same.GetTemperature() != 0.6 {
			t.Errorf("%s: scored by %q at temperature %g", version, same.GetTeacherVersion(), same.GetTemperature())
		}
		for name, pair := range map[string][2][]float32{
			"the response":        {same.GetLogprobs(), tokens.GetLogprobsSampled()},
			"the top-k":           {same.GetTopK().GetLogprobs(), tokens.GetTopK().GetLogprobs()},
			"the student's top-k": {same.GetLogprobsAtStudent(), tokens.GetTopK().GetLogprobs()},
		} {
			if mean := meanGap(t, pair[0], pair[1]); !(mean <= teacherTolerance) {
				t.Errorf("%s: %s differs by %g nats in the mean, tolerated are %g", version, name, mean, teacherTolerance)
			} else {
				t.Logf("%s: %s differs by %.2g nats in the mean", version, name, mean)
			}
		}
		if mean := meanGap(t, other.GetLogprobs(), tokens.GetLogprobsSampled()); !(mean > teacherTolerance) {
			t.Errorf("%s: under another hint the response differs by %g nats in the mean", version, mean)
		}
	}
}

// meanGap is the mean difference of two lists, which are equally long.
func meanGap(t *testing.T, a, b []float32) float64 {
	t.Helper()
	if len(a) != len(b) || len(a) == 0 {
		t.Fatalf("%d and %d numbers", len(a), len(b))
	}
	sum := 0.0
	for i := range a {
		sum += math.Abs(float64(a[i]) - float64(b[i]))
	}
	return sum / float64(len(a))
}
