package ops

import (
	"context"

	"github.com/nextstate-rl/nextstate/ops/embed"
)

// Embedder starts the model that embeds texts; it is fetched if it is not there. Close it.
func (s *System) Embedder(ctx context.Context) (*embed.Child, error) {
	store, err := s.assets(nil)
	if err != nil {
		return nil, err
	}
	cfg, err := embed.Assets(ctx, store)
	if err != nil {
		return nil, err
	}
	return embed.Start(ctx, cfg, s.Telemetry.Logger)
}
