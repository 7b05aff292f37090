package eval

import (
	"fmt"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/ops/personas"
)

// part is where wall time goes.
type part string

// The parts of a run. Decode is the engine's work on replies, which the personas wait for; talk what else happens while they talk (scoring the replies under the
// base model); signals is judging and the teacher.
const (
	partStart     part = "start"
	partDecode    part = "decode"
	partTalk      part = "talk"
	partSignals   part = "signals"
	partTraining  part = "training"
	partServing   part = "serving"
	partRehearsal part = "rehearsal"
	partHeldOut   part = "held_out"
	partOther     part = "other"
)

// parts in the order in which they are shown.
var parts = []part{partStart, partDecode, partTalk, partSignals, partTraining, partServing, partRehearsal, partHeldOut, partOther}

// spent is wall time by part.
type spent map[part]time.Duration

// add adds what another one holds.
func (s spent) add(o spent) {
	for p, d := range o {
		s[p] += d
	}
}

// total is all of it.
func (s spent) total() time.Duration {
	var sum time.Duration
	for _, d := range s {
		sum += d
	}
	return sum
}

// rest puts what of a span no part took into other.
func (s spent) rest(span time.Duration) { s[partOther] += max(0, span-s.total()) }

// seconds are its parts, and their sum as total, as EvaluationEnded has them.
func (s spent) seconds() map[string]float64 {
	all := map[string]float64{"total": s.total().Seconds()}
	for p, d := range s {
		all[string(p)] = d.Seconds()
	}
	return all
}

// String is the parts that took a tenth of a second, the largest share of them in the order of the table.
func (s spent) String() string {
	var all []string
	for _, p := range parts {
		if d := s[p]; d >= 50*time.Millisecond {
			all = append(all, fmt.Sprintf("%s %.1f", p, d.Seconds()))
		}
	}
	return strings.Join(all, ", ")
}

// talked divides the time of a joint session's talk: the persona who waited longest for replies says how long the engine decoded.
func (s spent) talked(wall time.Duration, sessions []*personas.Session) {
	longest := 0.0
	for _, session := range sessions {
		sum := 0.0
		for _, t := range session.Turns {
			sum += t.Seconds
		}
		longest = max(longest, sum)
	}
	decode := min(wall, time.Duration(longest*float64(time.Second)))
	s[partDecode] += decode
	s[partTalk] += wall - decode
}
