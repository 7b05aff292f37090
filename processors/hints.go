package processors

import (
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	// hintRunesMin: a hint is accepted when it has more code points than this.
	hintRunesMin = 10
	// DefaultCandidates is the default of M, the most hints that are kept.
	DefaultCandidates = 3
	// hintHeading stands before a hint in the enhanced context.
	hintHeading = "[user's hint / instruction]"
)

var hintBlock = regexp.MustCompile(`(?s)\[HINT_START\](.*?)\[HINT_END\]`)

// ParseHint reads a hint judge's words: the decision (+1 or -1, nil when there is no valid one) and the last closed hint block, trimmed
// (algorithm, section 3).
func ParseHint(text string) (decision *int32, hint string) {
	decision = ParseScore(text)
	if decision != nil && *decision == 0 {
		decision = nil
	}
	if blocks := hintBlock.FindAllStringSubmatch(text, -1); len(blocks) > 0 {
		hint = strings.TrimSpace(blocks[len(blocks)-1][1])
	}
	return decision, hint
}

// Candidates accepts, deduplicates, orders (shortest first, ties in vote order) and caps the hints of votes.
func Candidates(votes []*schemas.HintVoteCast, limit int) []string {
	var out []string
	for _, v := range votes {
		hint := strings.TrimSpace(v.GetHint())
		if v.Decision == nil || v.GetDecision() != 1 || utf8.RuneCountInString(hint) <= hintRunesMin || slices.Contains(out, hint) {
			continue
		}
		out = append(out, hint)
	}
	slices.SortStableFunc(out, func(a, b string) int { return utf8.RuneCountInString(a) - utf8.RuneCountInString(b) })
	return out[:min(limit, len(out))]
}

// AppendHint returns the context with the hint in its last user message (else in its last message, else in a new one). The messages
// given are not changed.
func AppendHint(messages []*schemas.Message, hint string) []*schemas.Message {
	block := hintHeading + "\n" + strings.TrimSpace(hint)
	if len(messages) == 0 {
		return []*schemas.Message{textMessage(schemas.Role_ROLE_USER, block)}
	}
	at := len(messages) - 1
	for i, m := range messages {
		if m.GetRole() == schemas.Role_ROLE_USER {
			at = i // the last one stays
		}
	}
	out := slices.Clone(messages)
	changed := proto.Clone(messages[at]).(*schemas.Message)
	out[at] = changed
	appendText(changed, "\n\n"+block)
	return out
}

// appendText adds to the last text part and trims the message's text at both ends; other parts stay where they are.
func appendText(m *schemas.Message, text string) {
	last := -1
	for i, p := range m.Parts {
		if _, ok := p.GetContent().(*schemas.Part_Text); ok {
			last = i
		}
	}
	if last < 0 {
		m.Parts = append(m.Parts, &schemas.Part{Content: &schemas.Part_Text{Text: strings.TrimSpace(text)}})
		return
	}
	first := slices.IndexFunc(m.Parts, func(p *schemas.Part) bool { _, ok := p.GetContent().(*schemas.Part_Text); return ok })
	m.Parts[last] = &schemas.Part{Content: &schemas.Part_Text{Text: strings.TrimRight(m.Parts[last].GetText()+text, spaces)}}
	m.Parts[first] = &schemas.Part{Content: &schemas.Part_Text{Text: strings.TrimLeft(m.Parts[first].GetText(), spaces)}}
}

const spaces = " \t\r\n\v\f"

func textMessage(role schemas.Role, text string) *schemas.Message {
	return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}}
}
