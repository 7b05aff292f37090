package tokenizer

import (
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// splitter cuts text into words; merging never crosses their borders. All of the text is in the words.
type splitter func(text string, emit func(word string))

// preTokenizer is what a model's tokenizer.ggml.pre stands for.
type preTokenizer struct {
	split splitter
	// wholeWords: a word that is a token is that token, without merging.
	wholeWords bool
	// addBOS is the default where the file does not say it.
	addBOS bool
}

// preTokenizers by the names that converters give them. The splitters are the models' published patterns by hand, since Go's regular expressions
// lack lookahead:
//
//	gpt2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//	digits: each \p{N} alone, then gpt2 in what is between
//	llama3: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//	qwen2:  as llama3, with \p{N} alone
var preTokenizers = map[string]preTokenizer{
	"":                 {split: splitGPT2},
	"default":          {split: splitGPT2},
	"gpt-2":            {split: splitGPT2},
	"olmo":             {split: splitGPT2},
	"mpt":              {split: splitGPT2},
	"jais":             {split: splitGPT2},
	"smollm":           {split: splitDigits},
	"starcoder":        {split: splitDigits},
	"refact":           {split: splitDigits},
	"codeshell":        {split: splitDigits},
	"command-r":        {split: splitDigits},
	"llama-bpe":        {split: splitLlama3, wholeWords: true, addBOS: true},
	"llama3":           {split: splitLlama3, wholeWords: true, addBOS: true},
	"llama-v3":         {split: splitLlama3, wholeWords: true, addBOS: true},
	"falcon3":          {split: splitLlama3, wholeWords: true, addBOS: true},
	"dbrx":             {split: splitLlama3},
	"smaug-bpe":        {split: splitLlama3},
	"qwen2":            {split: splitQwen2},
	"deepseek-r1-qwen": {split: splitQwen2},
	"stablelm2":        {split: splitQwen2},
	"megrez":           {split: splitQwen2},
}

// preNames are the known names, sorted.
func preNames() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(preTokenizers)), func(s string) bool { return s == "" })
}

func letter(r rune) bool {
	return r < utf8.RuneSelf && (r|0x20) >= 'a' && (r|0x20) <= 'z' || r >= utf8.RuneSelf && unicode.IsLetter(r)
}

func number(r rune) bool { return r >= '0' && r <= '9' || r >= utf8.RuneSelf && unicode.IsNumber(r) }
func space(r rune) bool  { return unicode.IsSpace(r) }
func other(r rune) bool  { return !space(r) && !letter(r) && !number(r) }
func line(r rune) bool   { return r == '\r' || r == '\n' }

// run is the end of the run of a class that begins at i.
func run(s string, i int, class func(rune) bool) int {
	for i < len(s) {
		r, n := decode(s, i)
		if !class(r) {
			break
		}
		i += n
	}
	return i
}

func decode(s string, i int) (rune, int) {
	if s[i] < utf8.RuneSelf {
		return rune(s[i]), 1
	}
	return utf8.DecodeRuneInString(s[i:])
}

// spaces is the end of a word of white space that begins at i: all of it, but for the last character before something else, which belongs to that. One alone
// is a word.
func spaces(s string, i int) int {
	e := run(s, i, space)
	if e == len(s) {
		return e
	}
	_, n := utf8.DecodeLastRuneInString(s[i:e])
	if e-n > i {
		e -= n
	}
	return e
}

func splitGPT2(s string, emit func(string)) {
	for i := 0; i < len(s); {
		e := i + contraction(s[i:], func(a, b string) bool { return a == b })
		if e == i {
			k := i
			if s[k] == ' ' {
				k++
			}
			e = k
			for _, class := range []func(rune) bool{letter, number, other} {
				if e = run(s, k, class); e > k {
					break
				}
			}
			if e == k {
				e = spaces(s, i)
			}
		}
		emit(s[i:e])
		i = e
	}
}

// contraction is the length of an English ending with its apostrophe at the beginning of s; 0: there is none.
func contraction(s string, equal func(a, b string) bool) int {
	if s[0] != '\'' {
		return 0
	}
	for _, ending := range []string{"s", "t", "re", "ve", "m", "ll", "d"} {
		if len(s) > len(ending) && equal(s[1:1+len(ending)], ending) {
			return 1 + len(ending)
		}
	}
	return 0
}

func splitDigits(s string, emit func(string)) {
	for i := 0; i < len(s); {
		e := run(s, i, func(r rune) bool { return !number(r) })
		splitGPT2(s[i:e], emit)
		if i = e; i < len(s) {
			_, n := decode(s, i)
			emit(s[i : i+n])
			i += n
		}
	}
}

func splitLlama3(s string, emit func(string)) { splitModern(s, 3, emit) }

func splitQwen2(s string, emit func(string)) { splitModern(s, 1, emit) }

// splitModern is the pattern of llama3 and its relatives; digits is how many numerals a word may have.
func splitModern(s string, digits int, emit func(string)) {
	for i := 0; i < len(s); {
		e := modernWord(s, i, digits)
		emit(s[i:e])
		i = e
	}
}

// modernWord is the end of the word that begins at i: the pattern's alternatives in their order.
func modernWord(s string, i, digits int) int {
	if n := contraction(s[i:], strings.EqualFold); n > 0 {
		return i + n
	}
	r, n := decode(s, i)
	if letter(r) {
		return run(s, i, letter)
	}
	if number(r) {
		e := i
		for range digits {
			if e >= len(s) {
				break
			}
			r, n := decode(s, e)
			if !number(r) {
				break
			}
			e += n
		}
		return e
	}
	if !line(r) {
		if e := run(s, i+n, letter); e > i+n {
			return e
		}
	}
	k := i
	if r == ' ' {
		k++
	}
	if e := run(s, k, other); e > k {
		return run(s, e, line)
	}
	e := run(s, i, space)
	if last := strings.LastIndexAny(s[i:e], "\r\n"); last >= 0 {
		return i + last + 1
	}
	return spaces(s, i)
}
