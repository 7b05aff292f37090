package personas

import (
	"math/rand/v2"
	"strings"
)

// What all personas say. The rules that judge and find hints understand every phrase (TestSignals).
var (
	// leads come before the first thing that a persona asks for, againLeads before the next ones.
	leads = []string{
		"That is not what I wanted.", "No, that's not it.", "Hmm, that isn't quite what I need.", "Not quite.", "Sorry, but this doesn't help me.", "That's not really helpful.",
	}
	againLeads = []string{
		"That is still not what I wanted.", "No, you did it again.", "Still not right.", "That's not it either.", "Same problem again.", "Still not what I need.",
		"No, still not.",
	}
	// partings end a session that did not go well.
	partings = []string{
		"I have to leave it at that for today.", "I'll stop here.", "I have to go now.", "We'll leave it there.", "I will manage on my own for today.", "I'll come back to it another day.",
	}
	// noHelp answers a reply in the form which the persona likes and that the guard refuses: there is nothing to ask for but a better reply.
	noHelp = []string{
		"That answer does not help me.", "That makes no sense to me.", "That's not helpful.", "Sorry, that doesn't help.", "That's not an answer to my question.",
	}
)

// speech are the words of one session, in the order in which they are used. A first correction is followed by ones that put the same otherwise.
type speech struct {
	asks, thanks, leads, again, noHelp, partings []string
	// corrected counts the corrections said so far, unhelpful the other complaints.
	corrected, unhelpful int
}

func (p Persona) speech(seed uint64, session int) *speech {
	r := stream(seed, "words of "+p.Name, uint64(session)) //nolint:gosec // not negative
	return &speech{
		asks: shuffled(r, p.Asks), thanks: shuffled(r, p.Thanks), leads: shuffled(r, leads), again: shuffled(r, againLeads), noHelp: shuffled(r, noHelp),
		partings: shuffled(r, partings),
	}
}

func shuffled(r *rand.Rand, list []string) []string {
	out := make([]string, len(list))
	for i, at := range r.Perm(len(list)) {
		out[i] = list[at]
	}
	return out
}

// answer is what the persona says to a reply that was judged so; last: nothing follows.
func (s *speech) answer(j Judgement, last bool) string {
	if j.Satisfied() {
		return s.thanks[0]
	}
	said := []string{s.noHelp[s.unhelpful%len(s.noHelp)]}
	if j.Complaint == "" {
		s.unhelpful++
	} else {
		lead := s.leads[0]
		if s.corrected > 0 {
			lead = s.again[(s.corrected-1)%len(s.again)]
		}
		said = []string{lead, s.asks[s.corrected%len(s.asks)]}
		s.corrected++
	}
	if last {
		said = append(said, s.partings[0])
	}
	return strings.Join(said, " ")
}
