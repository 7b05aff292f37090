package processors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// DirectVersion is part of the ids that direct derives; it changes with what direct derives, a rule of a finder included.
const DirectVersion = "1"

// Finder looks for hindsight in a turn's next state: what would have made the response better. direct calls it as evaluate calls a Judge,
// by the same rules. No votes, or none with a decision, mean that the next finder is asked.
type Finder interface {
	Name() string
	Hints(ctx context.Context, turn *schemas.TurnClosed) ([]*schemas.HintVoteCast, error)
}

// Teacher scores the original response tokens of a turn under each candidate hint. contexts holds, for each candidate, what the action's
// own context holds with the hint in it (AppendHint); when that context names a parent turn, the teacher resolves it. It returns one
// TeacherScored for each candidate with HintIndex set, and errors by the rules of Judge; a failed query is an error, never zeros.
type Teacher interface {
	Score(ctx context.Context, turn *schemas.TurnClosed, contexts [][]*schemas.Message, candidates []string) ([]*schemas.TeacherScored, error)
}

// DirectConfig configures direct.
type DirectConfig struct {
	// Finders are asked in this order until one decides. Default: the rules.
	Finders []Finder
	// Teacher scores the candidates; nil: hints are selected unscored, the shortest.
	Teacher Teacher
	// Candidates is the most hints that are kept. Default 3.
	Candidates int
	// Workers bounds the turns that are handled at once. Default 1; more for finders that wait.
	Workers int
}

// Validate reports a value out of range.
func (c DirectConfig) Validate() error {
	names := map[string]bool{}
	for _, f := range c.Finders {
		if f == nil || f.Name() == "" || names[f.Name()] {
			return errors.New("direct: every finder needs a name of its own")
		}
		names[f.Name()] = true
	}
	if c.Candidates < 0 || c.Workers < 0 {
		return errors.New("direct: candidates and workers must not be negative; 0 means the default")
	}
	return nil
}

// Direct derives the directive signal. It has no state. Safe for concurrent use.
type Direct struct {
	finders    []Finder
	teacher    Teacher
	candidates int
}

// NewDirect makes the processor of turns.
func NewDirect(cfg DirectConfig) *Direct {
	d := &Direct{finders: cfg.Finders, teacher: cfg.Teacher, candidates: or(cfg.Candidates, DefaultCandidates)}
	if len(d.finders) == 0 {
		d.finders = []Finder{RulesFinder{}}
	}
	return d
}

// DirectStage is direct's line in the table of stages.
func DirectStage(cfg DirectConfig) Stage {
	workers, chunk := waiting(cfg.Workers)
	return Stage{
		Name: StageDirect, Topic: schemas.TopicTurns, Workers: workers, Chunk: chunk,
		New: func(int) (Processor, error) { return NewDirect(cfg), cfg.Validate() },
	}
}

// Process implements Processor: all hint votes, the teacher's scores, then the one HintSelected or HintAbsent.
func (p *Direct) Process(ctx context.Context, e schemas.Event) ([]schemas.Event, error) {
	turn, ok := e.Payload.(*schemas.TurnClosed)
	if !ok {
		return nil, Permanent(fmt.Errorf("direct takes TurnClosed, not %s", e.Kind()))
	}
	var out []schemas.Event
	emit := func(payload proto.Message, index int) {
		out = append(out, e.Derive(StageDirect, DirectVersion, payload, turn.GetTurnId(), index))
	}
	offset := uint64(e.Position.Offset) //nolint:gosec // an offset is not negative
	votes, decided, err := p.ask(ctx, turn)
	if err != nil {
		return nil, err
	}
	for i, v := range votes {
		emit(v, i)
	}
	candidates := Candidates(decided.votes, p.candidates)
	if len(candidates) == 0 {
		emit(&schemas.HintAbsent{TurnId: turn.GetTurnId(), Reason: absentReason(turn, votes, decided.votes), TurnOffset: offset}, 0)
		return out, nil
	}
	selected := &schemas.HintSelected{
		TurnId: turn.GetTurnId(), Candidates: candidates, Hint: candidates[0], Selection: "unscored", Finder: decided.finder, TurnOffset: offset,
	}
	scores, err := p.score(ctx, turn, candidates, selected)
	if err != nil {
		return nil, err
	}
	for _, s := range scores {
		emit(s, int(s.GetHintIndex()))
	}
	emit(selected, 0)
	return out, nil
}

// decision is the finder that decided, with its votes.
type decision struct {
	finder string
	votes  []*schemas.HintVoteCast
}

// ask goes through the finders until one decides. It returns all votes that were cast.
func (p *Direct) ask(ctx context.Context, turn *schemas.TurnClosed) (all []*schemas.HintVoteCast, decided decision, err error) {
	if len(turn.GetNextState()) == 0 && len(turn.GetFeedback()) == 0 {
		return nil, decision{}, nil
	}
	for _, finder := range p.finders {
		votes, err := askFinder(ctx, finder, turn)
		if err != nil {
			return nil, decision{}, err
		}
		valid := false
		for i, v := range votes {
			v.TurnId, v.Finder, v.Index = turn.GetTurnId(), finder.Name(), uint32(i) //nolint:gosec // votes are few
			cleanHintVote(v)
			valid = valid || v.Decision != nil
		}
		all = append(all, votes...)
		if valid {
			return all, decision{finder.Name(), votes}, nil
		}
	}
	return all, decision{}, nil
}

func askFinder(ctx context.Context, finder Finder, turn *schemas.TurnClosed) (votes []*schemas.HintVoteCast, err error) {
	defer func() {
		if v := recover(); v != nil {
			stack := debug.Stack()
			text := fmt.Sprintf("panic: %v\n%s", v, stack[:min(len(stack), maxStack)])
			votes, err = []*schemas.HintVoteCast{{Error: &text}}, nil
		}
	}()
	votes, err = finder.Hints(ctx, turn)
	if IsPermanent(err) {
		text := err.Error()
		votes, err = []*schemas.HintVoteCast{{Error: &text}}, nil
	}
	return votes, err
}

// cleanHintVote makes sure that a vote can be written, whatever the finder put in.
func cleanHintVote(v *schemas.HintVoteCast) {
	v.Hint, v.Rationale = cleanText(v.GetHint()), cleanText(v.GetRationale())
	if d := v.Decision; d != nil && *d != 1 && *d != -1 {
		text := fmt.Sprintf("the finder decided %d: -1 or 1 is needed", *d)
		v.Decision, v.Error = nil, &text
	}
	if v.Error != nil {
		text := cleanText(v.GetError())
		v.Error = &text
	}
}

func absentReason(turn *schemas.TurnClosed, votes, decided []*schemas.HintVoteCast) string {
	switch {
	case len(turn.GetNextState()) == 0 && len(turn.GetFeedback()) == 0:
		return "no next state"
	case len(decided) > 0:
		return "no hint was accepted"
	case len(votes) > 0 && votes[0].Error != nil:
		return "every finder failed: " + clip(votes[0].GetError(), maxReason)
	default:
		return "no finder could tell"
	}
}

// score asks the teacher, and fills in what it selects.
func (p *Direct) score(ctx context.Context, turn *schemas.TurnClosed, candidates []string, selected *schemas.HintSelected) ([]*schemas.TeacherScored, error) {
	absent := func(reason string) ([]*schemas.TeacherScored, error) {
		selected.TeacherAbsentReason = &reason
		return nil, nil
	}
	if p.teacher == nil {
		return absent("no teacher is configured")
	}
	if len(turn.GetAction().GetTokens().GetResponseIds()) == 0 {
		return absent("the action has no token ids")
	}
	contexts := make([][]*schemas.Message, len(candidates))
	for i, hint := range candidates {
		contexts[i] = AppendHint(turn.GetAction().GetContext().GetMessages(), hint)
	}
	scores, err := p.teacher.Score(ctx, turn, contexts, candidates)
	if IsPermanent(err) {
		return absent("the teacher failed: " + clip(err.Error(), maxReason))
	}
	if err != nil {
		return nil, err
	}
	if len(scores) != len(candidates) {
		return absent(fmt.Sprintf("the teacher scored %d of %d candidates", len(scores), len(candidates)))
	}
	best := 0
	for i, s := range scores {
		s.TurnId, s.HintIndex, s.Hint = turn.GetTurnId(), uint32(i), candidates[i] //nolint:gosec // candidates are few
		if s.GetOverlap() > scores[best].GetOverlap() {
			best = i // a tie stays with the shorter hint
		}
	}
	selected.Teacher, selected.Hint = scores[best], candidates[best]
	selected.CandidateIndex, selected.Selection = uint32(best), "sequence_optimal" //nolint:gosec // candidates are few
	return scores, nil
}

// RecordedFinder gives the votes that another finder gave, as the history keeps them: a replay calls no model.
type RecordedFinder struct {
	// Finder is the name that the votes carry.
	Finder string
	// Lookup returns the recorded votes of that finder on a turn, by index; none when it was not asked.
	Lookup func(ctx context.Context, turnID string) ([]*schemas.HintVoteCast, error)
}

// Name implements Finder.
func (r RecordedFinder) Name() string { return r.Finder }

// Hints implements Finder.
func (r RecordedFinder) Hints(ctx context.Context, turn *schemas.TurnClosed) ([]*schemas.HintVoteCast, error) {
	return r.Lookup(ctx, turn.GetTurnId())
}
