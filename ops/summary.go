package ops

import (
	"fmt"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Summary says in one line what an event says, for people.
func Summary(e schemas.Event) string {
	switch p := e.Payload.(type) {
	case *schemas.ActionTaken:
		s := Text(p.GetResponse())
		for _, c := range p.GetResponse().GetToolCalls() {
			s += fmt.Sprintf(" [%s %s]", c.GetName(), c.GetArguments())
		}
		return strings.TrimSpace(s)
	case *schemas.NextStateObserved:
		return observations(p.GetObservations())
	case *schemas.FeedbackGiven:
		return strings.TrimSpace(fmt.Sprintf("%+.1f %s %s", p.GetScore(), p.GetText(), p.GetCorrection()))
	case *schemas.OutcomeReported:
		return fmt.Sprintf("score %g by %s", p.GetScore(), p.GetChecker())
	case *schemas.SessionEnded:
		return p.GetReason()
	case *schemas.TurnClosed:
		return observations(p.GetNextState())
	case *schemas.VoteCast:
		return fmt.Sprintf("%s votes %s: %s", p.GetJudge(), signed(p.Vote), p.GetRationale())
	case *schemas.TurnJudged:
		return fmt.Sprintf("score %s by %s (%d of %d votes valid) %s", signed(p.Score), p.GetJudge(), p.GetValidVotes(), p.GetVotes(), p.GetReason())
	case *schemas.HintVoteCast:
		return fmt.Sprintf("%s votes %s: %s", p.GetFinder(), signed(p.Decision), p.GetHint())
	case *schemas.TeacherScored:
		return fmt.Sprintf("%s, overlap %d, mean %.4f: %s", p.GetTeacherVersion(), p.GetOverlap(), mean(p.GetLogprobs()), p.GetHint())
	case *schemas.HintSelected:
		if t := p.GetTeacher(); t != nil {
			return fmt.Sprintf("%s (%s by %s, overlap %d, mean %.4f)", p.GetHint(), p.GetSelection(), t.GetTeacherVersion(), t.GetOverlap(), mean(t.GetLogprobs()))
		}
		return p.GetHint()
	case *schemas.HintAbsent:
		return p.GetReason()
	case *schemas.SampleAssembled:
		kind := strings.ToLower(strings.TrimPrefix(p.GetKind().String(), "SAMPLE_KIND_"))
		return fmt.Sprintf("%s, reward %+g %s", kind, p.GetReward(), p.GetHint())
	case *schemas.TurnSkipped:
		return p.GetReason()
	case *schemas.UpdateStarted:
		return fmt.Sprintf("update %d of %s, %d samples, engine %s", p.GetUpdate(), p.GetParentVersion(), len(p.GetSampleIds()), p.GetEngine())
	case *schemas.PolicyPublished:
		return fmt.Sprintf("update %d of %s%s", p.GetUpdate(), p.GetBaseModel(), measured(p.GetMetrics()))
	case *schemas.PolicyRolledBack:
		return fmt.Sprintf("%s to %s by %s: %s", p.GetFromVersion(), p.GetToVersion(), p.GetBy(), p.GetReason())
	case *schemas.UpdateSkipped:
		return fmt.Sprintf("update %d of %s: %s", p.GetUpdate(), p.GetParentVersion(), p.GetReason())
	case *schemas.HintStood:
		return fmt.Sprintf("%s: %s", p.GetUser(), p.GetHint())
	case *schemas.HintWithdrawn:
		return fmt.Sprintf("%s: %s by %s: %s", p.GetUser(), p.GetHintId(), p.GetBy(), p.GetReason())
	case *schemas.RehearsalEnded:
		return fmt.Sprintf("%d samples of %d hints, %s to %s: %s", len(p.GetSampleIds()), len(p.GetHintIds()), p.GetFromVersion(), p.GetToVersion(), p.GetReason())
	case *schemas.EvaluationStarted:
		return fmt.Sprintf("%s, seed %d, %s problems", p.GetArm(), p.GetSeed(), p.GetHalf())
	case *schemas.ReplyEvaluated:
		verdict := "satisfied"
		if !p.GetSatisfied() {
			verdict = strings.Trim(p.GetComplaint()+"; "+p.GetGuard(), "; ")
		}
		return fmt.Sprintf("%s, session %d, turn %d: %s: %s", p.GetPersona(), p.GetSessionIndex(), p.GetTurnIndex(), verdict, p.GetReply())
	case *schemas.EvaluationEnded:
		return fmt.Sprintf("%s, seed %d: %s after %d sessions, %d updates", p.GetArm(), p.GetSeed(), p.GetOutcome(), p.GetSessions(), p.GetUpdates())
	case *schemas.DeadLettered:
		return fmt.Sprintf("%s: %s", p.GetStage(), p.GetReason())
	default:
		return ""
	}
}

// measured are the metrics of an update that say most.
func measured(metrics map[string]float64) string {
	s := ""
	for _, m := range []struct{ name, title string }{{"loss", "loss"}, {"reward_mean", "reward"}, {"grad_norm", "gradient norm"}} {
		if v, ok := metrics[m.name]; ok {
			s += fmt.Sprintf(", %s %.4g", m.title, v)
		}
	}
	return s
}

// Text joins the text parts of a message.
func Text(m *schemas.Message) string {
	var parts []string
	for _, p := range m.GetParts() {
		if t := p.GetText() + p.GetRefusal(); t != "" {
			parts = append(parts, t)
		}
	}
	return strings.Join(parts, "\n")
}

func observations(obs []*schemas.Observation) string {
	parts := make([]string, 0, len(obs))
	for _, o := range obs {
		kind := strings.ToLower(strings.TrimPrefix(o.GetKind().String(), "OBSERVATION_KIND_"))
		parts = append(parts, kind+": "+Text(o.GetMessage()))
	}
	return strings.Join(parts, " | ")
}

// mean of log-probs, nats a token.
func mean(logprobs []float32) float64 {
	sum := 0.0
	for _, l := range logprobs {
		sum += float64(l)
	}
	return sum / float64(max(1, len(logprobs)))
}

func signed(v *int32) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprintf("%+d", *v)
}
