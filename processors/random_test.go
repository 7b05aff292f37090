package processors

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// randomEvents makes interactions of a few sessions in no particular order: what honest producers send, what comes twice, late, too early or
// not at all, and what names turns that do not exist.
func randomEvents(seed uint64, n int) []schemas.Event {
	return eventsFrom(rand.New(rand.NewPCG(seed, 1)), n)
}

func eventsFrom(r *rand.Rand, n int) []schemas.Event {
	s := newScript()
	turns := map[string][]string{}
	replies := []string{"Thanks!", "No, use tabs not spaces.", "That's wrong, it is 42.", "Make it shorter", "hm", "Next question", "It fails with KeyError"}
	for i := range n {
		session := fmt.Sprintf("s%d", r.IntN(4))
		name := fmt.Sprintf("%s-%d", session, i)
		some := func() string {
			if known := turns[session]; len(known) > 0 && r.IntN(5) > 0 {
				return known[r.IntN(len(known))]
			}
			return fmt.Sprintf("%s-%d", session, r.IntN(n)) // of no turn, or of one to come
		}
		switch r.IntN(13) {
		case 0, 1, 2:
			a := mainAction(name)
			a.AwaitsOutcome = r.IntN(6) == 0
			if r.IntN(3) == 0 {
				a.Context.ParentTurnId = proto.String(id(some()))
			}
			if r.IntN(8) == 0 {
				a.UntrainableReason = proto.String("a demonstration")
			}
			s.add(session, name, a)
			turns[session] = append(turns[session], name)
		case 3:
			s.side(session, name)
			turns[session] = append(turns[session], name)
		case 4, 5, 6:
			next := &schemas.NextStateObserved{Observations: observed(replies[r.IntN(len(replies))]), MoreFollows: r.IntN(4) == 0}
			if r.IntN(2) == 0 {
				next.TurnId = proto.String(id(some()))
			}
			s.add(session, name, next)
		case 7:
			f := &schemas.FeedbackGiven{Score: proto.Float64(float64(r.IntN(3) - 1))}
			if r.IntN(2) == 0 {
				f.TurnId = proto.String(id(some()))
			}
			s.add(session, name, f)
		case 8:
			s.outcome(session, name, float64(r.IntN(3)-1))
		case 9:
			s.end(session, name)
		case 10, 11: // a producer repeats the last records
			from := max(0, len(s.events)-1-r.IntN(4))
			for _, e := range s.events[from:len(s.events):len(s.events)] {
				e.Position.Offset, e.LogTime = int64(len(s.events)), s.now
				s.events = append(s.events, e)
			}
		case 12:
			s.wait(time.Duration(r.IntN(15)) * time.Second)
		}
	}
	return s.events
}
