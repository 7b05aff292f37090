package eval

import (
	"context"
	"fmt"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// fluency is how likely replies are under the base model. Safe for concurrent use.
type fluency struct {
	engine policy.Engine
	tokens *tokenizer.Tokenizer
}

// newFluency needs the embedded engine: a server elsewhere does not tell how it cuts a text into tokens. Nil without it.
func newFluency(ctx context.Context, s *ops.System) (*fluency, error) {
	if !s.Config.Embedded() {
		return nil, nil //nolint:nilnil // no engine, no fluency
	}
	path, err := s.ModelFile(ctx)
	if err != nil {
		return nil, err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := tokenizer.New(f)
	if err != nil {
		return nil, fmt.Errorf("model file %s: %w", path, err)
	}
	return &fluency{s.Policy, t}, nil
}

var roles = map[string]schemas.Role{
	"system": schemas.Role_ROLE_SYSTEM, "user": schemas.Role_ROLE_USER, "assistant": schemas.Role_ROLE_ASSISTANT,
}

// mean is the mean log-prob of a token of the reply after the conversation, nats, at temperature 1. The end of the reply is not part of it: many are cut.
func (f *fluency) mean(ctx context.Context, conversation []personas.Message, reply string) (float64, error) {
	r := &policy.ScoreRequest{Version: policy.Base, Response: f.tokens.Encode(reply), Temperature: 1}
	if len(r.Response) == 0 {
		return 0, nil
	}
	for _, m := range conversation {
		r.Messages = append(r.Messages, &schemas.Message{
			Role: roles[m.Role], Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: m.Content}}},
		})
	}
	scored, err := f.engine.Score(ctx, r)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, l := range scored.Logprobs {
		sum += float64(l)
	}
	return sum / float64(len(r.Response)), nil
}
