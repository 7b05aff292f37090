package personas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

func calculate(t *testing.T, sum string) int {
	t.Helper()
	var a, b int
	var op string
	if _, err := fmt.Sscanf(sum, "%d %s %d", &a, &op, &b); err != nil {
		t.Fatal(err)
	}
	switch op {
	case "x":
		return a * b
	case "+":
		return a + b
	case "-":
		return a - b
	case "/":
		if a%b != 0 {
			t.Fatalf("%s has a remainder", sum)
		}
		return a / b
	}
	t.Fatalf("no calculation: %s", sum)
	return 0
}

// asked is one request that the scripted policy got.
type asked struct {
	Model, User string
	Messages    []Message
	Temperature float64
	MaxTokens   int `json:"max_tokens"`
	Seed        int64
	session     string
	side        bool
}

// scripted is a policy behind OpenAI's API that says what a function tells it to.
type scripted struct {
	*httptest.Server
	mu    sync.Mutex
	asked []asked
	ended []string
}

func newScripted(t *testing.T, say func(asked) (status int, text string)) *scripted {
	s := new(scripted)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		a := asked{session: r.Header.Get("X-Nextstate-Session"), side: r.Header.Get("X-Nextstate-Turn-Kind") == "side"}
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.asked = append(s.asked, a)
		s.mu.Unlock()
		status, text := say(a)
		w.Header().Set("X-Nextstate-Version", "v-"+a.Model)
		w.WriteHeader(status)
		answer(w, text, len(strings.Fields(text))*4/3)
	})
	mux.HandleFunc("POST /v1/sessions/{id}/end", func(_ http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.ended = append(s.ended, r.PathValue("id"))
		s.mu.Unlock()
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"policy"},{"id":"v2"},{"id":"base"}]}`)
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// answer writes a completion.
func answer(w http.ResponseWriter, text string, tokens int) {
	_ = json.NewEncoder(w).Encode(map[string]any{
		"choices": []any{map[string]any{"message": map[string]any{"role": "assistant", "content": text}}},
		"usage":   map[string]any{"completion_tokens": tokens},
	})
}

// liked answers the problem of the last opening in the form that the student likes, disliked in the other one.
func liked(a asked) string {
	return "Read the problem again and calculate: " + problemOf(a) + " That is all that there is to it, and so one arrives at the number."
}

func disliked(a asked) string { return "1. " + liked(a) + "\n\n**Final answer: 1**" }

// opening is the number of messages that the student opens with: the system's, each example with its solution, the problem.
const opening = 1 + 2*Examples + 1

func problemOf(a asked) string {
	return a.Messages[opening-1].Content
}

func studentPlan(t *testing.T, sessions int) *Plan {
	t.Helper()
	p, err := Named("student")
	if err != nil {
		t.Fatal(err)
	}
	return &Plan{Persona: p, Half: Tuning, Sessions: sessions, Turns: 3, Aligned: 3, Seed: 11, Temperature: 0.6, MaxTokens: 64, Prefix: "t", User: "sam", Control: "base"}
}

func nothing(context.Context, *Session) error { return nil }

// TestRunCountsAlignment: a run ends with the third satisfied first reply in a row, and an unsatisfied one in between begins the count anew. Method: a
// scripted policy whose first replies go well in sessions 2, 3, 5, 6 and 7; corrected, it always does as it is told. The control never learns.
func TestRunCountsAlignment(t *testing.T) {
	server := newScripted(t, func(a asked) (int, string) {
		first := len(a.Messages) == opening
		if a.Model == "policy" && (!first || slices.Contains([]string{"t-student-002", "t-student-003", "t-student-005", "t-student-006", "t-student-007"}, a.session)) {
			return http.StatusOK, liked(a)
		}
		return http.StatusOK, disliked(a)
	})
	var after []int
	result, err := studentPlan(t, 20).Run(t.Context(), NewClient(server.URL+"/", ""), func(_ context.Context, s *Session) error {
		after = append(after, s.Index)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if result.AlignedAt != 7 || result.ControlAt != 0 || len(result.Sessions) != 7 || !slices.Equal(after, []int{1, 2, 3, 4, 5, 6, 7}) {
		t.Errorf("aligned at %d, control at %d, %d sessions, after %v", result.AlignedAt, result.ControlAt, len(result.Sessions), after)
	}
	if policy, control := result.Satisfied(); policy != 5 || control != 0 {
		t.Errorf("%d and %d satisfied", policy, control)
	}
	if turns := []int{len(result.Sessions[0].Turns), len(result.Sessions[1].Turns)}; !slices.Equal(turns, []int{2, 1}) {
		t.Errorf("turns %v: one correction in the first session and none in the second", turns)
	}
	if r := result.Sessions[0].First().Reply; r.Version != "v-policy" {
		t.Errorf("version %q", r.Version)
	}
	if !slices.Equal(server.ended[:2], []string{"t-student-001", "t-student-002"}) {
		t.Errorf("ended %v", server.ended)
	}
	// Policy and control are asked the same with the same seed; the control is aside, and in a session of its own.
	control, policy := server.asked[0], server.asked[1]
	if !control.side || policy.side || control.Seed != policy.Seed || control.session == policy.session || policy.User != "sam" || !slices.Equal(control.Messages, policy.Messages) || policy.MaxTokens != 64 || policy.Temperature != 0.6 {
		t.Errorf("control %+v\npolicy %+v", control, policy)
	}
	// A new run with the same seed asks the same.
	before := server.asked
	server.asked = nil
	if _, err := studentPlan(t, 20).Run(t.Context(), NewClient(server.URL, ""), nothing); err != nil {
		t.Fatal(err)
	}
	same := slices.EqualFunc(before, server.asked, func(x, y asked) bool { return x.Seed == y.Seed && slices.Equal(x.Messages, y.Messages) })
	if !same {
		t.Error("the second run of a seed asked something else")
	}
}

// TestRunCaps: neither sessions nor turns go on for ever. Method: a policy that never learns.
func TestRunCaps(t *testing.T) {
	server := newScripted(t, func(a asked) (int, string) { return http.StatusOK, disliked(a) })
	plan := studentPlan(t, 2)
	plan.Turns, plan.Control = TurnsMax, ""
	result, err := plan.Run(t.Context(), NewClient(server.URL, ""), nothing)
	if err != nil {
		t.Fatal(err)
	}
	if result.AlignedAt != 0 || len(result.Sessions) != 2 || len(result.Sessions[1].Turns) != TurnsMax {
		t.Errorf("%+v", result)
	}
	// One more request a session carries the last correction: it is the next state of the last judged reply.
	if len(server.asked) != 2*(TurnsMax+1) {
		t.Errorf("%d requests", len(server.asked))
	}
	last := server.asked[TurnsMax]
	if said := last.Messages[len(last.Messages)-1]; !strings.HasSuffix(said.Content, plan.Persona.speech(plan.Seed, 1).partings[0]) || last.MaxTokens != 1 {
		t.Errorf("last word %+v of %d tokens", said, last.MaxTokens)
	}
}

// TestRunFails: a policy that is away ends the run with what was completed; so does the caller. Method: the second session's reply is a 503; then an
// error of the caller's function; then plans out of range.
func TestRunFails(t *testing.T) {
	server := newScripted(t, func(a asked) (int, string) {
		if strings.HasPrefix(a.session, "t-student-002") {
			return http.StatusServiceUnavailable, "away"
		}
		return http.StatusOK, liked(a)
	})
	result, err := studentPlan(t, 5).Run(t.Context(), NewClient(server.URL, ""), nothing)
	if err == nil || !strings.Contains(err.Error(), "503") || len(result.Sessions) != 1 {
		t.Errorf("error %v after %d sessions", err, len(result.Sessions))
	}
	broken := errors.New("broken")
	if _, err := studentPlan(t, 5).Run(t.Context(), NewClient(server.URL, ""), func(context.Context, *Session) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	enough := func(context.Context, *Session) error { return ErrEnough }
	if result, err := studentPlan(t, 5).Run(t.Context(), NewClient(server.URL, ""), enough); err != nil || len(result.Sessions) != 1 {
		t.Errorf("error %v after %d sessions, of which one was enough", err, len(result.Sessions))
	}
	for name, spoil := range map[string]func(*Plan){
		"persona": func(p *Plan) { p.Persona = Persona{} }, "half": func(p *Plan) { p.Half = 0 }, "sessions": func(p *Plan) { p.Sessions = 0 }, "turns": func(p *Plan) { p.Turns = 9 },
		"aligned": func(p *Plan) { p.Aligned = 0 }, "tokens": func(p *Plan) { p.MaxTokens = 3 }, "prefix": func(p *Plan) { p.Prefix = "" },
		"endpoint": func(p *Plan) { p.Phrased = &Phrased{URL: "nowhere", Model: "m"} }, "version": func(p *Plan) { p.Phrased = &Phrased{URL: "http://127.0.0.1:1", Model: "m"} }, "model": func(p *Plan) { p.Phrased = &Phrased{URL: "http://127.0.0.1:1/v1"} },
	} {
		plan := studentPlan(t, 5)
		spoil(plan)
		if err := plan.Validate(); err == nil {
			t.Errorf("%s: a plan out of range is accepted", name)
		}
	}
}

// TestClient: versions come without the policy's own name, and what is no completion is refused. Method: the scripted server, and one that is none.
func TestClient(t *testing.T) {
	server := newScripted(t, func(asked) (int, string) { return http.StatusOK, "" })
	versions, err := NewClient(server.URL, "key").Versions(t.Context())
	if err != nil || !slices.Equal(versions, []string{"v2", "base"}) {
		t.Errorf("versions %v, %v", versions, err)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	defer other.Close()
	if _, err := NewClient(other.URL, "").Complete(t.Context(), Ask{}); err == nil || !strings.Contains(err.Error(), "OpenAI-compatible") {
		t.Errorf("error %v", err)
	}
	if _, err := NewClient(other.URL, "").Versions(t.Context()); err == nil {
		t.Error("a page is taken for a list of versions")
	}
}
