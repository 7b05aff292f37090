package tokenizer

import (
	"container/heap"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// spaceMark is how SentencePiece writes a space.
const spaceMark = "\u2581"

// pieces is SentencePiece's BPE: characters are merged to whatever token has the highest score, the leftmost where equal; what is no token in the end
// becomes bytes.
type sentencePieces struct {
	ids     map[string]uint32
	scores  []float32
	bytes   [256]int32 // -1: none
	unknown int32      // -1: none
	longest int        // bytes of the longest token
}

// sentencePiece fills in what a vocabulary of the kind llama has, and returns whether prompts begin with BOS unless the file says otherwise.
func (t *Tokenizer) sentencePiece(f *gguf.File, tokens []string, kinds []int32) (addBOS bool, err error) {
	scores, ok := f.Floats("tokenizer.ggml.scores")
	if !ok || len(scores) != len(tokens) {
		return false, errors.New("the model file does not hold a score for each token (tokenizer.ggml.scores); give a GGUF that was converted with its tokenizer")
	}
	m := &sentencePieces{ids: make(map[string]uint32, len(tokens)), scores: scores, unknown: -1}
	for b := range m.bytes {
		m.bytes[b] = -1
	}
	for id, text := range tokens {
		t.pieces[id] = []byte(text)
		switch kinds[id] {
		case kindNormal:
			t.pieces[id] = []byte(strings.ReplaceAll(text, spaceMark, " "))
			if _, twice := m.ids[text]; !twice {
				m.ids[text] = uint32(id)
			}
			m.longest = max(m.longest, len(text))
		case kindByte:
			b, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(text, "<0x"), ">"), 16, 8)
			if err != nil {
				return false, fmt.Errorf("the token %q says that it is a byte, but not which: the model file is damaged", text)
			}
			t.pieces[id] = []byte{byte(b)}
			m.bytes[b] = int32(id)
		case kindUnknown:
			m.unknown = int32(id)
		}
	}
	t.merge = m
	t.prefix = true
	if add, ok := f.Bool("tokenizer.ggml.add_space_prefix"); ok {
		t.prefix = add
	}
	return true, nil
}

// symbol is a stretch of the text that is one token, or a character that may be none.
type symbol struct {
	start, end int // in the text; equal: merged into the one before
	prev, next int
}

func (m *sentencePieces) encode(ids []uint32, text string) []uint32 {
	text = strings.ReplaceAll(text, " ", spaceMark)
	list := make([]symbol, 0, len(text))
	for at := 0; at < len(text); {
		_, n := utf8.DecodeRuneInString(text[at:])
		list = append(list, symbol{at, at + n, len(list) - 1, len(list) + 1})
		at += n
	}
	var q scoreQueue
	offer := func(left, right int) bool {
		if left < 0 || right >= len(list) {
			return false
		}
		start, end := list[left].start, list[right].end
		if end-start > m.longest {
			return false
		}
		id, ok := m.ids[text[start:end]]
		if ok {
			q = append(q, join{m.scores[id], left, right, end - start})
		}
		return ok
	}
	for i := range list {
		offer(i, i+1)
	}
	heap.Init(&q)
	for len(q) > 0 {
		j := heap.Pop(&q).(join)
		l, r := &list[j.left], &list[j.right]
		if l.end == l.start || r.end == r.start || r.end-l.start != j.bytes || l.next != j.right {
			continue // one of the two has been merged meanwhile
		}
		l.end, r.end = r.end, r.start
		l.next = r.next
		if r.next < len(list) {
			list[r.next].prev = j.left
		}
		if offer(l.prev, j.left) {
			heap.Fix(&q, len(q)-1)
		}
		if offer(j.left, l.next) {
			heap.Fix(&q, len(q)-1)
		}
	}
	for i := 0; i < len(list); i = list[i].next {
		ids = m.token(ids, text[list[i].start:list[i].end])
	}
	return ids
}

// token appends a symbol's token, or its bytes.
func (m *sentencePieces) token(ids []uint32, part string) []uint32 {
	if id, ok := m.ids[part]; ok {
		return append(ids, id)
	}
	for i := range len(part) {
		switch {
		case m.bytes[part[i]] >= 0:
			ids = append(ids, uint32(m.bytes[part[i]]))
		case m.unknown >= 0:
			ids = append(ids, uint32(m.unknown))
		}
	}
	return ids
}

type join struct {
	score       float32
	left, right int
	bytes       int // of both when it was found
}

type scoreQueue []join

func (q scoreQueue) Len() int { return len(q) }
func (q scoreQueue) Less(i, j int) bool {
	if q[i].score != q[j].score {
		return q[i].score > q[j].score
	}
	return q[i].left < q[j].left
}
func (q scoreQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push is part of heap.Interface.
func (q *scoreQueue) Push(x any) { *q = append(*q, x.(join)) }

// Pop is part of heap.Interface.
func (q *scoreQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}
