package importers

import (
	"regexp"
	"strings"
)

// textKind says who wrote a text of a Claude Code user record.
type textKind uint8

const (
	textTyped     textKind = iota // a person
	textHarness                   // the harness: no reply
	textInterrupt                 // a person pressed the key that stops the agent
)

// claudeHarnessTags are the elements that the harness writes into user records: slash commands and their output, commands that the user ran
// in the shell, notices, and what an editor adds. A record of these alone is no reply.
var claudeHarnessTags = map[string]bool{
	"command-name": true, "command-message": true, "command-args": true, "command-contents": true,
	"local-command-stdout": true, "local-command-stderr": true, "local-command-caveat": true,
	"bash-input": true, "bash-stdout": true, "bash-stderr": true,
	"task-notification": true, "system-reminder": true, "user-prompt-submit-hook": true,
	"ide_opened_file": true, "ide_selection": true, "ide_diagnostics": true,
}

const (
	claudeCaveat    = "Caveat: The messages below"
	claudeInterrupt = "[Request interrupted by user"
)

var claudeReminder = regexp.MustCompile(`(?s)[ \t]*<system-reminder>.*?</system-reminder>[ \t]*\n?`)

// claudeText says who wrote a text, and what of it a person typed.
func claudeText(s string) (textKind, string) {
	typed := s
	if strings.Contains(s, "<system-reminder>") {
		typed = claudeReminder.ReplaceAllString(s, "")
	}
	trimmed := strings.TrimSpace(typed)
	switch {
	case trimmed == "" || strings.HasPrefix(trimmed, claudeCaveat) || onlyElements(trimmed):
		return textHarness, ""
	case strings.HasPrefix(trimmed, claudeInterrupt):
		return textInterrupt, trimmed
	case len(typed) != len(s):
		return textTyped, trimmed
	}
	return textTyped, s
}

// onlyElements reports whether a text is nothing but elements of the harness.
func onlyElements(s string) bool {
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(s, "<"), ">")
		if !ok || s[0] != '<' || !claudeHarnessTags[name] {
			return false
		}
		_, after, closed := strings.Cut(rest, "</"+name+">")
		if !closed {
			return false
		}
		s = after
	}
	return true
}
