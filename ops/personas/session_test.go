package personas

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/processors"
)

// TestTalkAtOnce: the sessions of several personas can be held at once, and no two of them are about the same problem. Method: three personas hold session 2
// at the same time, and then each asks for held-out replies; all problems that the server was asked about are compared.
func TestTalkAtOnce(t *testing.T) {
	server := newScripted(t, func(asked) (int, string) { return http.StatusOK, "It is so." })
	c := NewClient(server.URL, "")
	var mu sync.Mutex
	about, ids := map[string]string{}, map[string]bool{}
	take := func(id, problem string) {
		mu.Lock()
		defer mu.Unlock()
		if other, ok := about[problem]; ok {
			t.Errorf("%s and %s are about the same problem: %s", id, other, problem)
		}
		about[problem], ids[id] = id, true
	}
	talking, ctx := errgroup.WithContext(t.Context())
	for _, p := range All() {
		plan := studentPlan(t, 4)
		plan.Persona, plan.User = p, p.Name
		talking.Go(func() error {
			for i := range plan.Sessions {
				s, err := plan.Talk(ctx, c, i+1)
				if err != nil {
					return err
				}
				take(s.ID, s.Problem.Text)
			}
			turns, err := plan.HeldOut(ctx, c, "v1", 30)
			for i, turn := range turns {
				take(fmt.Sprint(p.Name, " held out ", i), turn.Problem.Text)
				if turn.Reply.Version != "v-v1" || turn.Judgement != p.Judge(turn.Reply, turn.Problem) || turn.Seconds <= 0 {
					t.Errorf("held-out turn %+v", turn)
				}
			}
			return err
		})
	}
	if err := talking.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(ids) != 3*(4+30) || !ids["t-teacher-004"] {
		t.Errorf("%d sessions: %v", len(ids), ids)
	}
	for _, a := range server.asked {
		if held := strings.Contains(a.session, "-heldout-v1-"); a.side != (held || strings.HasSuffix(a.session, "-control")) || held && a.Model != "v1" {
			t.Errorf("session %s: side %t, model %s", a.session, a.side, a.Model)
		}
	}
	if _, err := studentPlan(t, 4).Talk(t.Context(), c, 5); err == nil {
		t.Error("session 5 of 4 is held")
	}
}

// TestFluency: what the base model finds unlikely, also when it is asked for that form, does not count. Method: scores by hand for the context as it is and
// with the hint.
func TestFluency(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		plain, hinted float64
		failed        error
		guard         string
	}{
		"likely":               {-0.5, -9, nil, ""},
		"at the floor":         {FluencyFloor, -9, nil, ""},
		"likely with the hint": {-3, -1, nil, ""},
		"unlikely":             {-3, -2.5, nil, "not fluent (-2.50"},
		"no score":             {0, 0, broken, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := newScripted(t, func(a asked) (int, string) { return http.StatusOK, liked(a) })
			plan := studentPlan(t, 1)
			plan.Control = ""
			plan.Fluency = func(_ context.Context, messages []Message, reply string) (float64, error) {
				if !strings.HasPrefix(reply, "Read the problem") {
					t.Errorf("scored %q", reply)
				}
				if strings.Contains(messages[len(messages)-1].Content, plan.Persona.Hint) {
					return c.hinted, c.failed
				}
				return c.plain, c.failed
			}
			s, err := plan.Talk(t.Context(), NewClient(server.URL, ""), 1)
			if c.failed != nil {
				if !errors.Is(err, c.failed) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			first := s.First()
			if first.BaseLogprob == nil || *first.BaseLogprob != c.plain || (first.Judgement.Guard == "") != (c.guard == "") || !strings.HasPrefix(first.Judgement.Guard, c.guard) {
				t.Errorf("judgement %+v, log-prob %v", first.Judgement, first.BaseLogprob)
			}
		})
	}
}

// TestMemory: a memory changes the openings that the policy gets, not those of the control, and learns each correction in the words that were said. Method: a
// memory that puts a message in front, and a policy that needs two corrections.
func TestMemory(t *testing.T) {
	server := newScripted(t, func(a asked) (int, string) {
		if len(a.Messages) > opening+4 {
			return http.StatusOK, "Read the problem again and calculate: " + a.Messages[opening].Content + " That is all that there is to it, and so one arrives at the number."
		}
		return http.StatusOK, disliked(a)
	})
	plan := studentPlan(t, 1)
	plan.Persona.Complaint = machineWritten
	memory := Message{"system", "What this user asked for earlier: nothing."}
	plan.Recall = func(_ context.Context, user string, messages []Message) ([]Message, error) {
		if user != "sam" {
			t.Errorf("recalled for %q", user)
		}
		return append([]Message{memory}, messages...), nil
	}
	var learned []string
	plan.Learned = func(_ context.Context, user, correction string) error {
		learned = append(learned, user+": "+correction)
		return nil
	}
	s, err := plan.Talk(t.Context(), NewClient(server.URL, ""), 1)
	if err != nil {
		t.Fatal(err)
	}
	if server.asked[0].Messages[0] == memory || server.asked[1].Messages[0] != memory || len(s.Turns) != 3 {
		t.Errorf("control asked %v\npolicy asked %v\n%d turns", server.asked[0].Messages[0], server.asked[1].Messages[0], len(s.Turns))
	}
	last := server.asked[len(server.asked)-1].Messages
	said := []string{"sam: " + last[len(last)-5].Content, "sam: " + last[len(last)-3].Content}
	if !slices.Equal(learned, said) || learned[0] == learned[1] {
		t.Errorf("learned %q, said %q", learned, said)
	}
	if thanks := last[len(last)-1].Content; !slices.Contains(plan.Persona.Thanks, thanks) {
		t.Errorf("last word %q", thanks)
	}

	forgets := errors.New("forgets")
	plan.Learned = func(context.Context, string, string) error { return forgets }
	if _, err := plan.Talk(t.Context(), NewClient(server.URL, ""), 1); !errors.Is(err, forgets) {
		t.Errorf("error %v", err)
	}
	plan.Recall = func(context.Context, string, []Message) ([]Message, error) { return nil, forgets }
	if _, err := plan.HeldOut(t.Context(), NewClient(server.URL, ""), "base", 1); !errors.Is(err, forgets) {
		t.Errorf("error %v", err)
	}
}

// TestHinted: the hint stands in the context as the teacher gets it. Method: each persona's opening, with the hint put in here and by the derivation.
func TestHinted(t *testing.T) {
	for _, p := range All() {
		problems := generate(t, Reporting, 1, Examples+1)
		opening := p.Opening([Examples]Problem(problems), problems[Examples])
		hinted := p.Hinted(opening)
		want := processors.AppendHint(engineMessages(opening), p.Hint)
		for i, m := range engineMessages(hinted) {
			if m.String() != want[i].String() {
				t.Errorf("%s, message %d: %s, want %s", p.Name, i, m, want[i])
			}
		}
		if strings.Contains(opening[len(opening)-1].Content, p.Hint) {
			t.Error("the opening was changed")
		}
	}
}
