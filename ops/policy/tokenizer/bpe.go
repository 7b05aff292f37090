package tokenizer

import (
	"container/heap"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// bpe is byte-level BPE: text is cut into words, a word's bytes are tokens, and neighbours are merged in the order of the list of merges.
type bpe struct {
	split splitter
	// bytes has the token of each byte; -1: none, such bytes vanish.
	bytes  [256]int32
	merges map[uint64]merged // by the two ids
	// words, when set: a word that is a token as a whole is that token, whatever the merges say.
	words map[string]uint32
}

type merged struct{ rank, id uint32 }

func pair(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// bytePairs fills in what a vocabulary of the kind gpt2 has, and returns whether prompts begin with BOS unless the file says otherwise.
func (t *Tokenizer) bytePairs(f *gguf.File, tokens []string, kinds []int32) (addBOS bool, err error) {
	pre, _ := f.String("tokenizer.ggml.pre")
	cut, ok := preTokenizers[pre]
	if !ok {
		return false, fmt.Errorf("the model's pre-tokenizer is %q, which is not known here; known are %s", pre, strings.Join(preNames(), ", "))
	}
	list, ok := f.Strings("tokenizer.ggml.merges")
	if !ok {
		return false, errors.New("the model file holds no merges (tokenizer.ggml.merges); give a GGUF that was converted with its tokenizer")
	}
	m := &bpe{split: cut.split, merges: make(map[uint64]merged, len(list))}
	ids := make(map[string]int32, len(tokens))
	toByte := byteOfRune()
	for id, text := range tokens {
		if _, twice := ids[text]; !twice {
			ids[text] = int32(id)
		}
		t.pieces[id] = []byte(text)
		if kinds[id] == kindNormal {
			t.pieces[id] = bytesOf(text, toByte)
		}
	}
	for b, r := range runeOfByte() {
		m.bytes[b] = -1
		if id, ok := ids[string(r)]; ok {
			m.bytes[b] = id
		}
	}
	for rank, line := range list {
		// The two are written in the alphabet of bytes, which has no space.
		left, right, ok := strings.Cut(line, " ")
		a, okA := ids[left]
		b, okB := ids[right]
		id, okC := ids[left+right]
		if !ok || !okA || !okB || !okC {
			return false, fmt.Errorf("the merge %d, %q, does not join two tokens of the vocabulary to a third: the model file is damaged", rank, line)
		}
		if _, twice := m.merges[pair(a, b)]; !twice {
			m.merges[pair(a, b)] = merged{uint32(rank), uint32(id)}
		}
	}
	if cut.wholeWords {
		m.words = make(map[string]uint32, len(tokens))
		for id, piece := range t.pieces {
			if kinds[id] == kindNormal {
				m.words[string(piece)] = uint32(id)
			}
		}
	}
	t.merge = m
	return cut.addBOS, nil
}

func (m *bpe) encode(ids []uint32, text string) []uint32 {
	var w word
	m.split(text, func(part string) {
		if m.words != nil {
			if id, ok := m.words[part]; ok {
				ids = append(ids, id)
				return
			}
		}
		ids = w.encode(ids, m, part)
	})
	return ids
}

// shortWord is up to how many tokens a word is merged by looking at all pairs each time, which is faster there than a heap.
const shortWord = 24

// word is the working memory of merging one word.
type word struct {
	ids   []int32
	ranks []merged
	next  []int32
	prev  []int32
	queue mergeQueue
}

const noRank = math.MaxUint32

func (m *bpe) rank(left, right int32) merged {
	if got, ok := m.merges[pair(left, right)]; ok {
		return got
	}
	return merged{rank: noRank}
}

func (w *word) encode(out []uint32, m *bpe, part string) []uint32 {
	w.ids = w.ids[:0]
	for i := range len(part) {
		if id := m.bytes[part[i]]; id >= 0 {
			w.ids = append(w.ids, id)
		}
	}
	if len(w.ids) > shortWord {
		w.long(m)
	} else {
		w.short(m)
	}
	for _, id := range w.ids {
		out = append(out, uint32(id))
	}
	return out
}

// short merges the pair of the lowest rank, the leftmost where equal, until there is none.
func (w *word) short(m *bpe) {
	if len(w.ids) < 2 {
		return
	}
	w.ranks = w.ranks[:0]
	for i := range len(w.ids) - 1 {
		w.ranks = append(w.ranks, m.rank(w.ids[i], w.ids[i+1]))
	}
	for {
		best := 0
		for i := range w.ranks {
			if w.ranks[i].rank < w.ranks[best].rank {
				best = i
			}
		}
		if len(w.ranks) == 0 || w.ranks[best].rank == noRank {
			return
		}
		w.ids[best] = int32(w.ranks[best].id)
		w.ids = slices.Delete(w.ids, best+1, best+2)
		w.ranks = slices.Delete(w.ranks, best, best+1)
		if best > 0 {
			w.ranks[best-1] = m.rank(w.ids[best-1], w.ids[best])
		}
		if best < len(w.ranks) {
			w.ranks[best] = m.rank(w.ids[best], w.ids[best+1])
		}
	}
}

// long does the same with a heap and a linked list.
func (w *word) long(m *bpe) {
	n := int32(len(w.ids))
	w.next, w.prev, w.queue = w.next[:0], w.prev[:0], w.queue[:0]
	for i := range n {
		w.next, w.prev = append(w.next, i+1), append(w.prev, i-1)
		if i+1 < n {
			w.queue.offer(m, i, i+1, w.ids)
		}
	}
	heap.Init(&w.queue)
	const gone = -1
	for len(w.queue) > 0 {
		c := heap.Pop(&w.queue).(candidate)
		right := w.next[c.at]
		if w.ids[c.at] != c.left || right >= n || w.ids[right] != c.right {
			continue // one of the two has been merged meanwhile
		}
		w.ids[c.at], w.ids[right] = int32(c.merged.id), gone
		w.next[c.at] = w.next[right]
		if after := w.next[right]; after < n {
			w.prev[after] = c.at
			w.queue.push(m, c.at, after, w.ids)
		}
		if before := w.prev[c.at]; before >= 0 {
			w.queue.push(m, before, c.at, w.ids)
		}
	}
	w.ids = slices.DeleteFunc(w.ids, func(id int32) bool { return id == gone })
}

type candidate struct {
	merged      merged
	at          int32
	left, right int32 // the ids when it was found
}

type mergeQueue []candidate

func (q *mergeQueue) offer(m *bpe, left, right int32, ids []int32) bool {
	got := m.rank(ids[left], ids[right])
	if got.rank == noRank {
		return false
	}
	*q = append(*q, candidate{got, left, ids[left], ids[right]})
	return true
}

func (q *mergeQueue) push(m *bpe, left, right int32, ids []int32) {
	if q.offer(m, left, right, ids) {
		heap.Fix(q, len(*q)-1)
	}
}

func (q mergeQueue) Len() int { return len(q) }
func (q mergeQueue) Less(i, j int) bool {
	if q[i].merged.rank != q[j].merged.rank {
		return q[i].merged.rank < q[j].merged.rank
	}
	return q[i].at < q[j].at
}
func (q mergeQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push is part of heap.Interface.
func (q *mergeQueue) Push(x any) { *q = append(*q, x.(candidate)) }

// Pop is part of heap.Interface.
func (q *mergeQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// runeOfByte is the alphabet in which byte-level vocabularies write bytes: printable Latin-1 as itself, the others from U+0100 on, in order.
func runeOfByte() [256]rune {
	var table [256]rune
	n := rune(256)
	for b := range table {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			table[b] = rune(b)
			continue
		}
		table[b] = n
		n++
	}
	return table
}

func byteOfRune() map[rune]byte {
	table := make(map[rune]byte, 256)
	for b, r := range runeOfByte() {
		table[r] = byte(b)
	}
	return table
}

// bytesOf reads a token's text in that alphabet. A character outside of it stands for itself.
func bytesOf(text string, table map[rune]byte) []byte {
	out := make([]byte, 0, len(text))
	for _, r := range text {
		if b, ok := table[r]; ok {
			out = append(out, b)
		} else {
			out = append(out, string(r)...)
		}
	}
	return out
}
