package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/nextstate-rl/nextstate/ops/personas"
)

const (
	// recalled is how many memories go into a prompt.
	recalled = 3
	// duplicate is the cosine from which on two corrections say the same: the newer one replaces the older.
	duplicate = 0.9
	// kept bounds the memories of one user: the oldest go.
	kept = 512
)

// heading precedes the memories in the prompt.
const heading = "What this user asked for earlier:"

// Embedder turns texts into vectors of length 1, whose inner product is the cosine of the texts. embed.Child is one. Safe for concurrent use.
type Embedder interface {
	Embed(ctx context.Context, texts ...string) ([][]float32, error)
}

// Store holds the memories of all users, in memory: a run of eval begins with an empty one. Its methods fit personas.Plan's Recall and Learned. Safe for
// concurrent use; the memories of one user depend on the order of that user's calls only.
type Store struct {
	embedder Embedder

	mu    sync.Mutex
	users map[string][]memory // oldest first
}

type memory struct {
	text   string
	vector []float32
}

// New makes an empty store.
func New(e Embedder) *Store { return &Store{embedder: e, users: map[string][]memory{}} }

// Learned stores what a user asked for. Older memories that say the same go. Errors are the embedder's.
func (s *Store) Learned(ctx context.Context, user, correction string) error {
	correction = strings.Join(strings.Fields(correction), " ") // a memory is one line of the prompt
	if correction == "" {
		return nil
	}
	vector, err := s.embed(ctx, correction)
	if err != nil {
		return fmt.Errorf("remember a correction: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.DeleteFunc(s.users[user], func(m memory) bool { return cosine(m.vector, vector) > duplicate })
	if len(list) == kept {
		list = list[1:]
	}
	s.users[user] = append(list, memory{correction, vector})
	return nil
}

// Recall returns the opening of a session with what the user asked for earlier: the memories that are nearest to the last message, the nearest first, in a
// system message right before it. Further up, before the exchanges that an opening may hold, small models do not heed them (docs/policy.md has figures).
// Without memories the opening is returned as it is; it is never changed. Errors are the embedder's.
func (s *Store) Recall(ctx context.Context, user string, messages []personas.Message) ([]personas.Message, error) {
	s.mu.Lock()
	list := slices.Clone(s.users[user])
	s.mu.Unlock()
	if len(list) == 0 {
		return messages, nil
	}
	if len(messages) == 0 {
		return nil, errors.New("recall for no messages: a session opens with one at least")
	}
	query, err := s.embed(ctx, messages[len(messages)-1].Content)
	if err != nil {
		return nil, fmt.Errorf("recall what the user asked for: %w", err)
	}
	slices.Reverse(list) // of two that are equally near, the newer comes first
	slices.SortStableFunc(list, func(a, b memory) int { return cmp.Compare(cosine(b.vector, query), cosine(a.vector, query)) })
	var text strings.Builder
	text.WriteString(heading)
	for _, m := range list[:min(len(list), recalled)] {
		text.WriteString("\n- " + m.text)
	}
	last := len(messages) - 1
	return slices.Insert(slices.Clone(messages), last, personas.Message{Role: "system", Content: text.String()}), nil
}

// Memories are a user's, oldest first.
func (s *Store) Memories(user string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var texts []string
	for _, m := range s.users[user] {
		texts = append(texts, m.text)
	}
	return texts
}

func (s *Store) embed(ctx context.Context, text string) ([]float32, error) {
	vectors, err := s.embedder.Embed(ctx, text)
	if err != nil {
		return nil, err
	}
	return vectors[0], nil
}

// cosine of two vectors of length 1.
func cosine(a, b []float32) (sum float64) {
	for i, v := range a {
		sum += float64(v) * float64(b[i])
	}
	return sum
}
