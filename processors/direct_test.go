package processors

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// TestLiftReply states what corrections become as hints. Method: replies by hand; "" means that nothing can be lifted.
func TestLiftReply(t *testing.T) {
	for reply, want := range map[string]string{
		"no, use tabs not spaces":                           "Use tabs, not spaces.",
		"No, I asked for Go":                                "Provide Go.",
		"No, I asked for Go code":                           "Provide Go code.",
		"I asked for Python, not Java":                      "Provide Python, not Java.",
		"Can you make it shorter?":                          "Make it shorter.",
		"Looks good, but can you make it a bit friendlier?": "Make it a bit friendlier.",
		"Too long.":                                "Keep it shorter.",
		"This is way too formal":                   "Make it less formal.",
		"too many colors":                          "Use fewer colors.",
		"You forgot to close the file":             "Remember to close the file.",
		"you missed the edge case with [] please":  "Do not leave out the edge case with [].",
		"Don't use regular expressions.":           "Don't use regular expressions.",
		"it should return an error, not panic":     "Note that it should return an error, not panic.",
		"That's wrong, Mars has two moons.":        "Note that Mars has two moons.",
		"That's wrong. The capital is Canberra.":   "Note that the capital is Canberra.",
		"I told you to answer in French":           "Do as stated: answer in French.",
		"the axis labels are still missing units":  "Include units.",
		"Please write it in plain English, thanks": "Write it in plain English.",
		"You didn't mention the deadline":          "Remember to mention the deadline.",
		"shorter please":                           "Make it shorter.",
		"without the bullet points please":         "",
		"No, without the bullet points please":     "Do it without the bullet points.",
		"wrong":                                    "",
		"that is so bad":                           "",
	} {
		if got, _ := liftReply(reply); got != want {
			t.Errorf("%q: got %q, want %q", reply, got, want)
		}
	}
}

// TestRulesFinder states what each rule finds. Method: turns by hand; the hint, "none" for a decision against one, "" for no vote.
func TestRulesFinder(t *testing.T) {
	call := func(o *schemas.Observation) *schemas.TurnClosed {
		o.Message.ToolCallId = proto.String("c")
		return ran("x", o)
	}
	reply := func(text string) *schemas.TurnClosed { return closed(observation(userReplyK, text)) }
	for name, c := range map[string]struct {
		turn *schemas.TurnClosed
		want string
	}{
		"a written correction": {withFeedback(&schemas.FeedbackGiven{Score: proto.Float64(-1), Correction: proto.String("It is 42.\nNot 41.")}), "Answer along these lines: It is 42. Not 41."},
		"feedback in words":    {withFeedback(&schemas.FeedbackGiven{Score: proto.Float64(-1), Text: proto.String("Please cite your sources.")}), "Cite your sources."},
		"praise":               {withFeedback(&schemas.FeedbackGiven{Score: proto.Float64(1), Text: proto.String("Use this everywhere!")}), ""},
		"a correction":         {reply("No, use tabs not spaces"), "Use tabs, not spaces."},
		"acceptance":           {reply("Perfect, thanks!"), "none"},
		"nothing to lift":      {reply("That's terrible"), ""},
		"ambiguous":            {reply("hmm"), ""},
		"failed tests":         {closed(tested(1, 2, "TestA", "TestB")), "Make sure that these tests pass: TestA, TestB."},
		"passed tests":         {closed(tested(1, 0)), "none"},
		"a missing command":    {call(marked(true, "bash: line 1: jq: command not found")), "Do not call jq: it is not installed here."},
		"a missing file":       {call(exited(1, "cat: /etc/nothing.txt: No such file or directory")), "Check that /etc/nothing.txt exists before using it."},
		"a traceback":          {call(marked(true, "Traceback (most recent call last):\n  File \"x.py\", line 1, in f\nKeyError: 'name'")), "Avoid this error of bash: KeyError: 'name'"},
		"a missing module":     {call(marked(true, "Traceback (most recent call last):\n  x\nModuleNotFoundError: No module named 'numpy'")), "Do not rely on the module numpy: it is not installed here."},
		"a silent failure":     {call(exited(2, "")), ""},
		"a good result":        {call(exited(0, "ok")), "none"},
		"a format error":       {closed(observation(harness, "Format error: write exactly one action")), "Keep to the required output format: Format error: write exactly one action"},
		"unanswered":           {closed(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			votes, err := RulesFinder{}.Hints(t.Context(), c.turn)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if len(votes) == 1 {
				got = votes[0].GetHint()
				if votes[0].GetDecision() < 0 {
					got = "none"
				}
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

type finderFunc struct {
	name  string
	votes []*schemas.HintVoteCast
}

func (f finderFunc) Name() string { return f.name }
func (f finderFunc) Hints(context.Context, *schemas.TurnClosed) ([]*schemas.HintVoteCast, error) {
	return f.votes, nil
}

func hinted(hints ...string) (votes []*schemas.HintVoteCast) {
	for _, h := range hints {
		votes = append(votes, &schemas.HintVoteCast{Decision: proto.Int32(1), Hint: h})
	}
	return votes
}

// teacherFunc is a teacher that shares the given number of ids with the student's top-k, which is that of taughtTurn.
type teacherFunc struct {
	overlaps []uint64
	err      error
}

func (t teacherFunc) Score(_ context.Context, q TeacherQuery) (out []*schemas.TeacherScored, err error) {
	if t.err != nil {
		return nil, t.err
	}
	for i := range q.Candidates {
		out = append(out, teacherSharing(t.overlaps[i]))
	}
	return out, nil
}

// teacherSharing is what a teacher says of taughtTurn whose top-k has n ids in common with the student's.
func teacherSharing(n uint64) *schemas.TeacherScored {
	ids := []uint32{100, 101, 102}
	for i := range n {
		ids[i] = uint32(i) + 1
	}
	return &schemas.TeacherScored{
		TeacherVersion: "base", Temperature: 1, Logprobs: []float32{-1}, LogprobsAtStudent: []float32{-1, -2, -3},
		TopK: &schemas.TopK{K: 3, Ids: ids, Logprobs: []float32{-1, -2, -3}},
	}
}

// taughtTurn is an answered turn with one token and the student's top-3 there.
func taughtTurn() *schemas.TurnClosed {
	turn := closed(observation(userReplyK, "hm"))
	turn.Action.Tokens = &schemas.Tokens{ResponseIds: []uint32{5}, TopK: &schemas.TopK{K: 3, Ids: []uint32{1, 2, 3}, Logprobs: []float32{-1, -2, -3}}}
	return turn
}

// scored is teacherSharing as direct writes it.
func scored(hint string, index uint32, n uint64) *schemas.TeacherScored {
	s := teacherSharing(n)
	s.TurnId, s.Hint, s.HintIndex, s.Overlap = id("a1"), hint, index, n
	return s
}

// TestDirect states how a hint is selected. Method: finders and teachers with fixed answers; the terminal event.
func TestDirect(t *testing.T) {
	short, long := "Show the steps.", "Show each step of the work."
	two := []Finder{finderFunc{"f", hinted(long, short)}}
	for name, c := range map[string]struct {
		cfg    DirectConfig
		want   proto.Message
		events int
	}{
		"no teacher": {DirectConfig{Finders: two}, &schemas.HintSelected{
			Hint: short, Candidates: []string{short, long}, Selection: "unscored", Finder: "f", TeacherAbsentReason: proto.String("no teacher is configured"),
		}, 3},
		"most overlap": {DirectConfig{Finders: two, Teacher: teacherFunc{overlaps: []uint64{1, 2}}}, &schemas.HintSelected{
			Hint: long, Candidates: []string{short, long}, CandidateIndex: 1, Selection: "sequence_optimal", Finder: "f", Teacher: scored(long, 1, 2),
		}, 5},
		"a tie stays with the shorter": {DirectConfig{Finders: two, Teacher: teacherFunc{overlaps: []uint64{2, 2}}}, &schemas.HintSelected{
			Hint: short, Candidates: []string{short, long}, Selection: "sequence_optimal", Finder: "f", Teacher: scored(short, 0, 2),
		}, 5},
		"the shortest, and no other is asked about": {DirectConfig{Finders: two, Teacher: teacherFunc{overlaps: []uint64{1}}, Selection: Shortest}, &schemas.HintSelected{
			Hint: short, Candidates: []string{short, long}, Selection: "shortest", Finder: "f", Teacher: scored(short, 0, 1),
		}, 4},
		"nothing to score": {DirectConfig{Finders: two, Teacher: teacherFunc{err: NoTeacher("the action has no token ids")}}, &schemas.HintSelected{
			Hint: short, Candidates: []string{short, long}, Selection: "unscored", Finder: "f", TeacherAbsentReason: proto.String("the action has no token ids"),
		}, 3},
		"the teacher gives up": {DirectConfig{Finders: two, Teacher: teacherFunc{err: Permanent(errors.New("no such model"))}}, &schemas.HintSelected{
			Hint: short, Candidates: []string{short, long}, Selection: "unscored", Finder: "f", TeacherAbsentReason: proto.String("the teacher failed: no such model"),
		}, 4},
		"the second finder": {DirectConfig{Finders: []Finder{finderFunc{"e", nil}, finderFunc{"f", hinted(short)}}}, &schemas.HintSelected{
			Hint: short, Candidates: []string{short}, Selection: "unscored", Finder: "f", TeacherAbsentReason: proto.String("no teacher is configured"),
		}, 2},
		"too short":       {DirectConfig{Finders: []Finder{finderFunc{"f", hinted("too short")}}}, &schemas.HintAbsent{Reason: "no hint was accepted"}, 2},
		"nobody can tell": {DirectConfig{Finders: []Finder{finderFunc{"f", nil}}}, &schemas.HintAbsent{Reason: "no finder could tell"}, 1},
		"everybody down":  {DirectConfig{Finders: []Finder{finderFunc{"f", []*schemas.HintVoteCast{{Error: proto.String("down")}}}}}, &schemas.HintAbsent{Reason: "every finder failed: down"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			out := processOne(t, NewDirect(c.cfg), taughtTurn())
			switch w := c.want.(type) {
			case *schemas.HintSelected:
				w.TurnId, w.TurnOffset = id("a1"), 7
			case *schemas.HintAbsent:
				w.TurnId, w.TurnOffset = id("a1"), 7
			}
			if got := out[len(out)-1].Payload; !proto.Equal(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
			if len(out) != c.events {
				t.Errorf("%d events, want %d", len(out), c.events)
			}
		})
	}
	t.Run("a teacher that is down", func(t *testing.T) {
		_, err := NewDirect(DirectConfig{Finders: two, Teacher: teacherFunc{err: errors.New("down")}}).Process(t.Context(), schemas.Event{Payload: taughtTurn()})
		if err == nil || IsPermanent(err) {
			t.Errorf("got %v, want an error that is retried", err)
		}
	})
}
