package sessions

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Rule recognises a side turn: a call that an agent makes for itself (a title, a summary), recorded and never trained. All conditions that are
// set must hold.
type Rule struct {
	// Name is recorded with the turn (attribute "side_rule").
	Name string `json:"name"`
	// System is a regular expression (RE2) for the first message when it is a system or developer message, User for the last user message. They
	// see the first KiB of the text, space around it trimmed.
	System string `json:"system"`
	User   string `json:"user"`
	// Word, in lower case, must occur where System and User look, in any case. It costs far less than a pattern and is looked for first.
	Word string `json:"word"`
	// MaxTokens: the request bounds its response, to at most this many tokens. 0: no condition.
	MaxTokens int `json:"max_tokens"`
}

// DefaultRules is the table of what known agents ask for themselves. A new one is one line here.
func DefaultRules() []Rule { return slices.Clone(defaultRules) }

var defaultRules = []Rule{
	// Chat applications: Open WebUI, LibreChat, LobeChat and the like.
	{Name: "open-webui task", Word: "### task:", User: `(?i)^### task:\s+(generate|suggest|analy[sz]e|you are an autocompletion|reflect)`},
	{Name: "title", Word: "title", User: `(?i)^(please )?(provide|generate|create|write|suggest|come up with) (me )?(a|an|the|one) ([\w-]+,? ){0,6}title (for|of|summari[sz]ing|that summari[sz]es) (the|this|our|a) ([\w-]+ )?(conversation|chat|dialog(ue)?|thread|session)\b`},
	{Name: "title system", Word: "title", System: `(?i)(\btitle generator\b|^[^.\n]{0,80}\b(generate|create|write|summari[sz]e)\b[^.\n]{0,80}\b(short|concise|brief|\d+[- ]?(word|character))\b[^.\n]{0,40}\btitles?\b)`},
	{Name: "follow-ups", Word: "follow", User: `(?i)^(please )?(suggest|generate|provide|propose) ([\w-]+ ){0,5}follow-?up (questions?|prompts?|suggestions?)`},
	{Name: "tags", Word: "tags", User: `(?i)^(please )?generate ([\w-]+ ){0,4}tags\b[^\n]{0,80}\b(chat|conversation|history)\b`},
	{Name: "search query", Word: "standalone", System: `(?i)\b(rephrase|rewrite|turn)\b[^.\n]{0,80}\b(question|conversation|chat history)\b[^.\n]{0,80}\bstandalone\b`},
	// Coding agents: Claude Code, opencode and the like.
	{Name: "topic detection", Word: "new conversation topic", System: `(?i)\banaly[sz]e (if|whether) this message (indicates|starts|begins) a new conversation topic\b`},
	{Name: "coding title", Word: "conversation", User: `(?i)^(please )?(summari[sz]e|write a (\d+-\d+ word|short) title for) (this|the) (coding )?conversation\b[^\n]{0,40}(\bunder \d+ (words|characters)|\btitle\b)`},
	{Name: "command prefix", Word: "your task is to", System: `(?i)\byour task is to (process|classify|extract)[^.\n]{0,80}\b(bash|shell) commands?\b`},
	{Name: "suggestion mode", Word: "[suggestion mode", User: `^\[SUGGESTION MODE\b`},
	{Name: "quota probe", User: `(?i)^(quota|ping|test)$`, MaxTokens: 1},
	// Summaries and memory.
	{Name: "summary", Word: "summary of", User: `(?i)^(please |your task is to )?(create|write|provide|produce) (me )?(a|an) (detailed|concise|brief|short|structured|comprehensive) summary of (the|this|our) (conversation|chat|session|dialog(ue)?)\b`},
	{Name: "summary system", Word: "tasked with summarizing conversations", System: `(?i)^you are `},
	{Name: "running summary", Word: "progressively summarize", User: `(?i)^progressively summarize\b`},
	{Name: "memory", Word: "memor", User: `(?i)^(pre-compaction memory flush\b|(please )?(extract|store|update|save) ([\w-]+ ){0,4}(memories|memory)\b[^\n]{0,80}\b(conversation|session|chat)\b)`},
	{Name: "memory system", Word: "memor", System: `(?i)^[^.\n]{0,80}\b(memory (extractor|extraction|summari[sz]er)|extract ([\w-]+ ){0,4}memories from (the|this|a) conversation)\b`},
	// Agents that wake up by themselves: OpenClaw and the like.
	{Name: "heartbeat", Word: "heartbeat", User: `(?i)(^read heartbeat\.md\b|\bheartbeat_ok\b)`},
	{Name: "slug", Word: "slug", User: `(?i)^(based on (this|the) conversation, )?generate a short [^\n]{0,30}\bslug\b`},
}

// maxRules is the number of bits of known.system.
const maxRules = 64

// headBytes is how much of a text the patterns see.
const headBytes = 1 << 10

// ruleSet is a compiled table. Immutable.
type ruleSet struct {
	rules        []Rule
	system, user []*regexp.Regexp // nil where a rule has no such condition
}

func compileRules(cfg Config) (ruleSet, error) {
	var set ruleSet
	for _, name := range cfg.WithoutRules {
		if !slices.ContainsFunc(defaultRules, func(r Rule) bool { return r.Name == name }) {
			return set, fmt.Errorf("sessions: without_rules: %q is no rule of the table", name)
		}
	}
	for _, r := range append(DefaultRules(), cfg.Rules...) {
		if slices.Contains(cfg.WithoutRules, r.Name) {
			continue
		}
		if r.Name == "" || r.System == "" && r.User == "" && r.MaxTokens == 0 {
			return set, fmt.Errorf("sessions: rule %q: a name and at least one of system, user and max_tokens are needed", r.Name)
		}
		if r.Word != strings.ToLower(r.Word) {
			return set, fmt.Errorf("sessions: rule %q: word %q must be in lower case", r.Name, r.Word)
		}
		system, err := compilePattern(r.System)
		if err != nil {
			return set, fmt.Errorf("sessions: rule %q: system: %w", r.Name, err)
		}
		user, err := compilePattern(r.User)
		if err != nil {
			return set, fmt.Errorf("sessions: rule %q: user: %w", r.Name, err)
		}
		set.rules = append(set.rules, r)
		set.system, set.user = append(set.system, system), append(set.user, user)
	}
	if len(set.rules) > maxRules {
		return set, fmt.Errorf("sessions: %d rules for side turns, at most %d are allowed: leave some of the table out with without_rules", len(set.rules), maxRules)
	}
	return set, nil
}

func compilePattern(text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no condition is a valid pattern
	}
	return regexp.Compile(text)
}

// marks says which rules' patterns a message matches; done once for each new message.
func (s *ruleSet) marks(m *schemas.Message) (system, user uint64) {
	switch m.GetRole() {
	case schemas.Role_ROLE_SYSTEM, schemas.Role_ROLE_DEVELOPER:
		return s.marked(s.system, m), 0
	case schemas.Role_ROLE_USER:
		return 0, s.marked(s.user, m)
	default:
		return 0, 0
	}
}

func (s *ruleSet) marked(patterns []*regexp.Regexp, m *schemas.Message) (marks uint64) {
	text := strings.TrimSpace(plainText(m))
	text = text[:min(len(text), headBytes)]
	lower := strings.ToLower(text)
	for i, p := range patterns {
		if p != nil && strings.Contains(lower, s.rules[i].Word) && p.MatchString(text) {
			marks |= 1 << i
		}
	}
	return marks
}

// side returns the name of the first rule that holds for a request, or "".
func (s *ruleSet) side(c *conversation) string {
	for i := range s.rules {
		r := &s.rules[i]
		if s.system[i] != nil && c.system>>i&1 == 0 || s.user[i] != nil && c.user>>i&1 == 0 {
			continue
		}
		if r.MaxTokens == 0 || c.r.MaxTokens > 0 && c.r.MaxTokens <= r.MaxTokens {
			return r.Name
		}
	}
	return ""
}
