package chat

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
)

// marker keeps text text. Before rendering, it puts a mark, a non-character that occurs nowhere in the conversation, into everything in a message that
// is a special token or may become one together with what stands beside it. After rendering the true special tokens are those without a mark.
type marker struct {
	mark string
	tok  *tokenizer.Tokenizer
	// edges are the proper prefixes and suffixes of special tokens.
	edges *edges
}

type edges struct {
	prefixes, suffixes map[string]bool
	texts              []string
	longest            int
}

// within says whether s is a part of a special token, as in "<|" + name + "|>".
func (e *edges) within(s string) bool {
	return len(s) < e.longest && slices.ContainsFunc(e.texts, func(text string) bool { return strings.Contains(text, s) })
}

func edgesOf(tok *tokenizer.Tokenizer) *edges {
	e := &edges{prefixes: map[string]bool{}, suffixes: map[string]bool{}}
	for _, s := range tok.Specials() {
		for i := range s.Text {
			if i > 0 {
				e.prefixes[s.Text[:i]], e.suffixes[s.Text[i:]] = true, true
			}
		}
		e.texts = append(e.texts, s.Text)
		e.longest = max(e.longest, len(s.Text))
	}
	return e
}

// nonCharacters never stand for text; Unicode keeps them for such uses.
func nonCharacters(yield func(string) bool) {
	for r := rune(0xFDD0); r <= 0xFDEF; r++ {
		if !yield(string(r)) {
			return
		}
	}
	for plane := rune(0); plane <= 16; plane++ {
		if !yield(string(plane<<16|0xFFFE)) || !yield(string(plane<<16|0xFFFF)) {
			return
		}
	}
}

// newMarker chooses a mark that none of the texts contains; ok is false when they contain every one.
func newMarker(tok *tokenizer.Tokenizer, e *edges, texts []string) (*marker, bool) {
next:
	for mark := range nonCharacters {
		for _, s := range texts {
			if strings.Contains(s, mark) {
				continue next
			}
		}
		return &marker{mark, tok, e}, true
	}
	return nil, false
}

// text marks what somebody wrote. In what the model itself wrote, its own tokens that are no control tokens (such as <think>) stay tokens.
func (m *marker) text(s string, by author) string {
	if s == "" {
		return s
	}
	var b strings.Builder
	rest := s
	for {
		at, special, ok := m.tok.NextSpecial(rest)
		if !ok {
			break
		}
		end := at + len(special.Text)
		if by == model && !special.Control {
			b.WriteString(rest[:end])
			rest = rest[end:]
			continue
		}
		// The search goes on inside of it: others may begin there.
		_, n := utf8.DecodeRuneInString(rest[at:])
		b.WriteString(rest[:at+n])
		b.WriteString(m.mark)
		rest = rest[at+n:]
	}
	b.WriteString(rest)
	return m.ends(b.String())
}

type author int

const (
	world author = iota
	model
)

// ends marks what may become a special token together with the text before or after it.
func (m *marker) ends(s string) string {
	if m.edges.within(s) {
		return m.mark + s + m.mark
	}
	for n := min(m.edges.longest, len(s)); n > 0; n-- {
		if m.edges.prefixes[s[len(s)-n:]] {
			s += m.mark
			break
		}
	}
	for n := min(m.edges.longest, len(s)); n > 0; n-- {
		if m.edges.suffixes[s[:n]] {
			return m.mark + s
		}
	}
	return s
}

// encode gives the ids of a rendered text.
func (m *marker) encode(rendered string) []uint32 {
	var ids []uint32
	for rendered != "" {
		at, special, ok := m.tok.NextSpecial(rendered)
		if !ok {
			at = len(rendered)
		}
		ids = append(ids, m.tok.Encode(m.clean(rendered[:at]))...)
		if ok {
			ids = append(ids, special.ID)
		}
		rendered = rendered[at+len(special.Text):]
	}
	return ids
}

func (m *marker) clean(s string) string { return strings.ReplaceAll(s, m.mark, "") }
