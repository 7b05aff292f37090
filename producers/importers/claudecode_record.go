package importers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// claudeRecord is one line of a Claude Code session.
type claudeRecord struct {
	Type              string          `json:"type"`
	Subtype           string          `json:"subtype"`
	UUID              string          `json:"uuid"`
	ParentUUID        string          `json:"parentUuid"`
	LogicalParentUUID string          `json:"logicalParentUuid"`
	SessionID         string          `json:"sessionId"`
	StreamSessionID   string          `json:"session_id"`
	ParentToolUseID   string          `json:"parent_tool_use_id"`
	AgentID           string          `json:"agentId"`
	Timestamp         string          `json:"timestamp"`
	Version           string          `json:"version"`
	Operation         string          `json:"operation"`
	IsSidechain       bool            `json:"isSidechain"`
	IsMeta            bool            `json:"isMeta"`
	IsCompactSummary  bool            `json:"isCompactSummary"`
	IsAPIError        bool            `json:"isApiErrorMessage"`
	Message           *claudeMessage  `json:"message"`
	Content           json.RawMessage `json:"content"`
	Attachment        json.RawMessage `json:"attachment"`
	ToolUseResult     json.RawMessage `json:"toolUseResult"`
	CompactMetadata   json.RawMessage `json:"compactMetadata"`

	message claudeMessage
	blocks  []claudeBlock
}

// claudeContent decodes content once, in its place. Its error waits until the type of the record is known: it is only an error in a type that
// the reader knows.
type claudeContent struct {
	blocks []claudeBlock
	err    error
	set    bool
}

func (c *claudeContent) UnmarshalJSON(b []byte) error {
	c.blocks, c.err = claudeBlocks(b)
	c.set = true
	return nil
}

type claudeMessage struct {
	ID         string        `json:"id"`
	Model      string        `json:"model"`
	Content    claudeContent `json:"content"`
	StopReason string        `json:"stop_reason"`
	Usage      *claudeUsage  `json:"usage"`
}

type claudeUsage struct {
	Input         *uint64 `json:"input_tokens"`
	CacheCreation *uint64 `json:"cache_creation_input_tokens"`
	CacheRead     *uint64 `json:"cache_read_input_tokens"`
	Output        *uint64 `json:"output_tokens"`
}

// claudeBlock is a content block of the Anthropic Messages API.
type claudeBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   *bool           `json:"is_error"`
	Source    *claudeSource   `json:"source"`

	raw json.RawMessage
}

type claudeSource struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type"`
	Data      string `json:"data"`
	URL       string `json:"url"`
}

// claudeLink is what a tool result says about the sub-agent that gave it: toolUseResult, when that is an object.
type claudeLink struct {
	AgentID string `json:"agentId"`
	RunID   string `json:"runId"`
}

// claudeTypes are the types of record that the reader knows. Those that are false hold nothing of a conversation, but may be links of its
// tree.
var claudeTypes = map[string]bool{
	"user": true, "assistant": true, "system": true, "attachment": true, "queue-operation": true,
	"summary": false, "progress": false, "file-history-snapshot": false, "result": false, "stream_event": false,
	"custom-title": false, "ai-title": false, "agent-name": false, "agent-color": false, "last-prompt": false, "permission-mode": false,
	"tag": false, "mode": false, "pr-link": false, "saved_hook_context": false,
}

var errNoObject = errors.New("not a JSON object")

// parseClaude decodes a line. known is false for a record of a type that the reader does not know: then only the links of the tree are
// decoded, if they can be.
func parseClaude(line []byte) (r claudeRecord, known bool, err error) {
	if len(line) == 0 || line[0] != '{' {
		if valid(line) {
			return r, true, errNoObject
		}
		return r, true, errors.New("not JSON")
	}
	err = decode(line, &r)
	var shape *json.UnmarshalTypeError
	if err != nil && !errors.As(err, &shape) {
		return r, true, fmt.Errorf("not JSON: %w", err)
	}
	if _, known = claudeTypes[r.Type]; !known {
		return r, false, nil
	}
	if err != nil && claudeTypes[r.Type] {
		return r, true, fmt.Errorf("%s: %s is a %s, which it never is", r.Type, shape.Field, shape.Value)
	}
	if r.SessionID == "" {
		r.SessionID = r.StreamSessionID
	}
	if r.Type == "user" || r.Type == "assistant" {
		if err := r.parseMessage(); err != nil {
			return r, true, fmt.Errorf("%s: %w", r.Type, err)
		}
	}
	if r.Type == "attachment" && r.steering() {
		r.blocks, err = claudeBlocks(r.prompt())
		if err != nil {
			return r, true, fmt.Errorf("queued_command: %w", err)
		}
	}
	if r.Type == "queue-operation" && len(r.Content) > 0 && string(r.Content) != "null" {
		r.blocks, err = claudeBlocks(r.Content)
		if err != nil {
			return r, true, fmt.Errorf("queue-operation: %w", err)
		}
	}
	return r, true, nil
}

func (r *claudeRecord) parseMessage() error {
	switch {
	case r.Message == nil:
		return errors.New("message is missing")
	case !r.Message.Content.set:
		return errNoContent
	}
	r.message, r.blocks = *r.Message, r.Message.Content.blocks
	return r.Message.Content.err
}

// claudeBlocks decodes content: a string, or blocks.
func claudeBlocks(raw json.RawMessage) ([]claudeBlock, error) {
	return contentBlocks(raw, func(text string) claudeBlock { return claudeBlock{Type: "text", Text: text} }, claudeBlock.needsRaw,
		func(b *claudeBlock, raw json.RawMessage) { b.raw = raw })
}

// needsRaw reports whether a block may have to be kept as the JSON that it is.
func (b claudeBlock) needsRaw() bool {
	switch b.Type {
	case "text", "thinking", "redacted_thinking", "tool_use", "tool_result":
		return false
	case "image":
		return b.Source == nil || b.Source.Type != "base64"
	}
	return true
}

// claudeAttachment is an attachment record's content, as far as it is a part of the conversation.
type claudeAttachment struct {
	Type   string          `json:"type"`
	Prompt json.RawMessage `json:"prompt"`
}

func (r *claudeRecord) attachment() claudeAttachment {
	var a claudeAttachment
	if decode(r.Attachment, &a) != nil {
		return claudeAttachment{} // attachments of other shapes are not steering
	}
	return a
}

// steering reports whether the record holds text that the user typed while the agent worked.
func (r *claudeRecord) steering() bool {
	a := r.attachment()
	return a.Type == "queued_command" && len(a.Prompt) > 0
}

func (r *claudeRecord) prompt() json.RawMessage { return r.attachment().Prompt }

// link is the sub-agent that the record's tool result came from.
func (r *claudeRecord) link() claudeLink {
	var l claudeLink
	if len(r.ToolUseResult) > 0 && r.ToolUseResult[0] == '{' && decode(r.ToolUseResult, &l) != nil {
		l = claudeLink{} // a result of another shape links to nothing
	}
	if l.AgentID == "" && !r.IsSidechain {
		l.AgentID = r.AgentID
	}
	return l
}

// preserved lists the records that a compaction kept in the context behind its summary.
func (r *claudeRecord) preserved() []string {
	var m struct {
		PreservedMessages struct {
			UUIDs []string `json:"uuids"`
		} `json:"preservedMessages"`
	}
	if len(r.CompactMetadata) == 0 || decode(r.CompactMetadata, &m) != nil {
		return nil // metadata of another shape keeps nothing that can be found
	}
	return m.PreservedMessages.UUIDs
}

// time is the record's time, zero when it has none that can be read.
func (r *claudeRecord) time() time.Time {
	t, err := time.Parse(time.RFC3339, r.Timestamp)
	if err != nil {
		return time.Time{} // absent, like one that is not there
	}
	return t.UTC()
}

// kind is what a record is to the conversation.
func (r *claudeRecord) kind() claudeKind {
	switch r.Type {
	case "assistant":
		if r.IsAPIError || r.message.Model == "<synthetic>" {
			return claudeSilent // the harness wrote it
		}
		return claudeAction
	case "system":
		if r.Subtype == "compact_boundary" {
			return claudeBoundary
		}
		return claudeSilent
	case "attachment":
		if r.steering() && r.typedText() != "" {
			return claudeSteering
		}
		return claudeSilent
	case "user":
		return r.userKind()
	default:
		return claudeSilent
	}
}

func (r *claudeRecord) userKind() claudeKind {
	if r.IsMeta || r.IsCompactSummary {
		return claudeContext
	}
	kind := claudeContext
	for _, b := range r.blocks {
		switch b.Type {
		case "tool_result":
			return claudeResult
		case "text":
			switch k, words := claudeText(b.Text); {
			case k == textTyped:
				kind = claudeReply
			case k == textInterrupt && kind == claudeContext:
				kind = claudeInterrupted
				if strings.Contains(words, "for tool use") {
					kind = claudeRefused
				}
			}
		default:
			kind = claudeReply
		}
	}
	return kind
}

// typedText is what a person typed in the record, for comparing.
func (r *claudeRecord) typedText() string {
	var typed []string
	for _, b := range r.blocks {
		if k, words := claudeText(b.Text); b.Type == "text" && k == textTyped {
			typed = append(typed, strings.TrimSpace(words))
		} else if b.Type == "image" {
			typed = append(typed, "[image]")
		}
	}
	return strings.Join(typed, "\n")
}

// compactJSON is JSON without its spaces; text that does not parse stays as it is.
func compactJSON(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return text(string(raw))
	}
	return text(b.String())
}
