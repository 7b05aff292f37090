package processors

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// goldenSignals are expected values for parsing and counting votes, computed outside of this code.
type goldenSignals struct {
	Score []struct {
		Text string
		Vote *int32
	}
	HintJudge []struct {
		Text     string
		Decision *int32
		Hint     string
	} `json:"hint_judge"`
	Majority []struct {
		Votes []*int32
		Score int32
	}
	MeanVote []struct {
		Votes []*int32
		Mean  float64
	} `json:"mean_vote"`
	Candidates []struct {
		Votes []struct {
			Decision *int32
			Hint     string
		}
		Cap        int
		Candidates []string
	}
	AppendHint []struct {
		Messages []goldenMessage
		Hint     string
		Enhanced []goldenMessage
	} `json:"append_hint"`
}

type goldenMessage struct{ Role, Content string }

func (m goldenMessage) message() *schemas.Message {
	return textMessage(schemas.Role(schemas.Role_value["ROLE_"+strings.ToUpper(m.Role)]), m.Content)
}

func messages(list []goldenMessage) []*schemas.Message {
	var out []*schemas.Message
	for _, m := range list {
		out = append(out, m.message())
	}
	return out
}

// TestGoldenSignals holds parsing, majority, mean, candidates and the enhanced context against expected values. Method: every entry of
// the golden file, compared exactly.
func TestGoldenSignals(t *testing.T) {
	text, err := os.ReadFile("testdata/signals.json")
	if err != nil {
		t.Fatal(err)
	}
	var g goldenSignals
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Score) < 20 || len(g.HintJudge) < 10 || len(g.Majority) < 10 || len(g.MeanVote) < 10 || len(g.Candidates) < 5 || len(g.AppendHint) < 5 {
		t.Fatal("the golden file lost entries")
	}
	for _, c := range g.Score {
		if got := ParseScore(c.Text); !same(got, c.Vote) {
			t.Errorf("ParseScore(%q) = %v, want %v", c.Text, show(got), show(c.Vote))
		}
	}
	for _, c := range g.HintJudge {
		if decision, hint := ParseHint(c.Text); !same(decision, c.Decision) || hint != c.Hint {
			t.Errorf("ParseHint(%q) = %v, %q, want %v, %q", c.Text, show(decision), hint, show(c.Decision), c.Hint)
		}
	}
	for i, c := range g.Majority {
		if got := Majority(c.Votes); got != c.Score {
			t.Errorf("Majority, entry %d: %d, want %d", i, got, c.Score)
		}
	}
	for i, c := range g.MeanVote {
		if got := MeanVote(c.Votes); math.Abs(got-c.Mean) > 1e-15 {
			t.Errorf("MeanVote, entry %d: %v, want %v", i, got, c.Mean)
		}
	}
	for i, c := range g.Candidates {
		var votes []*schemas.HintVoteCast
		for _, v := range c.Votes {
			votes = append(votes, &schemas.HintVoteCast{Decision: v.Decision, Hint: v.Hint})
		}
		if got := Candidates(votes, c.Cap); !slices.Equal(got, c.Candidates) {
			t.Errorf("Candidates, entry %d: %q, want %q", i, got, c.Candidates)
		}
	}
	for i, c := range g.AppendHint {
		in := messages(c.Messages)
		before := messages(c.Messages)
		got, want := AppendHint(in, c.Hint), messages(c.Enhanced)
		if !slices.EqualFunc(got, want, sameMessage) {
			t.Errorf("AppendHint, entry %d: %v, want %v", i, got, want)
		}
		if !slices.EqualFunc(in, before, sameMessage) {
			t.Errorf("AppendHint, entry %d: the input was changed", i)
		}
	}
}

func sameMessage(a, b *schemas.Message) bool { return proto.Equal(a, b) }

func same(a, b *int32) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

func show(v *int32) any {
	if v == nil {
		return "none"
	}
	return *v
}
