package gateway

import (
	"bytes"
	"errors"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
)

// chatPrefix begins the ids of responses.
const chatPrefix = "chatcmpl-"

// postChat answers POST /v1/chat/completions from the policy.
func (g *Gateway) postChat(w http.ResponseWriter, r *http.Request, who caller) *fault {
	if g.policy == nil {
		return &fault{status: http.StatusNotFound, param: "model", code: "model_not_found", message: "this gateway serves no policy: start it with one, or with an upstream"}
	}
	body, release, f := g.readBody(w, r)
	if f != nil {
		return f
	}
	defer release()
	q, f := decodeChat(body, g.cfg)
	if f != nil {
		return f
	}
	if len(q.unknown) > 0 {
		g.metrics.unknown.Add(float64(len(q.unknown)))
		g.logger.Debug("unknown fields are ignored", "fields", q.unknown)
	}
	return g.complete(w, r, who, &q.completion, shape{chatPrefix, func(w http.ResponseWriter, h head) reply {
		base := chatBase{w: newWire(w, g.cfg.WriteTimeout), head: h, q: q, logprobs: make([][]chatToken, q.choices)}
		if q.stream {
			return &chatStream{chatBase: base, roles: make([]bool, q.choices), calls: make([]int, q.choices), keep: retries(r.Header)}
		}
		return &chatWhole{chatBase: base}
	}})
}

// The answer's JSON. A field that must be there as null has no omitempty.
type (
	chatCompletion struct {
		ID          string       `json:"id"`
		Object      string       `json:"object"`
		Created     int64        `json:"created"`
		Model       string       `json:"model"`
		Fingerprint string       `json:"system_fingerprint,omitempty"`
		ServiceTier string       `json:"service_tier"`
		Choices     []chatChoice `json:"choices"`
		Usage       *chatUsage   `json:"usage"`
	}
	chatChoice struct {
		Index        int           `json:"index"`
		Message      chatSaid      `json:"message"`
		Logprobs     *chatLogprobs `json:"logprobs"`
		FinishReason string        `json:"finish_reason"`
	}
	chatSaid struct {
		Role         string           `json:"role"`
		Content      *string          `json:"content"`
		Refusal      *string          `json:"refusal"`
		Reasoning    string           `json:"reasoning_content,omitempty"`
		ToolCalls    []chatCalled     `json:"tool_calls,omitempty"`
		FunctionCall *chatCalledBy    `json:"function_call,omitempty"`
		Annotations  []map[string]any `json:"annotations"`
	}
	chatCalled struct {
		Index    *int         `json:"index,omitempty"` // in streams
		ID       string       `json:"id"`
		Type     string       `json:"type"`
		Function chatCalledBy `json:"function"`
	}
	chatCalledBy struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	chatLogprobs struct {
		Content []chatToken `json:"content"`
		Refusal []chatToken `json:"refusal"`
	}
	chatToken struct {
		chatTokenValue
		Top []chatTokenValue `json:"top_logprobs"`
	}
	chatTokenValue struct {
		Token   string  `json:"token"`
		Logprob float64 `json:"logprob"`
		Bytes   []int   `json:"bytes"`
	}
	chatUsage struct {
		Prompt     uint64            `json:"prompt_tokens"`
		Completion uint64            `json:"completion_tokens"`
		Total      uint64            `json:"total_tokens"`
		PromptOf   chatPromptDetails `json:"prompt_tokens_details"`
	}
	chatPromptDetails struct {
		Cached uint64 `json:"cached_tokens"`
	}
)

// chatBase is what both forms of an answer share.
type chatBase struct {
	w    *wire
	head head
	q    *chatRequest
	// logprobs that are not sent yet, by choice.
	logprobs [][]chatToken
}

// note keeps the log-probs of a token, when they are wanted and known.
func (c *chatBase) note(choice int, p *Piece) {
	if !c.q.logprobs || p.Token == nil {
		return
	}
	t := chatToken{chatTokenValue: tokenValue(p.Token), Top: []chatTokenValue{}}
	for i := range p.Top[:min(len(p.Top), c.q.topLogprobs)] {
		t.Top = append(t.Top, tokenValue(&p.Top[i]))
	}
	c.logprobs[choice] = append(c.logprobs[choice], t)
}

// taken gives out the log-probs of a choice that are not sent yet; nil: none are wanted, or known.
func (c *chatBase) taken(choice int) *chatLogprobs {
	if len(c.logprobs[choice]) == 0 {
		return nil
	}
	l := &chatLogprobs{Content: c.logprobs[choice]}
	c.logprobs[choice] = nil
	return l
}

func tokenValue(t *TokenLogprob) chatTokenValue {
	v := chatTokenValue{Token: tokenText(t.Bytes), Bytes: make([]int, len(t.Bytes)), Logprob: logprob(t.Logprob)}
	for i, b := range t.Bytes {
		v.Bytes[i] = int(b)
	}
	return v
}

// logprob is a log-prob as JSON can hold it: the API writes -9999 for what is as good as impossible.
func logprob(v float32) float64 {
	const least = -9999
	if f := float64(v); f > least && !math.IsInf(f, 1) {
		return f
	}
	return least
}

// tokenText is a token's text; one that is no text (part of a character) is written as its bytes, as the API does.
func tokenText(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	const digits = "0123456789abcdef"
	var s strings.Builder
	s.WriteString("bytes:")
	for _, c := range b {
		s.WriteString(`\x`)
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

// usage adds up the choices: they share one prompt.
func usage(all []*Sampled) *chatUsage {
	var u chatUsage
	known := false
	for _, s := range all {
		if s.Usage == nil {
			continue
		}
		known = true
		u.Prompt, u.PromptOf.Cached = max(u.Prompt, s.Usage.GetInputTokens()), max(u.PromptOf.Cached, s.Usage.GetCachedTokens())
		u.Completion += s.Usage.GetOutputTokens()
	}
	if !known {
		return nil
	}
	u.Total = u.Prompt + u.Completion
	return &u
}

// finishReason is the API's word. Calls in the legacy form end in its own word.
func (c *chatBase) finishReason(s *Sampled) string {
	switch s.FinishReason {
	case schemas.FinishReason_FINISH_REASON_LENGTH:
		return "length"
	case schemas.FinishReason_FINISH_REASON_CONTENT_FILTER:
		return "content_filter"
	case schemas.FinishReason_FINISH_REASON_TOOL_CALLS:
		if c.q.legacy {
			return "function_call"
		}
		return "tool_calls"
	default:
		return "stop"
	}
}

func called(call *schemas.ToolCall, index *int) chatCalled {
	return chatCalled{Index: index, ID: call.GetId(), Type: "function", Function: chatCalledBy{call.GetName(), call.GetArguments()}}
}

// said is a response as a message of the API.
func (c *chatBase) said(m *schemas.Message) chatSaid {
	out := chatSaid{Role: "assistant", Reasoning: m.GetReasoning(), Annotations: []map[string]any{}}
	var text, refusal strings.Builder
	for _, p := range m.GetParts() {
		text.WriteString(p.GetText())
		refusal.WriteString(p.GetRefusal())
	}
	if s := text.String(); s != "" || len(m.GetToolCalls()) == 0 && refusal.Len() == 0 {
		out.Content = &s
	}
	if s := refusal.String(); s != "" {
		out.Refusal = &s
	}
	for _, call := range m.GetToolCalls() {
		if c.q.legacy {
			out.FunctionCall = &chatCalledBy{call.GetName(), call.GetArguments()}
			break
		}
		out.ToolCalls = append(out.ToolCalls, called(call, nil))
	}
	return out
}

// chatWhole answers with one JSON body.
type chatWhole struct {
	chatBase
	body []byte
}

func (c *chatWhole) piece(choice int, p *Piece) error {
	c.note(choice, p)
	return nil
}

func (c *chatWhole) ended(int, *Sampled) error { return nil }

// beat: a JSON body cannot say that it is still to come.
func (c *chatWhole) beat() error { return nil }

func (c *chatWhole) tail(all []*Sampled) (*sessions.Stored, error) {
	a := chatCompletion{
		ID: c.head.id, Object: "chat.completion", Created: c.head.created.Unix(), Model: c.head.model, Fingerprint: c.head.version,
		ServiceTier: "default", Usage: usage(all),
	}
	for i, s := range all {
		a.Choices = append(a.Choices, chatChoice{Index: i, Message: c.said(s.Response), Logprobs: c.taken(i), FinishReason: c.finishReason(s)})
	}
	var b bytes.Buffer
	if err := encode(&b, a); err != nil {
		return nil, err
	}
	c.body = b.Bytes()
	return c.w.stored(jsonType, c.body), nil
}

func (c *chatWhole) close() error {
	c.w.start(jsonType)
	return c.w.send(c.body)
}

func (c *chatWhole) fail(f *fault) *fault { return f }

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

// Media types of answers.
const (
	jsonType   = "application/json"
	streamType = "text/event-stream; charset=utf-8"
)

// wire writes an answer so that a client that does not read cannot hold it up for ever. For one goroutine.
type wire struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	started bool
}

func newWire(w http.ResponseWriter, timeout time.Duration) *wire {
	return &wire{w: w, control: http.NewResponseController(w), timeout: timeout}
}

// start sends the headers, once.
func (w *wire) start(media string) {
	if w.started {
		return
	}
	w.started = true
	h := w.w.Header()
	h.Set("Content-Type", media)
	h.Set("X-Content-Type-Options", "nosniff")
	if media == streamType {
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx would hold the stream back
	}
	w.w.WriteHeader(http.StatusOK)
}

// send writes within the timeout; the server flushes when the request ends.
func (w *wire) send(p []byte) error {
	if err := w.control.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := w.w.Write(p)
	return err
}

// push writes and flushes within the timeout, and lifts it: between two tokens there is no deadline.
func (w *wire) push(p []byte) error {
	if err := w.send(p); err != nil {
		return err
	}
	if err := w.control.Flush(); err != nil {
		return err
	}
	if err := w.control.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// stored is a whole answer for a retry, with the headers that name its turn.
func (w *wire) stored(media string, body []byte) *sessions.Stored {
	s := &sessions.Stored{ContentType: media, Body: body, Header: map[string]string{}}
	for _, name := range []string{headerSession, headerTurn, headerVersion} {
		if v := w.w.Header().Get(name); v != "" {
			s.Header[name] = v
		}
	}
	return s
}
