package ops

// ParsePrompt reads one line of --rehearse-prompts, and GuardReply is the guard of a rehearsal.
var (
	ParsePrompt = parsePrompt
	GuardReply  = guardReply
)
