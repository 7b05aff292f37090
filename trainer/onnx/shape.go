package onnx

import (
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// Shape reads from a model file what a trainer has to know before it computes anything: the linear layers that carry an adapter, and the number of tokens.
// It reads the metadata only.
func Shape(path string) (layers []trainer.Layer, vocabulary int, err error) {
	file, err := gguf.Open(path)
	if err != nil {
		return nil, 0, err
	}
	m, err := file.Llama()
	if err == nil {
		layers, vocabulary = layersOf(m), m.Vocabulary
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	return layers, vocabulary, err
}
