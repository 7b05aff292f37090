package importers

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// piEntry is one line of an OpenClaw or pi session, the header included.
type piEntry struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	ParentID  json.RawMessage `json:"parentId"`
	Timestamp string          `json:"timestamp"`
	Message   *piMessage      `json:"message"`
	Summary   string          `json:"summary"`

	// Of a compaction.
	FirstKeptEntryID    string `json:"firstKeptEntryId"`
	FirstKeptEntryIndex *int   `json:"firstKeptEntryIndex"`
	// Of a custom_message.
	Content json.RawMessage `json:"content"`
	// Of the header.
	Version       *int   `json:"version"`
	ParentSession string `json:"parentSession"`
	BranchedFrom  string `json:"branchedFrom"`

	message piMessage
	blocks  []piBlock
}

// piContent decodes content once, in its place. Its error waits until the role of the message is known.
type piContent struct {
	blocks []piBlock
	err    error
}

func (c *piContent) UnmarshalJSON(b []byte) error {
	c.blocks, c.err = piBlocks(b)
	return nil
}

type piMessage struct {
	Role       string     `json:"role"`
	Content    *piContent `json:"content"`
	Provider   string     `json:"provider"`
	Model      string     `json:"model"`
	ResponseID string     `json:"responseId"`
	StopReason string     `json:"stopReason"`
	Usage      *piUsage   `json:"usage"`
	Millis     float64    `json:"timestamp"`
	// Of a toolResult.
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName"`
	IsError    *bool  `json:"isError"`
	// Of a bashExecution.
	Command            string   `json:"command"`
	Output             string   `json:"output"`
	ExitCode           *float64 `json:"exitCode"`
	ExcludeFromContext bool     `json:"excludeFromContext"`
	// Of a branchSummary or compactionSummary.
	Summary string `json:"summary"`
}

type piUsage struct {
	Input      *float64 `json:"input"`
	Output     *float64 `json:"output"`
	CacheRead  *float64 `json:"cacheRead"`
	CacheWrite *float64 `json:"cacheWrite"`
	Cost       *struct {
		Total *float64 `json:"total"`
	} `json:"cost"`
}

type piBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Data      string          `json:"data"`
	MimeType  string          `json:"mimeType"`

	raw json.RawMessage
}

// piTypes are the types of entry that the reader knows.
var piTypes = map[string]bool{
	"message": true, "model_change": true, "thinking_level_change": true, "compaction": true, "branch_summary": true, "custom": true,
	"custom_message": true, "label": true, "session_info": true, "session": true,
}

// parsePi decodes a line. object says that it is a JSON object: v1 counts entries by those.
func parsePi(line []byte) (e piEntry, known, object bool, err error) {
	if len(line) == 0 || line[0] != '{' {
		if valid(line) {
			return e, true, false, errNoObject
		}
		return e, true, false, errors.New("not JSON")
	}
	err = decode(line, &e)
	var shape *json.UnmarshalTypeError
	if err != nil && !errors.As(err, &shape) {
		return e, true, false, fmt.Errorf("not JSON: %w", err)
	}
	if !piTypes[e.Type] {
		return e, false, true, nil
	}
	if err != nil {
		return e, true, true, fmt.Errorf("%s: %s is a %s, which it never is", e.Type, shape.Field, shape.Value)
	}
	switch e.Type {
	case "message":
		err = e.parseMessage()
	case "custom_message":
		e.blocks, err = piBlocks(e.Content)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", e.Type, err)
	}
	return e, true, true, err
}

func (e *piEntry) parseMessage() error {
	if e.Message == nil {
		return errors.New("message is missing")
	}
	e.message = *e.Message
	switch e.message.Role {
	case "":
		return errors.New("message has no role")
	case "user", "assistant", "toolResult", "custom", "hookMessage":
		if e.message.Content == nil {
			return errNoContent
		}
		e.blocks = e.message.Content.blocks
		return e.message.Content.err
	}
	return nil
}

// piBlocks decodes content: a string, or blocks.
func piBlocks(raw json.RawMessage) ([]piBlock, error) {
	return contentBlocks(raw, func(text string) piBlock { return piBlock{Type: "text", Text: text} }, piBlock.needsRaw,
		func(b *piBlock, raw json.RawMessage) { b.raw = raw })
}

// needsRaw reports whether a block may have to be kept as the JSON that it is.
func (b piBlock) needsRaw() bool {
	switch b.Type {
	case "text", "thinking", "toolCall", "image":
		return false
	}
	return true
}

// root reports whether the entry says that it has no parent. An entry of v1 does not say.
func (e *piEntry) root() bool { return string(e.ParentID) == "null" }

// parent is the id of the parent entry, "" for none.
func (e *piEntry) parent() string {
	var id string
	if len(e.ParentID) == 0 || decode(e.ParentID, &id) != nil {
		return "" // another shape than a string names no entry
	}
	return id
}

// time is when the entry was written, zero when it says nothing that can be read. That of an assistant message is the end of the call.
func (e *piEntry) time() time.Time {
	if t, err := time.Parse(time.RFC3339, e.Timestamp); err == nil {
		return t.UTC()
	}
	if ms := e.message.Millis; ms > 0 && ms < 1e14 {
		return time.UnixMilli(int64(ms)).UTC()
	}
	return time.Time{}
}

// kind is what an entry is to the conversation.
func (e *piEntry) kind() piKind {
	switch e.Type {
	case "compaction":
		return piCompaction
	case "branch_summary", "custom_message":
		return piContext
	case "message":
	default:
		return piSilent
	}
	switch e.message.Role {
	case "user":
		return e.userKind()
	case "assistant":
		switch {
		case e.message.Provider == "openclaw" && (e.message.Model == "delivery-mirror" || e.message.Model == "gateway-injected"):
			return piSilent // a copy of what was delivered, or a notice of the gateway
		case len(e.blocks) == 0:
			return piEmpty
		}
		return piAction
	case "toolResult":
		return piResult
	case "bashExecution":
		return piBash
	case "custom", "hookMessage", "branchSummary", "compactionSummary":
		return piContext
	}
	return piSilent
}

// userKind tells a person's words from prompts that OpenClaw writes by itself.
func (e *piEntry) userKind() piKind {
	_, words := piWords(e.text())
	words = strings.TrimSpace(words)
	switch {
	case strings.HasPrefix(words, "[cron:"), strings.HasPrefix(words, "Pre-compaction memory flush"),
		strings.HasPrefix(words, "Read HEARTBEAT.md"), strings.Contains(words, "reply HEARTBEAT_OK"):
		return piPrompt
	}
	return piReply
}

// text is the entry's text, for comparing.
func (e *piEntry) text() string {
	var b strings.Builder
	for _, block := range e.blocks {
		switch block.Type {
		case "text":
			b.WriteString(block.Text)
		case "image":
			b.WriteString(block.Data)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// piEnvelope is what OpenClaw writes before a user's words: who sent them, in fenced JSON, and the time in brackets.
var piEnvelope = regexp.MustCompile("\\A(?s:(?:[A-Z][^\\n]{0,80}\\(untrusted[^\\n)]{0,80}\\):\\n```json\\n.*?\\n```\\s*)*)" +
	`(?:\[[^\]\n]{0,200}\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}[^\]\n]{0,40}\] ?)?`)

// piWords splits a user's text into OpenClaw's prefix and the words.
func piWords(s string) (prefix, words string) {
	n := len(piEnvelope.FindString(s))
	return s[:n], s[n:]
}
