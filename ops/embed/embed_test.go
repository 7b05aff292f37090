package embed

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/assets"
)

func TestMain(m *testing.M) {
	MaybeChild()
	os.Exit(m.Run())
}

func config(t testing.TB) Config {
	t.Helper()
	dir := assets.ForTest(t, assets.MiniLM)
	return Config{
		Library: filepath.Join(assets.ForTest(t, assets.ONNXRuntime), assets.ONNXRuntimeFile), Model: filepath.Join(dir, assets.MiniLMFile),
		Tokenizer: filepath.Join(dir, assets.MiniLMTokenizerFile), Threads: 1,
	}
}

func start(t testing.TB) *Child {
	t.Helper()
	c, err := Start(t.Context(), config(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func cosine(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// golden is a text with what the reference implementations make of it (testdata/golden.py).
type golden struct {
	Text   string
	IDs    []int64
	Vector []float32 // nil for texts that are of interest to the tokenizer only
}

func goldens(t *testing.T) (cases []golden) {
	t.Helper()
	data, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 60 {
		t.Fatalf("%d golden texts: the file is not whole", len(cases))
	}
	return cases
}

// TestGoldenTokens: tokens are those of Hugging Face's tokenizers. Method: texts of many scripts, control characters, long words and long texts.
func TestGoldenTokens(t *testing.T) {
	tokenizer, err := OpenTokenizer(config(t).Tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range goldens(t) {
		if got := tokenizer.IDs(c.Text); !slices.Equal(got, c.IDs) {
			t.Errorf("%q: tokens %v, want %v", c.Text, got, c.IDs)
		}
	}
}

// TestPlainText: nothing in a text becomes a special token, and bytes that are no UTF-8 are dropped. Method: the tokens' ids.
func TestPlainText(t *testing.T) {
	tokenizer, err := OpenTokenizer(config(t).Tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	ids := tokenizer.IDs("[SEP] [CLS]")
	if inside := ids[1 : len(ids)-1]; slices.Contains(inside, tokenizer.start) || slices.Contains(inside, tokenizer.end) || len(inside) < 6 {
		t.Errorf("tokens %v: a special token in the text", ids)
	}
	if got, want := tokenizer.IDs("a\xff\xfeb"), tokenizer.IDs("ab"); !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
}

// TestGoldenVectors: vectors are those of the same graph in the reference implementation, of length 1, and of one text alone. Method: cosines, the lengths; all
// texts in one call and each in its own.
func TestGoldenVectors(t *testing.T) {
	c := start(t)
	var texts []string
	var want [][]float32
	for _, g := range goldens(t) {
		if g.Vector != nil {
			texts, want = append(texts, g.Text), append(want, g.Vector)
		}
	}
	got, err := c.Embed(t.Context(), texts...)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(texts) || len(texts) < 30 {
		t.Fatalf("%d vectors for %d texts", len(got), len(texts))
	}
	for i, v := range got {
		if len(v) != Size || math.Abs(cosine(v, v)-1) > 1e-5 {
			t.Errorf("%q: %d numbers of length %v", texts[i], len(v), math.Sqrt(cosine(v, v)))
		}
		if near := cosine(v, want[i]); near < 0.999 {
			t.Errorf("%q: cosine %v to the reference", texts[i], near)
		}
		alone, err := c.Embed(t.Context(), texts[i])
		if err != nil || !slices.Equal(alone[0], v) {
			t.Errorf("%q: another vector when it is alone (%v)", texts[i], err)
		}
	}
}

// TestMeaning: what means the same is nearer than what does not. Method: two ways to ask for one thing, and one to ask for another.
func TestMeaning(t *testing.T) {
	v, err := start(t).Embed(t.Context(), "Please use plain sentences, without bullet points.", "Write ordinary prose and no lists.", "The train leaves at seven from platform two.")
	if err != nil {
		t.Fatal(err)
	}
	if same, other := cosine(v[0], v[1]), cosine(v[0], v[2]); same < other+0.3 {
		t.Errorf("cosine %v of paraphrases, %v of strangers", same, other)
	}
}

// TestKilled: the death of the process fails at most the call in it, and the next one works. Method: kill it between two calls; then during many.
func TestKilled(t *testing.T) {
	c := start(t)
	before, err := c.Embed(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	first := c.PID()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Embed(t.Context(), "hello"); err == nil || !strings.Contains(err.Error(), "the next call starts it again") {
		t.Errorf("error %v", err)
	}
	if c.PID() != 0 {
		t.Error("the dead process still has an id")
	}
	after, err := c.Embed(t.Context(), "hello")
	if err != nil || !slices.Equal(before[0], after[0]) || c.PID() == first {
		t.Errorf("after the restart: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Embed(ctx, "hello"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v of a call that is over", err)
	}
	if again, err := c.Embed(t.Context(), "hello"); err != nil || !slices.Equal(before[0], again[0]) {
		t.Errorf("after a cancelled call: %v", err)
	}
}

// TestTogether: callers at the same time get the vectors of their own texts. Method: eight callers, compared with calls one by one.
func TestTogether(t *testing.T) {
	c := start(t)
	texts := []string{"one", "two apples", "three long roads", "four", "five", "six", "seven", "eight"}
	want, err := c.Embed(t.Context(), texts...)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i, text := range texts {
		wg.Go(func() {
			if got, err := c.Embed(t.Context(), text); err != nil || !slices.Equal(got[0], want[i]) {
				t.Errorf("%s: %v", text, err)
			}
		})
	}
	wg.Wait()
	if none, err := c.Embed(t.Context()); err != nil || len(none) != 0 {
		t.Errorf("%d vectors for no text, %v", len(none), err)
	}
}

// TestStartFails: what cannot be used is refused in words. Method: one wrong file at a time, no threads, and a tokenizer of another kind.
func TestStartFails(t *testing.T) {
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte(`{"model":{"type":"BPE"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spoil func(*Config)
		want  string
	}{
		"library":   {func(c *Config) { c.Library = wrong }, "ONNX Runtime"},
		"model":     {func(c *Config) { c.Model = wrong }, wrong},
		"no model":  {func(c *Config) { c.Model = wrong + "er" }, "no such file"},
		"tokenizer": {func(c *Config) { c.Tokenizer = wrong }, "uncased BERT"},
		"threads":   {func(c *Config) { c.Threads = 0 }, "a thread at least"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			c.spoil(&cfg)
			child, err := Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
			if err == nil {
				child.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// BenchmarkEmbed tells how many corrections a second are embedded.
func BenchmarkEmbed(b *testing.B) {
	c := start(b)
	for b.Loop() {
		if _, err := c.Embed(b.Context(), "That is not what I wanted. Explain it in two or three plain sentences: no numbered list, no bold and no 'Final answer' label."); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sentences/s")
}
