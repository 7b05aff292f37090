package trainer_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
)

// TestTemperature: a sample at temperature 0, which there is only when such turns are to be trained, is trained at temperature 1, where its log-probs are; one whose
// temperature is not known is refused. Method: updates of the real engine from one sample at several temperatures; the weights are compared byte for byte.
func TestTemperature(t *testing.T) {
	engine, recipe := tinyEngine(t), tinyRecipe()
	weights := func(temperature *float64) []byte {
		s := sampleOf(sampleEvent(2))
		s.Sampling = &schemas.Sampling{Temperature: temperature}
		parent := trainer.NewAdapter(engine.Layers(), tinyRank, tinyAlpha)
		parent.Initialise(1)
		updated, err := trainer.Update{
			Objective: recipe.Objective, Optimizer: recipe.Optimizer, Admission: trainer.Admission{Vocabulary: tinyVocabulary, MaxTokens: recipe.MaxTokens},
			Parent: parent, Moments: trainer.NewMoments(parent), Samples: []*schemas.SampleAssembled{s},
		}.Run(t.Context(), engine)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := updated.Adapter.WritePEFT(&b, "tiny"); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	greedy, one, other := weights(proto.Float64(0)), weights(proto.Float64(1)), weights(proto.Float64(0.7))
	if !bytes.Equal(greedy, one) || bytes.Equal(one, other) {
		t.Errorf("temperature 0 gives the weights of 1: %t; those of 0.7 are other ones: %t", bytes.Equal(greedy, one), !bytes.Equal(one, other))
	}
	s := sampleOf(sampleEvent(2))
	s.Sampling = nil
	if err := (trainer.Admission{Vocabulary: tinyVocabulary, MaxTokens: 32}).AdmitUnder(recipe.Objective, s); err == nil {
		t.Error("a sample of no known temperature is admitted")
	}
}
