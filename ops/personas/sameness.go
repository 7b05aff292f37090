package personas

import (
	"unicode"

	"github.com/nextstate-rl/nextstate/ops/guard"
)

// Sameness is how much of the replies is one template: the share of a reply's distinct word 3-grams that another one has too, any number standing for every
// other, mean over all pairs of replies. 0: they have nothing in common; 1: all say the same. Over pairs, so that few replies and many compare. Hand it
// replies to different problems: those to one problem share its words. A reply of less than three words has no 3-grams and is left out; of fewer than two
// others the sameness is 0. A guard on single replies cannot see a template, so reports show this beside it; it is no part of satisfied.
func Sameness(replies []string) float64 {
	var grams []map[[3]string]bool
	in := map[[3]string]int{} // how many replies have it
	for _, reply := range replies {
		own := trigrams(reply)
		if len(own) == 0 {
			continue
		}
		grams = append(grams, own)
		for g := range own {
			in[g]++
		}
	}
	if len(grams) < 2 {
		return 0
	}
	sum := 0.0
	for _, own := range grams {
		common := 0
		for g := range own {
			common += in[g] - 1
		}
		sum += float64(common) / float64(len(own)) / float64(len(grams)-1)
	}
	return sum / float64(len(grams))
}

// trigrams are the distinct word 3-grams of a text, with # for a number.
func trigrams(text string) map[[3]string]bool {
	words := guard.Words(text)
	for i, w := range words {
		if unicode.IsDigit([]rune(w)[0]) {
			words[i] = "#"
		}
	}
	own := map[[3]string]bool{}
	for i := 0; i+3 <= len(words); i++ {
		own[[3]string(words[i:i+3])] = true
	}
	return own
}
