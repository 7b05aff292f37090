package importers

import (
	"cmp"
	"slices"
)

// A transcript that is a tree (Claude Code, pi) becomes lines: the main one runs from the root to the newest leaf, and each other leaf has a
// line of its own, which begins where it leaves an earlier line. Nodes are numbers in file order, so that the tree of a huge file needs a few
// integers a record; contents stay in the file.

// branch is one line of a tree. Several lines share no node.
type branch struct {
	// nodes of this line alone, parents first, then in file order.
	nodes []int32
	// from is the line that it leaves, -1 for one that begins at the root; nodes[:cut] of that line come before it.
	from, cut int
}

// tree is what untangle needs to know. The functions are called a few times a node.
type tree struct {
	// parent of each node, noNode for a root. Forward links and cycles are tolerated.
	parent []int32
	// forks returns those of a node's children (at least two, in file order) that begin a line of their own; the others continue it.
	forks func(children []int32) []int32
	// stays says that a node belongs to the next state before it, so that a fork among them happens behind it.
	stays func(node int32) bool
	// leaf says that a node may end the main line: the last such node in the file is the newest leaf.
	leaf func(node int32) bool
}

const noNode int32 = -1

// untangle returns the lines of a tree, the main one first, then the others by their first node. A tree without a leaf has no lines.
func untangle(t tree) []branch {
	u := &untangling{tree: t}
	u.breakCycles()
	u.link()
	u.markForks()
	u.orderChunks()
	u.cutSegments()
	return u.chooseLines()
}

// untangling is the state of one call of untangle.
type untangling struct {
	tree
	first, next []int32 // children of node i: first[i+1], then next[...]; first[0] are the roots
	starts      []bool  // the node begins a chunk
	order       []int32
	chunks      []chunk
	segments    []segment
}

// chunk is what hangs together without crossing a fork: order[begin:end].
type chunk struct {
	start      int32
	from       int // the chunk that it leaves, -1 for none
	cut        int // position in order
	begin, end int
}

// segment is a part of a chunk that no fork leaves from its inside: order[begin:end].
type segment struct {
	parent     int
	begin, end int
	newest     int32 // the newest leaf in it or behind it
}

// breakCycles makes a root of one node of each cycle, which only a broken or hostile file has.
func (u *untangling) breakCycles() {
	seen := make([]int32, len(u.parent)) // 0: not yet; otherwise the walk that saw it, plus one
	for i := range u.parent {
		walk := int32(i) + 1                                              //nolint:gosec // an index of a slice of int32
		for n := int32(i); n != noNode && seen[n] == 0; n = u.parent[n] { //nolint:gosec // as above
			seen[n] = walk
			if p := u.parent[n]; p != noNode && seen[p] == walk {
				u.parent[n] = noNode
			}
		}
	}
}

func (u *untangling) link() {
	u.first = slices.Repeat([]int32{noNode}, len(u.parent)+1)
	u.next = make([]int32, len(u.parent))
	for i := len(u.parent) - 1; i >= 0; i-- {
		p := u.parent[i] + 1
		u.next[i], u.first[p] = u.first[p], int32(i) //nolint:gosec // as above
	}
}

func (u *untangling) markForks() {
	u.starts = make([]bool, len(u.parent))
	var children []int32
	for _, c := range u.first {
		children = children[:0]
		for ; c != noNode; c = u.next[c] {
			children = append(children, c)
		}
		if len(children) < 2 {
			continue
		}
		for _, s := range u.forks(children) {
			u.starts[s] = true
		}
	}
}

// orderChunks puts each chunk's nodes in order: parents first, then by place in the file.
func (u *untangling) orderChunks() {
	u.order = make([]int32, 0, len(u.parent))
	u.chunks = []chunk{{start: noNode, from: -1}}
	var ready minHeap
	for c := 0; c < len(u.chunks); c++ {
		begin := len(u.order)
		u.chunks[c].begin = begin
		// after is the position behind the node whose children are looked at.
		visit := func(child int32, after int) {
			for ; child != noNode; child = u.next[child] {
				if u.starts[child] {
					u.chunks = append(u.chunks, chunk{start: child, from: c, cut: after})
				} else {
					ready.push(child)
				}
			}
		}
		if start := u.chunks[c].start; start == noNode {
			visit(u.first[0], begin)
		} else {
			ready.push(start)
		}
		for len(ready) > 0 {
			n := ready.pop()
			u.order = append(u.order, n)
			visit(u.first[n+1], len(u.order))
		}
		u.chunks[c].end = len(u.order)
	}
	// The chunks that leave one chunk stand together, in the order of their cuts, so that each node behind a cut is looked at once.
	from, high := -1, 0
	for i := range u.chunks[1:] {
		c := &u.chunks[i+1]
		if c.from != from || c.cut > high {
			from, high = c.from, c.cut
		}
		for high < u.chunks[from].end && u.stays(u.order[high]) {
			high++
		}
		c.cut = high
	}
}

// cutSegments splits chunks where others leave them, and finds each segment's newest leaf.
func (u *untangling) cutSegments() {
	cuts := make([][]int, len(u.chunks))
	for _, c := range u.chunks[1:] {
		cuts[c.from] = append(cuts[c.from], c.cut)
	}
	// endingAt finds the segment that ends at a position. A chunk may be left before its first node: then it is what lies before the chunk.
	endingAt := map[[2]int]int{}
	for i, c := range u.chunks {
		parent := -1
		if c.from >= 0 {
			parent = endingAt[[2]int{c.from, c.cut}]
		}
		endingAt[[2]int{i, c.begin}] = parent
		slices.Sort(cuts[i])
		begin := c.begin
		for _, cut := range append(cuts[i], c.end) {
			if cut > begin {
				u.segments = append(u.segments, segment{parent: parent, begin: begin, end: cut, newest: noNode})
				parent, begin = len(u.segments)-1, cut
				endingAt[[2]int{i, cut}] = parent
			}
		}
	}
	for i := len(u.segments) - 1; i >= 0; i-- { // children come behind their parents
		s := &u.segments[i]
		for _, n := range u.order[s.begin:s.end] {
			if u.leaf(n) {
				s.newest = max(s.newest, n)
			}
		}
		if s.parent >= 0 {
			u.segments[s.parent].newest = max(u.segments[s.parent].newest, s.newest)
		}
	}
}

// chooseLines lets each line go on to the newest leaf; the segments that it passes by begin lines of their own.
func (u *untangling) chooseLines() []branch {
	chosen := make([]int, len(u.segments)+1) // segment+1 -> the child that its line goes on to, plus one
	for i, s := range u.segments {
		if best := chosen[s.parent+1]; s.newest != noNode && (best == 0 || s.newest > u.segments[best-1].newest) {
			chosen[s.parent+1] = i + 1
		}
	}
	var lines []branch
	lineOf := make([]int, len(u.segments)) // and how long the line was behind each segment
	length := make([]int, len(u.segments))
	for i, s := range u.segments {
		switch {
		case s.newest == noNode:
			lineOf[i] = -1
			continue
		case chosen[s.parent+1] == i+1 && s.parent >= 0:
			lineOf[i] = lineOf[s.parent]
		case s.parent >= 0:
			lines = append(lines, branch{from: lineOf[s.parent], cut: length[s.parent]})
			lineOf[i] = len(lines) - 1
		default:
			lines = append(lines, branch{from: -1})
			lineOf[i] = len(lines) - 1
		}
		l := &lines[lineOf[i]]
		l.nodes = append(l.nodes, u.order[s.begin:s.end]...)
		length[i] = len(l.nodes)
	}
	return sortLines(lines, func(l branch) bool {
		return len(u.segments) > 0 && l.nodes[0] == u.order[u.segments[chosen[0]-1].begin]
	})
}

// sortLines puts the main line first and the others in the order of their first nodes, and renumbers from.
func sortLines(lines []branch, main func(branch) bool) []branch {
	index := make([]int, len(lines))
	for i := range index {
		index[i] = i
	}
	slices.SortStableFunc(index, func(a, b int) int {
		if ma, mb := main(lines[a]), main(lines[b]); ma != mb {
			if ma {
				return -1
			}
			return 1
		}
		return cmp.Compare(lines[a].nodes[0], lines[b].nodes[0])
	})
	moved := make([]int, len(lines))
	sorted := make([]branch, len(lines))
	for to, from := range index {
		moved[from], sorted[to] = to, lines[from]
	}
	for i := range sorted {
		if sorted[i].from >= 0 {
			sorted[i].from = moved[sorted[i].from]
		}
	}
	return sorted
}

// minHeap gives the smallest node first.
type minHeap []int32

func (h *minHeap) push(n int32) {
	*h = append(*h, n)
	for i := len(*h) - 1; i > 0; {
		up := (i - 1) / 2
		if (*h)[up] <= (*h)[i] {
			return
		}
		(*h)[up], (*h)[i] = (*h)[i], (*h)[up]
		i = up
	}
}

func (h *minHeap) pop() int32 {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	for i := 0; ; {
		small := 2*i + 1
		if small >= last {
			break
		}
		if small+1 < last && s[small+1] < s[small] {
			small++
		}
		if s[i] <= s[small] {
			break
		}
		s[i], s[small] = s[small], s[i]
		i = small
	}
	*h = s
	return top
}
