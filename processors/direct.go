package processors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// DirectVersion is part of the ids that direct derives; it changes with what direct derives, a rule of a finder included.
const DirectVersion = "1"

// DirectVersions are those that a log may hold, the newest first: when DirectVersion changes, the one before stays here.
func DirectVersions() []string { return []string{DirectVersion} }

// Finder looks for hindsight in a turn's next state: what would have made the response better. direct calls it as evaluate calls a Judge,
// by the same rules. No votes, or none with a decision, mean that the next finder is asked.
type Finder interface {
	Name() string
	Hints(ctx context.Context, turn *schemas.TurnClosed) ([]*schemas.HintVoteCast, error)
}

// DirectConfig configures direct.
type DirectConfig struct {
	// Finders are asked in this order until one decides. Default: the rules.
	Finders []Finder
	// Teacher scores the candidates; nil: hints are selected unscored, the shortest.
	Teacher Teacher
	// Selection is how one of several scored hints is chosen. Default: SequenceOptimal.
	Selection Selection
	// Contexts bounds how the teacher's contexts are found; without a teacher it is not used.
	Contexts ContextsConfig
	// Standing votes for the hints of a user that stand; nil: hints are of their own turn only.
	Standing StandingVoter
	// Candidates is the most hints that are kept. Default 3.
	Candidates int
	// Workers bounds the turns that are handled at once. Default 1; more for finders and a teacher that wait.
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
	if c.Selection != "" && !slices.Contains(Selections(), c.Selection) {
		return fmt.Errorf("direct: the selection %q is not known; use one of %v", c.Selection, Selections())
	}
	return c.Contexts.Validate()
}

// Direct derives the directive signal. Its only state is a memory of contexts, which the log gives again. Safe for concurrent use, for the
// turns of one partition.
type Direct struct {
	finders    []Finder
	teacher    Teacher
	stands     StandingVoter
	selection  Selection
	candidates int
	contexts   *contexts
}

// NewDirect makes the processor of one partition of turns.
func NewDirect(cfg DirectConfig) *Direct {
	d := &Direct{
		finders: cfg.Finders, teacher: cfg.Teacher, stands: cfg.Standing, selection: or(cfg.Selection, SequenceOptimal),
		candidates: or(cfg.Candidates, DefaultCandidates), contexts: newContexts(cfg.Contexts),
	}
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

// Process implements Processor: all hint votes, the teacher's scores (or the dead letter of a teacher that failed for good), then the one
// HintSelected or HintAbsent. Whatever a finder or the teacher does, that one comes: assemble waits for it.
func (p *Direct) Process(ctx context.Context, e schemas.Event) ([]schemas.Event, error) {
	turn, ok := e.Payload.(*schemas.TurnClosed)
	if !ok {
		return nil, Permanent(fmt.Errorf("direct takes TurnClosed, not %s", e.Kind()))
	}
	var out []schemas.Event
	emit := func(payload proto.Message, index int) {
		out = append(out, e.Derive(StageDirect, DirectVersion, payload, turn.GetTurnId(), index))
	}
	if p.teacher != nil {
		p.contexts.add(e, turn)
	}
	offset := uint64(e.Position.Offset) //nolint:gosec // an offset is not negative
	votes, decided, err := p.ask(ctx, turn)
	if err != nil {
		return nil, err
	}
	candidates, finder := Candidates(decided.votes, p.candidates), decided.finder
	standing, err := p.standing(ctx, e, turn, candidates)
	if err != nil {
		return nil, err
	}
	if standing != nil {
		candidates, finder = withStanding(candidates, finder, standing.GetHint())
		votes = append(votes, standing)
	}
	for i, v := range votes {
		emit(v, i)
	}
	if len(candidates) == 0 {
		emit(&schemas.HintAbsent{TurnId: turn.GetTurnId(), Reason: absentReason(turn, votes, decided.votes), TurnOffset: offset}, 0)
		return out, nil
	}
	t, err := p.teach(ctx, e, turn, candidates)
	if err != nil {
		return nil, err
	}
	selected := &schemas.HintSelected{
		TurnId: turn.GetTurnId(), Candidates: candidates, Hint: candidates[0], Selection: string(unscored), Finder: finder, TurnOffset: offset,
	}
	if standing != nil {
		selected.Standing = &standing.Hint
	}
	if t.absent != "" {
		selected.TeacherAbsentReason = &t.absent
	} else {
		choose(selected, p.selection, t)
	}
	for _, s := range t.scores {
		emit(s, int(s.GetHintIndex()))
	}
	if t.failed {
		out = append(out, refuse(StageDirect, t.absent, e))
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
