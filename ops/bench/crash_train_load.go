package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer/gguf/gguftest"
)

// sampleLoad appends samples as the stage assemble does, each again and again until it is acknowledged, and remembers which were.
type sampleLoad struct {
	sender
	rand       *rand.Rand
	log        schemas.Appender
	vocabulary uint32 // of the model

	mu sync.Mutex
	// trainable are the ids of acknowledged samples, hostile the number of acknowledged records that cannot be trained. Others read them after run.
	trainable map[string]bool
	hostile   int
}

func newSampleLoad(seed uint64, log schemas.Appender) *sampleLoad {
	//nolint:gosec // reproducible on purpose, and a small number
	return &sampleLoad{rand: rand.New(rand.NewPCG(seed, 0x5a)), log: log, vocabulary: uint32(gguftest.Tiny().Vocabulary), trainable: map[string]bool{}}
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
		e.Payload.(*schemas.SampleAssembled).Tokens.ResponseIds[0] = l.vocabulary //nolint:forcetypeassert // just made
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

// sample is the n-th: a few tokens, a reward that is not 0 (or an update may have nothing to learn, and be skipped), and mostly what the sampler and a teacher say of them.
func (l *sampleLoad) sample(n int) schemas.Event {
	const k = 3
	s := &schemas.SampleAssembled{
		TurnId: schemas.ContentID("crash-turn", fmt.Sprint(n)), Kind: schemas.SampleKind_SAMPLE_KIND_EVALUATIVE, Reward: float64(2*l.rand.IntN(2) - 1),
		Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}, Model: "tiny", PolicyVersion: proto.String("base"),
		Sampling: &schemas.Sampling{Temperature: proto.Float64(0.7)}, Tokens: &schemas.Tokens{TopK: &schemas.TopK{K: k}},
	}
	taught := &schemas.TeacherScored{TurnId: s.TurnId, Hint: "a hint", TeacherVersion: "base", Temperature: 0.7}
	for range 2 + l.rand.IntN(6) {
		s.Tokens.PromptIds = append(s.Tokens.PromptIds, l.rand.Uint32N(l.vocabulary))
	}
	for range 2 + l.rand.IntN(10) {
		s.Tokens.ResponseIds = append(s.Tokens.ResponseIds, l.rand.Uint32N(l.vocabulary))
		s.Tokens.LogprobsSampled = append(s.Tokens.LogprobsSampled, -3-l.rand.Float32())
		taught.Logprobs = append(taught.Logprobs, -2-l.rand.Float32())
		for _, id := range l.rand.Perm(int(l.vocabulary))[:k] {
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
