package personas

import (
	"fmt"
	"iter"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
)

// wishes are what the hint of a correction must hold, whatever its words.
var wishes = map[string][]*regexp.Regexp{
	"student": {regexp.MustCompile(`(?i)plain sentences`), regexp.MustCompile(`(?i)(?:no|without|instead of|don't|with no)\b.*(?:number|list)`), regexp.MustCompile(`(?i)bold`), regexp.MustCompile(`(?i)final answer`)},
	"ta":      {regexp.MustCompile(`(?i)step`), regexp.MustCompile(`(?i)detail`), regexp.MustCompile(`(?i)right`), regexp.MustCompile(`(?i)better`)},
	"teacher": {regexp.MustCompile(`(?i)excellent`), regexp.MustCompile(`(?i)solution`), regexp.MustCompile(`(?i)calculated`), regexp.MustCompile(`(?i)number`)},
}

// TestSignals: whatever a persona says is judged, and turned into hints, as it means it. Method: every correction that a persona can say (first and later
// ones, in the middle and at the end of a session), every complaint and all thanks go to the rules; a correction gives -1 and a hint that holds the wish, no
// help -1 without a hint, thanks +1 without one.
func TestSignals(t *testing.T) {
	for _, p := range All() {
		t.Run(p.Name, func(t *testing.T) {
			problems := generate(t, Tuning, 1, Examples+1)
			opening := p.Opening([Examples]Problem(problems), problems[Examples])
			ends := append([]string{""}, partings...)
			for _, lead := range append(append([]string{}, leads...), againLeads...) {
				for _, ask := range p.Asks {
					for _, end := range ends {
						said := strings.TrimSpace(lead + " " + ask + " " + end)
						score, hint := rules(t, opening, said)
						if score != -1 {
							t.Errorf("%q is judged %d", said, score)
						}
						for _, w := range wishes[p.Name] {
							if !w.MatchString(hint) {
								t.Errorf("%q gives the hint %q, in which %s is missing", said, hint, w)
							}
						}
					}
				}
			}
			for _, complaint := range noHelp {
				for _, end := range ends {
					if score, hint := rules(t, opening, strings.TrimSpace(complaint+" "+end)); score != -1 || hint != "" {
						t.Errorf("%q, %q is judged %d with the hint %q", complaint, end, score, hint)
					}
				}
			}
			for _, thanks := range p.Thanks {
				if score, hint := rules(t, opening, thanks); score != 1 || hint != "" {
					t.Errorf("%q is judged %d with the hint %q", thanks, score, hint)
				}
			}
			if len(p.Asks) < 8 || len(p.Thanks) < 5 {
				t.Errorf("%d asks and %d thanks", len(p.Asks), len(p.Thanks))
			}
		})
	}
}

// TestSpeech: a session's words are those of its seed, and no correction comes twice in it. Method: the corrections of a session of the most turns.
func TestSpeech(t *testing.T) {
	bad := Judgement{Complaint: "bold"}
	for _, p := range All() {
		var sessions []string
		for session := range 3 {
			var all []string
			a, b, seen := p.speech(5, session), p.speech(5, session), map[string]bool{}
			for turn := range TurnsMax {
				said := a.answer(bad, turn == TurnsMax-1)
				if again := b.answer(bad, turn == TurnsMax-1); again != said {
					t.Errorf("%q, then %q of the same seed", said, again)
				}
				if seen[said] {
					t.Errorf("%s says %q twice", p.Name, said)
				}
				seen[said] = true
				all = append(all, said)
			}
			sessions = append(sessions, strings.Join(all, "\n"))
		}
		if sessions[0] == sessions[1] || sessions[1] == sessions[2] {
			t.Errorf("%s says the same in every session", p.Name)
		}
	}
}

// TestDerivation: the words have the same effect through the whole derivation. Method: a session's correction and thanks of each persona.
func TestDerivation(t *testing.T) {
	for _, p := range All() {
		problems := generate(t, Tuning, 1, Examples+1)
		opening, s := p.Opening([Examples]Problem(problems), problems[Examples]), p.speech(1, 1)
		correction := s.answer(Judgement{Complaint: "bold"}, false)
		if score, hint := derive(t, opening, correction); score != -1 || !wishes[p.Name][0].MatchString(hint) {
			t.Errorf("%q: score %d, hint %q", correction, score, hint)
		}
		if score, hint := derive(t, opening, s.answer(Judgement{}, true)); score != 1 || hint != "" {
			t.Errorf("thanks: score %d, hint %q", score, hint)
		}
	}
}

// rules asks the judge and the finder of the rules: the score (0: none) and the hint.
func rules(t *testing.T, opening []Message, answer string) (score int32, hint string) {
	t.Helper()
	action := &schemas.ActionTaken{Kind: schemas.TurnKind_TURN_KIND_MAIN, Model: "m", Context: new(schemas.Context), Response: message("assistant", "1. **4 x 12 = 48**")}
	for _, m := range opening {
		action.Context.Messages = append(action.Context.Messages, message(m.Role, m.Content))
	}
	turn := &schemas.TurnClosed{Action: action, NextState: []*schemas.Observation{{Kind: schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY, Message: message("user", answer)}}}
	votes, err := processors.RulesJudge{}.Votes(t.Context(), turn)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range votes {
		score += v.GetVote()
	}
	hints, err := processors.RulesFinder{}.Hints(t.Context(), turn)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hints {
		hint += h.GetHint()
	}
	return score, hint
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
