package tokenizer_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hybridgroup/yzma/pkg/llama"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// alphabet of random texts: everything that pre-tokenizers tell apart.
var alphabet = []string{
	"a", "b", "e", "s", "t", "th", "re", "ll", "Z", "É", "é", "ß", "世", "界", "д", " ", " ", "  ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u3000",
	"1", "2", "34", "567", "٣", "½", "²", "'", "'s", "'LL", "'t", "’", ".", ",", "!", "-", "/", "_", "$", "<", "🙂", "\u200d", "e\u0301",
}

func random(rng *rand.Rand, parts int) string {
	var b strings.Builder
	for range parts {
		b.WriteString(alphabet[rng.IntN(len(alphabet))])
	}
	return b.String()
}

// toyPairs is the metadata of a small vocabulary whose tokens also cross the borders of words, so that each border shows in the ids. Method: BPE is
// learned from random text without any pre-tokenizer. model is gpt2 or llama.
func toyPairs(model, pre string) []gguf.Pair {
	var tokens, merges []string
	var kinds []int32
	var scores []float32
	add := func(text string, kind int32, score float32) {
		tokens, kinds, scores = append(tokens, text), append(kinds, kind), append(scores, score)
	}
	add("<unk>", 2, 0)
	add("<s>", 3, 0)
	add("</s>", 3, 0)
	rng := rand.New(rand.NewPCG(5, 6))
	text := random(rng, 4000)
	var symbols []string
	if model == "gpt2" {
		table := letters()
		for _, r := range table {
			add(r, 1, 0)
		}
		for _, b := range []byte(text) {
			symbols = append(symbols, table[b])
		}
	} else {
		for b := range 256 {
			add(fmt.Sprintf("<0x%02X>", b), 6, 0)
		}
		for _, r := range strings.ReplaceAll(text, " ", "\u2581") {
			symbols = append(symbols, string(r))
		}
		for _, s := range slices.Compact(slices.Sorted(slices.Values(symbols))) {
			if s != "½" && s != "🙂" { // these two become bytes
				add(s, 1, -1e6)
			}
		}
	}
	known := map[string]bool{}
	for _, s := range tokens {
		known[s] = true
	}
	for len(merges) < 500 {
		count, best := map[[2]string]int{}, [2]string{}
		for i := range len(symbols) - 1 {
			p := [2]string{symbols[i], symbols[i+1]}
			if known[p[0]] && known[p[1]] && !known[p[0]+p[1]] {
				count[p]++
				if n := count[p] - count[best]; n > 0 || n == 0 && p[0]+"\x00"+p[1] < best[0]+"\x00"+best[1] {
					best = p
				}
			}
		}
		joined := best[0] + best[1]
		merges = append(merges, best[0]+" "+best[1])
		known[joined] = true
		add(joined, 1, -float32(len(merges)))
		var next []string
		for i := 0; i < len(symbols); i++ {
			if i+1 < len(symbols) && symbols[i] == best[0] && symbols[i+1] == best[1] {
				next = append(next, joined)
				i++
				continue
			}
			next = append(next, symbols[i])
		}
		symbols = next
	}
	pairs := []gguf.Pair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "llama.block_count", Value: uint32(1)},
		{Key: "llama.context_length", Value: uint32(64)},
		{Key: "llama.embedding_length", Value: uint32(64)},
		{Key: "llama.feed_forward_length", Value: uint32(64)},
		{Key: "llama.attention.head_count", Value: uint32(1)},
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(1e-5)},
		{Key: "llama.vocab_size", Value: uint32(len(tokens))},
		{Key: "tokenizer.ggml.model", Value: model},
		{Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.token_type", Value: kinds},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)},
		{Key: "tokenizer.ggml.add_bos_token", Value: false},
	}
	if model == "gpt2" {
		return append(pairs, gguf.Pair{Key: "tokenizer.ggml.pre", Value: pre}, gguf.Pair{Key: "tokenizer.ggml.merges", Value: merges})
	}
	return append(pairs, gguf.Pair{Key: "tokenizer.ggml.scores", Value: scores})
}

// letters is the alphabet of bytes, written down again.
func letters() (table [256]string) {
	n := 0
	for b := range 256 {
		r := rune(b)
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r = rune(256 + n)
			n++
		}
		table[b] = string(r)
	}
	return table
}

func toy(t testing.TB, model, pre string) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.New(made(t, toyPairs(model, pre)))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestAsNative: each pre-tokenizer, and SentencePiece, gives the ids that llama.cpp gives for random texts. Method: the same small vocabulary is loaded by
// both; every byte has a token in it, so that the native tokenizer does not throw.
func TestAsNative(t *testing.T) {
	if err := llama.Load(assets.ForTest(t, assets.Llama)); err != nil {
		t.Fatal(err)
	}
	llama.Init()
	llama.LogSet(llama.LogSilent())
	learned := map[string][]gguf.Pair{"llama": toyPairs("llama", ""), "gpt2": toyPairs("gpt2", "")}
	for _, c := range []struct{ model, pre string }{
		{"llama", ""},
		{"gpt2", "smollm"},
		{"gpt2", "starcoder"},
		{"gpt2", "gpt-2"},
		{"gpt2", "llama-bpe"},
		{"gpt2", "llama3"},
		{"gpt2", "falcon3"},
		{"gpt2", "dbrx"},
		{"gpt2", "smaug-bpe"},
		{"gpt2", "qwen2"},
		{"gpt2", "deepseek-r1-qwen"},
		{"gpt2", "stablelm2"},
		{"gpt2", "megrez"},
		{"gpt2", "refact"},
		{"gpt2", "command-r"},
		{"gpt2", "codeshell"},
		{"gpt2", "olmo"},
		{"gpt2", "mpt"},
		{"gpt2", "jais"},
		{"gpt2", "llama-v3"},
	} {
		t.Run(c.model+" "+c.pre, func(t *testing.T) {
			pairs := slices.Clone(learned[c.model])
			for i := range pairs {
				if pairs[i].Key == "tokenizer.ggml.pre" {
					pairs[i].Value = c.pre
				}
			}
			path := filepath.Join(t.TempDir(), "vocabulary.gguf")
			w, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := gguf.Write(w, pairs, nil); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			params := llama.ModelDefaultParams()
			params.VocabOnly = 1
			model, err := llama.ModelLoadFromFile(path, params)
			if err != nil || model == 0 {
				t.Fatalf("native load: %v", err)
			}
			defer func() { _ = llama.ModelFree(model) }()
			vocabulary := llama.ModelGetVocab(model)
			tok, err := tokenizer.New(made(t, pairs))
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(7, 8))
			differ := 0
			for range 1000 {
				text := random(rng, 1+rng.IntN(40))
				var want []uint32
				for _, id := range llama.Tokenize(vocabulary, text, false, false) {
					want = append(want, uint32(id))
				}
				if got := tok.Encode(text); !slices.Equal(got, want) {
					t.Logf("%q:\n got %v %q\nwant %v %q", text, got, words(tok, got), want, words(tok, want))
					if differ++; differ >= 5 {
						break
					}
				}
			}
			if differ > 0 {
				t.Error("ids differ")
			}
		})
	}
}

func words(tok *tokenizer.Tokenizer, ids []uint32) (list []string) {
	for _, id := range ids {
		list = append(list, string(tok.Piece(id)))
	}
	return list
}
