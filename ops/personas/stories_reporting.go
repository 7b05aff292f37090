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
	func(r *rand.Rand, name string) Problem {
		cows, litres, sold := between(r, 5, 12), between(r, 14, 25), between(r, 30, 65)
		all := times(cows, litres)
		return solved([]string{"cows", "cow", "litres", "litre", "milk", "farm", "cheese"}, []Step{all, minus(all.Result, sold)},
			"On %s's farm each of %d cows gives %d litres of milk a day. %d litres become cheese and the rest is sold. How many litres of milk are sold a day?", name, cows, litres, sold)
	},
	func(r *rand.Rand, name string) Problem {
		parts, minutes, seen := between(r, 4, 9), between(r, 25, 50), between(r, 40, 95)
		all := times(parts, minutes)
		return solved([]string{"series", "parts", "part", "minutes", "minute"}, []Step{all, minus(all.Result, seen)},
			"A series has %d parts of %d minutes each. %s has watched %d minutes of it. How many minutes are left to watch?", parts, minutes, name, seen)
	},
	func(r *rand.Rand, name string) Problem {
		long, wide := between(r, 11, 30), between(r, 4, 10)
		half := plus(long, wide)
		return solved([]string{"fence", "metres", "metre", "garden", "long", "wide", "sides"}, []Step{half, times(2, half.Result)},
			"%s puts a fence around a garden that is %d metres long and %d metres wide. How many metres of fence does it take?", name, long, wide)
	},
	func(r *rand.Rand, name string) Problem {
		glasses, oranges, left := between(r, 5, 12), between(r, 3, 6), between(r, 4, 20)
		used := times(glasses, oranges)
		return solved([]string{"oranges", "orange", "glasses", "glass", "juice"}, []Step{used, minus(used.Result+left, used.Result)},
			"%s has %d oranges and presses %d glasses of juice from them, %d oranges for every glass. How many oranges are not pressed?", name, used.Result+left, glasses, oranges)
	},
	func(r *rand.Rand, name string) Problem {
		km, price, fee := between(r, 6, 20), between(r, 2, 4), between(r, 4, 9)
		ride := times(km, price)
		return solved([]string{"taxi", "euros", "kilometres", "kilometre", "ride", "start"}, []Step{ride, plus(ride.Result, fee)},
			"A taxi takes %d euros at the start and %d euros for every kilometre. %s rides %d kilometres. What does the ride cost in euros?", fee, price, name, km)
	},
	func(r *rand.Rand, name string) Problem {
		coins, notes, value := between(r, 6, 20), between(r, 3, 9), between(r, 1, 2)*5
		small, large := times(coins, 2), times(notes, value)
		return solved([]string{"coins", "coin", "notes", "note", "euros", "piggy", "bank"}, []Step{small, large, plus(small.Result, large.Result)},
			"In a piggy bank %s finds %d coins of 2 euros and %d notes of %d euros. How many euros are that together?", name, coins, notes, value)
	},
	func(r *rand.Rand, name string) Problem {
		pages, photos, full := between(r, 12, 25), between(r, 4, 8), between(r, 3, 10)
		needed := over(pages*photos, photos)
		return solved([]string{"photos", "photo", "pages", "page", "album"}, []Step{needed, minus(needed.Result, full)},
			"%s sorts %d photos into an album, %d photos to a page. %d pages are full already. How many pages are still to be filled?", name, pages*photos, photos, full)
	},
	func(r *rand.Rand, name string) Problem {
		rabbits, carrots, days := between(r, 3, 8), between(r, 2, 5), between(r, 4, 12)
		daily := times(rabbits, carrots)
		return solved([]string{"rabbits", "rabbit", "carrots", "carrot", "days", "day"}, []Step{daily, over(daily.Result*days, daily.Result)},
			"%s has %d rabbits, and each of them eats %d carrots a day. There are %d carrots. For how many days do they last?", name, rabbits, carrots, daily.Result*days)
	},
	func(r *rand.Rand, name string) Problem {
		floors, stairs, more := between(r, 4, 9), between(r, 14, 22), between(r, 5, 13)
		climbed := times(floors, stairs)
		return solved([]string{"floors", "floor", "stairs", "stair", "tower", "roof"}, []Step{climbed, plus(climbed.Result, more)},
			"A tower has %d floors with %d stairs from one to the next, and %d more stairs lead to the roof. How many stairs does %s climb up to the roof?", floors, stairs, more, name)
	},
	func(r *rand.Rand, name string) Problem {
		monday, tuesday, cents := between(r, 8, 25), between(r, 10, 30), between(r, 4, 12)
		all := plus(monday, tuesday)
		return solved([]string{"bottles", "bottle", "cents", "cent", "monday", "tuesday"}, []Step{all, times(all.Result, cents)},
			"%s brings back %d empty bottles on Monday and %d on Tuesday. For each bottle there are %d cents. How many cents does that make?", name, monday, tuesday, cents)
	},
	func(r *rand.Rand, name string) Problem {
		children, planes, torn := between(r, 4, 9), between(r, 3, 6), between(r, 2, 9)
		folded := times(children, planes)
		return solved([]string{"planes", "plane", "paper", "children", "child", "tears"}, []Step{folded, minus(folded.Result, torn)},
			"%d children each fold %d planes of paper with %s. The wind tears %d of the planes. How many planes can still fly?", children, planes, name, torn)
	},
	func(r *rand.Rand, name string) Problem {
		tents, children, leaders := between(r, 6, 14), between(r, 3, 6), between(r, 5, 12)
		sleeping := times(tents, children)
		return solved([]string{"tents", "tent", "children", "child", "leaders", "camp"}, []Step{sleeping, plus(sleeping.Result, leaders)},
			"At a camp %s counts %d tents with %d children in each, and %d leaders. How many people are at the camp?", name, tents, children, leaders)
	},
	func(r *rand.Rand, name string) Problem {
		pizzas, slices, eaten := between(r, 3, 8), between(r, 6, 12), between(r, 7, 17)
		all := times(pizzas, slices)
		return solved([]string{"pizzas", "pizza", "slices", "slice", "party"}, []Step{all, minus(all.Result, eaten)},
			"For a party %s cuts each of %d pizzas into %d slices. The guests eat %d slices. How many slices are over?", name, pizzas, slices, eaten)
	},
	func(r *rand.Rand, name string) Problem {
		loads, kilos, done := between(r, 12, 30), between(r, 20, 50), between(r, 3, 11)
		needed := over(loads*kilos, kilos)
		return solved([]string{"sand", "kilograms", "kilogram", "loads", "load", "wheelbarrow"}, []Step{needed, minus(needed.Result, done)},
			"%s moves %d kilograms of sand with a wheelbarrow that takes %d kilograms at a time. %d loads are done. How many loads are still to do?", name, loads*kilos, kilos, done)
	},
	func(r *rand.Rand, name string) Problem {
		high, fewer := between(r, 16, 35), between(r, 3, 12)
		low := minus(high, fewer)
		return solved([]string{"choir", "voices", "voice", "high", "low", "sing"}, []Step{low, plus(high, low.Result)},
			"In %s's choir %d people sing with a high voice and %d fewer with a low one. How many people sing in the choir?", name, high, fewer)
	},
	func(r *rand.Rand, name string) Problem {
		friends, pieces, left := between(r, 3, 7), between(r, 20, 55), between(r, 40, 150)
		placed := times(friends, pieces)
		return solved([]string{"puzzle", "pieces", "piece", "friends", "friend"}, []Step{placed, minus(placed.Result+left, placed.Result)},
			"A puzzle has %d pieces. %s and some friends are %d people, and each of them puts down %d pieces. How many pieces are left in the box?", placed.Result+left, name, friends, pieces)
	},
}
