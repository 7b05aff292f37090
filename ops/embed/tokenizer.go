package embed

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Tokenizer is BERT's, without case: WordPiece over words and single punctuation marks. Safe for concurrent use.
type Tokenizer struct {
	vocabulary map[string]int64
	start, end int64
	unknown    int64
	prefix     string // of a piece that continues a word
	wordMax    int    // runes; a longer word is unknown
	tokensMax  int    // with start and end
}

// OpenTokenizer reads a tokenizer.json of Hugging Face. Another kind of tokenizer is refused.
func OpenTokenizer(path string) (*Tokenizer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the embedding model's tokenizer: %w", err)
	}
	var file struct {
		Truncation *struct {
			Max int `json:"max_length"`
		}
		Normalizer struct {
			Type         string
			Clean        bool  `json:"clean_text"`
			Chinese      bool  `json:"handle_chinese_chars"`
			StripAccents *bool `json:"strip_accents"` // null: as lowercase
			Lowercase    bool
		}
		PreTokenizer struct{ Type string } `json:"pre_tokenizer"`
		Model        struct {
			Type    string
			Unknown string `json:"unk_token"`
			Prefix  string `json:"continuing_subword_prefix"`
			WordMax int    `json:"max_input_chars_per_word"`
			Vocab   map[string]int64
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	n, m := file.Normalizer, file.Model
	if m.Type != "WordPiece" || file.PreTokenizer.Type != "BertPreTokenizer" || n.Type != "BertNormalizer" || !n.Clean || !n.Chinese || !n.Lowercase || n.StripAccents != nil && !*n.StripAccents {
		return nil, fmt.Errorf("%s is not the tokenizer of an uncased BERT: use that of all-MiniLM-L6-v2", path)
	}
	if file.Truncation == nil || file.Truncation.Max < 3 || m.WordMax < 1 {
		return nil, fmt.Errorf("%s does not say how long a text, or a word, may be", path)
	}
	t := &Tokenizer{vocabulary: m.Vocab, prefix: m.Prefix, wordMax: m.WordMax, tokensMax: file.Truncation.Max}
	var errs []error
	for token, id := range map[string]*int64{"[CLS]": &t.start, "[SEP]": &t.end, m.Unknown: &t.unknown} {
		var ok bool
		if *id, ok = m.Vocab[token]; !ok {
			errs = append(errs, fmt.Errorf("%s has no token %q", path, token))
		}
	}
	return t, errors.Join(errs...)
}

// IDs are the tokens of a text, between [CLS] and [SEP]. What is too much for the model is left out at the end.
func (t *Tokenizer) IDs(text string) []int64 {
	ids := []int64{t.start}
	most := t.tokensMax - 1
	for word := range words(normalise(text)) {
		ids = t.pieces(ids, word)
		if len(ids) >= most {
			ids = ids[:most]
			break
		}
	}
	return append(ids, t.end)
}

// pieces appends the longest pieces of the vocabulary that make up the word, from its beginning; a word that cannot be made up is one unknown token.
func (t *Tokenizer) pieces(ids []int64, word string) []int64 {
	if utf8.RuneCountInString(word) > t.wordMax {
		return append(ids, t.unknown)
	}
	before := len(ids)
	prefix := ""
	for word != "" {
		end := len(word)
		for end > 0 {
			if id, ok := t.vocabulary[prefix+word[:end]]; ok {
				ids = append(ids, id)
				break
			}
			_, size := utf8.DecodeLastRuneInString(word[:end])
			end -= size
		}
		if end == 0 {
			return append(ids[:before], t.unknown)
		}
		word, prefix = word[end:], t.prefix
	}
	return ids
}

// normalise drops control characters, sets spaces around ideographs, takes accents off letters and lower-cases them.
func normalise(text string) string {
	var cleaned strings.Builder
	cleaned.Grow(len(text))
	for _, r := range text {
		switch {
		case r == '\t' || r == '\n' || r == '\r': // the other white control characters are dropped
			cleaned.WriteByte(' ')
		case r == utf8.RuneError || unicode.Is(unicode.C, r):
		case unicode.Is(unicode.White_Space, r):
			cleaned.WriteByte(' ')
		case ideograph(r):
			cleaned.WriteString(" " + string(r) + " ")
		default:
			cleaned.WriteRune(r)
		}
	}
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return unicode.ToLower(r)
	}, norm.NFD.String(cleaned.String()))
}

// ideographs are the blocks that BERT takes for Chinese: a character is a word.
var ideographs = [][2]rune{
	{0x4E00, 0x9FFF}, {0x3400, 0x4DBF}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF}, {0x2F800, 0x2FA1F},
}

func ideograph(r rune) bool {
	for _, block := range ideographs {
		if r >= block[0] && r <= block[1] {
			return true
		}
	}
	return false
}

// words yields the words of a normalised text. A punctuation mark is a word.
func words(text string) func(func(string) bool) {
	return func(yield func(string) bool) {
		begin := 0
		for i, r := range text {
			if r != ' ' && !punctuation(r) {
				continue
			}
			if begin < i && !yield(text[begin:i]) {
				return
			}
			begin = i + utf8.RuneLen(r)
			if r != ' ' && !yield(text[i:begin]) {
				return
			}
		}
		if begin < len(text) {
			yield(text[begin:])
		}
	}
}

// punctuation is what Unicode calls so, and every mark of ASCII.
func punctuation(r rune) bool {
	if r < unicode.MaxASCII {
		return r > ' ' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	return unicode.IsPunct(r)
}
