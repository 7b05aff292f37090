package policy_test

import (
	"cmp"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// bigram is a real language model, if a small one: its logits are a table of (previous token, next token), so that sampling and scoring agree because
// both compute, not because values are typed in.
type bigram struct {
	pieces []string
	byText map[string]uint32
	table  sync.Map // of logits, by bigramRow
}

type bigramRow struct {
	adapter string
	prev    uint32
}

// Special tokens; never made from text.
const (
	bigramStart = 128
	bigramEnd   = 129
)

func newBigram() *bigram {
	b := &bigram{byText: map[string]uint32{}}
	for c := range 128 {
		b.pieces = append(b.pieces, string(rune(c)))
	}
	b.pieces = append(b.pieces, "<|im_start|>", "<|im_end|>")
	b.pieces = append(b.pieces, strings.Fields("once upon time there lived king queen who was happy user assistant system tool the and story sea ship")...)
	b.pieces = append(b.pieces, " the", " and", " was", " king", " sea", "ing ", "é", "日本")
	for id, p := range b.pieces {
		if id != bigramStart && id != bigramEnd {
			b.byText[p] = uint32(id)
		}
	}
	return b
}

// encode takes the longest piece each time; what has none is a question mark.
func (b *bigram) encode(text string) []uint32 {
	var ids []uint32
	for text != "" {
		n := min(8, len(text))
		for ; n > 0; n-- {
			if id, ok := b.byText[text[:n]]; ok {
				ids = append(ids, id)
				break
			}
		}
		if n == 0 {
			ids = append(ids, '?')
			n = 1
		}
		text = text[n:]
	}
	return ids
}

func (b *bigram) decode(ids []uint32) string {
	var s strings.Builder
	for _, id := range ids {
		if id != bigramStart && id != bigramEnd {
			s.WriteString(b.pieces[id])
		}
	}
	return s.String()
}

// chat renders messages as ids.
func (b *bigram) chat(messages []chatMessage) []uint32 {
	var ids []uint32
	for _, m := range messages {
		ids = append(append(ids, bigramStart), b.encode(m.Role+"\n"+m.text())...)
		for _, c := range m.ToolCalls {
			ids = append(ids, b.encode(c.Function.Name+c.Function.Arguments)...)
		}
		ids = append(ids, bigramEnd)
	}
	return append(append(ids, bigramStart), b.encode("assistant\n")...)
}

// logits after prev, for an adapter ("" is the base). [vocabulary]; not to be changed.
func (b *bigram) logits(adapter string, prev uint32) []float64 {
	if l, ok := b.table.Load(bigramRow{adapter, prev}); ok {
		return l.([]float64)
	}
	h := fnv.New64a()
	h.Write([]byte(adapter))
	r := rand.New(rand.NewPCG(h.Sum64(), uint64(prev)))
	l := make([]float64, len(b.pieces))
	for id := range l {
		l[id] = 2 * r.NormFloat64()
		if id < 32 || id == 127 || id == bigramStart || id == bigramEnd {
			l[id] -= 12
		}
	}
	b.table.Store(bigramRow{adapter, prev}, l)
	return l
}

// logSoftmax of logits / temperature.
func logSoftmax(logits []float64, temperature float64) []float64 {
	m := slices.Max(logits) / temperature
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(l/temperature - m)
	}
	out := make([]float64, len(logits))
	for i, l := range logits {
		out[i] = l/temperature - m - math.Log(sum)
	}
	return out
}

// sampler is how tokens are drawn.
type sampler struct {
	temperature, topP, minP float64
	topK                    int
	random                  *rand.Rand
	allowed                 []uint32
}

// order lists ids, likeliest first.
func order(logprobs []float64) []int {
	ids := make([]int, len(logprobs))
	for i := range ids {
		ids[i] = i
	}
	slices.SortFunc(ids, func(a, b int) int { return cmp.Or(cmp.Compare(logprobs[b], logprobs[a]), cmp.Compare(a, b)) })
	return ids
}

// draw returns a token, and the log-probs of what was drawn from: processed, -Inf outside.
func (s *sampler) draw(logits []float64) (uint32, []float64) {
	if s.allowed != nil {
		kept := slices.Clone(logits)
		for id := range kept {
			if !slices.Contains(s.allowed, uint32(id)) {
				kept[id] = math.Inf(-1)
			}
		}
		logits = kept
	}
	if s.temperature == 0 {
		l := logSoftmax(logits, 1)
		return uint32(order(l)[0]), l
	}
	l := logSoftmax(logits, s.temperature)
	ids := order(l)
	keep, mass := 0, 0.0
	for _, id := range ids {
		if (s.topK > 0 && keep >= s.topK) || (keep > 0 && mass >= s.topP) || l[id] < l[ids[0]]+math.Log(s.minP) {
			break
		}
		mass += math.Exp(l[id])
		keep++
	}
	for _, id := range ids[keep:] {
		l[id] = math.Inf(-1)
	}
	l = logSoftmax(l, 1)
	u := s.random.Float64()
	for _, id := range ids[:keep] {
		if u -= math.Exp(l[id]); u < 0 {
			return uint32(id), l
		}
	}
	return uint32(ids[0]), l
}

// next are the model's log-probs after ids at a temperature. [vocabulary] nats
func (b *bigram) next(adapter string, ids []uint32, temperature float64) []float64 {
	return logSoftmax(b.logits(adapter, ids[len(ids)-1]), temperature)
}

// top lists the n likeliest ids.
func top(logprobs []float64, n int) []uint32 {
	ids := order(logprobs)
	out := make([]uint32, min(n, len(ids)))
	for i := range out {
		out[i] = uint32(ids[i])
	}
	return out
}

// chatMessage is a message as both servers take it.
type chatMessage struct {
	Role       string `json:"role"`
	Content    any    `json:"content"`
	Name       string `json:"name"`
	ToolCallID string `json:"tool_call_id"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Type     string `json:"type"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

func (m chatMessage) text() string {
	switch c := m.Content.(type) {
	case string:
		return c
	case []any:
		var s strings.Builder
		for _, p := range c {
			s.WriteString(p.(map[string]any)["text"].(string))
		}
		return s.String()
	}
	return ""
}

// script is what the model says instead of sampling, when the last user asks it to call a tool.
func (b *bigram) script(messages []chatMessage) []uint32 {
	if last := messages[len(messages)-1]; last.Role == "user" && strings.Contains(last.text(), "CALL") {
		return append(b.encode(`ok <call>get_weather{"city":"Oslo"}</call><call>get_time{"zone":"UTC"}</call>`), bigramEnd)
	}
	return nil
}
