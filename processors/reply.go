package processors

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// sentence is one sentence of a reply: its own words, and the same in a form that phrases are written in.
type sentence struct {
	text     string
	words    []string
	question bool
}

const (
	// leadSentences and leadWords bound what of a reply can speak about the turn before: a long new request mentions everything later.
	leadSentences = 3
	leadWords     = 40
	// longReply is the number of words from which only the first sentence can speak about the turn before.
	longReply = 120
	// replyBytes bounds what of a reply is looked at.
	replyBytes = 4000
)

var (
	codeBlock = regexp.MustCompile("(?s)```.*?(```|$)")
	inline    = regexp.MustCompile("`[^`\n]*`")
	quoted    = regexp.MustCompile(`"[^"\n]{12,}"|“[^”\n]{12,}”|(?m)^\s*>.*$`)
)

// reply is a user's message, cut into sentences, without what the user only quotes: code blocks and quotations.
type reply struct {
	sentences []sentence
	words     int
	// code is whether the reply holds a code block.
	code bool
}

func parseReply(text string, table *lexicon) reply {
	if len(text) > replyBytes {
		text = strings.ToValidUTF8(text[:replyBytes], "")
	}
	r := reply{code: strings.Contains(text, "```")}
	if r.code {
		text = codeBlock.ReplaceAllString(text, "\n")
	}
	if strings.ContainsRune(text, '`') {
		text = inline.ReplaceAllStringFunc(text, func(s string) string { return strings.ReplaceAll(s, "`", "") })
	}
	if strings.ContainsAny(text, "\">“") {
		text = quoted.ReplaceAllString(text, " … ")
	}
	for _, s := range splitSentences(text) {
		if r.words > longReply {
			break // only the first sentence counts
		}
		words := table.words(s.text)
		if len(words) == 0 {
			continue
		}
		s.words = words
		r.sentences = append(r.sentences, s)
		r.words += len(words)
	}
	return r
}

// lead is what of the reply can speak about the turn before.
func (r reply) lead() []sentence {
	if r.words > longReply {
		return r.sentences[:1]
	}
	words := 0
	for i, s := range r.sentences {
		words += len(s.words)
		if i == leadSentences-1 || words >= leadWords {
			return r.sentences[:i+1]
		}
	}
	return r.sentences
}

// splitSentences cuts at line ends and at . ! ? ; before a space: "file.py" and "3.5" stay whole.
func splitSentences(text string) []sentence {
	var out []sentence
	start := 0
	add := func(end int, question bool) {
		if s := strings.TrimSpace(text[start:end]); s != "" {
			out = append(out, sentence{text: s, question: question})
		}
		start = end
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\n':
			add(i, false)
		case '.', '!', '?', ';':
			if i+1 == len(text) || text[i+1] == ' ' || text[i+1] == '\n' || text[i+1] == '\t' {
				add(i+1, c == '?')
			}
		}
	}
	add(len(text), false)
	return out
}

// words brings text into the form of the phrases: lower case, plain apostrophes, no punctuation, usual contractions.
func (l *lexicon) words(text string) []string {
	out := make([]string, 0, 16)
	for at := 0; at < len(text) && len(out) < leadWords*4; {
		r, size := rune(text[at]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(text[at:])
			if word, ok := l.symbols[r]; ok {
				out = append(out, word)
				at += size
				continue
			}
		}
		if !isWordRune(r) {
			at += size
			continue
		}
		end := wordEnd(text, at)
		word := strings.Trim(strings.ToLower(text[at:end]), "'’-_./:#+")
		at = end
		if word != "" {
			out = l.add(out, word)
		}
	}
	return out
}

// add appends a word in its usual spelling, joined with the word before it if the two have a contraction.
func (l *lexicon) add(words []string, word string) []string {
	if strings.Contains(word, "’") {
		word = strings.ReplaceAll(word, "’", "'")
	}
	if same, ok := l.spellings[word]; ok {
		word = same
	}
	if n := len(words); n > 0 {
		if joined, ok := l.joins[[2]string{words[n-1], word}]; ok {
			words[n-1] = joined
			return words
		}
	}
	return append(words, word)
}

// wordEnd is where the word at text[at:] ends.
func wordEnd(text string, at int) int {
	for at < len(text) {
		r, size := rune(text[at]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(text[at:])
		}
		if !isWordRune(r) {
			return at
		}
		at += size
	}
	return at
}

func isWordRune(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return true
	case r < utf8.RuneSelf:
		return r == '\'' || r >= '-' && r <= '/' || r == '_' || r == ':' || r == '#' || r == '+'
	}
	return r == '’' || unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.Is(unicode.Mn, r)
}

// phrase is a sequence of words. "*" stands for any one word, "*er" for any word with that end, "a|b" for either; ^ at the front: only at
// the head of a sentence (or among the words of politeness before it), $ at the end: only at the end of one.
type phrase struct {
	text  string
	words [][]string
	head  bool
	tail  bool
}

func parsePhrases(lines string) []phrase {
	var out []phrase
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		p := phrase{text: line}
		rest, head := strings.CutPrefix(line, "^")
		rest, tail := strings.CutSuffix(rest, "$")
		p.head, p.tail = head, tail
		for _, w := range strings.Fields(rest) {
			p.words = append(p.words, strings.Split(w, "|"))
		}
		out = append(out, p)
	}
	return out
}

// at reports whether the phrase stands at words[i:].
func (p *phrase) at(words []string, i int) bool {
	if i+len(p.words) > len(words) || p.tail && i+len(p.words) != len(words) {
		return false
	}
	for j, any := range p.words {
		if !matchesWord(any, words[i+j]) {
			return false
		}
	}
	return true
}

func matchesWord(alternatives []string, word string) bool {
	for _, a := range alternatives {
		if a == word || a == "*" {
			return true
		}
		if suffix, ok := strings.CutPrefix(a, "*"); ok && len(word) > len(suffix)+1 && strings.HasSuffix(word, suffix) {
			return true
		}
	}
	return false
}

// phraseIndex finds phrases fast: by their first word.
type phraseIndex struct {
	byFirst map[string][]phrase
	others  []phrase // the first word is open
}

func index(lines string) phraseIndex {
	x := phraseIndex{byFirst: map[string][]phrase{}}
	for _, p := range parsePhrases(lines) {
		open := false
		for _, first := range p.words[0] {
			open = open || strings.HasPrefix(first, "*")
		}
		if open {
			x.others = append(x.others, p)
			continue
		}
		for _, first := range p.words[0] {
			x.byFirst[first] = append(x.byFirst[first], p)
		}
	}
	return x
}

// hit is a phrase that was found.
type hit struct {
	phrase *phrase
	from   int
	to     int
}

// in gives the words that were matched.
func (h hit) in(words []string) string { return strings.Join(words[h.from:h.to], " ") }

// find returns the first phrase in words; head is where the sentence's head is.
func (x *phraseIndex) find(words []string, head int) (hit, bool) {
	for i, w := range words {
		for _, list := range [2][]phrase{x.byFirst[w], x.others} {
			for k := range list {
				p := &list[k]
				if p.head && i > head {
					continue
				}
				if p.at(words, i) {
					return hit{p, i, i + len(p.words)}, true
				}
			}
		}
	}
	return hit{}, false
}

// head is the index of the first word that is not politeness or filler. moves is whether one of those words opens a next step.
func (l *lexicon) head(words []string) (at int, moves bool) {
	for at < len(words) && l.fillers[words[at]] {
		moves = moves || l.steps[words[at]]
		at++
	}
	return at, moves
}

// contentWords are the words that carry the meaning, with plain endings cut, each once.
func (l *lexicon) contentWords(text string) map[string]bool {
	out := map[string]bool{}
	if len(text) > replyBytes {
		text = strings.ToValidUTF8(text[:replyBytes], "")
	}
	for _, w := range l.words(text) {
		if !l.fillers[w] && !l.stop[w] {
			out[l.stem(w)] = true
		}
	}
	return out
}

func (l *lexicon) stem(w string) string {
	for _, end := range l.endings {
		if len(w) > len(end)+3 && strings.HasSuffix(w, end) {
			return w[:len(w)-len(end)]
		}
	}
	return w
}
