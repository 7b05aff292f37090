package importers

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// everyChild is a tree in which each fork starts lines, as in pi sessions.
func everyChild(parent []int32) tree {
	return tree{
		parent: slices.Clone(parent),
		forks:  func(children []int32) []int32 { return children },
		stays:  func(int32) bool { return false },
		leaf:   func(int32) bool { return true },
	}
}

// Goal: the lines of a tree are exactly its paths: each node is in one line, each line with what came before it is the path from a root to a
// leaf, and the first line ends at the newest leaf. Method: random trees, with parents that come later in the file, against the parent links.
func TestUntanglePaths(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 1 + r.IntN(60)
		rank := r.Perm(n) // parents have lower ranks: no cycles, but links in both directions of the file
		parent := make([]int32, n)
		for i := range parent {
			parent[i] = noNode
			if p := r.IntN(n + n/4 + 1); p < n && rank[p] < rank[i] {
				parent[i] = int32(p)
			}
		}
		lines := untangle(everyChild(parent))
		seen := make([]bool, n)
		hasChild := make([]bool, n)
		for _, p := range parent {
			if p != noNode {
				hasChild[p] = true
			}
		}
		for i, l := range lines {
			path := fullPath(lines, i)
			for j, node := range path {
				if want := noNode; j > 0 {
					want = path[j-1]
					if parent[node] != want {
						t.Fatalf("seed %d: line %d has %d behind %d, its parent is %d", seed, i, node, want, parent[node])
					}
				} else if parent[node] != want {
					t.Fatalf("seed %d: line %d does not begin at a root", seed, i)
				}
			}
			if hasChild[path[len(path)-1]] {
				t.Fatalf("seed %d: line %d does not end at a leaf", seed, i)
			}
			for _, node := range l.nodes {
				if seen[node] {
					t.Fatalf("seed %d: node %d is in two lines", seed, node)
				}
				seen[node] = true
			}
		}
		if i := slices.Index(seen, false); i >= 0 {
			t.Fatalf("seed %d: node %d is in no line", seed, i)
		}
		if main := fullPath(lines, 0); !slices.Contains(main, int32(n-1)) {
			t.Fatalf("seed %d: the main line does not hold the newest node", seed)
		}
	}
}

func fullPath(lines []branch, i int) []int32 {
	l := lines[i]
	if l.from < 0 {
		return l.nodes
	}
	return append(slices.Clone(fullPath(lines, l.from)[:len(fullPath(lines, l.from))-len(lines[l.from].nodes)+l.cut]), l.nodes...)
}

// Goal: whatever the links are, cycles and links to itself included, each node is in one line and nothing loops. Method: random links.
func TestUntangleCycles(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		n := 1 + r.IntN(40)
		parent := make([]int32, n)
		for i := range parent {
			parent[i] = int32(r.IntN(n+1)) - 1
		}
		tr := everyChild(parent)
		stays := make([]bool, n)
		for i := range stays {
			stays[i] = r.IntN(2) == 0
		}
		tr.stays = func(i int32) bool { return stays[i] }
		tr.forks = func(children []int32) []int32 {
			return slices.DeleteFunc(slices.Clone(children), func(i int32) bool { return stays[i] })
		}
		count := 0
		for i, l := range untangle(tr) {
			count += len(l.nodes)
			if l.from >= i && i > 0 && l.from == i {
				t.Fatalf("seed %d: line %d leaves itself", seed, i)
			}
		}
		if count != n {
			t.Fatalf("seed %d: %d of %d nodes are in lines", seed, count, n)
		}
	}
}

// Goal: a line goes on past a fork with what belongs to the next state before it, and a tree without a leaf has no lines. Method: by hand.
func TestUntangleStays(t *testing.T) {
	// 0 asks; 1 calls; 2 and 3 are results of 1; 4 and 5 are two continuations, both hung on result 2.
	tr := tree{
		parent: []int32{noNode, 0, 1, 1, 2, 2},
		forks: func(c []int32) []int32 {
			return slices.DeleteFunc(slices.Clone(c), func(i int32) bool { return i < 4 })
		},
		stays: func(i int32) bool { return i == 2 || i == 3 },
		leaf:  func(i int32) bool { return i >= 4 },
	}
	lines := untangle(tr)
	if len(lines) != 2 || !slices.Equal(lines[0].nodes, []int32{0, 1, 2, 3, 5}) || !slices.Equal(lines[1].nodes, []int32{4}) ||
		lines[1].from != 0 || lines[1].cut != 4 {
		t.Errorf("lines %+v", lines)
	}
	tr.parent = []int32{noNode, 0, 1, 1, 2, 2}
	tr.leaf = func(int32) bool { return false }
	if lines := untangle(tr); len(lines) != 0 {
		t.Errorf("lines without a leaf: %+v", lines)
	}
	if lines := untangle(everyChild(nil)); len(lines) != 0 {
		t.Errorf("lines of nothing: %+v", lines)
	}
}

// Goal: what a person typed is told from what the harness wrote. Method: f(in, want).
func TestClaudeText(t *testing.T) {
	for _, c := range []struct {
		in    string
		kind  textKind
		typed string
	}{
		{"fix it", textTyped, "fix it"},
		{"  keep the spaces ", textTyped, "  keep the spaces "},
		{"a\n<system-reminder>\nx\n</system-reminder>\nb", textTyped, "a\nb"},
		{"<system-reminder>x</system-reminder>", textHarness, ""},
		{"<system-reminder>x</system-reminder> <system-reminder>y</system-reminder>yes", textTyped, "yes"},
		{"<command-name>/init</command-name>\n <command-args></command-args>", textHarness, ""},
		{"<command-name>/init</command-name> and then?", textTyped, "<command-name>/init</command-name> and then?"},
		{"<bash-input>ls</bash-input>", textHarness, ""},
		{"<bash-input>ls", textTyped, "<bash-input>ls"},
		{"<div>why is this red?</div>", textTyped, "<div>why is this red?</div>"},
		{"Caveat: The messages below were generated", textHarness, ""},
		{"[Request interrupted by user]", textInterrupt, "[Request interrupted by user]"},
		{"[Request interrupted by user for tool use]", textInterrupt, "[Request interrupted by user for tool use]"},
		{"", textHarness, ""},
		{" \n", textHarness, ""},
		{"<", textTyped, "<"},
	} {
		if kind, typed := claudeText(c.in); kind != c.kind || typed != c.typed {
			t.Errorf("%q: %d %q, want %d %q", c.in, kind, typed, c.kind, c.typed)
		}
	}
}

// Goal: OpenClaw's prefix is split from the words, and nothing that only looks like one. Method: f(in, want).
func TestPiWords(t *testing.T) {
	sender := "Sender (untrusted metadata):\n```json\n{\n  \"label\": \"Kim\"\n}\n```\n\n"
	for _, c := range []struct{ in, prefix, words string }{
		{"hello", "", "hello"},
		{sender + "hello", sender, "hello"},
		{sender + sender + "[Mon 2026-01-05 09:00 UTC] hello", sender + sender + "[Mon 2026-01-05 09:00 UTC] ", "hello"},
		{"[Telegram Kim id:1 +5m 2026-01-05 09:00 UTC] hello", "[Telegram Kim id:1 +5m 2026-01-05 09:00 UTC] ", "hello"},
		{"[todo] buy milk", "", "[todo] buy milk"},
		{"[cron:j1 x] wake up", "", "[cron:j1 x] wake up"},
		{"Sender (untrusted metadata):\nno fence", "", "Sender (untrusted metadata):\nno fence"},
	} {
		if prefix, words := piWords(c.in); prefix != c.prefix || words != c.words {
			t.Errorf("%q: %q and %q", c.in, prefix, words)
		}
	}
}
