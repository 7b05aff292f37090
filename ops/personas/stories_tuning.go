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
	func(r *rand.Rand, name string) Problem {
		trays, rolls, sold := between(r, 4, 9), between(r, 8, 15), between(r, 5, 28)
		baked := times(trays, rolls)
		return solved([]string{"rolls", "roll", "trays", "tray", "bakery", "noon"}, []Step{baked, minus(baked.Result, sold)},
			"%s's bakery bakes %d trays of rolls, with %d rolls on each tray. By noon %d rolls are sold. How many rolls are left?", name, trays, rolls, sold)
	},
	func(r *rand.Rand, name string) Problem {
		lengths, metres, more := between(r, 6, 16), between(r, 20, 30), between(r, 30, 90)
		own := times(lengths, metres)
		friend := plus(own.Result, more)
		return solved([]string{"lengths", "length", "metres", "metre", "pool", "friend", "swims"}, []Step{own, friend, plus(own.Result, friend.Result)},
			"In a pool %s swims %d lengths of %d metres each. A friend swims %d metres more than that. How many metres do the two swim together?", name, lengths, metres, more)
	},
	func(r *rand.Rand, name string) Problem {
		tables, each, size := between(r, 3, 7), between(r, 2, 4), between(r, 4, 9)
		candles := times(tables*each, size)
		return solved([]string{"candles", "candle", "packs", "pack", "tables", "table"}, []Step{candles, over(candles.Result, tables)},
			"%s opens %d packs of candles with %d candles in each and puts the same number of candles on each of %d tables. How many candles are on one table?", name, tables*each, size, tables)
	},
	func(r *rand.Rand, name string) Problem {
		buckets, litres, free := between(r, 5, 12), between(r, 6, 12), between(r, 20, 80)
		poured := times(buckets, litres)
		return solved([]string{"buckets", "bucket", "litres", "litre", "tank", "water", "rain"}, []Step{poured, minus(poured.Result+free, poured.Result)},
			"A rain tank holds %d litres. %s pours in %d buckets of water with %d litres each. How many more litres does the tank take?", poured.Result+free, name, buckets, litres)
	},
	func(r *rand.Rand, name string) Problem {
		tanks, fish, more := between(r, 3, 8), between(r, 7, 14), between(r, 6, 25)
		all := times(tanks, fish)
		return solved([]string{"fish", "tanks", "tank", "shop", "pet"}, []Step{all, plus(all.Result, more)},
			"A pet shop has %d tanks with %d fish in each. Then %s brings %d more fish to the shop. How many fish does the shop have now?", tanks, fish, name, more)
	},
	func(r *rand.Rand, name string) Problem {
		loaves, grams, left := between(r, 3, 7), between(r, 30, 60)*10, between(r, 10, 60)*10
		used := times(loaves, grams)
		return solved([]string{"flour", "grams", "gram", "loaves", "loaf", "bread"}, []Step{used, minus(used.Result+left, used.Result)},
			"%s has %d grams of flour and bakes %d loaves of bread. Every loaf takes %d grams of flour. How many grams of flour remain?", name, used.Result+left, loaves, grams)
	},
	func(r *rand.Rand, name string) Problem {
		each, sisters, found := between(r, 6, 15), between(r, 2, 5), between(r, 5, 11)
		all := plus(each*sisters-found, found)
		return solved([]string{"marbles", "marble", "bag", "sisters", "sister", "garden"}, []Step{all, over(all.Result, sisters)},
			"There are %d marbles in a bag. %s finds %d more in the garden and divides all of them equally among %d sisters. How many marbles does every sister get?", each*sisters-found, name, found, sisters)
	},
	func(r *rand.Rand, name string) Problem {
		wagons, people, out := between(r, 4, 9), between(r, 18, 40), between(r, 12, 50)
		all := times(wagons, people)
		return solved([]string{"train", "wagons", "wagon", "people", "passengers", "station"}, []Step{all, minus(all.Result, out)},
			"The train that %s takes has %d wagons with %d people in each. At the first station %d people get off and nobody gets on. How many people stay on the train?", name, wagons, people, out)
	},
	func(r *rand.Rand, name string) Problem {
		shirts, price, off := between(r, 3, 8), between(r, 11, 19), between(r, 5, 20)
		full := times(shirts, price)
		return solved([]string{"shirts", "shirt", "euros", "voucher", "team"}, []Step{full, minus(full.Result, off)},
			"%s orders %d shirts for the team at %d euros each and has a voucher that takes %d euros off the bill. How many euros must be paid?", name, shirts, price, off)
	},
	func(r *rand.Rand, name string) Problem {
		pieces, length, given := between(r, 8, 20), between(r, 5, 15), between(r, 2, 7)
		cut := over(pieces*length, length)
		return solved([]string{"ribbon", "centimetres", "centimetre", "pieces", "piece"}, []Step{cut, minus(cut.Result, given)},
			"%s cuts a ribbon of %d centimetres into pieces of %d centimetres and gives away %d of the pieces. How many pieces are left?", name, pieces*length, length, given)
	},
	func(r *rand.Rand, name string) Problem {
		laps, days, metres := between(r, 2, 6), between(r, 3, 7), between(r, 4, 9)*50
		run := times(laps, days)
		return solved([]string{"laps", "lap", "days", "day", "metres", "metre", "park"}, []Step{run, times(run.Result, metres)},
			"On each of %d days %s runs %d laps around the park. One lap has %d metres. How many metres is that in all?", days, name, laps, metres)
	},
	func(r *rand.Rand, name string) Problem {
		own, factor := between(r, 14, 48), between(r, 2, 5)
		other := times(factor, own)
		return solved([]string{"stickers", "sticker", "cousin", "album"}, []Step{other, plus(own, other.Result)},
			"%s has %d stickers in an album. A cousin has %d times as many stickers. How many stickers are there in both albums?", name, own, factor)
	},
	func(r *rand.Rand, name string) Problem {
		bags, size, morning := between(r, 6, 14), between(r, 5, 9), between(r, 12, 28)
		all := plus(morning, bags*size-morning)
		return solved([]string{"apples", "apple", "bags", "bag", "morning", "afternoon"}, []Step{all, over(all.Result, size)},
			"%s picks %d apples in the morning and %d in the afternoon. They go into bags of %d apples. How many bags are filled?", name, morning, bags*size-morning, size)
	},
	func(r *rand.Rand, name string) Problem {
		pupils, price, fund := between(r, 15, 28), between(r, 4, 9), between(r, 20, 50)
		cost := times(pupils, price)
		return solved([]string{"museum", "pupils", "pupil", "class", "euros", "fund"}, []Step{cost, minus(cost.Result, fund)},
			"%s's class of %d pupils visits a museum. The museum takes %d euros from each pupil, and %d euros of the sum come from the class fund. How many euros do the pupils still have to bring?", name, pupils, price, fund)
	},
	func(r *rand.Rand, name string) Problem {
		child, factor, older := between(r, 7, 13), between(r, 3, 4), between(r, 2, 9)
		mother := times(factor, child)
		return solved([]string{"years", "old", "mother", "father", "older", "age"}, []Step{mother, plus(mother.Result, older)},
			"%s is %d years old. The mother is %d times as old, and the father is %d years older than the mother. How old is the father?", name, child, factor, older)
	},
	func(r *rand.Rand, name string) Problem {
		rows, evenings, missing := between(r, 12, 25), between(r, 4, 9), between(r, 15, 70)
		knitted := times(rows, evenings)
		return solved([]string{"scarf", "rows", "row", "evenings", "evening", "knits"}, []Step{knitted, minus(knitted.Result+missing, knitted.Result)},
			"A scarf needs %d rows. %s knits %d rows every evening for %d evenings. How many rows are missing then?", knitted.Result+missing, name, rows, evenings)
	},
}
