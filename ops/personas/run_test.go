package personas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
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
	Model       string
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
		_ = json.NewEncoder(w).Encode(map[string]any{
			"choices": []any{map[string]any{"message": map[string]any{"role": "assistant", "content": text}}},
			"usage":   map[string]any{"completion_tokens": len(strings.Fields(text)) * 4 / 3},
		})
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

func studentPlan(t *testing.T, sessions int) Plan {
	t.Helper()
	p, err := Named("student")
	if err != nil {
		t.Fatal(err)
	}
	return Plan{Persona: p, Sessions: sessions, Turns: 3, Aligned: 3, Seed: 11, Temperature: 0.6, MaxTokens: 64, Prefix: "t", Control: "base"}
}

func nothing(context.Context, *Session) error { return nil }

// TestRunCountsAlignment: a run ends with the third satisfied first reply in a row, and an unsatisfied one in between begins the count anew. Method: a
// scripted policy whose first replies go well in sessions 2, 3, 5, 6 and 7; corrected, it always does as it is told. The control never learns.
func TestRunCountsAlignment(t *testing.T) {
	server := newScripted(t, func(a asked) (int, string) {
		first := len(a.Messages) == opening
		if a.Model == "policy" && (!first || slices.Contains([]string{"t-002", "t-003", "t-005", "t-006", "t-007"}, a.session)) {
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
	if !slices.Equal(server.ended[:2], []string{"t-001", "t-002"}) {
		t.Errorf("ended %v", server.ended)
	}
	// Policy and control are asked the same with the same seed; the control is aside, and in a session of its own.
	control, policy := server.asked[0], server.asked[1]
	if !control.side || policy.side || control.Seed != policy.Seed || control.session == policy.session || !slices.Equal(control.Messages, policy.Messages) || policy.MaxTokens != 64 || policy.Temperature != 0.6 {
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
	if said := last.Messages[len(last.Messages)-1]; said.Content != plan.Persona.Correction || last.MaxTokens != 1 {
		t.Errorf("last word %+v of %d tokens", said, last.MaxTokens)
	}
}

// TestRunFails: a policy that is away ends the run with what was completed; so does the caller. Method: the second session's reply is a 503; then an
// error of the caller's function; then plans out of range.
func TestRunFails(t *testing.T) {
	server := newScripted(t, func(a asked) (int, string) {
		if strings.HasPrefix(a.session, "t-002") {
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
		"persona": func(p *Plan) { p.Persona = Persona{} }, "sessions": func(p *Plan) { p.Sessions = 0 }, "turns": func(p *Plan) { p.Turns = 9 },
		"aligned": func(p *Plan) { p.Aligned = 0 }, "tokens": func(p *Plan) { p.MaxTokens = 3 }, "prefix": func(p *Plan) { p.Prefix = "" },
	} {
		plan := studentPlan(t, 5)
		spoil(&plan)
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

// TestSignals: what a persona says is judged, and turned into hints, as it means it. Method: each persona's words after a reply go through the derivation
// with the rules; a correction gives -1 and the persona's hint, NoHelp -1 without a hint, thanks +1 without one.
func TestSignals(t *testing.T) {
	for _, p := range All() {
		for name, c := range map[string]struct {
			judgement Judgement
			score     int32
			hint      string
		}{
			"correction": {Judgement{Complaint: "bold"}, -1, p.Hint},
			"both":       {Judgement{Complaint: "bold", Guard: "a refusal"}, -1, p.Hint},
			"no help":    {Judgement{Guard: "a refusal"}, -1, ""},
			"thanks":     {Judgement{}, 1, ""},
		} {
			t.Run(p.Name+" "+name, func(t *testing.T) {
				problems := Problems(1, Examples+1)
				score, hint := derive(t, p.Opening([Examples]Problem(problems), problems[Examples]), p.Answer(c.judgement))
				if score != c.score || hint != c.hint {
					t.Errorf("%q: score %d, hint %q; want %d, %q", p.Answer(c.judgement), score, hint, c.score, c.hint)
				}
			})
		}
	}
}

// derive has one turn judged: the score and the hint.
func derive(t *testing.T, context []Message, answer string) (score int32, hint string) {
	t.Helper()
	action := &schemas.ActionTaken{Kind: schemas.TurnKind_TURN_KIND_MAIN, Model: "m", Context: new(schemas.Context), Response: message("assistant", "1. **4 x 12 = 48**")}
	for _, m := range context {
		action.Context.Messages = append(action.Context.Messages, message(m.Role, m.Content))
	}
	events := []schemas.Event{
		{Payload: action},
		{Payload: &schemas.NextStateObserved{Observations: []*schemas.Observation{{Kind: schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY, Message: message("user", answer)}}}},
		{Payload: &schemas.SessionEnded{Reason: "the user left"}},
	}
	sequence := iter.Seq2[schemas.Event, error](func(yield func(schemas.Event, error) bool) {
		for i, e := range events {
			e.ID, e.Source, e.Tenant, e.Session = schemas.ContentID("test", fmt.Sprint(i)), "test", "acme", "s"
			e.Position, e.LogTime = schemas.Position{Topic: schemas.TopicInteractions, Offset: int64(i)}, time.UnixMilli(1_800_000_000_000+int64(i))
			if !yield(e, nil) {
				return
			}
		}
	})
	options := processors.DeriveOptions{
		Evaluate: processors.EvaluateConfig{Judges: []processors.Judge{processors.RulesJudge{}}},
		Direct:   processors.DirectConfig{Finders: []processors.Finder{processors.RulesFinder{}}},
	}
	judged := false
	err := processors.Derive(t.Context(), sequence, options, func(e schemas.Event) error {
		switch payload := e.Payload.(type) {
		case *schemas.TurnJudged:
			score, judged = payload.GetScore(), true
		case *schemas.HintSelected:
			hint = payload.GetHint()
		}
		return nil
	})
	if err != nil || !judged {
		t.Fatalf("not judged: %v", err)
	}
	return score, hint
}

func message(role, text string) *schemas.Message {
	roles := map[string]schemas.Role{"system": schemas.Role_ROLE_SYSTEM, "user": schemas.Role_ROLE_USER, "assistant": schemas.Role_ROLE_ASSISTANT}
	return &schemas.Message{Role: roles[role], Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}}
}
