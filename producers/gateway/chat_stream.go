package gateway

import (
	"bytes"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
)

// chatStream answers with server-sent events.
type chatStream struct {
	chatBase
	roles []bool // by choice: its role was sent
	calls []int  // by choice: how many calls were sent
	end   []byte
	buf   bytes.Buffer
	// sent is what a retry would be sent, as long as keep is set: it is small enough.
	sent []byte
	keep bool
}

// maxKept bounds the answers that are kept for a retry.
const maxKept = 1 << 20

type (
	chatChunk struct {
		ID          string            `json:"id"`
		Object      string            `json:"object"`
		Created     int64             `json:"created"`
		Model       string            `json:"model"`
		Fingerprint string            `json:"system_fingerprint,omitempty"`
		Choices     []chatChunkChoice `json:"choices"`
		Usage       *chatUsage        `json:"usage,omitempty"`
	}
	chatChunkChoice struct {
		Index        int           `json:"index"`
		Delta        chatDelta     `json:"delta"`
		Logprobs     *chatLogprobs `json:"logprobs"`
		FinishReason *string       `json:"finish_reason"`
	}
	chatDelta struct {
		Role         string        `json:"role,omitempty"`
		Content      *string       `json:"content,omitempty"`
		Refusal      *string       `json:"refusal,omitempty"`
		Reasoning    string        `json:"reasoning_content,omitempty"`
		ToolCalls    []chatCalled  `json:"tool_calls,omitempty"`
		FunctionCall *chatCalledBy `json:"function_call,omitempty"`
	}
)

func (c *chatStream) piece(choice int, p *Piece) error {
	c.note(choice, p)
	if err := c.role(choice); err != nil {
		return err
	}
	if p.Text != "" || len(c.logprobs[choice]) > 0 {
		if err := c.delta(chatChunkChoice{Index: choice, Delta: chatDelta{Content: &p.Text}, Logprobs: c.taken(choice)}); err != nil {
			return err
		}
	}
	return c.called(choice, p.ToolCalls)
}

// role introduces a choice.
func (c *chatStream) role(choice int) error {
	if c.roles[choice] {
		return nil
	}
	c.roles[choice] = true
	empty := ""
	return c.delta(chatChunkChoice{Index: choice, Delta: chatDelta{Role: "assistant", Content: &empty}})
}

// called sends calls, each whole.
func (c *chatStream) called(choice int, calls []*schemas.ToolCall) error {
	for _, call := range calls {
		index := c.calls[choice]
		c.calls[choice]++
		d := chatDelta{ToolCalls: []chatCalled{called(call, &index)}}
		if c.q.legacy {
			d = chatDelta{FunctionCall: &chatCalledBy{call.GetName(), call.GetArguments()}}
		}
		if err := c.delta(chatChunkChoice{Index: choice, Delta: d}); err != nil {
			return err
		}
	}
	return nil
}

// ended sends what no piece had: reasoning, a refusal, calls that only the whole response shows; then the reason.
func (c *chatStream) ended(choice int, s *Sampled) error {
	if err := c.role(choice); err != nil {
		return err
	}
	said := c.said(s.Response)
	if said.Reasoning != "" || said.Refusal != nil {
		if err := c.delta(chatChunkChoice{Index: choice, Delta: chatDelta{Reasoning: said.Reasoning, Refusal: said.Refusal}}); err != nil {
			return err
		}
	}
	if calls := s.Response.GetToolCalls(); len(calls) > c.calls[choice] {
		if err := c.called(choice, calls[c.calls[choice]:]); err != nil {
			return err
		}
	}
	reason := c.finishReason(s)
	return c.delta(chatChunkChoice{Index: choice, FinishReason: &reason})
}

func (c *chatStream) delta(choice chatChunkChoice) error {
	event, err := c.event([]chatChunkChoice{choice}, nil)
	if err != nil {
		return err
	}
	c.remember(event)
	return c.send(event)
}

// event is a chunk as a server-sent event, in a buffer that the next one uses again.
func (c *chatStream) event(choices []chatChunkChoice, u *chatUsage) ([]byte, error) {
	c.buf.Reset()
	c.buf.WriteString("data: ")
	err := encode(&c.buf, chatChunk{
		ID: c.head.id, Object: "chat.completion.chunk", Created: c.head.created.Unix(), Model: c.head.model, Fingerprint: c.head.version,
		Choices: choices, Usage: u,
	})
	c.buf.WriteString("\n\n")
	return c.buf.Bytes(), err
}

func (c *chatStream) remember(event []byte) {
	if !c.keep || len(c.sent)+len(event) > maxKept {
		c.keep, c.sent = false, nil
		return
	}
	c.sent = append(c.sent, event...)
}

// send writes at once. The headers go with the first event, so that a policy that refuses at once still chooses the status.
func (c *chatStream) send(event []byte) error {
	c.w.start(streamType)
	return c.w.push(event)
}

func (c *chatStream) beat() error { return c.send([]byte(": queued\n\n")) }

func (c *chatStream) tail(all []*Sampled) (*sessions.Stored, error) {
	if u := usage(all); c.q.includeUsage && u != nil {
		event, err := c.event([]chatChunkChoice{}, u)
		if err != nil {
			return nil, err
		}
		c.end = append(c.end, event...)
	}
	c.end = append(c.end, "data: [DONE]\n\n"...)
	c.remember(c.end)
	if !c.keep {
		return nil, nil
	}
	return c.w.stored(streamType, c.sent), nil
}

func (c *chatStream) close() error { return c.send(c.end) }

// fail ends a stream that has begun with the fault as its last event, and without the mark of a whole answer.
func (c *chatStream) fail(f *fault) *fault {
	if !c.w.started {
		return f
	}
	data := append(append([]byte("data: "), f.event()...), "\n\n"...)
	_ = c.w.push(data) // there is nobody else to tell
	return nil
}
