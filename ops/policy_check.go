package ops

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// PolicyCheck compares what is served with what is scored and trained, over the tokens of one sampled reply. Differences of log-probs are absolute, in
// nats, at the sampling temperature.
type PolicyCheck struct {
	Version string
	Reply   string
	Tokens  int
	// ScoreMax is the largest difference between the log-probs of sampling and those of scoring the same tokens.
	ScoreMax float64
	// TrainMean and TrainMax compare sampling with the training engine, which computes in float32 what is served quantised; NaN for an engine elsewhere.
	TrainMean, TrainMax float64
}

// Bounds of a PolicyCheck: batches of other shapes round otherwise; quantised activations cost more.
const (
	ScoreTolerance = 0.02
	TrainTolerance = 0.15 // of the mean
)

const checkTemperature = 0.7

// CheckPolicy samples a reply, scores the same tokens, and has the training engine score them too.
func CheckPolicy(ctx context.Context, s *System) (*PolicyCheck, error) {
	if s.Policy == nil {
		return nil, errors.New("no policy engine is configured")
	}
	sampled, err := s.Policy.Sample(ctx, &gateway.SampleRequest{
		Messages: []*schemas.Message{{
			Role: schemas.Role_ROLE_USER, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: "Name three colours."}}},
		}},
		Sampling: &schemas.Sampling{Temperature: proto.Float64(checkTemperature), Seed: proto.Int64(1), MaxTokens: proto.Uint32(24)},
	}, func(gateway.Piece) error { return nil })
	if err != nil {
		return nil, err
	}
	t := sampled.Tokens
	if len(t.GetResponseIds()) == 0 || len(t.GetLogprobsSampled()) != len(t.GetResponseIds()) || len(t.GetPromptIds()) == 0 {
		return nil, errors.New("the engine gives no token ids or log-probs: its turns are recorded, and not trained")
	}
	scored, err := s.Policy.Score(ctx, &policy.ScoreRequest{
		Version: sampled.Version, Prompt: t.GetPromptIds(), Response: t.GetResponseIds(), Temperature: checkTemperature,
	})
	if err != nil {
		return nil, err
	}
	c := &PolicyCheck{Version: sampled.Version, Tokens: len(t.GetResponseIds()), TrainMean: math.NaN(), TrainMax: math.NaN()}
	for _, p := range sampled.Response.GetParts() {
		c.Reply += p.GetText()
	}
	for i, l := range t.GetLogprobsSampled() {
		c.ScoreMax = math.Max(c.ScoreMax, math.Abs(float64(l-scored.Logprobs[i])))
	}
	if s.Config.Policy.Engine != "" && s.Config.Policy.Engine != policy.Engines[0].Name || sampled.Version != policy.Base {
		return c, nil
	}
	return c, s.compareTrained(ctx, c, t)
}

// compareTrained scores the reply with the training engine.
func (s *System) compareTrained(ctx context.Context, c *PolicyCheck, t *schemas.Tokens) error {
	store, err := s.assets(nil)
	if err != nil {
		return err
	}
	if err := store.Ensure(ctx, assets.ONNXRuntime); err != nil {
		return err
	}
	cfg := s.Config.Policy
	if err := s.policyAssets(ctx, &cfg, func() (*assets.Store, error) { return store, nil }); err != nil {
		return err
	}
	file, err := gguf.Open(cfg.Model)
	if err != nil {
		return err
	}
	lib, err := ort.Load(filepath.Join(store.Dir(assets.ONNXRuntime), assets.ONNXRuntimeFile))
	if err != nil {
		return errors.Join(err, file.Close())
	}
	engine, err := onnx.Open(lib, file, onnx.Config{Rank: 1, Alpha: 1, Threads: 2})
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("training engine: %w", err)
	}
	defer engine.Close()
	q := trainer.Sequence{
		Tokens: append(append([]uint32{}, t.GetPromptIds()...), t.GetResponseIds()...), Prompt: len(t.GetPromptIds()), Temperature: checkTemperature,
	}
	for _, id := range t.GetResponseIds() {
		q.Wanted = append(q.Wanted, []uint32{id})
	}
	logprobs, _, err := engine.Logprobs(ctx, trainer.NewAdapter(engine.Layers(), 1, 1), []trainer.Sequence{q})
	if err != nil {
		return fmt.Errorf("training engine: %w", err)
	}
	c.TrainMean, c.TrainMax = 0, 0
	for i, l := range t.GetLogprobsSampled() {
		d := math.Abs(float64(l - logprobs[0][i][0]))
		c.TrainMean += d / float64(c.Tokens)
		c.TrainMax = math.Max(c.TrainMax, d)
	}
	return nil
}
