package policy

import (
	"errors"
	"strings"

	"github.com/nextstate-rl/nextstate/ops/policy/chat"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// errStopped ends the sampling at a stop string; it is no failure.
var errStopped = errors.New("a stop string")

// response puts the embedded engine's tokens together. A token's bytes go through four stages, each of which may hold some back: whole characters,
// stop strings, tool calls, the caller. One goroutine.
type response struct {
	tok    *tokenizer.Tokenizer
	stream tokenizer.Stream
	stops  []string
	parser *chat.Parser // nil: no tools were offered
	emit   func(gateway.Piece) error

	tokens  schemas.Tokens
	text    strings.Builder // visible so far
	calls   []*schemas.ToolCall
	held    string // what may be the beginning of a stop string
	stopped bool   // by a stop string
}

// token takes one sampled token and emits what it adds.
func (w *response) token(t llama.Token) error {
	w.record(t)
	p := gateway.Piece{Token: &gateway.TokenLogprob{ID: t.ID, Bytes: w.tok.Piece(t.ID), Logprob: t.Logprob}}
	for i, id := range t.AltIDs {
		p.Top = append(p.Top, gateway.TokenLogprob{ID: id, Bytes: w.tok.Piece(id), Logprob: t.AltLogprobs[i]})
	}
	p.Text, p.ToolCalls = w.visible(w.untilStop(w.stream.Add(w.bytes(t.ID))))
	if err := w.emit(p); err != nil {
		return err
	}
	if w.stopped {
		return errStopped
	}
	return nil
}

func (w *response) record(t llama.Token) {
	w.tokens.ResponseIds = append(w.tokens.ResponseIds, t.ID)
	w.tokens.Logprobs = append(w.tokens.Logprobs, t.Logprob)
	w.tokens.LogprobsSampled = append(w.tokens.LogprobsSampled, t.LogprobSampled)
	if len(t.TopIDs) == 0 {
		return
	}
	if w.tokens.TopK == nil {
		w.tokens.TopK = &schemas.TopK{K: uint32(len(t.TopIDs))}
	}
	w.tokens.TopK.Ids = append(w.tokens.TopK.Ids, t.TopIDs...)
	w.tokens.TopK.Logprobs = append(w.tokens.TopK.Logprobs, t.TopLogprobs...)
}

// bytes of a token as text: special tokens have none, but for the tags of tool calls, which some vocabularies have as tokens, and those that are no
// control tokens (such as <think>).
func (w *response) bytes(id uint32) []byte {
	piece := w.tok.Piece(id)
	if w.tok.IsControl(id) && (w.parser == nil || !chat.IsCallTag(string(piece))) {
		return nil
	}
	return piece
}

// untilStop returns the text that certainly stands before a stop string.
func (w *response) untilStop(text string) string {
	if len(w.stops) == 0 {
		return text
	}
	w.held += text
	first, keep := len(w.held), 0
	for _, stop := range w.stops {
		if at := strings.Index(w.held, stop); at >= 0 && at < first {
			first, w.stopped = at, true
		}
		keep = max(keep, chat.Overlap(w.held, stop))
	}
	if w.stopped {
		text, w.held = w.held[:first], ""
		return text
	}
	text, w.held = w.held[:len(w.held)-keep], w.held[len(w.held)-keep:]
	return text
}

// visible takes tool calls out of text.
func (w *response) visible(text string) (string, []*schemas.ToolCall) {
	if w.parser == nil {
		w.text.WriteString(text)
		return text, nil
	}
	text, calls := w.parser.Add(text)
	w.text.WriteString(text)
	w.calls = append(w.calls, calls...)
	return text, calls
}

// rest is what was held back, when no more tokens come.
func (w *response) rest() (string, []*schemas.ToolCall) {
	var end string
	if !w.stopped {
		end = w.untilStop(w.stream.Flush()) + w.held
		w.held = ""
	}
	text, calls := w.visible(end)
	if w.parser != nil {
		more, last := w.parser.Flush()
		w.text.WriteString(more)
		w.calls = append(w.calls, last...)
		text, calls = text+more, append(calls, last...)
	}
	return text, calls
}

// flush emits it.
func (w *response) flush() error {
	text, calls := w.rest()
	if text == "" && len(calls) == 0 {
		return nil
	}
	return w.emit(gateway.Piece{Text: text, ToolCalls: calls})
}

// message is the response so far, with what was held back.
func (w *response) message() *schemas.Message {
	w.rest()
	m := &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT, ToolCalls: w.calls}
	if text := w.text.String(); text != "" {
		m.Parts = []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}
	}
	return m
}
