package personas

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestPhrased: a model puts what the persona says into other words, and the policy and the memory get those. Method: a model behind OpenAI's API that marks
// what it was given; a session with a correction.
func TestPhrased(t *testing.T) {
	model := newScripted(t, func(a asked) (int, string) {
		if a.Model != "phraser" || len(a.Messages) != 2 || a.session != "" {
			t.Errorf("asked %+v", a)
		}
		return http.StatusOK, " In other words: " + a.Messages[1].Content + "\n"
	})
	server := newScripted(t, func(a asked) (int, string) { return http.StatusOK, disliked(a) })
	plan := studentPlan(t, 1)
	plan.Turns, plan.Phrased = 2, &Phrased{URL: model.URL + "/v1", Model: "phraser", Key: "k"}
	if _, err := plan.Talk(t.Context(), NewClient(server.URL, ""), 1); err != nil {
		t.Fatal(err)
	}
	last := server.asked[len(server.asked)-1].Messages
	words := plan.Persona.speech(plan.Seed, 1)
	bad := Judgement{Complaint: "bold"}
	for i, want := range []string{words.answer(bad, false), words.answer(bad, true)} {
		if got := last[len(last)-3+2*i].Content; got != "In other words: "+want {
			t.Errorf("said %q, want %q in other words", got, want)
		}
	}
}

// TestPhrasedFails: a model that fails is never silently left out. Method: answers that are an error, empty and too long; without Failed the session ends with
// the reason, with it the reason is told and the words of the script are said.
func TestPhrasedFails(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		text   string
		want   string
	}{
		"away":  {http.StatusServiceUnavailable, "", "503"},
		"empty": {http.StatusOK, " \n", "in 0 characters"},
		"long":  {http.StatusOK, strings.Repeat("word ", 200), "in 999 characters"},
	} {
		t.Run(name, func(t *testing.T) {
			model := newScripted(t, func(asked) (int, string) { return c.status, c.text })
			server := newScripted(t, func(a asked) (int, string) { return http.StatusOK, disliked(a) })
			plan := studentPlan(t, 1)
			plan.Turns, plan.Phrased = 1, &Phrased{URL: model.URL + "/v1", Model: "phraser"}
			_, err := plan.Talk(t.Context(), NewClient(server.URL, ""), 1)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "phraser at "+model.URL) {
				t.Errorf("error %v", err)
			}
			var told []string
			plan.Phrased.Failed = func(err error) { told = append(told, err.Error()) }
			if _, err := plan.Talk(t.Context(), NewClient(server.URL, ""), 1); err != nil {
				t.Fatal(err)
			}
			last := server.asked[len(server.asked)-1].Messages
			script := plan.Persona.speech(plan.Seed, 1).answer(Judgement{Complaint: "bold"}, true)
			if len(told) != 1 || !strings.Contains(told[0], c.want) || last[len(last)-1].Content != script {
				t.Errorf("told %q, said %q", told, last[len(last)-1].Content)
			}
			if !slices.ContainsFunc(model.asked, func(a asked) bool { return a.Messages[1].Content == script }) {
				t.Errorf("the model was not asked to phrase %q", script)
			}
		})
	}
}
