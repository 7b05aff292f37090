package personas

import "math/rand/v2"

// tuningStories are those that settings may be tuned on. A new one is a line here.
var tuningStories = []story{
	func(r *rand.Rand, name string) Problem {
		boxes, pens, given := between(r, 3, 9), between(r, 6, 12), between(r, 2, 15)
		all := times(boxes, pens)
		return solved([]string{"pens", "pen", "boxes", "box", "friends"}, []Step{all, minus(all.Result, given)},
			"%s buys %d boxes of pens. Each box holds %d pens. %s gives %d pens to friends. How many pens are left?", name, boxes, pens, name, given)
	},
	func(r *rand.Rand, name string) Problem {
		pages, days := between(r, 12, 30), between(r, 4, 9)
		left := between(r, 20, 90)
		read := times(pages, days)
		return solved([]string{"pages", "page", "book", "days", "day"}, []Step{read, plus(read.Result, left)},
			"%s reads %d pages of a book a day. After %d days there are %d pages left. How many pages does the book have?", name, pages, days, left)
	},
	func(r *rand.Rand, name string) Problem {
		share, people, extra := between(r, 4, 12), between(r, 3, 8), between(r, 5, 25)
		bought := share*people + extra
		rest := minus(bought, extra)
		return solved([]string{"cookies", "cookie", "guests", "guest", "plate"}, []Step{rest, over(rest.Result, people)},
			"%s bakes %d cookies, keeps %d of them and shares the rest equally among %d guests. How many cookies does each guest get?", name, bought, extra, people)
	},
	func(r *rand.Rand, name string) Problem {
		km, days, rest := between(r, 8, 25), between(r, 3, 8), between(r, 15, 60)
		ridden := times(km, days)
		return solved([]string{"kilometres", "kilometre", "bicycle", "trip", "days", "day"}, []Step{ridden, plus(ridden.Result, rest)},
			"On a bicycle trip %s rides %d kilometres a day for %d days and %d kilometres on the last day. How long is the trip in kilometres?", name, km, days, rest)
	},
	func(r *rand.Rand, name string) Problem {
		shelves, jars, broken := between(r, 3, 8), between(r, 9, 16), between(r, 2, 9)
		all := times(shelves, jars)
		return solved([]string{"jars", "jar", "shelves", "shelf", "honey"}, []Step{all, minus(all.Result, broken)},
			"There are %d jars of honey on each of %d shelves. %s drops %d of the jars. How many jars are whole?", jars, shelves, name, broken)
	},
	func(r *rand.Rand, name string) Problem {
		weeks, saved, price := between(r, 6, 14), between(r, 5, 12), between(r, 180, 260)
		all := times(weeks, saved)
		return solved([]string{"guitar", "weeks", "week", "euros", "saves"}, []Step{all, minus(price, all.Result)},
			"A guitar costs %d euros. %s saves %d euros a week for %d weeks. How many euros are still missing?", price, name, saved, weeks)
	},
}
