package sessions

// Rule recognises a side turn: a call that an agent makes for itself (a title, a summary), recorded and never trained. All conditions that are
// set must hold.
type Rule struct {
	// Name is recorded with the turn (attribute "side_rule").
	Name string `json:"name"`
	// System is a regular expression (RE2) for the first system or developer message, User for the last user message: the first 4 KiB of their text.
	System string `json:"system"`
	User   string `json:"user"`
	// MaxTokens: the request bounds its response, to at most this many tokens. 0: no condition.
	MaxTokens int `json:"max_tokens"`
}
