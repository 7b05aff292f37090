package processors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// EvaluateVersion is part of the ids that evaluate derives; it changes with what evaluate derives, a rule of a judge included.
const EvaluateVersion = "1"

// Judge gives votes on a turn. evaluate calls it once a turn, concurrently for different turns, with a turn that was answered. No votes
// mean that it cannot tell, and the next judge is asked. Votes with Error set say that it could not be asked: whatever may pass was
// retried by the judge. It sets neither TurnId, Judge nor Index. An error stops the turn: only for an ended ctx, or a history that cannot
// be read now; evaluate then tries again.
type Judge interface {
	Name() string
	Votes(ctx context.Context, turn *schemas.TurnClosed) ([]*schemas.VoteCast, error)
}

// EvaluateConfig configures evaluate.
type EvaluateConfig struct {
	// Judges are asked in this order until one gives a valid vote. Default: the rules.
	Judges []Judge
	// VoteWeight is c in: step reward = outcome + c * mean vote. Default 1.
	VoteWeight *float64
	// Workers bounds the turns that are judged at once. Default 1; more for judges that wait.
	Workers int
}

// Validate reports a value out of range.
func (c EvaluateConfig) Validate() error {
	names := map[string]bool{}
	for _, j := range c.Judges {
		if j == nil || j.Name() == "" || names[j.Name()] {
			return errors.New("evaluate: every judge needs a name of its own")
		}
		names[j.Name()] = true
	}
	if c.Workers < 0 {
		return errors.New("evaluate: workers must not be negative; 0 means the default")
	}
	return nil
}

// Evaluate derives the evaluative signal. It has no state. Safe for concurrent use.
type Evaluate struct {
	judges []Judge
	weight float64
}

// NewEvaluate makes the processor of turns.
func NewEvaluate(cfg EvaluateConfig) *Evaluate {
	e := &Evaluate{judges: cfg.Judges, weight: 1}
	if len(e.judges) == 0 {
		e.judges = []Judge{RulesJudge{}}
	}
	if cfg.VoteWeight != nil {
		e.weight = *cfg.VoteWeight
	}
	return e
}

// EvaluateStage is evaluate's line in the table of stages.
func EvaluateStage(cfg EvaluateConfig) Stage {
	workers, chunk := waiting(cfg.Workers)
	return Stage{
		Name: StageEvaluate, Topic: schemas.TopicTurns, Workers: workers, Chunk: chunk,
		New: func(int) (Processor, error) { return NewEvaluate(cfg), cfg.Validate() },
	}
}

// waiting gives a stage without state its workers and chunk: turns one by one when several are handled at once, else many together.
func waiting(workers int) (int, int) {
	if workers > 1 {
		return workers, 1
	}
	return 1, 64
}

// Process implements Processor: all votes, then the one TurnJudged. Whatever a judge does, TurnJudged comes: assemble waits for it.
func (p *Evaluate) Process(ctx context.Context, e schemas.Event) ([]schemas.Event, error) {
	turn, ok := e.Payload.(*schemas.TurnClosed)
	if !ok {
		return nil, Permanent(fmt.Errorf("evaluate takes TurnClosed, not %s", e.Kind()))
	}
	judged := &schemas.TurnJudged{TurnId: turn.GetTurnId(), TurnOffset: uint64(e.Position.Offset)} //nolint:gosec // an offset is not negative
	if turn.Outcome != nil {
		o := turn.GetOutcome().GetScore()
		judged.Outcome = &o
	}
	votes, err := p.ask(ctx, turn, judged)
	if err != nil {
		return nil, err
	}
	if judged.Outcome != nil {
		step := judged.GetOutcome() + p.weight*judged.GetMeanVote()
		judged.StepReward = &step
	}
	out := make([]schemas.Event, 0, len(votes)+1)
	for i, v := range votes {
		out = append(out, e.Derive(StageEvaluate, EvaluateVersion, v, turn.GetTurnId(), i))
	}
	return append(out, e.Derive(StageEvaluate, EvaluateVersion, judged, turn.GetTurnId(), 0)), nil
}

// ask goes through the judges until one decides, and fills in the verdict. It returns all votes that were cast.
func (p *Evaluate) ask(ctx context.Context, turn *schemas.TurnClosed, judged *schemas.TurnJudged) ([]*schemas.VoteCast, error) {
	if unanswered(turn) {
		judged.Reason = "no next state"
		return nil, nil
	}
	var all []*schemas.VoteCast
	failed := 0
	for _, judge := range p.judges {
		votes, err := askJudge(ctx, judge, turn)
		if err != nil {
			return nil, err
		}
		scores := make([]*int32, 0, len(votes))
		valid := uint32(0)
		for i, v := range votes {
			v.TurnId, v.Judge, v.Index = turn.GetTurnId(), judge.Name(), uint32(i) //nolint:gosec // votes are few
			cleanVote(v)
			if v.Error != nil {
				failed++
			}
			if v.Vote != nil {
				valid++
			}
			scores = append(scores, v.Vote)
		}
		all = append(all, votes...)
		if valid > 0 {
			score := Majority(scores)
			judged.Score, judged.MeanVote, judged.Judge = &score, MeanVote(scores), judge.Name()
			judged.Votes, judged.ValidVotes = uint32(len(votes)), valid //nolint:gosec // votes are few
			judged.Reason = firstRationale(votes, score)
			return all, nil
		}
	}
	judged.Votes = uint32(len(all)) //nolint:gosec // votes are few
	if failed > 0 && failed == len(all) {
		judged.Reason = "every judge failed: " + clip(all[0].GetError(), maxReason)
		return all, nil
	}
	score := int32(0)
	judged.Score = &score
	judged.Reason = "no judge could tell"
	return all, nil
}

// maxReason bounds the reason of a verdict, in bytes.
const maxReason = 500

// firstRationale is the reason of the verdict: the words of the first vote that agrees with it.
func firstRationale(votes []*schemas.VoteCast, score int32) string {
	for _, v := range votes {
		if v.Vote != nil && v.GetVote() == score {
			return clip(v.GetRationale(), maxReason)
		}
	}
	return "the votes are tied"
}

// askJudge makes a judge's panic one failed vote, so that the turn still gets its verdict.
func askJudge(ctx context.Context, judge Judge, turn *schemas.TurnClosed) (votes []*schemas.VoteCast, err error) {
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			text := fmt.Sprintf("panic: %v\n%s", v, stack[:min(len(stack), maxStack)])
			votes, err = []*schemas.VoteCast{{Error: &text}}, nil
		}
	}()
	votes, err = judge.Votes(ctx, turn)
	if IsPermanent(err) {
		text := err.Error()
		votes, err = []*schemas.VoteCast{{Error: &text}}, nil
	}
	return votes, err
}

// maxWords bounds what is kept of a judge's words in one vote, in bytes.
const maxWords = 64 << 10

// cleanVote makes sure that a vote can be written, whatever the judge put in.
func cleanVote(v *schemas.VoteCast) {
	v.Rationale = cleanText(v.GetRationale())
	if v.Vote != nil && (v.GetVote() < -1 || v.GetVote() > 1) {
		text := fmt.Sprintf("the judge voted %d: -1, 0 or 1 is needed", v.GetVote())
		v.Vote, v.Error = nil, &text
	}
	if v.Error != nil {
		text := cleanText(v.GetError())
		v.Error = &text
	}
}

func cleanText(s string) string { return strings.ToValidUTF8(clip(s, maxWords), "\uFFFD") }

// unanswered reports whether the world said nothing at all, not even that the session is over.
func unanswered(turn *schemas.TurnClosed) bool {
	return len(turn.GetNextState()) == 0 && len(turn.GetFeedback()) == 0 && turn.Outcome == nil && !terminal(turn)
}

// terminal reports whether the end of the session is (part of) the turn's next state.
func terminal(turn *schemas.TurnClosed) bool {
	r := turn.GetCloseReason()
	return r == schemas.CloseReason_CLOSE_REASON_SESSION_ENDED || r == schemas.CloseReason_CLOSE_REASON_IDLE
}

// RecordedJudge gives the votes that another judge gave, as the history keeps them: a replay calls no model.
type RecordedJudge struct {
	// Judge is the name that the votes carry.
	Judge string
	// Lookup returns the recorded votes of that judge on a turn, by index; none when it was not asked.
	Lookup func(ctx context.Context, turnID string) ([]*schemas.VoteCast, error)
}

// Name implements Judge.
func (r RecordedJudge) Name() string { return r.Judge }

// Votes implements Judge.
func (r RecordedJudge) Votes(ctx context.Context, turn *schemas.TurnClosed) ([]*schemas.VoteCast, error) {
	return r.Lookup(ctx, turn.GetTurnId())
}
