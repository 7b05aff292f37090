package processors

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// arithmetic is a policy with a vocabulary of 12: its logits are a hash of the context, the position and the token. It is both student and teacher.
type arithmetic struct{}

const arithmeticVocabulary = 12

// logprobs is log softmax(logits / temperature) at one position: [vocabulary] nats.
func (arithmetic) logprobs(context []*schemas.Message, position int, temperature float64) []float32 {
	out := make([]float64, arithmeticVocabulary)
	sum := 0.0
	for v := range out {
		h := fnv.New64a()
		for _, m := range context {
			fmt.Fprint(h, m.GetRole(), messageText(m), "\x00")
		}
		fmt.Fprint(h, position, "/", v)
		out[v] = 6 * float64(h.Sum64()>>11) / (1 << 53) / temperature
		sum += math.Exp(out[v])
	}
	logprobs := make([]float32, len(out))
	for v := range out {
		logprobs[v] = float32(out[v] - math.Log(sum))
	}
	return logprobs
}

// top is the k likeliest ids at each of n positions, likeliest first.
func (p arithmetic) top(context []*schemas.Message, n, k int, temperature float64) *schemas.TopK {
	top := &schemas.TopK{K: uint32(k)} //nolint:gosec // small
	for t := range n {
		logprobs := p.logprobs(context, t, temperature)
		ids := make([]uint32, len(logprobs))
		for v := range ids {
			ids[v] = uint32(v) //nolint:gosec // small
		}
		slices.SortStableFunc(ids, func(a, b uint32) int {
			return int(math.Copysign(1, float64(logprobs[b]-logprobs[a])))
		})
		for _, id := range ids[:k] {
			top.Ids, top.Logprobs = append(top.Ids, id), append(top.Logprobs, logprobs[id])
		}
	}
	return top
}

// sampled gives an action n tokens, as the policy would with temperature 0.6.
func (p arithmetic) sampled(a *schemas.ActionTaken, context []*schemas.Message, n int) {
	a.Sampling = &schemas.Sampling{Temperature: proto.Float64(0.6)}
	a.Tokens = &schemas.Tokens{TopK: p.top(context, n, 4, 0.6)}
	for t := range n {
		id := a.Tokens.TopK.Ids[4*t]
		a.Tokens.ResponseIds = append(a.Tokens.ResponseIds, id)
		a.Tokens.LogprobsSampled = append(a.Tokens.LogprobsSampled, p.logprobs(context, t, 0.6)[id])
	}
}

// Score implements Teacher.
func (p arithmetic) Score(ctx context.Context, q TeacherQuery) (out []*schemas.TeacherScored, err error) {
	whole, err := q.Context(ctx)
	if err != nil {
		return nil, err
	}
	tokens := q.Turn.GetAction().GetTokens()
	if len(tokens.GetResponseIds()) == 0 {
		return nil, NoTeacher("the action has no token ids")
	}
	n, k, temperature := len(tokens.GetResponseIds()), int(tokens.GetTopK().GetK()), q.Turn.GetAction().GetSampling().GetTemperature()
	for _, hint := range q.Candidates {
		enhanced := AppendHint(whole.GetMessages(), hint)
		s := &schemas.TeacherScored{TeacherVersion: "base", Temperature: temperature, TopK: p.top(enhanced, n, k, temperature)}
		for t, id := range tokens.GetResponseIds() {
			logprobs := p.logprobs(enhanced, t, temperature)
			s.Logprobs = append(s.Logprobs, logprobs[id])
			for _, v := range row(tokens.GetTopK(), t) {
				s.LogprobsAtStudent = append(s.LogprobsAtStudent, logprobs[v])
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// TestDirectRefusesWhatIsWrong: a teacher's answer that cannot be right never becomes a score: the record is dead-lettered, and the turn still
// gets its hint, with the reason. Method: a right answer with one thing changed.
func TestDirectRefusesWhatIsWrong(t *testing.T) {
	two := []Finder{finderFunc{"f", hinted("Show the steps.", "Show each step of the work.")}}
	change := func(f func(s *schemas.TeacherScored)) Teacher {
		return teacherCalls(func(context.Context, TeacherQuery) ([]*schemas.TeacherScored, error) {
			wrong := teacherSharing(1)
			f(wrong)
			return []*schemas.TeacherScored{teacherSharing(1), wrong}, nil
		})
	}
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		teacher Teacher
		want    string
	}{
		"one candidate left out": {teacherCalls(func(context.Context, TeacherQuery) ([]*schemas.TeacherScored, error) {
			return []*schemas.TeacherScored{teacherSharing(1)}, nil
		}), "it scored 1 of 2 candidates"},
		"no log-probs":         {change(func(s *schemas.TeacherScored) { s.Logprobs = nil }), "candidate 1 has 0 log-probs for 1 response tokens"},
		"too many log-probs":   {change(func(s *schemas.TeacherScored) { s.Logprobs = []float32{-1, -1} }), "candidate 1 has 2 log-probs"},
		"NaN":                  {change(func(s *schemas.TeacherScored) { s.Logprobs[0] = nan }), "candidate 1 has the log-prob NaN at 0"},
		"minus infinity":       {change(func(s *schemas.TeacherScored) { s.LogprobsAtStudent[2] = float32(math.Inf(-1)) }), "the log-prob -Inf at 2"},
		"a probability over 1": {change(func(s *schemas.TeacherScored) { s.TopK.Logprobs[1] = 0.5 }), "the log-prob 0.5 at 1"},
		"another version":      {change(func(s *schemas.TeacherScored) { s.TeacherVersion = "other" }), `by version "other", candidate 0 by "base"`},
		"no temperature":       {change(func(s *schemas.TeacherScored) { s.Temperature = 0 }), "candidate 1 was scored at temperature 0"},
		"a smaller top-k": {change(func(s *schemas.TeacherScored) {
			s.TopK = &schemas.TopK{K: 1, Ids: []uint32{1}, Logprobs: []float32{-1}}
		}), "candidate 1 has a top-1, candidate 0 a top-3"},
		"half a top-k":          {change(func(s *schemas.TeacherScored) { s.TopK.Logprobs = s.TopK.Logprobs[:2] }), "a top-k of 3 ids and 2 log-probs, not 1 x 3"},
		"an id twice":           {change(func(s *schemas.TeacherScored) { s.TopK.Ids[2] = s.TopK.Ids[0] }), "stands twice in the teacher's top-k at position 0"},
		"some of the student's": {change(func(s *schemas.TeacherScored) { s.LogprobsAtStudent = s.LogprobsAtStudent[:1] }), "1 log-probs at the student's top-k, not 1 x 3"},
		"too large":             {change(func(s *schemas.TeacherScored) { s.TeacherVersion = strings.Repeat("v", schemas.MaxEventBytes) }), ""},
		"a panic":               {teacherCalls(func(context.Context, TeacherQuery) ([]*schemas.TeacherScored, error) { panic("lost") }), "panic: lost"},
	} {
		t.Run(name, func(t *testing.T) {
			out := processOne(t, NewDirect(DirectConfig{Finders: two, Teacher: c.teacher}), taughtTurn())
			selected := out[len(out)-1].Payload.(*schemas.HintSelected)
			if selected.Teacher != nil || selected.GetSelection() != "unscored" || !strings.HasPrefix(selected.GetTeacherAbsentReason(), "the teacher failed: ") ||
				!strings.Contains(selected.GetTeacherAbsentReason(), c.want) {
				t.Errorf("got %v, want a reason with %q", selected, c.want)
			}
			letter, ok := out[len(out)-2].Payload.(*schemas.DeadLettered)
			if !ok || letter.GetPosition().GetTopic() != schemas.TopicTurns || letter.GetPosition().GetOffset() != 7 || letter.GetReason() != selected.GetTeacherAbsentReason() {
				t.Errorf("got %v, want the dead letter of the turn", out[len(out)-2].Payload)
			}
			for _, e := range out {
				if e.Kind() == "TeacherScored" {
					t.Errorf("%v was written", e.Payload)
				}
			}
		})
	}
}

// TestDirectWithoutTopK: when the student or the teacher has no top-k, there is no overlap to choose by: the shortest hint, and it says so. Method:
// answers without it.
func TestDirectWithoutTopK(t *testing.T) {
	for name, prepare := range map[string]func(*schemas.TurnClosed, []*schemas.TeacherScored){
		"of the student": func(turn *schemas.TurnClosed, scores []*schemas.TeacherScored) {
			turn.Action.Tokens.TopK = nil
			for _, s := range scores {
				s.LogprobsAtStudent = nil
			}
		},
		"of the teacher": func(_ *schemas.TurnClosed, scores []*schemas.TeacherScored) {
			for _, s := range scores {
				s.TopK = nil
			}
		},
	} {
		turn, scores := taughtTurn(), []*schemas.TeacherScored{teacherSharing(1), teacherSharing(3)}
		prepare(turn, scores)
		teacher := teacherCalls(func(context.Context, TeacherQuery) ([]*schemas.TeacherScored, error) { return scores, nil })
		out := processOne(t, NewDirect(DirectConfig{Finders: []Finder{finderFunc{"f", hinted("Show the steps.", "Show each step of the work.")}}, Teacher: teacher}), turn)
		got := out[len(out)-1].Payload.(*schemas.HintSelected)
		if got.GetSelection() != "shortest" || got.GetCandidateIndex() != 0 || got.GetTeacher().GetOverlap() != 0 || len(got.GetTeacher().GetLogprobs()) != 1 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestTokenOptimal: the teacher of a turn is joined, at each token, from the candidate that shares most there. Method: the arithmetic policy on
// random turns; each row of the composite is looked up in the candidate that it names, which no candidate may beat.
func TestTokenOptimal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9)) //nolint:gosec // reproducible on purpose
	mixed := 0
	for i := range 50 {
		turn := closed(observation(userReplyK, "hm"))
		n := 1 + r.IntN(20)
		arithmetic{}.sampled(turn.Action, turn.Action.GetContext().GetMessages(), n)
		hints := []string{fmt.Sprintf("Hint number %d.", i), fmt.Sprintf("A longer hint %d.", i), fmt.Sprintf("An even longer hint %d.", i)}
		cfg := DirectConfig{Finders: []Finder{finderFunc{"f", hinted(hints...)}}, Teacher: arithmetic{}, Selection: TokenOptimal}
		out := processOne(t, NewDirect(cfg), turn)
		var scores []*schemas.TeacherScored
		for _, e := range out {
			if s, ok := e.Payload.(*schemas.TeacherScored); ok {
				scores = append(scores, s)
			}
		}
		selected := out[len(out)-1].Payload.(*schemas.HintSelected)
		teacher, sum := selected.GetTeacher(), 0
		if len(scores) != 3 || selected.GetSelection() != "token_optimal" || len(teacher.GetHintIndexes()) != n || teacher.GetHint() != selected.GetHint() {
			t.Fatalf("turn %d: %d scores, %v", i, len(scores), selected)
		}
		for at, h := range teacher.GetHintIndexes() {
			from := scores[h]
			if teacher.GetLogprobs()[at] != from.GetLogprobs()[at] || !slices.Equal(row(teacher.GetTopK(), at), row(from.GetTopK(), at)) ||
				!slices.Equal(teacher.GetTopK().GetLogprobs()[4*at:4*at+4], from.GetTopK().GetLogprobs()[4*at:4*at+4]) ||
				!slices.Equal(teacher.GetLogprobsAtStudent()[4*at:4*at+4], from.GetLogprobsAtStudent()[4*at:4*at+4]) {
				t.Fatalf("turn %d, position %d is not the row of candidate %d", i, at, h)
			}
			own := shared(turn, from, at)
			sum += own
			for c, other := range scores {
				if o := shared(turn, other, at); o > own || o == own && c < int(h) {
					t.Fatalf("turn %d, position %d: candidate %d shares %d, candidate %d is taken with %d", i, at, c, o, h, own)
				}
			}
		}
		if teacher.GetOverlap() != uint64(sum) { //nolint:gosec // small
			t.Errorf("turn %d: overlap %d, want %d", i, teacher.GetOverlap(), sum)
		}
		if len(slices.Compact(slices.Sorted(slices.Values(teacher.GetHintIndexes())))) > 1 {
			mixed++
		}
	}
	if mixed < 20 {
		t.Errorf("only %d of 50 composites are of several candidates", mixed)
	}
}

// shared counts the ids that student and teacher have in common at one position.
func shared(turn *schemas.TurnClosed, s *schemas.TeacherScored, at int) (n int) {
	for _, v := range row(s.GetTopK(), at) {
		if slices.Contains(row(turn.GetAction().GetTokens().GetTopK(), at), v) {
			n++
		}
	}
	return n
}

// taughtEvents are interactions with corrections, some of whose actions have tokens and name their parent.
func taughtEvents(seed uint64, n int) []schemas.Event {
	events := randomEvents(seed, n)
	for i, e := range events {
		if a, ok := e.Payload.(*schemas.ActionTaken); ok && i%4 > 0 {
			arithmetic{}.sampled(a, a.GetContext().GetMessages(), 1+i%7)
		}
	}
	return events
}

// TestReplayOfATeacher: what a teacher said, and why it said nothing, replays to the same bytes without a teacher. Method: derive random
// interactions with the arithmetic teacher, which fails on some turns for good; derive again from what was recorded, for each selection.
func TestReplayOfATeacher(t *testing.T) {
	scored, absent := 0, map[string]int{}
	for seed := range uint64(60) {
		events := taughtEvents(seed, 100)
		selection := Selections()[seed%uint64(len(Selections()))]
		teacher := teacherCalls(func(ctx context.Context, q TeacherQuery) ([]*schemas.TeacherScored, error) {
			if q.Turn.GetTurnIndex()%5 == 4 {
				return nil, Permanent(errors.New("the model is gone"))
			}
			return arithmetic{}.Score(ctx, q)
		})
		rules := []Finder{RulesFinder{}, finderFunc{"g", hinted("Answer in one line.", "Answer in one short line, please.")}}
		cfg := DirectConfig{Finders: rules, Teacher: teacher, Selection: selection, Contexts: ContextsConfig{Turns: memlog.New(1)}}
		live := deriveAll(t, DeriveOptions{Direct: cfg}, events)
		scores, reasons := map[string][]*schemas.TeacherScored{}, map[string]string{}
		for _, e := range live {
			switch p := e.Payload.(type) {
			case *schemas.TeacherScored:
				scores[p.GetTurnId()] = append(scores[p.GetTurnId()], proto.CloneOf(p))
				scored++
			case *schemas.HintSelected:
				reasons[p.GetTurnId()] = p.GetTeacherAbsentReason()
				absent[strings.Join(strings.Fields(p.GetTeacherAbsentReason())[:min(3, len(strings.Fields(p.GetTeacherAbsentReason())))], " ")]++
			}
		}
		cfg.Teacher = RecordedTeacher{func(_ context.Context, turn string) ([]*schemas.TeacherScored, string, error) {
			return scores[turn], reasons[turn], nil
		}}
		cfg.Contexts = ContextsConfig{}
		replayed := deriveAll(t, DeriveOptions{Direct: cfg}, events)
		live = slices.DeleteFunc(live, func(e schemas.Event) bool { return e.Kind() == "DeadLettered" })
		replayed = slices.DeleteFunc(replayed, func(e schemas.Event) bool { return e.Kind() == "DeadLettered" })
		if len(live) != len(replayed) {
			t.Fatalf("seed %d: %d events live, %d in the replay", seed, len(live), len(replayed))
		}
		for i := range live {
			a, b := encode(t, live[i:i+1])[0], encode(t, replayed[i:i+1])[0]
			if string(a.Value) != string(b.Value) || live[i].ID != replayed[i].ID || !a.Time.Equal(b.Time) {
				t.Fatalf("seed %d, event %d: %v, want %v", seed, i, replayed[i], live[i])
			}
		}
	}
	t.Logf("%d scores; turns by reason: %v", scored, absent)
	if scored < 200 || absent["the teacher failed:"] < 10 || absent["the action has"] < 10 || absent[""] < 100 {
		t.Errorf("%d scores, and reasons %v: the test does not see every case", scored, absent)
	}
}

// TestRecordedTeacherKnowsItsHints: when other hints are found now than then, the scores of the old ones are not theirs. Method: one hint recorded,
// another asked about; nothing recorded.
func TestRecordedTeacherKnowsItsHints(t *testing.T) {
	turn := taughtTurn()
	for name, c := range map[string]struct {
		recorded []*schemas.TeacherScored
		want     string
	}{
		"another hint": {[]*schemas.TeacherScored{scored("An old hint.", 0, 1)}, "the teacher was asked about 0 of these 1 candidates"},
		"no hint":      {nil, "no hint was recorded for this turn"},
	} {
		teacher := RecordedTeacher{func(context.Context, string) ([]*schemas.TeacherScored, string, error) { return c.recorded, "", nil }}
		out := processOne(t, NewDirect(DirectConfig{Finders: []Finder{finderFunc{"f", hinted("Show the steps.")}}, Teacher: teacher}), turn)
		if got := out[len(out)-1].Payload.(*schemas.HintSelected); got.Teacher != nil || !strings.Contains(got.GetTeacherAbsentReason(), c.want) || len(out) != 2 {
			t.Errorf("%s: %v and %d events, want %q", name, got, len(out), c.want)
		}
	}
}
