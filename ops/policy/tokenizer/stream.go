package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Stream puts the bytes of pieces together to whole characters. The zero value is ready; one goroutine at a time.
type Stream struct {
	held []byte // the beginning of a character: at most 3 bytes
}

// Add takes a piece's bytes and returns the text that is complete now. A byte that cannot belong to a character becomes U+FFFD; one that still may is held
// back.
func (s *Stream) Add(piece []byte) string {
	if len(s.held) == 0 && utf8.Valid(piece) {
		return string(piece)
	}
	b := append(s.held, piece...)
	whole := len(b) - partial(b)
	text := strings.ToValidUTF8(string(b[:whole]), "\uFFFD")
	s.held = append([]byte(nil), b[whole:]...)
	return text
}

// Flush returns what was held back, as U+FFFD: nothing more comes.
func (s *Stream) Flush() string {
	if len(s.held) == 0 {
		return ""
	}
	s.held = nil
	return "\uFFFD"
}

// partial is how many bytes at the end of b are the beginning of a character.
func partial(b []byte) int {
	for n := 1; n <= min(3, len(b)); n++ {
		if utf8.RuneStart(b[len(b)-n]) {
			if utf8.FullRune(b[len(b)-n:]) {
				return 0
			}
			return n
		}
	}
	return 0
}
