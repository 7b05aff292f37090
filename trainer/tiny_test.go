package trainer_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf/gguftest"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// Shape of the model of tinyEngine, and of its adapters.
const (
	tinyVocabulary = 31
	tinyRank       = 2
	tinyAlpha      = 4
)

// tinyEngine is the real engine on a model of the llama family with one block and random weights.
func tinyEngine(t *testing.T) *onnx.Engine {
	t.Helper()
	m := gguftest.Tiny()
	m.Blocks, m.Vocabulary = 1, tinyVocabulary
	file, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	lib, err := ort.Load(filepath.Join(assets.ForTest(t, assets.ONNXRuntime), assets.ONNXRuntimeFile))
	if err != nil {
		t.Fatal(err)
	}
	e, err := onnx.Open(lib, file, onnx.Config{Rank: tinyRank, Alpha: tinyAlpha, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// tinyRecipe trains it.
func tinyRecipe() trainer.Recipe {
	p := trainer.Presets()[0]
	return trainer.Recipe{Objective: p.Objective, Optimizer: p.Optimizer, Rank: tinyRank, Alpha: tinyAlpha, MaxTokens: 32, BaseModel: "tiny"}
}

// sampleID is the id of sample n.
func sampleID(n int) string { return schemas.ContentID("test", fmt.Sprint(n)) }

// sampleEvent is sample n: a turn of session n%5 with a reward and, every other one, a teacher.
func sampleEvent(n int) schemas.Event {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	const k, tokens = 3, 5
	s := &schemas.SampleAssembled{
		TurnId: schemas.ContentID("turn", fmt.Sprint(n)), Kind: schemas.SampleKind_SAMPLE_KIND_EVALUATIVE, Reward: float64(n%2*2 - 1),
		Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}, Sampling: &schemas.Sampling{Temperature: proto.Float64(0.7)},
		Tokens: &schemas.Tokens{TopK: &schemas.TopK{K: k}}, Model: "policy", PolicyVersion: proto.String("base"), User: proto.String(fmt.Sprintf("user-%d", n%3)),
	}
	for range 4 {
		s.Tokens.PromptIds = append(s.Tokens.PromptIds, r.Uint32N(tinyVocabulary))
	}
	for range tokens {
		s.Tokens.ResponseIds = append(s.Tokens.ResponseIds, r.Uint32N(tinyVocabulary))
		s.Tokens.LogprobsSampled = append(s.Tokens.LogprobsSampled, float32(-3-r.Float64()))
		for i, id := range r.Perm(tinyVocabulary)[:k] {
			s.Tokens.TopK.Ids = append(s.Tokens.TopK.Ids, uint32(id))
			s.Tokens.TopK.Logprobs = append(s.Tokens.TopK.Logprobs, float32(-1-i))
		}
	}
	if n%4 < 2 {
		s.Kind = schemas.SampleKind_SAMPLE_KIND_COMBINED
		s.Teacher = &schemas.TeacherScored{
			TurnId: s.TurnId, Temperature: 0.7, Logprobs: s.Tokens.LogprobsSampled, TopK: s.Tokens.TopK, TeacherVersion: "base",
		}
		for i := range tokens * k {
			s.Teacher.LogprobsAtStudent = append(s.Teacher.LogprobsAtStudent, float32(-3+i%k))
		}
	}
	return schemas.Event{ID: sampleID(n), Source: "assemble/1", Tenant: "default", Session: fmt.Sprintf("session-%d", n%5), Payload: s}
}

// sampleOf is the payload of sampleEvent.
func sampleOf(e schemas.Event) *schemas.SampleAssembled {
	s, _ := e.Payload.(*schemas.SampleAssembled)
	return s
}
