package processors

import (
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/goldentest"
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
	goldentest.Each(t, "signals.json", checkSignals)
}

func checkSignals(t *testing.T, g goldenSignals) {
	t.Helper()
	if len(g.Score) == 0 || len(g.HintJudge) == 0 || len(g.Majority) == 0 || len(g.MeanVote) == 0 || len(g.Candidates) == 0 || len(g.AppendHint) == 0 {
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

// goldenHybrid is what the selection of hints needs of whole updates that were computed outside of this code.
type goldenHybrid struct {
	Cases []struct {
		Name   string
		Config struct {
			Selection Selection
			Support   string
		}
		Samples []struct {
			ResponseIDs []uint32   `json:"response_ids"`
			StudentIdx  [][]uint32 `json:"student_idx"`
			Teacher     []struct {
				NativeIdx [][]uint32 `json:"native_idx"`
			}
		}
		Expected struct {
			Samples []struct {
				HintStar    []int `json:"hint_star"`
				SupportSize []int `json:"support_size"`
			}
		}
	}
}

// TestGoldenHybridSelection holds the choice of hints against expected values. Method: the id rows of every sample that has a teacher go through
// the functions that direct uses; h* must be equal at each position, and where the support is the overlap, so must be its size.
func TestGoldenHybridSelection(t *testing.T) {
	goldentest.Each(t, "hybrid.json", func(t *testing.T, g goldenHybrid) {
		selections := map[Selection]int{}
		for _, c := range g.Cases {
			for i, s := range c.Samples {
				if s.Teacher == nil {
					continue
				}
				tokens := &schemas.Tokens{ResponseIds: s.ResponseIDs, TopK: topKOf(s.StudentIdx)}
				var scores []*schemas.TeacherScored
				for _, h := range s.Teacher {
					scores = append(scores, &schemas.TeacherScored{TopK: topKOf(h.NativeIdx)})
				}
				overlaps, err := overlapsOf(tokens, scores)
				if err != nil {
					t.Fatalf("%s, sample %d: %v", c.Name, i, err)
				}
				star := selectHints(c.Config.Selection, overlaps, len(s.ResponseIDs))
				want := c.Expected.Samples[i]
				if !slices.Equal(star, want.HintStar) {
					t.Errorf("%s, sample %d: hints %v, want %v", c.Name, i, star, want.HintStar)
				}
				selections[c.Config.Selection]++
				for at, h := range star {
					if c.Config.Support == "overlap" {
						if overlaps[h][at] != want.SupportSize[at] {
							t.Errorf("%s, sample %d, position %d: overlap %d, want %d", c.Name, i, at, overlaps[h][at], want.SupportSize[at])
						}
					}
				}
			}
		}
		if len(selections) == 0 {
			t.Error("no sample has a teacher")
		}
	})
}

func topKOf(rows [][]uint32) *schemas.TopK {
	top := &schemas.TopK{K: uint32(len(rows[0]))} //nolint:gosec // rows are short
	for _, r := range rows {
		top.Ids = append(top.Ids, r...)
	}
	return top
}
