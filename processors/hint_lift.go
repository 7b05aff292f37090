package processors

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nextstate-rl/nextstate/schemas"
)

// hintRunesMax bounds a lifted hint, in code points: it is one to three sentences.
const hintRunesMax = 400

// hintFeedback: what a person wrote beside the rating, the correction first.
func hintFeedback(turn *schemas.TurnClosed) lifted {
	for i := len(turn.GetFeedback()) - 1; i >= 0; i-- {
		f := turn.GetFeedback()[i]
		if f.GetCorrection() != "" {
			return lifted{true, shorten("Answer along these lines: " + oneLine(f.GetCorrection())), "feedback: a correction was written"}
		}
		if f.GetText() == "" || f.Score != nil && f.GetScore() > 0 {
			continue
		}
		if hint, rule := liftReply(f.GetText()); hint != "" {
			return lifted{true, hint, "feedback: " + rule}
		}
	}
	return lifted{}
}

// hintReply: the correction in the user's reply. A reply that accepts holds none.
func hintReply(turn *schemas.TurnClosed) lifted {
	text := userReply(turn)
	if text == "" {
		return lifted{}
	}
	o := judgeReply(turn)
	switch {
	case !o.decided:
		return lifted{}
	case o.vote > 0:
		return lifted{true, "", "reply: " + o.rule}
	}
	if hint, rule := liftReply(text); hint != "" {
		return lifted{true, hint, "reply: " + rule}
	}
	return lifted{}
}

// lift is one way to turn a sentence of correction into an instruction. The first group of the pattern, if there is one, goes into form.
type lift struct {
	rule    string
	pattern *regexp.Regexp
	form    string
}

// opening are the words before the correction itself: "No, ", "Sorry, but could you please ".
const opening = `(?i)^(?:(?:no|nope|nah|not quite|wrong|sorry|but|and|so|well|hmm|wait|ok|okay|actually|please|thanks|thank you|great|good|nice|cool|perfect|awesome|just|now|then|also|hey|hi|yes|yeah|still|again|maybe)[,.!:;\s]+(?:-+\s*)?)*` +
	`(?:(?:can|could|would|will) you (?:please |maybe |just |also |kindly )*|(?:i'd|i would) like you to |i (?:want|need) you to |you (?:should|must|need to|have to) (?:have )?|please |let's |just |try to )*`

// lifts in order. What follows the pattern is cut at the end of the sentence.
var lifts = []lift{
	{"asked for", regexp.MustCompile(`(?i)\bi (?:specifically |explicitly |clearly |only |just )?(?:asked|wanted|needed|meant|was asking|was looking) (?:for |to have )?(?:you )?(to )?(.+)$`), "asked"},
	{"said", regexp.MustCompile(`(?i)\bi (?:specifically |explicitly |clearly |already )?(?:said|told you)(?: you)?(?: to)?[ :,]+(.+)$`), "Do as stated: %s"},
	{"forgot to", regexp.MustCompile(`(?i)\byou(?:'ve)? (?:forgot|forgotten|failed|neglected) to (.+)$`), "Remember to %s"},
	{"left out", regexp.MustCompile(`(?i)\byou(?:'ve)? (?:forgot|forgotten|missed|skipped|omitted|left out|overlooked|ignored)(?: about)? (.+)$`), "Do not leave out %s"},
	{"did not", regexp.MustCompile(`(?i)\byou (?:didn'?t|did not|don'?t|haven'?t|never) (?:even |actually )?(.+)$`), "didnot"},
	{"should", regexp.MustCompile(`(?i)\b((?:it|this|that|they|the [\w -]{1,40}?) (?:should|must|needs to|need to|has to|have to|is supposed to|was supposed to|shouldn'?t|should not|mustn'?t|must not) .+)$`), "Note that %s"},
	{"too", regexp.MustCompile(`(?i)\b(?:is|it's|its|that's|was|are|way|far|a bit|bit|much|^)\s*too (long|short|verbose|wordy|formal|informal|casual|complicated|complex|vague|generic|technical|simple|brief|dense|big|small|slow)\b`), "too"},
	{"too much", regexp.MustCompile(`(?i)\btoo (many|much) ([\w' -]{2,60})`), "toomuch"},
	{"missing", regexp.MustCompile(`(?i)\b(?:is|it's|are|still|you're)? ?missing (.{4,})$`), "Include %s"},
	{"not but", regexp.MustCompile(`(?i)\b((?:it's|its|it is|that's|the [\w -]{1,40}? is|the [\w -]{1,40}? are) [^,]+,? not .+)$`), "Note that %s"},
	{"not what is", regexp.MustCompile(`(?i)\b((?:it's|its|it is|that's|this is) not .+(?:, (?:it's|it is|but) | but ).+)$`), "Note that %s"},
}

// imperative is an instruction after the opening words: a verb of the table, or a plain "without ...", "in ...", "shorter".
var (
	openingWords = regexp.MustCompile(opening)
	manner       = regexp.MustCompile(`(?i)^(without|in|with|as|by|using|only|less|more|fewer)\b .{3,}`)
	comparative  = regexp.MustCompile(`(?i)^(?:a (?:bit|little) )?(shorter|longer|simpler|clearer|more \w+|less \w+|warmer|faster|smaller|bigger|tighter|friendlier|briefer)\b`)
	opposite     = map[string]string{
		"long": "Keep it shorter.", "verbose": "Keep it shorter.", "wordy": "Keep it shorter.", "short": "Make it longer and more detailed.",
		"brief": "Make it longer and more detailed.", "vague": "Be more specific.", "generic": "Be more specific.",
		"complicated": "Keep it simpler.", "complex": "Keep it simpler.", "simple": "Go into more depth.",
	}
)

// liftReply finds the first sentence of a reply's lead that states what to do, and puts it as an instruction.
func liftReply(text string) (hint, rule string) {
	r := parseReply(text, english)
	lead := r.lead()
	for _, s := range lead {
		text := s.text
		if at := contrastAt.FindStringIndex(text); at != nil {
			text = text[at[1]:] // "looks good, but ...": what follows is what was wrong
		}
		if hint, rule = liftSentence(text); hint != "" {
			break
		}
	}
	if hint == "" {
		hint, rule = liftStatement(lead)
	}
	if utf8.RuneCountInString(hint) <= hintRunesMin {
		return "", ""
	}
	return hint, rule
}

var contrastAt = regexp.MustCompile(`(?i)^.*?[,\s](?:but|however|except that|although|though)[,\s]+`)

func liftSentence(text string) (hint, rule string) {
	text = strings.TrimSpace(strings.ReplaceAll(oneLine(text), "’", "'"))
	if utf8.RuneCountInString(text) > hintRunesMax {
		return "", ""
	}
	rest := text[len(openingWords.FindString(text)):]
	verb, _, _ := strings.Cut(strings.ToLower(rest), " ")
	verb = strings.Trim(verb, ",.!?:;")
	switch {
	case verb == "don't" || verb == "dont" || strings.HasPrefix(strings.ToLower(rest), "do not "):
		return instruct(rest), "instruction"
	case english.verbs[verb] && strings.Contains(rest, " "):
		return instruct(rest), "instruction"
	case comparative.MatchString(rest):
		return instruct("make it " + comparative.FindStringSubmatch(rest)[1]), "comparative"
	}
	for _, l := range lifts {
		if m := l.pattern.FindStringSubmatch(text); m != nil {
			if hint := l.fill(m); hint != "" {
				return hint, l.rule
			}
		}
	}
	if manner.MatchString(rest) && len(rest) < len(text) {
		return instruct("do it " + lowerFirst(rest)), "manner"
	}
	return "", ""
}

// fill puts a match into the lift's form.
func (l lift) fill(m []string) string {
	last := tidy(m[len(m)-1])
	if len(last) < 2 {
		return ""
	}
	switch l.form {
	case "asked":
		if m[1] != "" {
			return instruct(last)
		}
		return instruct("provide " + last)
	case "didnot":
		verb, _, _ := strings.Cut(strings.ToLower(last), " ")
		if english.verbs[verb] || verb == "answer" || verb == "handle" {
			return instruct("remember to " + last)
		}
		return ""
	case "too":
		if hint, ok := opposite[strings.ToLower(last)]; ok {
			return hint
		}
		return instruct("make it less " + strings.ToLower(last))
	case "toomuch":
		if strings.EqualFold(m[1], "many") {
			return instruct("use fewer " + last)
		}
		return instruct("use less " + last)
	}
	return instruct(fmt.Sprintf(l.form, last))
}

// liftStatement is the last resort: after a plain "No." or "That's wrong" the user states how it is.
func liftStatement(lead []sentence) (hint, rule string) {
	if len(lead) == 0 {
		return "", ""
	}
	first := oneLine(lead[0].text)
	if m := plainNo.FindString(first); m != "" {
		if rest := tidy(first[len(m):]); len(strings.Fields(rest)) >= 3 && !strings.HasSuffix(first, "?") {
			return instruct("note that " + lowerFirst(rest)), "statement"
		}
		if len(lead) > 1 && !lead[1].question && len(lead[1].words) >= 4 && strings.TrimSpace(first[len(m):]) == "" {
			return instruct("note that " + lowerFirst(oneLine(lead[1].text))), "statement"
		}
	}
	return "", ""
}

var plainNo = regexp.MustCompile(`(?i)^(?:(?:no|nope|nah|sorry|but|well|hmm|wait|actually)[,.! ]+)*(?:(?:that's|that is|this is|it's|it is|you're|you are) (?:not (?:right|correct|true|quite right)|wrong|incorrect|mistaken|false|inaccurate)|(?:that|this|it) (?:isn't|is not|wasn't) (?:right|correct|true)|no|nope|wrong|incorrect|not quite|not true)\b[,.!:;\s-]*`)

// instruct makes a sentence of an instruction: capital letter, a comma before a final "not", one full stop.
func instruct(text string) string {
	text = tidy(text)
	if text == "" {
		return ""
	}
	text = notComma.ReplaceAllString(text, "$1, not $2")
	return shorten(upperFirst(text) + ".")
}

// notComma finds "use tabs not spaces".
var notComma = regexp.MustCompile(`(?i)^((?:use|write|return|print|give|provide|make it|put|say|call it|sort by|output|keep|show) [\w"'./ -]*[\w"'./-]) not (\S.*)$`)

// tidy cuts courtesies and punctuation at the end.
func tidy(text string) string {
	for {
		before := text
		text = strings.TrimRight(strings.TrimSpace(text), ".!?,;: …")
		text = courtesy.ReplaceAllString(text, "")
		if text == before {
			return text
		}
	}
}

var courtesy = regexp.MustCompile(`(?i)[,\s]+(?:please|thanks|thank you|thx|instead please|ok|okay|for me|would you|will you|could you|can you)$`)

func upperFirst(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[size:]
}

// lowerFirst lowers the capital letter that a sentence begins with, unless the word may be a name.
func lowerFirst(s string) string {
	word, _, _ := strings.Cut(s, " ")
	if lower := strings.ToLower(word); word != "I" && (english.stop[lower] || english.fillers[lower]) {
		return lower + s[len(word):]
	}
	return s
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func shorten(s string) string {
	if utf8.RuneCountInString(s) <= hintRunesMax {
		return s
	}
	runes := []rune(s)[:hintRunesMax-1]
	return strings.TrimSpace(string(runes)) + "…"
}
