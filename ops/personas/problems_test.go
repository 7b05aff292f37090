package personas

import (
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/guard"
)

// problemsLeast is how many distinct problems each half has at least: 72 sessions and 30 held-out problems for each of three personas, and more.
const problemsLeast = 10_000

// TestProblems: a half and a seed give the same problems for ever, all distinct, and each problem's solution is right. Method: two generations, one of them
// cut short; every step is calculated again from its text, without a remainder, and every number of the first steps is one of the problem or the count 2.
func TestProblems(t *testing.T) {
	for name, half := range Halves {
		t.Run(name, func(t *testing.T) {
			all, some := generate(t, half, 7, problemsLeast), generate(t, half, 7, 60)
			seen := map[string]bool{}
			for i, p := range all {
				if seen[p.Text] {
					t.Errorf("problem %d comes twice: %s", i, p.Text)
				}
				seen[p.Text] = true
				if i < len(some) && some[i].Text != p.Text {
					t.Errorf("problem %d depends on how many are asked for", i)
				}
				checkProblem(t, p)
			}
			if other := generate(t, half, 8, 1); other[0].Text == all[0].Text {
				t.Error("another seed gives the same first problem")
			}
		})
	}
}

// checkProblem holds a problem's solution against its text.
func checkProblem(t *testing.T, p Problem) {
	t.Helper()
	known := map[string]bool{"2": true} // two sides, two of a coin
	for _, n := range p.Numbers() {
		known[n] = true
	}
	for _, s := range p.Steps {
		if s.Result != calculate(t, s.Sum) || s.Result <= 0 {
			t.Errorf("%s is not %d: %s", s.Sum, s.Result, p.Text)
		}
		for _, n := range number.FindAllString(s.Sum, -1) {
			if !known[n] {
				t.Errorf("%s uses %s, which nobody knows: %s", s.Sum, n, p.Text)
			}
		}
		known[strconv.Itoa(s.Result)] = true
	}
	if p.Answer != p.Steps[len(p.Steps)-1].Result {
		t.Errorf("answer %d: %s", p.Answer, p.Text)
	}
	if len(p.Numbers()) < 2 || !strings.HasSuffix(p.Text, "?") {
		t.Errorf("too few numbers or no question: %s", p.Text)
	}
	words, nouns := guard.Words(p.Text), 0
	for _, noun := range p.Nouns {
		if strings.Contains(strings.ToLower(p.Text), noun) {
			nouns++
		}
	}
	if !onTopic(words, p, nil) || nouns < 2 {
		t.Errorf("the problem is not about itself: %s", p.Text)
	}
}

// TestHalvesAreApart: no story is in both halves, and there are enough of each. Method: problems without their numbers and names are their stories.
func TestHalvesAreApart(t *testing.T) {
	who := regexp.MustCompile(strings.Join(names, "|"))
	stories := map[string]string{}
	count := map[string]int{}
	for name, half := range Halves {
		for _, p := range generate(t, half, 3, 400) {
			s := who.ReplaceAllString(number.ReplaceAllString(p.Text, "#"), "N")
			if other, ok := stories[s]; ok && other != name {
				t.Errorf("in both halves: %s", s)
			} else if !ok {
				stories[s] = name
				count[name]++
			}
		}
	}
	for name := range Halves {
		if count[name] < 20 {
			t.Errorf("%d stories in the half %s", count[name], name)
		}
	}
}

// TestProblemsRefuses: what cannot be had is an error that says so. Method: a half that does not exist, and two problems of a story that
// makes one.
func TestProblemsRefuses(t *testing.T) {
	if _, err := Problems(0, 1, 1); err == nil || !strings.Contains(err.Error(), "tuning or reporting") {
		t.Errorf("error %v", err)
	}
	only := func(*rand.Rand, string) Problem { return kofi }
	if _, err := tell([]story{only}, 1, 2); err == nil || !strings.Contains(err.Error(), "ask for fewer") {
		t.Errorf("error %v", err)
	}
}
