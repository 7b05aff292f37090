package llama

import "github.com/hybridgroup/yzma/pkg/llama"

// slot is a sequence of the context and what its cache holds. For the scheduler's goroutine.
type slot struct {
	seq     llama.SeqId
	adapter llama.AdapterLora // that computed the cache
	tokens  []llama.Token     // in the cache, by position
	session string
	used    uint64 // the step when it was last in work
	job     *job   // nil: idle
}

// common is how much of a prompt the slot's cache begins with.
func (s *slot) common(prompt []llama.Token, a llama.AdapterLora) int {
	if s.adapter != a {
		return 0
	}
	n := 0
	for n < len(prompt) && n < len(s.tokens) && prompt[n] == s.tokens[n] {
		n++
	}
	return n
}

// choose finds an idle slot for a job, or nil. First the one whose cache goes furthest into the prompt, if that keeps at least half of it or is the
// session's own: the next turn of a session comes back to its prefix, and does not destroy a stranger's for the sake of a common beginning. Then
// an empty one, the lowest: llama.cpp computes neighbours together. Then the one longest unused.
func choose(slots []*slot, j *job) *slot {
	var best, empty, oldest *slot
	most := 0
	for _, s := range slots {
		if s.job != nil {
			continue
		}
		n := s.common(j.input, j.version.adapter)
		mine := s.session != "" && s.session == j.session()
		if n > most && (mine || 2*n >= len(s.tokens)) {
			best, most = s, n
		}
		if len(s.tokens) == 0 && empty == nil {
			empty = s
		}
		if oldest == nil || s.used < oldest.used {
			oldest = s
		}
	}
	switch {
	case best != nil:
		return best
	case empty != nil:
		return empty
	}
	return oldest
}
