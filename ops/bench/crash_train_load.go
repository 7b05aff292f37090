package bench

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// sampleLoad appends samples as the stage assemble does, each again and again until it is acknowledged, and remembers which were.
type sampleLoad struct {
	sender
	rand *rand.Rand
	log  schemas.Appender

	mu sync.Mutex
	// trainable are the ids of acknowledged samples, hostile the number of acknowledged records that cannot be trained. Others read them after run.
	trainable map[string]bool
	hostile   int
}

func newSampleLoad(seed uint64, log schemas.Appender) *sampleLoad {
	return &sampleLoad{rand: rand.New(rand.NewPCG(seed, 0x5a)), log: log, trainable: map[string]bool{}} //nolint:gosec // reproducible on purpose
}

// run appends until stop is closed, now in haste and now slowly enough that an update takes fewer samples than a batch has.
func (l *sampleLoad) run(ctx context.Context, stop <-chan struct{}) error {
	for n := 0; ; {
		for range 1 + l.rand.IntN(5) {
			if err := l.one(ctx, n); err != nil {
				return err
			}
			n++
		}
		select {
		case <-stop:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(50+l.rand.IntN(350)) * time.Millisecond):
		}
	}
}

// one appends the n-th record. One in twenty cannot be trained, one in fifty is no event, and one in ten is there twice.
func (l *sampleLoad) one(ctx context.Context, n int) error {
	e := l.sample(n)
	strange := l.rand.IntN(20) == 0
	if strange {
		e.Payload.(*schemas.SampleAssembled).Tokens.ResponseIds[0] = tinyVocabulary //nolint:forcetypeassert // just made
	}
	r, err := schemas.Encode(e)
	if err != nil {
		return err
	}
	if l.rand.IntN(50) == 0 {
		r.Value, strange = []byte("no sample"), true
	}
	times := 1
	if !strange && l.rand.IntN(10) == 0 {
		times = 2
	}
	for range times {
		if err := l.send(ctx, l.log, r); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if strange {
		l.hostile++
	} else {
		l.trainable[e.ID] = true
	}
	return nil
}

// sample is the n-th: a few tokens, a reward, and mostly what the sampler and a teacher say of them.
func (l *sampleLoad) sample(n int) schemas.Event {
	const k = 3
	s := &schemas.SampleAssembled{
		TurnId: schemas.ContentID("crash-turn", fmt.Sprint(n)), Kind: schemas.SampleKind_SAMPLE_KIND_EVALUATIVE, Reward: float64(l.rand.IntN(3) - 1),
		Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}, Model: "tiny", PolicyVersion: proto.String("base"),
		Sampling: &schemas.Sampling{Temperature: proto.Float64(0.7)}, Tokens: &schemas.Tokens{TopK: &schemas.TopK{K: k}},
	}
	taught := &schemas.TeacherScored{TurnId: s.TurnId, Hint: "a hint", TeacherVersion: "base", Temperature: 0.7}
	for range 2 + l.rand.IntN(6) {
		s.Tokens.PromptIds = append(s.Tokens.PromptIds, l.rand.Uint32N(tinyVocabulary))
	}
	for range 2 + l.rand.IntN(10) {
		s.Tokens.ResponseIds = append(s.Tokens.ResponseIds, l.rand.Uint32N(tinyVocabulary))
		s.Tokens.LogprobsSampled = append(s.Tokens.LogprobsSampled, -3-l.rand.Float32())
		taught.Logprobs = append(taught.Logprobs, -2-l.rand.Float32())
		for _, id := range l.rand.Perm(tinyVocabulary)[:k] {
			s.Tokens.TopK.Ids = append(s.Tokens.TopK.Ids, uint32(id)) //nolint:gosec // below the vocabulary
			s.Tokens.TopK.Logprobs = append(s.Tokens.TopK.Logprobs, -3-l.rand.Float32())
			taught.LogprobsAtStudent = append(taught.LogprobsAtStudent, -2-l.rand.Float32())
		}
	}
	taught.TopK = &schemas.TopK{K: k, Ids: s.Tokens.TopK.Ids, Logprobs: taught.LogprobsAtStudent}
	if l.rand.IntN(2) == 0 {
		s.Teacher = taught
	}
	return schemas.Event{
		ID: schemas.ContentID("crash-sample", fmt.Sprint(n)), Source: "assemble/1", Tenant: Tenant, Session: fmt.Sprintf("session-%d", n/3), Time: time.Now(), Payload: s,
	}
}

// acknowledged is how many samples are.
func (l *sampleLoad) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.trainable)
}

// tinyVocabulary is the number of tokens of the tiny model.
const tinyVocabulary = 53

// writeTinyModel writes a model of the llama family with random weights, the same ones every time: two blocks, three query heads a key head, no tokenizer. An
// update of it takes milliseconds, so that kills hit what is around it as often as the update itself.
func writeTinyModel(path string) error {
	const blocks, hidden, heads, kv, size, ffn = 2, 24, 6, 2, 4, 40
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible on purpose
	var tensors []gguf.Source
	add := func(name string, deviation float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * deviation)
			if len(shape) == 1 {
				x[i]++ // a norm's weights are around one
			}
		}
		tensors = append(tensors, gguf.Source{Name: name, Shape: shape, Chunks: gguf.Numbers(x)})
	}
	add("token_embd.weight", 1, hidden, tinyVocabulary)
	add("output_norm.weight", 0.1, hidden)
	for b := range blocks {
		block := fmt.Sprintf("blk.%d.", b)
		add(block+"attn_norm.weight", 0.1, hidden)
		add(block+"ffn_norm.weight", 0.1, hidden)
		add(block+"attn_q.weight", 0.3, hidden, heads*size)
		add(block+"attn_k.weight", 0.3, hidden, kv*size)
		add(block+"attn_v.weight", 0.3, hidden, kv*size)
		add(block+"attn_output.weight", 0.3, heads*size, hidden)
		add(block+"ffn_gate.weight", 0.3, hidden, ffn)
		add(block+"ffn_up.weight", 0.3, hidden, ffn)
		add(block+"ffn_down.weight", 0.3, ffn, hidden)
	}
	var out bytes.Buffer
	err := gguf.Write(&out, []gguf.Pair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "llama.block_count", Value: uint32(blocks)},
		{Key: "llama.embedding_length", Value: uint32(hidden)},
		{Key: "llama.attention.head_count", Value: uint32(heads)},
		{Key: "llama.attention.head_count_kv", Value: uint32(kv)},
		{Key: "llama.feed_forward_length", Value: uint32(ffn)},
		{Key: "llama.context_length", Value: uint32(64)},
	}, tensors)
	if err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o600)
}
