package processors

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Selection is how one of several hints is chosen (algorithm, section 4).
type Selection string

// The selections. Ties go to the first candidate, which is the shortest.
const (
	// SequenceOptimal takes the hint whose teacher shares most with the student over the whole response: argmax_h of sum_t O[h,t].
	SequenceOptimal Selection = "sequence_optimal"
	// TokenOptimal takes it at each token: argmax_h of O[h,t].
	TokenOptimal Selection = "token_optimal"
	// Shortest takes the first candidate, and asks the teacher about no other.
	Shortest Selection = "shortest"
	// Random takes one of the candidates by lot, which the turn's id draws: the control of the other selections.
	Random Selection = "random"
	// unscored is what HintSelected names when no teacher scored: the shortest hint.
	unscored Selection = "unscored"
)

// Selections lists what may be configured, the default first.
func Selections() []Selection { return []Selection{SequenceOptimal, TokenOptimal, Shortest, Random} }

// overlapsOf is O[h,t] = |S_q(t) and S_p(t,h)| for each candidate's teacher: [candidates][tokens]. Nil when the student or the teacher has no
// top-k to compare.
func overlapsOf(tokens *schemas.Tokens, scores []*schemas.TeacherScored) ([][]int, error) {
	if tokens.GetTopK() == nil || len(scores) == 0 || scores[0].TopK == nil {
		return nil, nil
	}
	all := make([][]int, len(scores))
	for i, s := range scores {
		var err error
		if all[i], err = overlap(tokens.GetTopK(), s.GetTopK(), len(tokens.GetResponseIds())); err != nil {
			return nil, fmt.Errorf("candidate %d: %w", i, err)
		}
	}
	return all, nil
}

// overlap counts at each of n positions the ids that two top-k have in common: [n]. An id that stands twice in a row is an error: it would
// count twice.
func overlap(student, teacher *schemas.TopK, n int) ([]int, error) {
	inStudent, inTeacher := map[uint32]int{}, map[uint32]int{} // id -> 1 + the last row that held it
	common := make([]int, n)
	for t := range n {
		for _, id := range row(student, t) {
			if inStudent[id] == t+1 {
				return nil, fmt.Errorf("id %d stands twice in the student's top-k at position %d", id, t)
			}
			inStudent[id] = t + 1
		}
		for _, id := range row(teacher, t) {
			if inTeacher[id] == t+1 {
				return nil, fmt.Errorf("id %d stands twice in the teacher's top-k at position %d", id, t)
			}
			inTeacher[id] = t + 1
			if inStudent[id] == t+1 {
				common[t]++
			}
		}
	}
	return common, nil
}

func row(top *schemas.TopK, t int) []uint32 {
	k := int(top.GetK())
	return top.GetIds()[t*k : (t+1)*k]
}

// selectHints says for each of n positions which candidate's teacher counts there: h* of algorithm, section 4. overlaps is [candidates][n].
func selectHints(selection Selection, overlaps [][]int, n int) []int {
	star := make([]int, n)
	switch selection {
	case TokenOptimal:
		for t := range star {
			for h := range overlaps {
				if overlaps[h][t] > overlaps[star[t]][t] {
					star[t] = h
				}
			}
		}
	case SequenceOptimal:
		best, most := 0, -1
		for h := range overlaps {
			sum := 0
			for _, o := range overlaps[h] {
				sum += o
			}
			if sum > most {
				best, most = h, sum
			}
		}
		for t := range star {
			star[t] = best
		}
	case Shortest, Random, unscored: // the first everywhere; choose draws
	}
	return star
}

// choose fills in the hint that the scores select. Without any top-k to compare it is the shortest, and says so.
func choose(selected *schemas.HintSelected, selection Selection, t taught) {
	if t.overlaps == nil && selection != Random {
		selection = Shortest
	}
	star := selectHints(selection, t.overlaps, len(t.scores[0].GetLogprobs()))
	if selection == Random {
		star = slices.Repeat([]int{draw(selected.GetTurnId(), len(t.scores))}, len(star))
	}
	at := mostFrequent(star, len(t.scores))
	selected.Selection, selected.CandidateIndex, selected.Hint = string(selection), uint32(at), t.scores[at].GetHint() //nolint:gosec // candidates are few
	selected.Teacher = t.scores[at]
	if selection == TokenOptimal {
		selected.Teacher = composite(t, star, at)
	}
}

// draw is one of n by lot. The turn's id decides, so that the same turn draws the same again.
func draw(turnID string, n int) int {
	h := sha256.Sum256([]byte(turnID))
	return int(binary.BigEndian.Uint64(h[:8]) % uint64(n)) //nolint:gosec // candidates are few
}

// mostFrequent is the candidate that most positions chose; a tie goes to the first.
func mostFrequent(star []int, candidates int) int {
	counts := make([]int, candidates)
	for _, h := range star {
		counts[h]++
	}
	best := 0
	for h, n := range counts {
		if n > counts[best] {
			best = h
		}
	}
	return best
}

// composite joins the rows of several teachers: at each position those of the candidate that star names there.
func composite(t taught, star []int, at int) *schemas.TeacherScored {
	whole := proto.CloneOf(t.scores[at])
	whole.Overlap, whole.HintIndexes = 0, make([]uint32, len(star))
	k := int(whole.GetTopK().GetK())
	atStudent := len(whole.GetLogprobsAtStudent()) / len(star)
	for i, h := range star {
		from := t.scores[h]
		whole.HintIndexes[i] = uint32(h)          //nolint:gosec // candidates are few
		whole.Overlap += uint64(t.overlaps[h][i]) //nolint:gosec // a count
		whole.Logprobs[i] = from.GetLogprobs()[i]
		copy(whole.TopK.Ids[i*k:(i+1)*k], from.GetTopK().GetIds()[i*k:])
		copy(whole.TopK.Logprobs[i*k:(i+1)*k], from.GetTopK().GetLogprobs()[i*k:])
		copy(whole.LogprobsAtStudent[i*atStudent:(i+1)*atStudent], from.GetLogprobsAtStudent()[i*atStudent:])
	}
	return whole
}
