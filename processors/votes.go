package processors

import (
	"regexp"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// boxed is a judge's score. ASCII digits only; the last match counts, valid or not (algorithm, section 2).
var boxed = regexp.MustCompile(`\\boxed\{([-+]?[0-9])\}`)

// ParseScore reads the score from a judge's words: -1, 0 or +1; nil when the last box holds anything else, or there is none.
func ParseScore(text string) *int32 {
	matches := boxed.FindAllStringSubmatch(text, -1)
	if len(matches) == 0 {
		return nil
	}
	var score int32
	switch matches[len(matches)-1][1] {
	case "1", "+1":
		score = 1
	case "0", "+0", "-0":
	case "-1":
		score = -1
	default:
		return nil
	}
	return &score
}

// Majority is the score that most valid votes have; a tie for the top, or no valid vote, gives 0.
func Majority(votes []*int32) int32 {
	var counts [3]int
	for _, v := range votes {
		if v != nil {
			counts[*v+1]++
		}
	}
	top, score, tied := 0, int32(0), false
	for i, n := range counts {
		switch {
		case n > top:
			top, score, tied = n, int32(i)-1, false //nolint:gosec // i is 0, 1 or 2
		case n == top:
			tied = true
		}
	}
	if tied {
		return 0
	}
	return score
}

// MeanVote is the mean of the +1 and -1 votes; 0 when there is none.
func MeanVote(votes []*int32) float64 {
	sum, n := 0, 0
	for _, v := range votes {
		if v != nil && *v != 0 {
			sum += int(*v)
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return float64(sum) / float64(n)
}

// clip shortens text to at most limit bytes by leaving out its middle, and says how much.
func clip(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const mark = "\n[... left out ...]\n"
	if limit <= 2*len(mark) {
		return strings.ToValidUTF8(text[:limit], "")
	}
	keep := limit - len(mark)
	head := keep * 2 / 3
	return strings.ToValidUTF8(text[:head], "") + mark + strings.ToValidUTF8(text[len(text)-(keep-head):], "")
}

// messageText is the readable text of a message: its text and refusal parts, one after the other.
func messageText(m *schemas.Message) string {
	parts := m.GetParts()
	if len(parts) == 1 {
		return partText(parts[0])
	}
	var b strings.Builder
	for _, p := range parts {
		if text := partText(p); text != "" {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(text)
		}
	}
	return b.String()
}

func partText(p *schemas.Part) string {
	switch c := p.GetContent().(type) {
	case *schemas.Part_Text:
		return c.Text
	case *schemas.Part_Refusal:
		return c.Refusal
	}
	return ""
}
