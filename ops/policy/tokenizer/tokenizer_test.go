package tokenizer_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
	"github.com/nextstate-rl/nextstate/schemas/goldentest"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// smol is the tokenizer of the default policy.
func smol(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	f, err := gguf.Open(filepath.Join(assets.ForTest(t, assets.SmolLM2), assets.SmolLM2File))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.New(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// made is a file with nothing but this metadata.
func made(t testing.TB, pairs []gguf.Pair) *gguf.File {
	t.Helper()
	var b bytes.Buffer
	if err := gguf.Write(&b, pairs, nil); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Read(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestGoldenTokenizer: texts give the expected ids, with special tokens recognised and without, and come back from them.
func TestGoldenTokenizer(t *testing.T) {
	tok := smol(t)
	type expected struct {
		Special []string
		Cases   []struct {
			Text      string
			IDs       []uint32
			IDsPlain  []uint32 `json:"ids_plain"`
			Roundtrip bool
		}
	}
	goldentest.Each(t, "tokenizer.json", func(t *testing.T, golden expected) {
		var names []string
		for _, s := range tok.Specials() {
			names = append(names, s.Text)
		}
		if !slices.Equal(names, golden.Special) {
			t.Errorf("special tokens %q, want %q", names, golden.Special)
		}
		if len(golden.Cases) == 0 {
			t.Fatal("no cases")
		}
		for _, c := range golden.Cases {
			if got := tok.EncodeSpecial(c.Text); !slices.Equal(got, c.IDs) {
				t.Errorf("%q: got %v, want %v", c.Text, got, c.IDs)
			}
			plain := c.IDsPlain
			if plain == nil {
				plain = c.IDs
			}
			if got := tok.Encode(c.Text); !slices.Equal(got, plain) {
				t.Errorf("%q as text: got %v, want %v", c.Text, got, plain)
			}
			if got := tok.Decode(c.IDs); (got == c.Text) != c.Roundtrip {
				t.Errorf("%q comes back as %q", c.Text, got)
			}
		}
	})
}

// TestEnds: the default policy ends a response with <|im_end|> or <|endoftext|>, and its prompts do not begin with BOS.
func TestEnds(t *testing.T) {
	tok := smol(t)
	if got := tok.EndIDs(); !slices.Equal(got, []uint32{0, 2}) {
		t.Errorf("end tokens %v", got)
	}
	if id, add, ok := tok.BOS(); id != 1 || add || !ok || tok.BOSText() != "<|im_start|>" || tok.EOSText() != "<|im_end|>" {
		t.Errorf("BOS %d %v %v %q, EOS %q", id, add, ok, tok.BOSText(), tok.EOSText())
	}
	if id, ok := tok.Special("<|im_end|>"); id != 2 || !ok || !tok.IsSpecial(2) || tok.IsSpecial(20) {
		t.Errorf("<|im_end|> is %d %v", id, ok)
	}
	if tok.Piece(1<<20) != nil || tok.Vocabulary() != 49152 {
		t.Error("an id outside of the vocabulary has a piece, or the vocabulary has another size")
	}
}

// TestLong: texts that would cost the square of their length in a simple implementation: long words of one letter, of many, of spaces, of digits, of
// the beginnings of special tokens. It ends, and the text comes back.
func TestLong(t *testing.T) {
	const n = 1 << 19
	for name, tok := range map[string]*tokenizer.Tokenizer{"byte-level": smol(t), "SentencePiece": toy(t, "llama", "")} {
		for _, part := range []string{"a", "ab", " ", "7", "\n", "<|", "<|im_start|", "\xff", "e\u0301"} {
			text := strings.Repeat(part, n/len(part))
			if part == "\xff" && name == "byte-level" {
				text = strings.Repeat("\xe9", n) // a byte that has a token
			}
			if got := tok.Decode(tok.EncodeSpecial(text)); got != text {
				t.Errorf("%s: 512 KiB of %q comes back changed: %d bytes", name, part, len(got))
			}
		}
	}
}

// TestStream: characters cut anywhere come out whole and at once; at most 3 bytes wait; bytes that are no character become U+FFFD.
func TestStream(t *testing.T) {
	text := "aß世🙂👍🏽\u0000z"
	for size := 1; size <= 6; size++ {
		var s tokenizer.Stream
		var got strings.Builder
		for b := []byte(text); len(b) > 0; b = b[min(size, len(b)):] {
			part := s.Add(b[:min(size, len(b))])
			if !utf8.ValidString(part) {
				t.Fatalf("in steps of %d: %q is not UTF-8", size, part)
			}
			got.WriteString(part)
			if waits := len(text) - len(b) + min(size, len(b)) - got.Len(); waits > 3 {
				t.Fatalf("in steps of %d: %d bytes wait", size, waits)
			}
		}
		got.WriteString(s.Flush())
		if got.String() != text {
			t.Errorf("in steps of %d: %q", size, got.String())
		}
	}
	for _, c := range []struct {
		pieces []string
		want   string
	}{
		{[]string{"a\xe4\xb8", "b"}, "a\ufffdb"},
		{[]string{"\xe4", "\xb8", "\x96"}, "世"},
		{[]string{"x\xf0\x9f\x99"}, "x\ufffd"},
		{[]string{"\x80", "ok"}, "\ufffdok"},
		{[]string{"\xc3", "\xc3\xa9"}, "\ufffdé"},
	} {
		var s tokenizer.Stream
		var got string
		for _, p := range c.pieces {
			got += s.Add([]byte(p))
		}
		if got += s.Flush(); got != c.want {
			t.Errorf("%q: %q, want %q", c.pieces, got, c.want)
		}
	}
}

// TestRefused: a vocabulary that cannot be used gives an error that names why.
func TestRefused(t *testing.T) {
	good := map[string]any{
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": []string{"a", "b", "ab", "</s>"},
		"tokenizer.ggml.token_type": []int32{1, 1, 1, 3}, "tokenizer.ggml.merges": []string{"a b"}, "tokenizer.ggml.eos_token_id": uint32(3),
	}
	try := func(key string, value any) error {
		var pairs []gguf.Pair
		for k, v := range good {
			if k == key {
				v = value
			}
			if v != nil {
				pairs = append(pairs, gguf.Pair{Key: k, Value: v})
			}
		}
		_, err := tokenizer.New(made(t, pairs))
		return err
	}
	if err := try("", nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key   string
		value any
		want  string
	}{
		{"tokenizer.ggml.model", "t5", `kind "t5"`},
		{"tokenizer.ggml.model", nil, `kind ""`},
		{"tokenizer.ggml.model", "llama", "a score for each token"},
		{"tokenizer.ggml.pre", "klingon", `pre-tokenizer is "klingon"`},
		{"tokenizer.ggml.tokens", nil, "holds no vocabulary"},
		{"tokenizer.ggml.token_type", []int32{1}, "4 tokens and 1 token types"},
		{"tokenizer.ggml.merges", nil, "holds no merges"},
		{"tokenizer.ggml.merges", []string{"a c"}, `merge 0, "a c"`},
		{"tokenizer.ggml.merges", []string{"ab"}, `merge 0, "ab"`},
		{"tokenizer.ggml.eos_token_id", uint32(4), "eos token is 4"},
	} {
		if err := try(c.key, c.value); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s = %v: want an error with %q, got %v", c.key, c.value, c.want, err)
		}
	}
}

// FuzzRoundTrip: any bytes come back from their ids, but for the bytes that this vocabulary has no token for; nothing in ordinary text becomes special.
func FuzzRoundTrip(f *testing.F) {
	tok := smol(f)
	piece := toy(f, "llama", "")
	for _, s := range []string{"Hello <|im_start|>", "  x\t\n\r\n 12 '''s'LL", "\xff\xfe\x04", "世界 ٣ e\u0301\u200d🙂", strings.Repeat("<|im_", 9) + "end|>"} {
		f.Add(s)
	}
	missing := func(r byte) bool {
		return strings.IndexByte("\x04\x06\x13\x14\x16\x1d\xc0\xc1\xf1\xf2\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff", r) >= 0
	}
	f.Fuzz(func(t *testing.T, text string) {
		want := string(slices.DeleteFunc([]byte(text), missing))
		ids := tok.Encode(text)
		if got := tok.Decode(ids); got != want {
			t.Errorf("%q comes back as %q", text, got)
		}
		if slices.ContainsFunc(ids, tok.IsSpecial) {
			t.Errorf("%q holds a special token: %v", text, ids)
		}
		// A special token between bytes that vanish is found before they do, so the ids may differ, the text not.
		if got := tok.Decode(tok.EncodeSpecial(text)); got != want {
			t.Errorf("%q with special tokens comes back as %q", text, got)
		}
		if got := piece.Decode(piece.Encode(text)); got != strings.ReplaceAll(text, "\u2581", " ") {
			t.Errorf("SentencePiece: %q comes back as %q", text, got)
		}
	})
}

// BenchmarkEncode is the speed on prose and code.
func BenchmarkEncode(b *testing.B) {
	source, err := os.ReadFile("tokenizer.go")
	if err != nil {
		b.Fatal(err)
	}
	prose := strings.Repeat("The quick brown fox jumps over the lazy dog; it didn't mind, having seen 42 such foxes before. \n", 200)
	tok, piece := smol(b), toy(b, "llama", "")
	for _, c := range []struct {
		name, text string
		tok        *tokenizer.Tokenizer
	}{{"prose", prose, tok}, {"code", string(source), tok}, {"one_word", strings.Repeat("a", 1<<18), tok}, {"sentencepiece", prose, piece}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			b.ReportAllocs()
			for b.Loop() {
				c.tok.EncodeSpecial(c.text)
			}
		})
	}
}
