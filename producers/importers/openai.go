package importers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// openAIFormat reads OpenAI chat messages: fine-tuning and preference lines, exported conversations, and logged requests with their
// responses (whole, streamed, or from the batch API).
func openAIFormat() Format {
	return Format{Name: "openai", Detect: detectOpenAI, Read: readOpenAI}
}

func detectOpenAI(p Probe) bool {
	return p.Any(func(o *Shape) bool {
		if o != nil && o.Type == '[' && len(o.Items()) > 0 {
			o = o.Items()[0]
		}
		switch chatRoleOf := o.Key("role").String(); {
		case chatRoleOf != "" && o.Has("content"):
			_, known := chatRole(chatRoleOf)
			return known
		case hasRole(o.Key("messages")), hasRole(o.Key("conversations")), o.Key("object").String() == "chat.completion.chunk":
			return true
		}
		for _, in := range []string{"request", "inputs", "input", "body", "response", "outputs"} {
			part := o.Key(in)
			if body := part.Key("body"); body != nil {
				part = body
			}
			if hasRole(part.Key("messages")) || len(part.Key("choices").Items()) > 0 {
				return true
			}
		}
		choices := o.Key("choices").Items()
		return len(choices) > 0 && choices[0].Key("message") != nil
	})
}

func hasRole(list *Shape) bool {
	items := list.Items()
	return len(items) > 0 && items[0].Key("role") != nil
}

// openAIRecord is one line or object: the keys of every variant, of which one record has a few.
type openAIRecord struct {
	Messages      json.RawMessage `json:"messages"`
	Conversations json.RawMessage `json:"conversations"`
	Tools         json.RawMessage `json:"tools"`
	ToolDefs      json.RawMessage `json:"tool_definitions"`
	Functions     json.RawMessage `json:"functions"`
	Model         string          `json:"model"`
	Choices       json.RawMessage `json:"choices"`
	Object        string          `json:"object"`
	CustomID      string          `json:"custom_id"`

	Request  json.RawMessage `json:"request"`
	Response json.RawMessage `json:"response"`
	Inputs   json.RawMessage `json:"inputs"`
	Outputs  json.RawMessage `json:"outputs"`
	Input    json.RawMessage `json:"input"`
	Body     json.RawMessage `json:"body"`

	Preferred    json.RawMessage `json:"preferred_output"`
	NonPreferred json.RawMessage `json:"non_preferred_output"`

	openAISession
}

// openAISession are the keys by which loggers name a session.
type openAISession struct {
	SessionID      json.RawMessage `json:"session_id"`
	ConversationID json.RawMessage `json:"conversation_id"`
	ThreadID       json.RawMessage `json:"thread_id"`
	Metadata       json.RawMessage `json:"metadata"`
}

// explicit returns the session that the record names, "" when it names none.
func (s openAISession) explicit() string {
	for _, raw := range []json.RawMessage{s.SessionID, s.ConversationID, s.ThreadID} {
		if id, ok := jsonString(raw); ok && id != "" {
			return id
		}
	}
	var inner openAISession
	if absent(s.Metadata) || decode(s.Metadata, &inner) != nil {
		return ""
	}
	inner.Metadata = nil
	return inner.explicit()
}

// openAIReader reads one file.
type openAIReader struct {
	out   *Emitter
	src   *Source
	pairs *openAIPairs
	// last is the conversation of the record before, which the next one may repeat and extend.
	last *openAIConversation
	// named are the explicit ids of conversations so far, at most maxNamed.
	named map[string]struct{}
}

// maxNamed bounds the explicit session ids that are remembered.
const maxNamed = 100_000

func readOpenAI(ctx context.Context, src *Source, out *Emitter) error {
	r := &openAIReader{out: out, src: src, named: map[string]struct{}{}}
	r.pairs = newOpenAIPairs(out, src)
	root := src.Probe.Root()
	var err error
	switch {
	case src.Probe.Document && root != nil && root.Type == '[' && len(root.Items()) > 0 && root.Items()[0].Has("role"):
		err = r.stream(ctx, root) // a bare list of messages
	case src.Probe.Document && root != nil && root.Type == '{' && hasRole(root.Key("messages")) &&
		!root.Has("choices") && !root.Has("response"):
		err = r.stream(ctx, root.Key("messages"))
	case src.Probe.Document && root != nil && root.Type == '[':
		list := &elements{d: src.Document(root.Offset, root.Line)}
		_, err = list.each(ctx, out, func(raw []byte, line int64) error { return r.record(ctx, raw, line) })
	case src.Probe.Document && root != nil:
		raw, valueErr := src.value(root)
		if valueErr != nil {
			if src.failed != nil {
				return src.failed
			}
			err = out.Malformed(ctx, 1, valueErr.Error(), raw)
			break
		}
		err = r.record(ctx, raw, root.Line)
	default:
		err = src.eachLine(ctx, out, func(raw []byte, line int64) error { return r.record(ctx, raw, line) })
	}
	if err != nil {
		return err
	}
	if err := r.closeLast(ctx); err != nil {
		return err
	}
	return r.pairs.finish(ctx)
}

// stream reads a document that is one conversation, message by message: it may be larger than the memory.
func (r *openAIReader) stream(ctx context.Context, list *Shape) error {
	root := r.src.Probe.Root()
	hash, err := r.src.valueHash(root)
	if err != nil {
		return err
	}
	var names openAISession
	for key, to := range map[string]*json.RawMessage{
		"session_id": &names.SessionID, "conversation_id": &names.ConversationID, "thread_id": &names.ThreadID, "metadata": &names.Metadata,
	} {
		if raw, err := r.src.value(root.Key(key)); err == nil {
			*to = raw
		}
	}
	c := newOpenAIConversation(r.out, r.sessionName(names.explicit(), r.position(root.Line, hash)))
	if root.Type == '{' {
		if raw, err := r.src.value(root.Key("tools")); err == nil {
			c.s.Offer(chatTools(raw))
		}
		c.model = text(root.Key("model").String())
	}
	messages := &elements{d: r.src.Document(list.Offset, list.Line)}
	whole, err := messages.each(ctx, r.out, func(raw []byte, line int64) error {
		var m chatMessage
		if err := decode(raw, &m); err != nil {
			return r.out.Malformed(ctx, line, "message: "+err.Error(), raw)
		}
		return r.failed(ctx, line, c.add(ctx, &m), raw)
	})
	if err != nil {
		return err
	}
	c.ended = whole
	return c.close(ctx)
}

// shapeError says that a record is of the wrong shape, as opposed to the log or the disk failing.
type shapeError struct{ err error }

func (e *shapeError) Error() string { return e.err.Error() }
func (e *shapeError) Unwrap() error { return e.err }

// failed dead-letters what is wrong with a record, and passes on what is not the record's fault.
func (r *openAIReader) failed(ctx context.Context, line int64, err error, raw []byte) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if isShapeError(err) {
		return r.out.Malformed(ctx, line, err.Error(), raw)
	}
	return err
}

// record sorts one record by its keys.
func (r *openAIReader) record(ctx context.Context, raw []byte, line int64) error {
	if rest, ok := bytes.CutPrefix(raw, []byte("data:")); ok { // a stream as it came over the wire
		if raw = bytes.TrimSpace(rest); string(raw) == "[DONE]" {
			return nil
		}
	}
	var rec openAIRecord
	if err := decodeObject(raw, &rec); err != nil {
		return r.out.Malformed(ctx, line, err.Error(), raw)
	}
	return r.failed(ctx, line, r.dispatch(ctx, &rec, raw, line), raw)
}

func (r *openAIReader) dispatch(ctx context.Context, rec *openAIRecord, raw []byte, line int64) error {
	position := r.position(line, hash6(raw))
	switch {
	case rec.Object == "chat.completion.chunk":
		return r.pairs.chunk(ctx, raw, position)
	case !absent(rec.Preferred) || !absent(rec.NonPreferred):
		return r.preference(ctx, rec, position)
	case !absent(rec.Conversations):
		return r.conversation(ctx, rec, rec.Conversations, position)
	case !absent(rec.Messages) && absent(rec.Choices) && absent(rec.Response) && absent(rec.Outputs):
		return r.conversation(ctx, rec, rec.Messages, position)
	case !absent(rec.Messages), !absent(rec.Choices), !absent(rec.Request), !absent(rec.Response), !absent(rec.Outputs), !absent(rec.Body):
		return r.pairs.record(ctx, rec, raw, line, position)
	default:
		r.out.Unknown("record with " + strings.Join(keysOf(raw), ","))
		return nil
	}
}

// position names a record that has no id: its file, line and content. A document of one line and the first line of a JSONL file have one
// position, so that a file may grow.
func (r *openAIReader) position(line int64, hash string) string {
	return fmt.Sprintf("%s:%d~%s", r.out.base, line, hash)
}

// conversation reads a record that is a whole conversation. Some exports repeat the conversation in each record, one reply longer: such a
// record goes on with the session of the one before.
func (r *openAIReader) conversation(ctx context.Context, rec *openAIRecord, list json.RawMessage, position string) error {
	var messages []chatMessage
	if err := decode(list, &messages); err != nil {
		return &shapeError{fmt.Errorf("messages: %w", err)}
	}
	for i := range messages {
		if _, ok := chatRole(messages[i].Role); !ok {
			return &shapeError{fmt.Errorf("message %d: role %.40q is not known", i+1, messages[i].Role)}
		}
	}
	c := r.last
	if c == nil || !c.repeatedBy(messages) {
		if err := r.closeLast(ctx); err != nil {
			return err
		}
		c = newOpenAIConversation(r.out, r.sessionName(rec.explicit(), position))
		c.ended, c.model = absent(rec.Conversations), text(rec.Model)
		for _, tools := range []json.RawMessage{rec.Tools, rec.ToolDefs, rec.Functions} {
			if t := chatTools(tools); len(t) > 0 {
				c.s.Offer(t)
			}
		}
		r.last = c
	}
	for i := c.count; i < len(messages); i++ {
		if err := c.add(ctx, &messages[i]); err != nil {
			return err
		}
	}
	return nil
}

// sessionName is the id that the record names, the first time; another conversation under the same id is a session beside it.
func (r *openAIReader) sessionName(explicit, position string) string {
	if explicit == "" {
		return position
	}
	if _, again := r.named[explicit]; again || len(r.named) >= maxNamed {
		return explicit + "@" + position
	}
	r.named[explicit] = struct{}{}
	return explicit
}

func (r *openAIReader) closeLast(ctx context.Context) error {
	c := r.last
	r.last = nil
	if c == nil {
		return nil
	}
	return c.close(ctx)
}

// preference reads a line of two replies to one conversation: the preferred one is judged +1, the other -1 with the preferred one as its
// correction.
func (r *openAIReader) preference(ctx context.Context, rec *openAIRecord, position string) error {
	var input openAIRecord
	if err := decode(rec.Input, &input); err != nil {
		return &shapeError{fmt.Errorf("input: %w", err)}
	}
	preferred, err := outputText(rec.Preferred)
	if err != nil {
		return err
	}
	for _, side := range []struct {
		raw     json.RawMessage
		name    string
		score   float64
		correct *string
	}{{rec.Preferred, position, 1, nil}, {rec.NonPreferred, position + "@non_preferred", -1, optional(preferred)}} {
		if absent(side.raw) {
			continue
		}
		var output []chatMessage
		if err := decode(side.raw, &output); err != nil {
			return &shapeError{fmt.Errorf("output: %w", err)}
		}
		var messages []chatMessage
		if err := decode(input.Messages, &messages); err != nil {
			return &shapeError{fmt.Errorf("input.messages: %w", err)}
		}
		c := newOpenAIConversation(r.out, side.name)
		c.ended = true
		if side.score < 0 {
			r.out.Branch()
		}
		c.s.Offer(chatTools(input.Tools))
		for i := range messages {
			if err := c.context(ctx, &messages[i]); err != nil {
				return err
			}
		}
		for i := range output {
			if err := c.add(ctx, &output[i]); err != nil {
				return err
			}
		}
		if turn := c.turn; turn.ID != "" {
			score := side.score
			feedback := &schemas.FeedbackGiven{TurnId: &turn.ID, Score: &score, Correction: side.correct}
			if err := c.s.Feedback(ctx, "preference", time.Time{}, feedback); err != nil {
				return err
			}
		}
		if err := c.close(ctx); err != nil {
			return err
		}
	}
	return nil
}

// outputText is the text of a preferred output, for the correction of the other one.
func outputText(raw json.RawMessage) (string, error) {
	var output []chatMessage
	if absent(raw) {
		return "", nil
	}
	if err := decode(raw, &output); err != nil {
		return "", &shapeError{fmt.Errorf("preferred_output: %w", err)}
	}
	var all []string
	for _, m := range output {
		if s, ok := jsonString(m.Content); ok && s != "" {
			all = append(all, s)
		}
	}
	return strings.Join(all, "\n"), nil
}

// valueHash is hash6 of a value of any size.
func (s *Source) valueHash(shape *Shape) (string, error) {
	d := s.Document(shape.Offset, shape.Line)
	if err := d.skip(); err != nil && s.failed != nil {
		return "", s.failed
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(s, shape.Offset, d.offset-shape.Offset)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)[:6]), nil
}

func hash6(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:6])
}
