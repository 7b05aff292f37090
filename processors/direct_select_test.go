package processors

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// TestRandomSelection: a random hint is the same for the same turn, with and without a top-k to compare, and every candidate has its share. Method: 3,000 turns
// with three candidates, of which the second shares most with the student; the counts must be near 1,000 each.
func TestRandomSelection(t *testing.T) {
	scores := []*schemas.TeacherScored{{Hint: "a", Logprobs: []float32{-1, -1}}, {Hint: "b", Logprobs: []float32{-1, -1}}, {Hint: "c", Logprobs: []float32{-1, -1}}}
	counts := map[string]int{}
	for i := range 3000 {
		turn := schemas.ContentID("turn", string(rune('a'+i)))
		selected := &schemas.HintSelected{TurnId: turn}
		choose(selected, Random, taught{scores: scores, overlaps: [][]int{{0, 0}, {4, 4}, {1, 1}}})
		again := &schemas.HintSelected{TurnId: turn}
		choose(again, Random, taught{scores: scores})
		if !proto.Equal(selected, again) {
			t.Fatalf("turn %s: %v, and without a top-k %v", turn, selected, again)
		}
		if selected.GetSelection() != "random" || selected.GetTeacher().GetHint() != selected.GetHint() || scores[selected.GetCandidateIndex()].GetHint() != selected.GetHint() {
			t.Fatalf("turn %s: %v", turn, selected)
		}
		counts[selected.GetHint()]++
	}
	for _, s := range scores {
		if n := counts[s.GetHint()]; n < 850 || n > 1150 {
			t.Errorf("hint %s was drawn %d times of 3000", s.GetHint(), n)
		}
	}
}
