package eval

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/schemas"
)

// source is who writes the events.
const source = "eval/1"

// diary is where a run writes down what it saw. Safe for concurrent use.
type diary struct {
	log schemas.Appender
	run Run
}

// note appends payloads of one session. Their ids follow from the run and what they are about, so that appending again has no effect.
func (d diary) note(ctx context.Context, session string, payloads ...proto.Message) error {
	records := make([]schemas.Record, 0, len(payloads))
	for _, p := range payloads {
		e := schemas.Event{Source: source, Tenant: d.run.Tenant, Session: session, Payload: p}
		e.ID = schemas.ContentID("eval", d.run.Tenant, e.Kind(), session, about(p))
		r, err := schemas.Encode(e)
		if err != nil {
			return fmt.Errorf("%s of the evaluation: %w", e.Kind(), err)
		}
		records = append(records, r)
	}
	return d.log.Append(ctx, records...)
}

// about tells the events of one session apart.
func about(p proto.Message) string {
	r, ok := p.(*schemas.ReplyEvaluated)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s/%d/%d/%d", r.GetPersona(), r.GetPhase(), r.GetSessionIndex(), r.GetTurnIndex())
}

// replies are the judged turns of one conversation, or of the held-out problems.
func (r Run) replies(persona string, phase schemas.ReplyPhase, turns []personas.Turn, place func(i int) (session, turn int)) []proto.Message {
	var all []proto.Message
	for i, t := range turns {
		session, turn := place(i)
		all = append(all, &schemas.ReplyEvaluated{
			Arm: r.Arm, Seed: r.Seed, Persona: persona, Phase: phase, SessionIndex: uint32(session), TurnIndex: uint32(turn), //nolint:gosec // small
			Problem: t.Problem.Text, Reply: t.Reply.Text, Tokens: uint32(max(0, t.Reply.Tokens)), PolicyVersion: t.Reply.Version, //nolint:gosec // small
			Complaint: t.Judgement.Complaint, Guard: t.Judgement.Guard, Satisfied: t.Judgement.Satisfied(), BaseLogprob: t.BaseLogprob, Seconds: t.Seconds,
		})
	}
	return all
}
