package ops

// ParsePrompt reads one line of --rehearse-prompts.
var ParsePrompt = parsePrompt
