package embed

import (
	"context"
	"fmt"
	"math"
	"os"

	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// Size is the number of dimensions of a vector.
const Size = 384

// model is the graph, in the child. For one goroutine.
type model struct {
	session *ort.Session
}

func openModel(cfg Config) (*model, error) {
	lib, err := ort.Load(cfg.Library)
	if err != nil {
		return nil, err
	}
	graph, err := os.ReadFile(cfg.Model)
	if err != nil {
		return nil, err
	}
	session, err := lib.NewSession(graph, ort.Options{Threads: cfg.Threads})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Model, err)
	}
	return &model{session}, nil
}

// vector embeds one text: the mean of the last layer over its tokens, scaled to length 1.
func (m *model) vector(ctx context.Context, ids []int64) ([]float32, error) {
	n := len(ids)
	mask, types := make([]int64, n), make([]int64, n) // all tokens count; all are of the first sentence
	for i := range mask {
		mask[i] = 1
	}
	hidden := make([]float32, n*Size) // [1, N, 384]
	err := m.session.Run(
		ctx, []ort.Tensor{ort.Int64("input_ids", ids, 1, n), ort.Int64("attention_mask", mask, 1, n), ort.Int64("token_type_ids", types, 1, n)},
		[]ort.Tensor{ort.Float32("last_hidden_state", hidden, 1, n, Size)},
	)
	if err != nil {
		return nil, err
	}
	var sum [Size]float64
	for i, v := range hidden {
		sum[i%Size] += float64(v)
	}
	length := 0.0
	for _, v := range sum {
		length += v * v
	}
	length = math.Sqrt(length)
	if length == 0 || math.IsNaN(length) || math.IsInf(length, 0) {
		return nil, fmt.Errorf("the embedding model gives a vector of length %v: is the model's file another one?", length)
	}
	out := make([]float32, Size)
	for i, v := range sum {
		out[i] = float32(v / length)
	}
	return out, nil
}
