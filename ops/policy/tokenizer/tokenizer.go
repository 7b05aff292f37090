package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// Kinds of tokens in tokenizer.ggml.token_type.
const (
	kindNormal  = 1
	kindUnknown = 2
	kindControl = 3
	kindUser    = 4
	kindByte    = 6
)

// Tokenizer of one model. Immutable: safe for concurrent use.
type Tokenizer struct {
	pieces   [][]byte // bytes of each id
	special  specials // recognised by EncodeSpecial only
	always   specials // runs of spaces that the vocabulary has as tokens of their own: recognised in every text
	merge    merger
	end      []uint32
	bos, eos int // -1: none
	addBOS   bool
	// prefix: text gets a space in front, as SentencePiece does it.
	prefix bool
}

// merger encodes a stretch of text without special tokens, appending to ids.
type merger interface {
	encode(ids []uint32, text string) []uint32
}

// New reads the vocabulary. An error says what of it is missing or not known.
func New(f *gguf.File) (*Tokenizer, error) {
	tokens, ok := f.Strings("tokenizer.ggml.tokens")
	if !ok || len(tokens) == 0 || len(tokens) > math.MaxInt32 {
		return nil, fmt.Errorf("the model file holds no vocabulary (tokenizer.ggml.tokens); give a GGUF that was converted with its tokenizer")
	}
	kinds, ok := f.Ints("tokenizer.ggml.token_type")
	if ok && len(kinds) != len(tokens) {
		return nil, fmt.Errorf("the model file has %d tokens and %d token types: it is damaged", len(tokens), len(kinds))
	}
	if !ok {
		kinds = slices.Repeat([]int32{kindNormal}, len(tokens))
	}
	t := &Tokenizer{pieces: make([][]byte, len(tokens)), bos: -1, eos: -1}
	model, _ := f.String("tokenizer.ggml.model")
	var err error
	switch model {
	case "gpt2":
		t.addBOS, err = t.bytePairs(f, tokens, kinds)
	case "llama":
		t.addBOS, err = t.sentencePiece(f, tokens, kinds)
	default:
		err = fmt.Errorf("the model's tokenizer is of the kind %q, which is not known here; \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece) are", model)
	}
	if err != nil {
		return nil, err
	}
	t.tables(tokens, kinds)
	return t, t.ends(f, tokens, kinds)
}

// tables sorts out the tokens that are not merged from text.
func (t *Tokenizer) tables(tokens []string, kinds []int32) {
	for id, kind := range kinds {
		text := tokens[id]
		switch {
		case text == "" || kind != kindUnknown && kind != kindControl && kind != kindUser:
		case kind == kindUser && strings.TrimSpace(text) == "":
			t.always.add(Special{ID: uint32(id), Text: text})
		default:
			t.special.add(Special{ID: uint32(id), Text: text, Control: kind != kindUser})
		}
	}
	t.special.sort()
	t.always.sort()
}

// endNames are what llama-family models call the tokens that end a response. The metadata names one or two; models sample others of them too.
var endNames = []string{
	"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "</s>", "<end_of_turn>", "<|end_of_turn|>",
	"<|eot|>", "<|eom|>", "<EOT>", "<|return|>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
}

func (t *Tokenizer) ends(f *gguf.File, tokens []string, kinds []int32) error {
	id := func(key string) (int, error) {
		n, ok := f.Uint("tokenizer.ggml." + key + "_token_id")
		if !ok || n == math.MaxUint32 { // converters write the latter for "none"
			return -1, nil
		}
		if n >= uint64(len(tokens)) {
			return -1, fmt.Errorf("the model file's %s token is %d, but there are %d tokens: it is damaged", key, n, len(tokens))
		}
		return int(n), nil
	}
	var err error
	if t.bos, err = id("bos"); err != nil {
		return err
	}
	if t.eos, err = id("eos"); err != nil {
		return err
	}
	for _, key := range []string{"eos", "eot", "eom"} {
		n, err := id(key)
		if err != nil {
			return err
		}
		if n >= 0 {
			t.end = append(t.end, uint32(n))
		}
	}
	for _, name := range endNames {
		if s, ok := t.Special(name); ok && kinds[s] == kindControl {
			t.end = append(t.end, s)
		}
	}
	slices.Sort(t.end)
	t.end = slices.Compact(t.end)
	if len(t.end) == 0 {
		return fmt.Errorf("the model file names no token that ends a response (tokenizer.ggml.eos_token_id); add it to its metadata")
	}
	if add, ok := f.Bool("tokenizer.ggml.add_bos_token"); ok {
		t.addBOS = add
	}
	return nil
}

// Vocabulary is how many ids there are.
func (t *Tokenizer) Vocabulary() int { return len(t.pieces) }

// EndIDs are the tokens that end a response, ascending. The caller does not change them.
func (t *Tokenizer) EndIDs() []uint32 { return t.end }

// BOS is the token that begins a text; ok is false when the model has none, add says whether every prompt begins with it.
func (t *Tokenizer) BOS() (id uint32, add, ok bool) {
	return uint32(max(t.bos, 0)), t.addBOS && t.bos >= 0, t.bos >= 0
}

// BOSText is how BOS is written in a chat template; empty when the model has none.
func (t *Tokenizer) BOSText() string { return t.text(t.bos) }

// EOSText is to EOS what BOSText is to BOS.
func (t *Tokenizer) EOSText() string { return t.text(t.eos) }

func (t *Tokenizer) text(id int) string {
	if id < 0 {
		return ""
	}
	return string(t.pieces[id])
}

// Encode gives the ids of ordinary text. It adds no BOS.
func (t *Tokenizer) Encode(text string) []uint32 {
	return t.plain(make([]uint32, 0, len(text)/3+1), text)
}

// EncodeSpecial gives the ids of text in which special tokens stand. It is for templates only, never for what somebody else wrote.
func (t *Tokenizer) EncodeSpecial(text string) []uint32 {
	ids := make([]uint32, 0, len(text)/3+1)
	for text != "" {
		at, s, ok := t.NextSpecial(text)
		if !ok {
			return t.plain(ids, text)
		}
		ids = append(t.plain(ids, text[:at]), s.ID)
		text = text[at+len(s.Text):]
	}
	return ids
}

func (t *Tokenizer) plain(ids []uint32, text string) []uint32 {
	if text == "" {
		return ids
	}
	if t.prefix {
		text = " " + text
	}
	for text != "" {
		at, s, ok := t.always.next(text)
		if !ok {
			return t.merge.encode(ids, text)
		}
		ids = append(t.merge.encode(ids, text[:at]), s.ID)
		text = text[at+len(s.Text):]
	}
	return ids
}

// Piece is the bytes of a token, which need not be whole characters; nil for an id outside of the vocabulary. The caller does not change them.
func (t *Tokenizer) Piece(id uint32) []byte {
	if int64(id) >= int64(len(t.pieces)) {
		return nil
	}
	return t.pieces[id]
}

// Decode gives the text of ids, special tokens as they are written. Bytes that are not UTF-8 stay as they are.
func (t *Tokenizer) Decode(ids []uint32) string {
	var b []byte
	first := true // of a stretch of text, which got a space in front
	for _, id := range ids {
		p := t.Piece(id)
		if _, special := t.special.byID[id]; special {
			first = true
		} else if first {
			if t.prefix && len(p) > 0 && p[0] == ' ' {
				p = p[1:]
			}
			first = false
		}
		b = append(b, p...)
	}
	return string(b)
}
