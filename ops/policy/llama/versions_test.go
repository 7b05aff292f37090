package llama

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// swapTo makes a version the newest.
func swapTo(t testing.TB, s *Server, version, adapter string) {
	t.Helper()
	if err := s.Swap(t.Context(), version, adapter); err != nil {
		t.Fatal(err)
	}
}

// Goal: versions differ, the base is as before, several at once give what each gives alone, and the newest is what no name means. Method: three
// versions one after the other, then all at once, for sampling and scoring; log-probs tell which version gave what.
func TestVersions(t *testing.T) {
	s := start(t, config(t))
	p := prompt(t, 40, 30)
	names := []string{Base, "v1", "v2"}
	alone := map[string][]Token{}
	for i, name := range names {
		if name != Base {
			swapTo(t, s, name, writeLoRA(t, smol(), "llama", uint64(i)))
		}
		tokens, result := generate(t, s, &Request{Prompt: p, MaxTokens: 8})
		if result.Version != name || result.Cached != 0 {
			t.Errorf("without a name: %+v, want version %s and nothing of another's cache", result, name)
		}
		alone[name] = tokens
	}
	for _, pair := range [][2]string{{"v1", "v2"}, {Base, "v1"}} {
		if d := apart(sampled(alone[pair[0]]), sampled(alone[pair[1]])); d < 0.05 {
			t.Fatalf("%v are only %.4f nats apart: the adapters change nothing", pair, d)
		}
	}
	if got := s.Versions(); !slices.Equal(got, []string{"v2", "v1", Base}) {
		t.Errorf("versions %v", got)
	}
	var all sync.WaitGroup
	for range 2 {
		for _, name := range names {
			all.Go(func() {
				tokens, result, err := collect(t.Context(), s, &Request{Version: name, Prompt: p, MaxTokens: 8})
				if err != nil || result.Version != name || len(tokens) != 8 {
					t.Errorf("%s beside others: %v, %d tokens, %+v", name, err, len(tokens), result)
					return
				}
				// A near tie may fall the other way in company (see below), so it is the log-probs until there that tell whose response it is.
				far := map[string]float64{}
				for other, want := range alone {
					n := 0
					for n < 8 && tokens[n].ID == want[n].ID {
						n++
					}
					far[other] = math.Inf(1)
					if n > 0 {
						far[other] = apart(sampled(tokens[:n]), sampled(want[:n]))
					}
				}
				for other, d := range far {
					if other != name && (far[name] > tolerance || 2*far[name] > d) {
						t.Errorf("%s beside others is %.4f nats from itself alone, %.4f from %s", name, far[name], d, other)
					}
				}
				t.Logf("%s beside others is from each alone: %v nats", name, far)
			})
			all.Go(func() {
				scored, err := s.Score(t.Context(), &ScoreRequest{Version: name, Prompt: p, Response: ids(alone[name]), Temperature: 1})
				if err != nil {
					t.Error(err)
					return
				}
				d := apart(sampled(alone[name]), scored.Logprobs)
				t.Logf("%s: scored %.4f nats apart", name, d)
				if d > tolerance { // an adapter's products are sums of float32, in another order for one token than for several
					t.Errorf("%s: scored %.4f nats apart", name, d)
				}
			})
		}
	}
	all.Wait()
	swapTo(t, s, "v1", "")
	if _, result := generate(t, s, &Request{Prompt: p, MaxTokens: 1}); result.Version != "v1" {
		t.Errorf("a known version did not become the newest: %+v", result)
	}
}

// Goal: swaps under load drop no request and change no request's version; versions that are too many go, the longest unused first, those in use never.
// Method: eight streams all the time while five versions come; a stream that holds on to the first.
func TestSwapUnderLoad(t *testing.T) {
	cfg := config(t)
	cfg.Versions = 2
	s := start(t, cfg)
	swapTo(t, s, "v0", writeLoRA(t, smol(), "llama", 50))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	held := make(chan struct{})
	all.Go(func() {
		first := true
		_, err := s.Generate(ctx, &Request{Version: "v0", Prompt: prompt(t, 1, 20)}, func(Token) error {
			if first {
				first = false
				close(held)
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			t.Errorf("the stream of the first version: %v", err)
		}
	})
	<-held
	for i := range 6 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, _, err := collect(ctx, s, &Request{Prompt: prompt(t, uint64(i*100+n), 15), MaxTokens: 8}); err != nil && ctx.Err() == nil {
					t.Errorf("a request during swaps: %v", err)
				}
			}
		})
	}
	for i := 1; i < 5; i++ {
		swapTo(t, s, fmt.Sprintf("v%d", i), writeLoRA(t, smol(), "llama", uint64(50+i)))
		if got := s.Versions(); got[0] != fmt.Sprintf("v%d", i) || !slices.Contains(got, Base) {
			t.Errorf("versions %v", got)
		}
	}
	if got := s.Versions(); !slices.Contains(got, "v0") {
		t.Errorf("a version in use was dropped: %v", got)
	}
	cancel()
	all.Wait()
	got := s.Versions()
	for deadline := time.Now().Add(grace + 20*time.Second); len(got) != 3 && time.Now().Before(deadline); got = s.Versions() {
		generate(t, s, &Request{Prompt: prompt(t, 1, 5), MaxTokens: 1})
	}
	if len(got) != 3 {
		t.Errorf("versions %v, want the newest, one more, and the base", got)
	}
}

// Goal: an adapter that does not fit, is damaged or gives no numbers is refused in words, and nothing changes. Method: other shapes, another architecture,
// cut off, no GGUF, no file, NaN, overflow, names that cannot be.
func TestSwapRefuses(t *testing.T) {
	s := start(t, config(t))
	before, _ := generate(t, s, &Request{Prompt: prompt(t, 1, 10), MaxTokens: 5})
	other := smol()
	other[0].out = 512
	good := writeLoRA(t, smol(), "llama", 1)
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	cut, text := good+".cut", good+".txt"
	for path, content := range map[string][]byte{cut: data[:len(data)/2], text: []byte("no model")} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for what, path := range map[string]string{
		"shapes": writeLoRA(t, other, "llama", 2), "architecture": writeLoRA(t, smol(), "qwen2", 3), "cut off": cut, "text": text, "missing": good + ".none",
		"the model itself": s.cfg.Model, "no numbers": writeScaledLoRA(t, smol(), "llama", 4, float32(math.NaN())),
		"numbers too large": writeScaledLoRA(t, smol(), "llama", 5, 1e30),
	} {
		err := s.Swap(t.Context(), "bad", path)
		if status(err) != http.StatusBadRequest {
			t.Errorf("%s: %v", what, err)
		}
		t.Logf("%s: %v", what, err)
	}
	for _, w := range []swap{{"", good}, {Base, good}} {
		if err := s.Swap(t.Context(), w.Version, w.Adapter); status(err) != http.StatusBadRequest {
			t.Errorf("version %q: %v", w.Version, err)
		}
	}
	after, result := generate(t, s, &Request{Prompt: prompt(t, 1, 10), MaxTokens: 5})
	if !slices.Equal(ids(before), ids(after)) || result.Version != Base || !slices.Equal(s.Versions(), []string{Base}) {
		t.Errorf("something changed: %+v, %v", result, s.Versions())
	}
}
