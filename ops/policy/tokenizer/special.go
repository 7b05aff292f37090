package tokenizer

import (
	"cmp"
	"slices"
	"strings"
)

// Special is a token that does not come from merging text.
type Special struct {
	ID   uint32
	Text string
	// Control tokens have a meaning to the model (turns, end); the others (such as <think>) are text that the vocabulary writes with one token.
	Control bool
}

// NextSpecial finds the first special token that is written in text, the longest where several begin there.
func (t *Tokenizer) NextSpecial(text string) (at int, s Special, ok bool) {
	return t.special.next(text)
}

// Special is the id of the special token that is written like this.
func (t *Tokenizer) Special(text string) (uint32, bool) {
	s, ok := t.special.byText[text]
	return s.ID, ok
}

// IsSpecial says whether an id is a special token.
func (t *Tokenizer) IsSpecial(id uint32) bool {
	_, ok := t.special.byID[id]
	return ok
}

// IsControl says whether an id is a special token that is no text.
func (t *Tokenizer) IsControl(id uint32) bool { return t.special.byID[id].Control }

// Specials are all special tokens by id.
func (t *Tokenizer) Specials() []Special {
	list := make([]Special, 0, len(t.special.byID))
	for _, s := range t.special.byID {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Special) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// specials finds texts in a text. A text costs one look at each byte, and comparisons only where a token may begin.
type specials struct {
	first  [256][]Special // by first byte, the longest first
	byText map[string]Special
	byID   map[uint32]Special
	starts string // the first bytes that occur, when they are ASCII and few
}

func (l *specials) add(s Special) {
	if l.byText == nil {
		l.byText, l.byID = map[string]Special{}, map[uint32]Special{}
	}
	l.byID[s.ID] = s
	if _, twice := l.byText[s.Text]; twice {
		return // the first one counts
	}
	l.byText[s.Text] = s
	l.first[s.Text[0]] = append(l.first[s.Text[0]], s)
}

func (l *specials) sort() {
	var b []byte
	for i, list := range l.first {
		slices.SortFunc(list, func(a, b Special) int { return cmp.Compare(len(b.Text), len(a.Text)) })
		if len(list) > 0 {
			b = append(b, byte(i))
		}
	}
	l.starts = string(b)
}

func (l *specials) next(text string) (int, Special, bool) {
	at := 0
	for {
		switch n := len(l.starts); n {
		case 0:
			return 0, Special{}, false
		case 1:
			i := strings.IndexByte(text[at:], l.starts[0])
			if i < 0 {
				return 0, Special{}, false
			}
			at += i
		default:
			for at < len(text) && l.first[text[at]] == nil {
				at++
			}
		}
		if at >= len(text) {
			return 0, Special{}, false
		}
		for _, s := range l.first[text[at]] {
			if strings.HasPrefix(text[at:], s.Text) {
				return at, s, true
			}
		}
		at++
	}
}
