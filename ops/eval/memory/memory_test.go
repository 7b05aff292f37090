package memory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/embed"
	"github.com/nextstate-rl/nextstate/ops/personas"
)

func TestMain(m *testing.M) {
	embed.MaybeChild()
	os.Exit(m.Run())
}

// miniLM is the real embedding model.
func miniLM(t *testing.T) *embed.Child {
	t.Helper()
	for _, name := range []string{assets.ONNXRuntime, assets.MiniLM} {
		assets.ForTest(t, name)
	}
	store, err := assets.Open(assets.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := embed.Assets(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	c, err := embed.Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// angles embeds a text that ends in a number as the direction of so many degrees: the tests choose how near two texts are.
type angles struct{}

func (angles) Embed(_ context.Context, texts ...string) ([][]float32, error) {
	var vectors [][]float32
	for _, text := range texts {
		var degrees float64
		if _, err := fmt.Sscan(text[strings.LastIndexByte(text, ' ')+1:], &degrees); err != nil {
			return nil, errors.New("no direction")
		}
		sin, cos := math.Sincos(degrees * math.Pi / 180)
		vectors = append(vectors, []float32{float32(cos), float32(sin)})
	}
	return vectors, nil
}

func learn(t *testing.T, s *Store, user string, corrections ...string) {
	t.Helper()
	for _, c := range corrections {
		if err := s.Learned(t.Context(), user, c); err != nil {
			t.Fatal(err)
		}
	}
}

func recall(t *testing.T, s *Store, user string, messages ...personas.Message) []personas.Message {
	t.Helper()
	out, err := s.Recall(t.Context(), user, messages)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRecall: the three nearest memories, nearest first and the newer of two equals first, are in a system message before the last one, and the opening that was
// given is as it was. Method: directions on a circle; with fewer memories than three, with none, and with one message only.
func TestRecall(t *testing.T) {
	s := New(angles{})
	house := personas.Message{Role: "system", Content: "House style."}
	now := personas.Message{Role: "user", Content: "now 0"}
	opening := []personas.Message{house, {Role: "user", Content: "earlier 90"}, {Role: "assistant", Content: "answer"}, now}
	before := slices.Clone(opening)
	want := func(memories string) []personas.Message {
		return append(slices.Clone(before[:3]), personas.Message{Role: "system", Content: heading + memories}, now)
	}
	if got := recall(t, s, "ada", opening...); !slices.Equal(got, before) {
		t.Errorf("without memories: %v", got)
	}
	learn(t, s, "ada", "far 90")
	if got := recall(t, s, "ada", opening...); !slices.Equal(got, want("\n- far 90")) {
		t.Errorf("one memory: %v", got)
	}
	learn(t, s, "ada", "left 30", "right -30", "near\n 1")
	if got := recall(t, s, "ada", opening...); !slices.Equal(got, want("\n- near 1\n- right -30\n- left 30")) {
		t.Errorf("%q", got)
	}
	if !slices.Equal(opening, before) {
		t.Errorf("the opening was changed: %q", opening)
	}
	if got := recall(t, s, "ada", now); len(got) != 2 || got[0].Role != "system" || got[1] != now {
		t.Errorf("one message: %q", got)
	}
	if got := recall(t, s, "bert", opening...); !slices.Equal(got, before) {
		t.Errorf("another user is given %v", got)
	}
}

// TestLearned: a memory that says the same as a new one goes, one that does not stays, and the number is bounded. Method: directions on both sides of the limit;
// more memories than are kept, none of them near another.
func TestLearned(t *testing.T) {
	s := New(angles{})
	limit := math.Acos(duplicate) * 180 / math.Pi
	learn(t, s, "ada", "old 0", fmt.Sprintf("stays %g", limit+31), "  ", fmt.Sprintf("new %g", limit-0.1))
	if got := s.Memories("ada"); len(got) != 2 || !strings.HasPrefix(got[0], "stays") || !strings.HasPrefix(got[1], "new") {
		t.Errorf("%q", got)
	}
	learn(t, s, "ada", fmt.Sprintf("beside %g", limit-0.1+limit+0.1))
	if got := s.Memories("ada"); len(got) != 2 || !strings.HasPrefix(got[0], "new") || !strings.HasPrefix(got[1], "beside") {
		t.Errorf("%q", got)
	}
	many := New(apart{})
	for i := range kept + 2 {
		learn(t, many, "ada", fmt.Sprint(i))
	}
	if got := many.Memories("ada"); len(got) != kept || got[0] != "2" || got[kept-1] != fmt.Sprint(kept+1) {
		t.Errorf("%d memories, from %s", len(got), got[0])
	}
}

// apart embeds each number as a dimension of its own.
type apart struct{}

func (apart) Embed(_ context.Context, texts ...string) ([][]float32, error) {
	vectors := make([][]float32, len(texts))
	for i, text := range texts {
		var n int
		if _, err := fmt.Sscan(text, &n); err != nil {
			return nil, err
		}
		vectors[i] = make([]float32, kept+2)
		vectors[i][n] = 1
	}
	return vectors, nil
}

// TestFails: an embedder that fails fails the call, which changes nothing. Method: a text without a direction; no messages.
func TestFails(t *testing.T) {
	s := New(angles{})
	learn(t, s, "ada", "up 90")
	if err := s.Learned(t.Context(), "ada", "nowhere"); err == nil || !strings.Contains(err.Error(), "remember") {
		t.Errorf("error %v", err)
	}
	if _, err := s.Recall(t.Context(), "ada", []personas.Message{{Role: "user", Content: "nowhere"}}); err == nil || !strings.Contains(err.Error(), "recall") {
		t.Errorf("error %v", err)
	}
	if _, err := s.Recall(t.Context(), "ada", nil); err == nil {
		t.Error("a session without messages is accepted")
	}
	if got := s.Memories("ada"); !slices.Equal(got, []string{"up 90"}) {
		t.Errorf("%q", got)
	}
}

// TestMiniLM: with the real embeddings, a wish in nearly the same words replaces the older one, what differs stays, and what is recalled first has to do with the
// message. Method: wishes of our own; then three users at once, each of whom has its own memories only, the same in a second run.
func TestMiniLM(t *testing.T) {
	model := miniLM(t)
	s := New(model)
	const (
		prose  = "That is not what I wanted. Please write plain sentences without a numbered list."
		again  = "That's still not what I wanted. Please write it in plain sentences, without a numbered list."
		short  = "Keep your answers about cooking under fifty words."
		metric = "Use kilometres instead of miles when you talk about distances."
		french = "Answer my letters to the landlord in French."
	)
	learn(t, s, "ada", prose, short, metric, french, again)
	if got := s.Memories("ada"); !slices.Equal(got, []string{short, metric, french, again}) {
		t.Errorf("memories %q", got)
	}
	for question, first := range map[string]string{
		"How far is it from Lyon to Geneva by train?":           metric,
		"Draft a note to my landlord about the broken heating.": french,
		"How do I cook a risotto for four people?":              short,
	} {
		got := recall(t, s, "ada", personas.Message{Role: "user", Content: question})
		if !strings.HasPrefix(got[0].Content, heading+"\n- "+first+"\n") || strings.Count(got[0].Content, "\n- ") != recalled {
			t.Errorf("%s: %q", question, got[0].Content)
		}
	}

	var runs [2][]string
	for run := range runs {
		s := New(model)
		all := personas.All()
		openings := make([]string, len(all))
		var wg sync.WaitGroup
		for i, p := range all {
			wg.Go(func() {
				for _, ask := range p.Asks {
					if err := s.Learned(t.Context(), p.Name, ask); err != nil {
						t.Error(err)
					}
				}
				got, err := s.Recall(t.Context(), p.Name, []personas.Message{{Role: "user", Content: "Mara buys 3 boxes of 4 pens. How many pens are there?"}})
				if err != nil {
					t.Error(err)
					return
				}
				openings[i] = got[0].Content
			})
		}
		wg.Wait()
		runs[run] = openings
		for i, p := range all {
			for line := range strings.SplitSeq(strings.TrimPrefix(openings[i], heading+"\n"), "\n") {
				if !slices.Contains(p.Asks, strings.TrimPrefix(line, "- ")) {
					t.Errorf("%s recalls %q", p.Name, line)
				}
			}
		}
	}
	if !slices.Equal(runs[0], runs[1]) {
		t.Errorf("the second run recalls something else: %q, then %q", runs[0], runs[1])
	}
}

// TestSessions: what a persona asked for in one session stands in the opening of its next ones, once in every request, and not in those of another persona. Method: a server
// whose replies are what the student likes only when the request holds the memory; the student's second session, then the teaching assistant's first.
func TestSessions(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		reply := "1. **4 x 12 = 48**"
		if strings.HasSuffix(r.URL.Path, "/completions") {
			asked = append(asked, string(body))
			if strings.Contains(string(body), heading) {
				var request struct{ Messages []personas.Message }
				if err := json.Unmarshal(body, &request); err != nil {
					t.Error(err)
				}
				reply = "In plain words: " + request.Messages[len(request.Messages)-1].Content
			}
		}
		answer := map[string]any{"choices": []any{map[string]any{"message": map[string]string{"content": reply}}}, "usage": map[string]int{"completion_tokens": 60}}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	s := New(miniLM(t))
	talk := func(name string, session int) *personas.Session {
		p, err := personas.Named(name)
		if err != nil {
			t.Fatal(err)
		}
		plan := &personas.Plan{
			Persona: p, Half: personas.Tuning, Sessions: 2, Turns: 2, Aligned: 3, Seed: 1, Temperature: 0.6, MaxTokens: 64, Prefix: "t", User: name,
			Recall: s.Recall, Learned: s.Learned,
		}
		asked = nil
		got, err := plan.Talk(t.Context(), personas.NewClient(server.URL, ""), session)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if first := talk("student", 1); first.First().Judgement.Satisfied() || len(first.Turns) != 2 || len(s.Memories("student")) == 0 {
		t.Fatalf("%+v, memories %q", first, s.Memories("student"))
	}
	if second := talk("student", 2); !second.First().Judgement.Satisfied() {
		t.Errorf("%+v", second.First())
	}
	for _, body := range asked {
		if strings.Count(body, heading) != 1 {
			t.Errorf("the memory is not once in %s", body)
		}
	}
	talk("ta", 1)
	if len(asked) == 0 || strings.Contains(asked[0], heading) {
		t.Errorf("another user's request: %v", asked)
	}
}
