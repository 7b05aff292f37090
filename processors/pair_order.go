package processors

import (
	"container/heap"

	"github.com/google/uuid"
)

// idleQueue finds the sessions that were silent longest. It is a heap by the last log time, brought up to date only when a session comes
// to the top: a session's time only grows, so an entry that is behind comes up too early, never too late.
type idleQueue struct{ heap idleHeap }

func (q *idleQueue) add(s *session) {
	s.queuedTime = s.lastTime
	heap.Push(&q.heap, s)
}

func (q *idleQueue) remove(s *session) {
	if s.heapIndex >= 0 {
		heap.Remove(&q.heap, s.heapIndex)
	}
}

// before takes out every session whose last record is older than the given time in ms, in no useful order.
func (q *idleQueue) before(ms int64) []*session {
	var expired []*session
	for len(q.heap) > 0 && q.heap[0].queuedTime < ms {
		s := q.heap[0]
		if s.lastTime < ms {
			heap.Pop(&q.heap)
			expired = append(expired, s)
			continue
		}
		s.queuedTime = s.lastTime
		heap.Fix(&q.heap, 0)
	}
	return expired
}

type idleHeap []*session

func (h idleHeap) Len() int           { return len(h) }
func (h idleHeap) Less(i, j int) bool { return h[i].queuedTime < h[j].queuedTime }
func (h idleHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}

// Push implements heap.Interface.
func (h *idleHeap) Push(x any) {
	s := x.(*session)
	s.heapIndex = len(*h)
	*h = append(*h, s)
}

// Pop implements heap.Interface.
func (h *idleHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	s.heapIndex = -1
	return s
}

// recentIDs remembers the ids of the last records of a partition, counted in offsets: a producer that repeats a call whose
// acknowledgement was lost repeats records just written, the end of their session included. What it knows depends on nothing but those
// records, so reading them again restores it exactly.
type recentIDs struct {
	window int64
	last   map[uuid.UUID]int64 // the newest offset of an id
	ring   []recentID          // in order of offsets, from head, count of them
	head   int
	count  int
}

type recentID struct {
	id     uuid.UUID
	offset int64
}

func newRecentIDs(window int) recentIDs {
	return recentIDs{window: int64(window), last: map[uuid.UUID]int64{}, ring: make([]recentID, min(window, 256)+1)}
}

// add remembers an id and reports whether it was there already.
func (r *recentIDs) add(id uuid.UUID, offset int64) (repeated bool) {
	for r.count > 0 && r.ring[r.head].offset < offset-r.window {
		old := r.ring[r.head]
		if r.last[old.id] == old.offset {
			delete(r.last, old.id)
		}
		r.head = (r.head + 1) % len(r.ring)
		r.count--
	}
	_, repeated = r.last[id]
	r.last[id] = offset
	if r.count == len(r.ring) {
		r.grow()
	}
	r.ring[(r.head+r.count)%len(r.ring)] = recentID{id, offset}
	r.count++
	return repeated
}

func (r *recentIDs) grow() {
	bigger := make([]recentID, 2*len(r.ring))
	for i := range r.count {
		bigger[i] = r.ring[(r.head+i)%len(r.ring)]
	}
	r.ring, r.head = bigger, 0
}
