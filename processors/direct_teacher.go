package processors

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Teacher scores the original response tokens of a turn under each candidate hint (algorithm, section 3). direct calls it once a turn that has
// candidates, concurrently for different turns. It returns one TeacherScored for each candidate, in their order, with TeacherVersion,
// Temperature, Logprobs, TopK and LogprobsAtStudent; direct fills in the rest and checks all of it. What the teacher cannot give is absent,
// never zero.
//
// Errors: NoTeacher says that there is nothing to score, and why. Permanent says that the query failed for good: whatever may pass was retried
// by the teacher; direct dead-letters the turn's record and goes on without a teacher. Any other error (an ended ctx, a log that cannot be read
// now) stops the turn, and direct tries again.
type Teacher interface {
	Score(ctx context.Context, q TeacherQuery) ([]*schemas.TeacherScored, error)
}

// TeacherQuery is one question to a Teacher.
type TeacherQuery struct {
	Turn *schemas.TurnClosed
	// Candidates are the hints, shortest first; at least one.
	Candidates []string
	// Context finds the whole context that the action was taken in, also when the action names a parent turn. The hint goes into it by
	// AppendHint. Its errors are the teacher's to return as they are. What it returns is shared: it must not be changed.
	Context func(ctx context.Context) (*schemas.Context, error)
}

// NoTeacher makes the error that means: there is no teacher for this turn. reason becomes HintSelected.teacher_absent_reason as it is.
func NoTeacher(reason string) error { return &noTeacherError{reason} }

type noTeacherError struct{ reason string }

func (e *noTeacherError) Error() string { return e.reason }

// noTeacherConfigured is the reason of a system without a teacher.
const noTeacherConfigured = "no teacher is configured"

// taught is what the teacher gave for one turn: either scores, or the reason why there are none.
type taught struct {
	// scores has one entry a candidate that was asked about, complete and checked; overlaps [candidates][tokens] is nil when there is no top-k
	// to compare.
	scores   []*schemas.TeacherScored
	overlaps [][]int
	absent   string
	// failed: the query failed for good, so the turn's record is dead-lettered too.
	failed bool
}

// teach asks the teacher about the candidates. An error stops the turn.
func (p *Direct) teach(ctx context.Context, e schemas.Event, turn *schemas.TurnClosed, candidates []string) (taught, error) {
	if p.teacher == nil {
		return taught{absent: noTeacherConfigured}, nil
	}
	if p.selection == Shortest {
		candidates = candidates[:1] // nothing else can be selected
	}
	scores, err := askTeacher(ctx, p.teacher, TeacherQuery{
		Turn: turn, Candidates: candidates,
		Context: func(ctx context.Context) (*schemas.Context, error) { return p.contexts.resolve(ctx, e, turn) },
	})
	var none *noTeacherError
	switch {
	case errors.As(err, &none):
		return taught{absent: cleanText(none.reason)}, nil
	case IsPermanent(err):
		return failedTeacher(err), nil
	case err != nil:
		return taught{}, err
	}
	if err := checkScores(turn.GetAction(), candidates, scores); err != nil {
		return failedTeacher(err), nil
	}
	overlaps, err := overlapsOf(turn.GetAction().GetTokens(), scores)
	if err != nil {
		return failedTeacher(err), nil
	}
	for i, s := range scores {
		s.TurnId, s.HintIndex, s.Hint, s.Overlap = turn.GetTurnId(), uint32(i), candidates[i], 0 //nolint:gosec // candidates are few
		if overlaps != nil {
			for _, n := range overlaps[i] {
				s.Overlap += uint64(n) //nolint:gosec // a count
			}
		}
	}
	return taught{scores: scores, overlaps: overlaps}, nil
}

func failedTeacher(err error) taught {
	return taught{absent: "the teacher failed: " + strings.ToValidUTF8(clip(err.Error(), maxReason), "\uFFFD"), failed: true}
}

// askTeacher makes a teacher's panic a failed query, so that the turn still gets its hint.
func askTeacher(ctx context.Context, teacher Teacher, q TeacherQuery) (scores []*schemas.TeacherScored, err error) {
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			scores, err = nil, Permanent(fmt.Errorf("panic: %v\n%s", v, stack[:min(len(stack), maxStack)]))
		}
	}()
	return teacher.Score(ctx, q)
}

const (
	// roundedAboveZero is how far above 0 a log-prob may be by rounding.
	roundedAboveZero = 1e-3
	// maxTaughtBytes bounds an action with its teacher, so that the sample that holds both fits into one record with its candidates.
	maxTaughtBytes = schemas.MaxEventBytes - 1<<20
)

// checkScores reports what is wrong with a teacher's answer. Shapes: Logprobs [tokens], TopK [tokens][k] with one k for all candidates,
// LogprobsAtStudent [tokens][k of the student] or none.
func checkScores(action *schemas.ActionTaken, candidates []string, scores []*schemas.TeacherScored) error {
	if len(scores) != len(candidates) {
		return fmt.Errorf("it scored %d of %d candidates", len(scores), len(candidates))
	}
	tokens := action.GetTokens()
	n := len(tokens.GetResponseIds())
	size := proto.Size(action) + 5*n
	for i, s := range scores {
		switch {
		case s.GetTeacherVersion() == "" || s.GetTeacherVersion() != scores[0].GetTeacherVersion():
			return fmt.Errorf("candidate %d was scored by version %q, candidate 0 by %q: one named version is needed", i, s.GetTeacherVersion(), scores[0].GetTeacherVersion())
		case !(s.GetTemperature() > 0) || math.IsInf(s.GetTemperature(), 0):
			return fmt.Errorf("candidate %d was scored at temperature %g", i, s.GetTemperature())
		case n == 0 || len(s.GetLogprobs()) != n:
			return fmt.Errorf("candidate %d has %d log-probs for %d response tokens", i, len(s.GetLogprobs()), n)
		case size+proto.Size(s) > maxTaughtBytes:
			return fmt.Errorf("candidate %d with its action has %d bytes, at most %d can be kept: ask for a smaller top-k", i, size+proto.Size(s), maxTaughtBytes)
		case s.GetTopK().GetK() != scores[0].GetTopK().GetK():
			return fmt.Errorf("candidate %d has a top-%d, candidate 0 a top-%d", i, s.GetTopK().GetK(), scores[0].GetTopK().GetK())
		}
		if k := int(s.GetTopK().GetK()); s.TopK != nil && (k == 0 || len(s.GetTopK().GetIds()) != n*k || len(s.GetTopK().GetLogprobs()) != n*k) {
			return fmt.Errorf("candidate %d has a top-k of %d ids and %d log-probs, not %d x %d", i, len(s.GetTopK().GetIds()), len(s.GetTopK().GetLogprobs()), n, k)
		}
		if got, k := len(s.GetLogprobsAtStudent()), int(tokens.GetTopK().GetK()); got != 0 && got != n*k {
			return fmt.Errorf("candidate %d has %d log-probs at the student's top-k, not %d x %d", i, got, n, k)
		}
		for _, list := range [][]float32{s.GetLogprobs(), s.GetTopK().GetLogprobs(), s.GetLogprobsAtStudent()} {
			for at, v := range list {
				if !(v <= roundedAboveZero) || math.IsInf(float64(v), 0) {
					return fmt.Errorf("candidate %d has the log-prob %v at %d: finite ones, at most 0, are needed", i, v, at)
				}
			}
		}
	}
	return nil
}

// RecordedTeacher gives what another teacher said of a turn, as the history keeps it: a replay calls no model.
type RecordedTeacher struct {
	// Lookup returns what was recorded of a turn: the TeacherScored events, by hint index, or the reason in its HintSelected why there are none.
	// Neither: no hint was selected for that turn.
	Lookup func(ctx context.Context, turnID string) (scores []*schemas.TeacherScored, absent string, err error)
}

// Score implements Teacher. Scores are found by the hint: when other candidates are found now, they were not scored.
func (r RecordedTeacher) Score(ctx context.Context, q TeacherQuery) ([]*schemas.TeacherScored, error) {
	recorded, absent, err := r.Lookup(ctx, q.Turn.GetTurnId())
	switch {
	case err != nil:
		return nil, err
	case absent != "":
		return nil, NoTeacher(absent)
	case len(recorded) == 0:
		return nil, NoTeacher("no hint was recorded for this turn, so no teacher was asked: replay with rejudge to ask one")
	}
	out := make([]*schemas.TeacherScored, 0, len(q.Candidates))
	for _, hint := range q.Candidates {
		for _, s := range recorded {
			if s.GetHint() == hint {
				out = append(out, s)
				break
			}
		}
	}
	if len(out) != len(q.Candidates) {
		return nil, NoTeacher(fmt.Sprintf("the teacher was asked about %d of these %d candidates: replay with rejudge to ask about all", len(out), len(q.Candidates)))
	}
	return out, nil
}
