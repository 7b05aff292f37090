package importers

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// openAIConversation is one list of messages being read: each assistant message is an action, what follows it is its next state.
type openAIConversation struct {
	out   *Emitter
	s     *Session
	model string
	// ended: the record is the whole session.
	ended bool

	count   int        // messages read
	prefix  prefixHash // of them
	first   prefixHash // of the first one
	turn    Turn
	record  string
	pending []*schemas.Observation
}

func newOpenAIConversation(out *Emitter, id string) *openAIConversation {
	return &openAIConversation{out: out, s: out.Session(id)}
}

// repeatedBy: the messages begin with those of this conversation, and go on.
func (c *openAIConversation) repeatedBy(messages []chatMessage) bool {
	if c.count == 0 || len(messages) <= c.count {
		return false
	}
	var h prefixHash
	for i := range c.count {
		if h = h.with(&messages[i]); i == 0 && h != c.first {
			return false
		}
	}
	return h == c.prefix
}

// context adds a message that is no action even where it is an assistant's.
func (c *openAIConversation) context(ctx context.Context, m *chatMessage) error {
	message, err := c.out.chat(ctx, m)
	if err != nil {
		return c.wrong(err)
	}
	c.s.See(message)
	c.note(m)
	return nil
}

func (c *openAIConversation) add(ctx context.Context, m *chatMessage) error {
	message, err := c.out.chat(ctx, m)
	if err != nil {
		return c.wrong(err)
	}
	c.note(m)
	if message.GetRole() == schemas.Role_ROLE_ASSISTANT {
		return c.action(ctx, m, message)
	}
	c.s.See(message)
	if o := observed(message); o != nil && c.turn.ID != "" {
		c.pending = append(c.pending, o)
	}
	return nil
}

func (c *openAIConversation) note(m *chatMessage) {
	if c.count, c.prefix = c.count+1, c.prefix.with(m); c.count == 1 {
		c.first = c.prefix
	}
}

// wrong: the content was of the wrong shape, unless the blob store failed.
func (c *openAIConversation) wrong(err error) error {
	if strings.HasPrefix(err.Error(), "blob store") || c.out.src.failed != nil {
		return err
	}
	return &shapeError{err}
}

func isShapeError(err error) bool {
	var shape *shapeError
	return errors.As(err, &shape)
}

func (c *openAIConversation) action(ctx context.Context, m *chatMessage, message *schemas.Message) error {
	if err := c.flush(ctx); err != nil {
		return err
	}
	a := &schemas.ActionTaken{Response: message, Model: c.model}
	if m.Weight != nil && *m.Weight == 0 {
		a.UntrainableReason = optional("weight 0")
	}
	c.record = fmt.Sprintf("message-%d-%x", c.count, c.prefix[:6]) // the content too: an explicit session id may be used twice
	turn, err := c.s.Action(ctx, c.record, time.Time{}, a)
	c.turn = turn
	return err
}

func (c *openAIConversation) flush(ctx context.Context) error {
	obs := c.pending
	c.pending = nil
	return c.s.NextState(ctx, c.record, time.Time{}, c.turn, obs...)
}

func (c *openAIConversation) close(ctx context.Context) error {
	if err := c.flush(ctx); err != nil {
		return err
	}
	if c.ended {
		if err := c.s.End(ctx, time.Time{}, "transcript complete"); err != nil {
			return err
		}
	}
	return c.s.Done(ctx)
}

// prefixHash identifies a list of messages by role, text, call names and arguments; null and absent are the same.
type prefixHash [16]byte

func (h prefixHash) with(m *chatMessage) prefixHash {
	role, _ := chatRole(m.Role)
	sum := sha256.New()
	sum.Write(h[:])
	write := func(s string) { fmt.Fprintf(sum, "%d:%s", len(s), s) } // a hash takes every write
	write(role.String())
	write(contentText(m.Content))
	if f := m.FunctionCall; f != nil {
		write(f.Name)
		write(canonicalJSON(arguments(f.Arguments)))
	}
	for _, c := range m.ToolCalls {
		call := c.call()
		write(call.GetName())
		write(canonicalJSON(call.GetArguments()))
	}
	var out prefixHash
	copy(out[:], sum.Sum(nil))
	return out
}

// contentText is what counts of a content when two requests are compared: its text, and the rest of its parts as they are.
func contentText(raw json.RawMessage) string {
	if s, ok := jsonString(raw); ok {
		return s
	}
	if absent(raw) {
		return ""
	}
	var parts []struct {
		Text     string          `json:"text"`
		ImageURL json.RawMessage `json:"image_url"`
	}
	if decode(raw, &parts) != nil {
		return string(raw)
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
		b.Write(p.ImageURL)
	}
	return b.String()
}

// canonicalJSON writes JSON with sorted keys and no white space; other text stays.
func canonicalJSON(s string) string {
	var v any
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return s
	}
	return string(b)
}

// keysOf lists the keys of an object, for messages.
func keysOf(raw []byte) []string {
	var o map[string]json.RawMessage
	if decode(raw, &o) != nil {
		return nil
	}
	var keys []string
	for k := range o {
		keys = append(keys, clip(k, 40))
	}
	slices.Sort(keys)
	return keys[:min(len(keys), 8)]
}
