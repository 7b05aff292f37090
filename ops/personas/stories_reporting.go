package personas

import "math/rand/v2"

// reportingStories are those that figures are reported on; nothing is tuned on them. A new one is a line here.
var reportingStories = []story{
	func(r *rand.Rand, name string) Problem {
		rows, trees, more := between(r, 4, 12), between(r, 5, 14), between(r, 6, 30)
		all := times(rows, trees)
		return solved([]string{"trees", "tree", "rows", "row", "orchard"}, []Step{all, plus(all.Result, more)},
			"%s's orchard has %d rows with %d trees each. In spring %s plants %d more trees. How many trees are there now?", name, rows, trees, name, more)
	},
	func(r *rand.Rand, name string) Problem {
		hours, wage, cost := between(r, 5, 12), between(r, 9, 18), between(r, 10, 40)
		earned := times(hours, wage)
		return solved([]string{"hours", "hour", "euros", "shop", "bag"}, []Step{earned, minus(earned.Result, cost)},
			"%s works %d hours in a shop for %d euros an hour and then buys a bag for %d euros. How many euros are left?", name, hours, wage, cost)
	},
	func(r *rand.Rand, name string) Problem {
		adults, children := between(r, 2, 6), between(r, 3, 9)
		full, half := between(r, 10, 18), between(r, 4, 9)
		a, b := times(adults, full), times(children, half)
		return solved([]string{"tickets", "ticket", "adults", "adult", "children", "child", "euros"}, []Step{a, b, plus(a.Result, b.Result)},
			"Tickets cost %d euros for an adult and %d euros for a child. %s buys tickets for %d adults and %d children. How many euros is that?", full, half, name, adults, children)
	},
	func(r *rand.Rand, name string) Problem {
		hens, eggs, sold := between(r, 6, 15), between(r, 4, 7), between(r, 8, 20)
		laid := times(hens, eggs)
		return solved([]string{"eggs", "egg", "hens", "hen", "week", "market"}, []Step{laid, minus(laid.Result, sold)},
			"%s keeps %d hens. Each hen lays %d eggs a week. %s sells %d eggs on the market. How many eggs remain?", name, hens, eggs, name, sold)
	},
	func(r *rand.Rand, name string) Problem {
		first, more := between(r, 12, 40), between(r, 5, 20)
		second := plus(first, more)
		return solved([]string{"shells", "shell", "beach", "sister"}, []Step{second, plus(first, second.Result)},
			"%s finds %d shells on the beach. The sister finds %d shells more than that. How many shells do they have together?", name, first, more)
	},
	func(r *rand.Rand, name string) Problem {
		buses, seats, free := between(r, 2, 6), between(r, 20, 45), between(r, 3, 15)
		all := times(buses, seats)
		return solved([]string{"buses", "bus", "seats", "seat", "pupils", "school"}, []Step{all, minus(all.Result, free)},
			"%s's school orders %d buses with %d seats each. On the trip %d seats stay free. How many pupils are on the buses?", name, buses, seats, free)
	},
}
