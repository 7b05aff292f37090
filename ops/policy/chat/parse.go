package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Parser takes tool calls out of a response as it comes. One goroutine at a time.
type Parser struct {
	salt  []byte
	held  string // the beginning of what may be a call
	seen  int    // bytes of held in which no end of a call is
	calls int
	after bool // a call was the last thing: white space between calls is no text
}

// NewParser makes a Parser. The ids of its calls follow from salt (which should differ from turn to turn), the call's place and its text.
func NewParser(salt []byte) *Parser { return &Parser{salt: salt} }

// Add takes more of the response, and returns the text that is visible now and the calls that are complete. What is malformed is text.
func (p *Parser) Add(text string) (visible string, calls []*schemas.ToolCall) {
	p.held += text
	var b strings.Builder
	for {
		start := strings.Index(p.held, callStart)
		if start < 0 {
			keep := len(p.held) - Overlap(p.held, callStart)
			p.show(&b, p.held[:keep])
			p.held = p.held[keep:]
			return b.String(), calls
		}
		from := max(start, p.seen-len(callEnd))
		end := strings.Index(p.held[from:], callEnd)
		if end < 0 {
			p.show(&b, p.held[:start])
			p.held = p.held[start:]
			p.seen = len(p.held)
			return b.String(), calls
		}
		end += from - start
		p.seen = 0
		whole := start + end + len(callEnd)
		if c := p.call(p.held[start+len(callStart) : start+end]); c != nil {
			p.show(&b, p.held[:start])
			calls, p.after = append(calls, c), true
		} else {
			p.show(&b, p.held[:whole])
		}
		p.held = p.held[whole:]
	}
}

// Flush ends the response: what was held back is a call that lacks its last tag, or text.
func (p *Parser) Flush() (visible string, calls []*schemas.ToolCall) {
	rest := p.held
	p.held = ""
	if body, ok := strings.CutPrefix(rest, callStart); ok {
		if c := p.call(body); c != nil {
			return "", []*schemas.ToolCall{c}
		}
	}
	var b strings.Builder
	p.show(&b, rest)
	return b.String(), nil
}

// show adds text, but for the white space after a call.
func (p *Parser) show(b *strings.Builder, text string) {
	if p.after {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	if text != "" {
		p.after = false
		b.WriteString(text)
	}
}

// call reads a call's JSON; nil when it is none.
func (p *Parser) call(body string) *schemas.ToolCall {
	var c struct {
		Name       *string         `json:"name"`
		Arguments  json.RawMessage `json:"arguments"`
		Parameters json.RawMessage `json:"parameters"` // as some models call them
	}
	if err := json.Unmarshal([]byte(body), &c); err != nil || c.Name == nil || *c.Name == "" {
		return nil
	}
	raw := c.Arguments
	if raw == nil {
		raw = c.Parameters
	}
	arguments := string(raw)
	var text string
	switch {
	case raw == nil || arguments == "null":
		arguments = "{}"
	case json.Unmarshal(raw, &text) == nil: // JSON in a JSON text
		arguments = text
	}
	sum := sha256.Sum256(fmt.Appendf(p.salt[:len(p.salt):len(p.salt)], "\x00%d\x00%s\x00%s", p.calls, *c.Name, arguments))
	p.calls++
	return &schemas.ToolCall{Id: "call_" + hex.EncodeToString(sum[:12]), Name: *c.Name, Arguments: arguments}
}

// IsCallTag says whether a token's text is what Parser looks for.
func IsCallTag(text string) bool { return text == callStart || text == callEnd }

// Overlap is how many bytes at the end of text are the beginning of what, but not all of it.
func Overlap(text, what string) int {
	for n := min(len(text), len(what)-1); n > 0; n-- {
		if strings.HasSuffix(text, what[:n]) {
			return n
		}
	}
	return 0
}
