package processors

import (
	"os"
	"strings"
	"testing"
)

// labelled is one hand-written reply with what a careful reader says of it.
type labelled struct {
	label                    int32
	request, response, reply string
}

func readLabelled(t testing.TB, path string) (out []labelled) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		f := strings.Split(line, "\t")
		label, ok := map[string]int32{"+": 1, "-": -1, "0": 0}[f[0]]
		if len(f) != 4 || !ok {
			t.Fatalf("%s: not a labelled reply: %q", path, line)
		}
		out = append(out, labelled{label, f[1], f[2], strings.ReplaceAll(f[3], `\n`, "\n")})
	}
	return out
}

// score counts how the rules do on labelled replies: right ones, and of those with a vote of +1 or -1 the right ones.
func score(t testing.TB, path string) (accuracy, precision float64) {
	t.Helper()
	cases := readLabelled(t, path)
	right, voted, votedRight := 0, 0, 0
	for _, c := range cases {
		o := classifyReply(c.reply, c.request, c.response)
		if o.vote == c.label {
			right++
		} else {
			t.Logf("%+d instead of %+d: %q (%s: %s)", o.vote, c.label, c.reply, o.rule, o.evidence)
		}
		if o.vote != 0 {
			voted++
			if o.vote == c.label {
				votedRight++
			}
		}
	}
	accuracy, precision = float64(right)/float64(len(cases)), float64(votedRight)/float64(voted)
	t.Logf("%s: %d replies, accuracy %.3f, precision of votes %.3f", path, len(cases), accuracy, precision)
	return accuracy, precision
}

// TestReplies: the rules read replies as a careful person does. Method: replies written by hand, many of them tricky, with labels; the
// floors are a little below what was reached, so that a change for the worse shows.
func TestReplies(t *testing.T) {
	if accuracy, precision := score(t, "testdata/replies.tsv"); accuracy < 0.95 || precision < 0.97 {
		t.Errorf("accuracy %.3f and precision %.3f, at least 0.95 and 0.97 are needed", accuracy, precision)
	}
}

// TestUnseenReplies: what the rules reach on replies that they were not fitted to. Method: a second set of labelled replies, written after
// the rules; a vote must rarely be wrong, while abstaining is allowed.
func TestUnseenReplies(t *testing.T) {
	if accuracy, precision := score(t, "testdata/replies_unseen.tsv"); accuracy < 0.6 || precision < 0.85 {
		t.Errorf("accuracy %.3f and precision %.3f, at least 0.6 and 0.85 are needed", accuracy, precision)
	}
}
