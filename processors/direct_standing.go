package processors

import (
	"context"

	"github.com/nextstate-rl/nextstate/schemas"
)

// standing asks for the vote of the user's standing hints on a turn; nil: there is none. Side turns and those that cannot be trained get none: no sample comes
// of them.
func (p *Direct) standing(ctx context.Context, e schemas.Event, turn *schemas.TurnClosed, own []string) (*schemas.HintVoteCast, error) {
	action := turn.GetAction()
	if p.stands == nil || action.GetUser() == "" || action.GetKind() == schemas.TurnKind_TURN_KIND_SIDE || action.UntrainableReason != nil {
		return nil, nil //nolint:nilnil // nothing stands
	}
	vote, err := p.stands.Vote(ctx, e.Tenant, turn, own)
	if err != nil || vote == nil {
		return nil, err
	}
	vote.TurnId, vote.Finder, vote.Index = turn.GetTurnId(), StandingFinder, 0
	cleanHintVote(vote)
	return vote, nil
}

// withStanding are the candidates when hints stand: each of the turn's own, followed by the standing ones about other subjects; without any of its own, the
// standing ones alone. finder is who is named for it.
func withStanding(own []string, finder, standing string) (candidates []string, by string) {
	if len(own) == 0 {
		return []string{standing}, StandingFinder
	}
	for _, hint := range own {
		candidates = append(candidates, hint+"\n"+standing)
	}
	return candidates, finder
}
