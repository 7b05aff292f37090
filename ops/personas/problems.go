package personas

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
)

// Problem is an arithmetic word problem with its solution.
type Problem struct {
	Text string
	// Nouns are what it is about, in lower case, singular and plural as they may come in a reply.
	Nouns  []string
	Steps  []Step
	Answer int
}

// Step is one calculation: "4 x 6" gives 24.
type Step struct {
	Sum    string
	Result int
}

var number = regexp.MustCompile(`\d+`)

// Numbers are the distinct numbers of the text.
func (p Problem) Numbers() []string {
	found := number.FindAllString(p.Text, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

// Half is a half of the problems: settings are tuned on one and reported on the other. No story is in both.
type Half int

// The halves. The zero value is none of them.
const (
	Tuning Half = iota + 1
	Reporting
)

// Halves are the names of the halves.
var Halves = map[string]Half{"tuning": Tuning, "reporting": Reporting}

// String is its name.
func (h Half) String() string {
	for name, half := range Halves {
		if half == h {
			return name
		}
	}
	return fmt.Sprintf("Half(%d)", int(h))
}

func (h Half) stories() ([]story, error) {
	switch h {
	case Tuning:
		return tuningStories, nil
	case Reporting:
		return reportingStories, nil
	}
	return nil, fmt.Errorf("there is no half %d of the problems: use tuning or reporting", h)
}

// drawsMax bounds how often in a row a problem may come again before there are no others.
const drawsMax = 1000

// Problems generates n distinct problems: the same ones for the same half and seed, and those of a smaller n first. Every story comes up before one comes
// again. It fails when a half does not have so many; there are some 10,000.
func Problems(half Half, seed uint64, n int) ([]Problem, error) {
	stories, err := half.stories()
	if err != nil {
		return nil, err
	}
	problems, err := tell(stories, seed, n)
	if err != nil {
		return nil, fmt.Errorf("the half %s: %w", half, err)
	}
	return problems, nil
}

// tell makes problems of stories.
func tell(stories []story, seed uint64, n int) ([]Problem, error) {
	random := rand.New(rand.NewPCG(seed, 0x70726f62)) //nolint:gosec // problems are no secret
	var problems []Problem
	var order []int
	for seen, draws := map[string]bool{}, 0; len(problems) < n; draws++ {
		if draws == drawsMax {
			return nil, fmt.Errorf("%d problems are wanted, %d distinct ones were found: ask for fewer", n, len(problems))
		}
		if len(order) == 0 {
			order = random.Perm(len(stories))
		}
		p := stories[order[0]](random, names[random.IntN(len(names))])
		order = order[1:]
		if len(p.Numbers()) >= 2 && !seen[p.Text] { // one number alone cannot show that a reply is about it
			seen[p.Text] = true
			problems = append(problems, p)
			draws = 0
		}
	}
	return problems, nil
}

var names = []string{"Mara", "Tobias", "Ines", "Kofi", "Lena", "Ravi", "Sofia", "Emil", "Noor", "Hugo", "Yuki", "Clara"}

// between draws from lo to hi.
func between(r *rand.Rand, lo, hi int) int { return lo + r.IntN(hi-lo+1) }

func times(a, b int) Step { return Step{fmt.Sprintf("%d x %d", a, b), a * b} }
func plus(a, b int) Step  { return Step{fmt.Sprintf("%d + %d", a, b), a + b} }
func minus(a, b int) Step { return Step{fmt.Sprintf("%d - %d", a, b), a - b} }
func over(a, b int) Step  { return Step{fmt.Sprintf("%d / %d", a, b), a / b} }

// solved makes a problem whose answer is that of its last step.
func solved(nouns []string, steps []Step, text string, args ...any) Problem {
	return Problem{Text: fmt.Sprintf(text, args...), Nouns: nouns, Steps: steps, Answer: steps[len(steps)-1].Result}
}

// story makes a problem about somebody.
type story func(r *rand.Rand, name string) Problem
