package ops

import (
	"context"
	"path/filepath"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy"
)

// Embedded says that this process's policy engine is the embedded one.
func (c Config) Embedded() bool {
	return c.Gateway.Upstream.URL == "" && (c.Policy.Engine == "" || c.Policy.Engine == policy.Engines[0].Name)
}

// BaseModel is the name of the model under the policy, as updates record it.
func (c Config) BaseModel() string {
	if c.Policy.Model != "" {
		return filepath.Base(c.Policy.Model)
	}
	return defaultBaseModel
}

// ModelFile is the GGUF of the embedded engine; the default model is fetched if it is not there.
func (s *System) ModelFile(ctx context.Context) (string, error) {
	if s.Config.Policy.Model != "" {
		return s.Config.Policy.Model, nil
	}
	store, err := s.assets(nil)
	if err != nil {
		return "", err
	}
	if err := store.Ensure(ctx, assets.SmolLM2); err != nil {
		return "", err
	}
	return filepath.Join(store.Dir(assets.SmolLM2), assets.SmolLM2File), nil
}
