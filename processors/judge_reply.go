package processors

import "strings"

// Similarity of content words, between 0 and 1: a request with at least sameRequest of them is the same one again; one with at most
// newRequest of them speaks of something else.
const (
	sameRequest = 0.75
	newRequest  = 0.2
	// sameWords is the least number of content words that a comparison needs.
	sameWords = 3
)

// classifyReply judges an action by the user's reply to it. request is the user's message before the action, response the action's text.
func classifyReply(text, request, response string) opinion {
	table := english
	r := parseReply(text, table)
	if len(r.sentences) == 0 {
		return opinion{}
	}
	asked := strings.HasSuffix(strings.TrimRight(response, " \n\t*_)\""), "?")
	var found cues
	for i, s := range r.lead() {
		found.add(table, s, i, asked)
	}
	switch {
	case found.correct != "":
		return bad("correction", found.correct)
	case found.redo != "":
		return bad("redo", found.redo)
	case found.change != "":
		return bad("change request", found.change)
	case found.accept != "" && found.but:
		return bad("acceptance with a but", found.accept)
	case found.accept != "":
		return good("acceptance", found.accept)
	}
	if share, ok := similarity(table, text, request); ok && share >= sameRequest {
		return bad("rephrased request", firstLine(text))
	}
	switch {
	case found.moveOn != "":
		return good("moves on", found.moveOn)
	case asked:
		return opinion{} // an answer to the assistant's question tells nothing of the question
	case found.request && unrelated(table, text, request, response):
		return good("new request", firstLine(text))
	}
	return opinion{}
}

// cues are the phrases found in the lead of a reply, by what they mean.
type cues struct {
	correct, redo, change, accept, moveOn string
	// but: acceptance is followed by a contrast. request: a sentence asks for something.
	but, request bool
}

// add looks through one sentence, clause by clause. asked: the assistant had asked a question, so that a bare no or yes is its answer.
func (c *cues) add(l *lexicon, s sentence, at int, asked bool) {
	start := 0
	for i, w := range s.words {
		if i > start && l.contrast[w] {
			c.clause(l, clause{s.words[start:i], false, at, start > 0}, asked)
			start = i
		}
	}
	c.clause(l, clause{s.words[start:], s.question, at, start > 0 || len(s.words) > 0 && l.contrast[s.words[0]]}, asked)
}

// clause is a sentence, or the part of one up to a contrast or after it.
type clause struct {
	words    []string
	question bool
	sentence int
	contrast bool
}

func (c *cues) clause(l *lexicon, s clause, asked bool) {
	c.but = c.but || s.contrast && c.accept != ""
	words := s.words
	head, moves := l.head(words)
	words, praised := mask(l, words, &l.praise)
	words, _ = mask(l, words, &l.neutral)
	c.takeAccept(l, words, head, s)
	if praised != "" && c.accept == "" {
		c.accept = praised
	}
	c.takeWrong(l, words, head, s.question)
	if h, ok := l.correct.find(words, head); ok && c.correct == "" && (!asked || h.phrase.text != "^no") && !isRequest(l, words, head, h.from) {
		c.correct = h.in(words)
	}
	if h, ok := l.redo.find(words, head); ok && c.redo == "" && h.from <= head+6 {
		c.redo = h.in(words)
	}
	c.takeChange(l, words, head, s.sentence)
	if h, ok := l.moveOn.find(words, head); ok && c.moveOn == "" {
		c.moveOn = h.in(words)
	}
	if head < len(words) && l.verbs[words[head]] {
		// "write it ..." speaks of what is there.
		c.request = c.request || head+1 == len(words) || !l.pointers[words[head+1]]
		if moves && c.moveOn == "" {
			c.moveOn = strings.Join(words[:head+1], " ")
		}
	}
}

// takeAccept takes words of praise near the front: inside a question or late in a request they praise nothing.
func (c *cues) takeAccept(l *lexicon, words []string, head int, s clause) {
	h, ok := l.accept.find(words, head)
	switch {
	case !ok || s.question || s.sentence > 0 && h.from > 1 || h.from > 7:
	case negated(l, words, h.from) && !strings.HasPrefix(h.phrase.text, "thank"):
		if c.correct == "" {
			c.correct = strings.Join(words[max(0, h.from-3):h.to], " ")
		}
	case c.accept == "":
		c.accept = h.in(words)
	}
}

// takeWrong takes a word such as "wrong": a correction, or its opposite when it is negated.
func (c *cues) takeWrong(l *lexicon, words []string, head int, question bool) {
	h, ok := l.wrong.find(words, head)
	switch {
	case !ok || question || h.from > 14:
	case negated(l, words, h.from):
		if c.accept == "" {
			c.accept = strings.Join(words[max(0, h.from-2):h.to], " ")
		}
	case c.correct == "" && !isRequest(l, words, head, h.from):
		c.correct = h.in(words)
	}
}

// takeChange takes a change request, unless the sentence asks for a next step that changes nothing of this one.
func (c *cues) takeChange(l *lexicon, words []string, head, at int) {
	h, ok := l.change.find(words, head)
	if !ok || c.change != "" {
		return
	}
	if h.from == head && head < len(words) {
		_, moves := l.head(words)
		if moves && !l.adapt[words[head]] || moves && (words[head] == "add" || words[head] == "include" || words[head] == "use") {
			return
		}
	}
	if at == 0 && h.from > head+12 {
		return
	}
	c.change = h.in(words)
}

// mask blanks the idioms in words, so that their words mean nothing else; one that is negated stays. It returns the first one.
func mask(l *lexicon, words []string, idioms *phraseIndex) (masked []string, first string) {
	for {
		h, ok := idioms.find(words, 0)
		if !ok || h.from > 0 && l.negators[words[h.from-1]] {
			return words, first
		}
		if first == "" {
			first = h.in(words)
		}
		words = append([]string(nil), words...)
		for i := h.from; i < h.to; i++ {
			words[i] = "_"
		}
	}
}

// negated reports whether one of the three words before i negates it; "no" does only right before it ("no, that is good").
func negated(l *lexicon, words []string, i int) bool {
	from := max(0, i-3)
	for j, w := range words[from:i] {
		if l.negators[w] && (w != "no" || from+j == i-1) {
			return true
		}
	}
	return false
}

// isRequest reports whether a cue stands inside a new request ("write a test that fails ..."): after a verb at its head.
func isRequest(l *lexicon, words []string, head, cue int) bool {
	return head < len(words) && cue > head+1 && l.verbs[words[head]] && !l.adapt[words[head]]
}

// similarity is the share of content words that two texts have in common. It is not ok when there are too few, or when the numbers
// differ: the same question about other numbers is a new one.
func similarity(l *lexicon, a, b string) (share float64, ok bool) {
	if a == "" || b == "" {
		return 0, false
	}
	x, y := l.contentWords(a), l.contentWords(b)
	if min(len(x), len(y)) < sameWords {
		return 0, false
	}
	common, numbers := 0, true
	for w := range x {
		if y[w] {
			common++
		} else if isNumber(w) {
			numbers = false
		}
	}
	for w := range y {
		if !x[w] && isNumber(w) {
			numbers = false
		}
	}
	return float64(common) / float64(len(x)+len(y)-common), numbers
}

func isNumber(w string) bool { return w != "" && w[0] >= '0' && w[0] <= '9' }

// unrelated reports whether a request speaks of something else than the request and the response before it.
func unrelated(l *lexicon, text, request, response string) bool {
	x := l.contentWords(text)
	if len(x) < sameWords || request == "" {
		return false
	}
	for _, before := range []string{request, response} {
		y, common := l.contentWords(before), 0
		for w := range x {
			if y[w] {
				common++
			}
		}
		if float64(common) > newRequest*float64(len(x)) {
			return false
		}
	}
	return true
}
