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

// Problems generates n distinct problems: the same ones for the same seed, and those of a smaller n first.
func Problems(seed uint64, n int) []Problem {
	random := rand.New(rand.NewPCG(seed, 0x70726f62)) //nolint:gosec // problems are no secret
	problems, seen := make([]Problem, 0, n), map[string]bool{}
	var order []int
	for len(problems) < n {
		if len(order) == 0 {
			order = random.Perm(len(stories)) // every story comes up before one comes again
		}
		story := stories[order[0]]
		order = order[1:]
		p := story(random, names[random.IntN(len(names))])
		if !seen[p.Text] {
			seen[p.Text] = true
			problems = append(problems, p)
		}
	}
	return problems
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

// stories make a problem about somebody. A new one is a line here.
var stories = []func(r *rand.Rand, name string) Problem{
	func(r *rand.Rand, name string) Problem {
		boxes, pens, given := between(r, 3, 9), between(r, 6, 12), between(r, 2, 15)
		all := times(boxes, pens)
		return solved([]string{"pens", "pen", "boxes", "box", "friends"}, []Step{all, minus(all.Result, given)},
			"%s buys %d boxes of pens. Each box holds %d pens. %s gives %d pens to friends. How many pens are left?", name, boxes, pens, name, given)
	},
	func(r *rand.Rand, name string) Problem {
		rows, trees, more := between(r, 4, 12), between(r, 5, 14), between(r, 6, 30)
		all := times(rows, trees)
		return solved([]string{"trees", "tree", "rows", "row", "orchard"}, []Step{all, plus(all.Result, more)},
			"%s's orchard has %d rows with %d trees each. In spring %s plants %d more trees. How many trees are there now?", name, rows, trees, name, more)
	},
	func(r *rand.Rand, name string) Problem {
		pages, days := between(r, 12, 30), between(r, 4, 9)
		left := between(r, 20, 90)
		read := times(pages, days)
		return solved([]string{"pages", "page", "book", "days", "day"}, []Step{read, plus(read.Result, left)},
			"%s reads %d pages of a book a day. After %d days there are %d pages left. How many pages does the book have?", name, pages, days, left)
	},
	func(r *rand.Rand, name string) Problem {
		hours, wage, cost := between(r, 5, 12), between(r, 9, 18), between(r, 10, 40)
		earned := times(hours, wage)
		return solved([]string{"hours", "hour", "euros", "shop", "bag"}, []Step{earned, minus(earned.Result, cost)},
			"%s works %d hours in a shop for %d euros an hour and then buys a bag for %d euros. How many euros are left?", name, hours, wage, cost)
	},
	func(r *rand.Rand, name string) Problem {
		share, people, extra := between(r, 4, 12), between(r, 3, 8), between(r, 5, 25)
		bought := share*people + extra
		rest := minus(bought, extra)
		return solved([]string{"cookies", "cookie", "guests", "guest", "plate"}, []Step{rest, over(rest.Result, people)},
			"%s bakes %d cookies, keeps %d of them and shares the rest equally among %d guests. How many cookies does each guest get?", name, bought, extra, people)
	},
	func(r *rand.Rand, name string) Problem {
		adults, children := between(r, 2, 6), between(r, 3, 9)
		full, half := between(r, 10, 18), between(r, 4, 9)
		a, b := times(adults, full), times(children, half)
		return solved([]string{"tickets", "ticket", "adults", "adult", "children", "child", "euros"}, []Step{a, b, plus(a.Result, b.Result)},
			"Tickets cost %d euros for an adult and %d euros for a child. %s buys tickets for %d adults and %d children. How many euros is that?", full, half, name, adults, children)
	},
	func(r *rand.Rand, name string) Problem {
		km, days, rest := between(r, 8, 25), between(r, 3, 8), between(r, 15, 60)
		ridden := times(km, days)
		return solved([]string{"kilometres", "kilometre", "bicycle", "trip", "days", "day"}, []Step{ridden, plus(ridden.Result, rest)},
			"On a bicycle trip %s rides %d kilometres a day for %d days and %d kilometres on the last day. How long is the trip in kilometres?", name, km, days, rest)
	},
	func(r *rand.Rand, name string) Problem {
		hens, eggs, sold := between(r, 6, 15), between(r, 4, 7), between(r, 8, 20)
		laid := times(hens, eggs)
		return solved([]string{"eggs", "egg", "hens", "hen", "week", "market"}, []Step{laid, minus(laid.Result, sold)},
			"%s keeps %d hens. Each hen lays %d eggs a week. %s sells %d eggs on the market. How many eggs remain?", name, hens, eggs, name, sold)
	},
	func(r *rand.Rand, name string) Problem {
		shelves, jars, broken := between(r, 3, 8), between(r, 9, 16), between(r, 2, 9)
		all := times(shelves, jars)
		return solved([]string{"jars", "jar", "shelves", "shelf", "honey"}, []Step{all, minus(all.Result, broken)},
			"There are %d jars of honey on each of %d shelves. %s drops %d of the jars. How many jars are whole?", jars, shelves, name, broken)
	},
	func(r *rand.Rand, name string) Problem {
		first, more := between(r, 12, 40), between(r, 5, 20)
		second := plus(first, more)
		return solved([]string{"shells", "shell", "beach", "sister"}, []Step{second, plus(first, second.Result)},
			"%s finds %d shells on the beach. The sister finds %d shells more than that. How many shells do they have together?", name, first, more)
	},
	func(r *rand.Rand, name string) Problem {
		weeks, saved, price := between(r, 6, 14), between(r, 5, 12), between(r, 180, 260)
		all := times(weeks, saved)
		return solved([]string{"guitar", "weeks", "week", "euros", "saves"}, []Step{all, minus(price, all.Result)},
			"A guitar costs %d euros. %s saves %d euros a week for %d weeks. How many euros are still missing?", price, name, saved, weeks)
	},
	func(r *rand.Rand, name string) Problem {
		buses, seats, free := between(r, 2, 6), between(r, 20, 45), between(r, 3, 15)
		all := times(buses, seats)
		return solved([]string{"buses", "bus", "seats", "seat", "pupils", "school"}, []Step{all, minus(all.Result, free)},
			"%s's school orders %d buses with %d seats each. On the trip %d seats stay free. How many pupils are on the buses?", name, buses, seats, free)
	},
}
