package gateway

import (
	"bytes"
	"math"
	"net/http"
	"strings"
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
