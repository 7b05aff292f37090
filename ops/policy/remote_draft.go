package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// scale is what temperature a server's log-probs of sampled tokens are at. It is measured, since no API tells.
type scale int

const (
	// scaleUnknown: neither; such log-probs are not recorded.
	scaleUnknown scale = iota
	// scaleOne: log softmax(logits), whatever the sampling temperature.
	scaleOne
	// scaleSampling: log softmax(logits / T).
	scaleSampling
)

func (s scale) String() string {
	switch s {
	case scaleOne:
		return "temperature 1"
	case scaleSampling:
		return "the sampling temperature"
	default:
		return "unknown"
	}
}

// measuredScale compares the likeliest tokens of one position, as the server gives them at temperature 1 and 2. [id] nats.
func measuredScale(one, two map[uint32]float64) scale {
	var ids []uint32
	for id := range one {
		if _, ok := two[id]; ok {
			ids = append(ids, id)
		}
	}
	if len(ids) < 2 {
		return scaleUnknown
	}
	slices.SortFunc(ids, func(a, b uint32) int { return cmp.Compare(one[b], one[a]) })
	// Differences between tokens do not depend on the normalisation: they halve when the logits are divided by 2.
	first, last := ids[0], ids[len(ids)-1]
	at1, at2 := one[first]-one[last], two[first]-two[last]
	const noise = 0.02 // relative; low precision arithmetic is not the same twice
	switch {
	case at1 < 0.3:
		return scaleUnknown // too flat to tell
	case math.Abs(at2-at1) <= noise*at1+0.05 && math.Abs(two[first]-one[first]) < 0.05:
		return scaleOne
	case math.Abs(at2-at1/2) <= noise*at1+0.05:
		return scaleSampling
	}
	return scaleUnknown
}

// sampledToken is one token as a server gave it.
type sampledToken struct {
	id    uint32
	known bool // the id
	bytes []byte
	// logprob in nats, when given.
	logprob float32
	given   bool
	// top: the likeliest alternatives, in any order.
	top []gateway.TokenLogprob
}

// draft is a response as far as it has come. One goroutine at a time.
type draft struct {
	emit func(gateway.Piece) error
	// atOne, atSampling: what the server's log-probs are, for this request.
	atOne, atSampling bool
	// recordTopK and showTop: alternatives to record and to emit.
	recordTopK, showTop int
	trainGreedy         bool

	text, reasoning strings.Builder
	calls           []*schemas.ToolCall
	prompt, ids     []uint32
	tokens          int
	logprobs        []float32
	topIDs          []uint32 // [tokens][recordTopK]
	topLogprobs     []float32
	noIDs           bool // a token came without its id
	noLogprobs      bool // or without its log-prob
	noTop           bool
	finish          schemas.FinishReason
	usage           *schemas.Usage
	model           string
}

// newDraft decides what the log-probs of a request mean, s being those of its tokens. Greedy ones count as sampled at temperature 1 when they may
// be trained.
func newDraft(s scale, sampling *schemas.Sampling, cfg remoteConfig, emit func(gateway.Piece) error) *draft {
	d := &draft{emit: emit, trainGreedy: cfg.TrainGreedy}
	temperature := sampling.GetTemperature()
	switch s {
	case scaleOne:
		d.atOne, d.atSampling = true, temperature == 1 || (temperature == 0 && cfg.TrainGreedy)
	case scaleSampling:
		d.atOne, d.atSampling = temperature == 1, temperature > 0
	default:
	}
	if d.atSampling {
		d.recordTopK = cfg.RecordTopK
	}
	return d
}

// add takes what came in one event. The text of an event with several tokens goes with the last of them.
func (d *draft) add(tokens []sampledToken, text string, calls []*schemas.ToolCall) error {
	d.text.WriteString(text)
	d.calls = append(d.calls, calls...)
	for i, t := range tokens {
		d.record(t)
		p := gateway.Piece{}
		if d.atOne && t.known && t.given {
			p.Token = &gateway.TokenLogprob{ID: t.id, Bytes: t.bytes, Logprob: t.logprob}
			if d.showTop > 0 {
				p.Top = likeliest(t.top, d.showTop)
			}
		}
		if i == len(tokens)-1 {
			p.Text, p.ToolCalls = text, calls
		}
		if err := d.emit(p); err != nil {
			return &emitError{err}
		}
	}
	if len(tokens) == 0 && (text != "" || len(calls) > 0) {
		if err := d.emit(gateway.Piece{Text: text, ToolCalls: calls}); err != nil {
			return &emitError{err}
		}
	}
	return nil
}

// emitError is what emit returned, told apart from a failure of the server.
type emitError struct{ error }

func (e *emitError) Unwrap() error { return e.error }

// finished makes the result of a stream that ended, well or not.
func (d *draft) finished(ctx context.Context, err error, v *version, sampling *schemas.Sampling) (*gateway.Sampled, error) {
	if err == nil {
		return d.sampled(v, sampling), nil
	}
	var stopped *emitError
	if errors.As(err, &stopped) {
		err = stopped.error
	}
	if d.tokens == 0 && d.text.Len() == 0 {
		return nil, err
	}
	d.finish = schemas.FinishReason_FINISH_REASON_ERROR
	if stopped != nil || ctx.Err() != nil {
		d.finish = schemas.FinishReason_FINISH_REASON_ABORTED
	}
	return d.sampled(v, sampling), err
}

func (d *draft) record(t sampledToken) {
	d.tokens++
	if !t.known {
		d.noIDs = true
		return
	}
	d.ids = append(d.ids, t.id)
	if !t.given {
		d.noLogprobs = true
	}
	d.logprobs = append(d.logprobs, t.logprob)
	if d.recordTopK == 0 || d.noTop {
		return
	}
	row := likeliest(t.top, d.recordTopK)
	if len(row) < d.recordTopK {
		d.noTop = true
		return
	}
	for _, e := range row {
		d.topIDs, d.topLogprobs = append(d.topIDs, e.ID), append(d.topLogprobs, e.Logprob)
	}
}

// likeliest are the k likeliest of the alternatives, likeliest first, equal ones by id, each once.
func likeliest(top []gateway.TokenLogprob, k int) []gateway.TokenLogprob {
	row := slices.Clone(top)
	slices.SortStableFunc(row, func(a, b gateway.TokenLogprob) int {
		return cmp.Or(cmp.Compare(b.Logprob, a.Logprob), cmp.Compare(a.ID, b.ID))
	})
	row = slices.CompactFunc(row, func(a, b gateway.TokenLogprob) bool { return a.ID == b.ID })
	return row[:min(k, len(row))]
}

// sampled is the whole, as far as it has come.
func (d *draft) sampled(v *version, sampling *schemas.Sampling) *gateway.Sampled {
	s := &gateway.Sampled{
		Response: textMessage(d.text.String(), d.reasoning.String(), d.calls), Version: v.id, Model: d.model,
		Sampling: sampling, FinishReason: d.finish, Usage: d.usage,
	}
	if sampling.Temperature != nil && sampling.GetTemperature() == 0 && !d.trainGreedy {
		s.Untrainable = "temperature 0"
	}
	if d.noIDs || len(d.ids) == 0 {
		return s
	}
	s.Tokens = &schemas.Tokens{PromptIds: d.prompt, ResponseIds: d.ids}
	if d.noLogprobs {
		return s
	}
	if d.atOne {
		s.Tokens.Logprobs = d.logprobs
	}
	if d.atSampling {
		s.Tokens.LogprobsSampled = slices.Clone(d.logprobs)
		if d.recordTopK > 0 && !d.noTop {
			s.Tokens.TopK = &schemas.TopK{K: uint32(d.recordTopK), Ids: d.topIDs, Logprobs: d.topLogprobs}
		}
	}
	return s
}

// tooMany says that a server does not hold to max_tokens, 0 being none.
func (d *draft) tooMany(limit uint32) string {
	if limit == 0 || d.tokens <= int(limit) {
		return ""
	}
	return fmt.Sprintf("it sent %d tokens when at most %d were asked for", d.tokens, limit)
}
