package processors

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// chatServer answers chat completions by a function of the request number, from 0.
func chatServer(t *testing.T, answer func(n int, w http.ResponseWriter, body map[string]any)) ChatConfig {
	t.Helper()
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s with %q", r.URL.Path, r.Header.Get("Authorization"))
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var body map[string]any
		if err := json.Unmarshal(text, &body); err != nil {
			t.Error(err)
		}
		answer(int(n.Add(1))-1, w, body)
	}))
	t.Cleanup(server.Close)
	return ChatConfig{BaseURL: server.URL + "/v1/", Model: "judge-1", APIKey: "secret", BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond, Client: server.Client()}
}

func say(w http.ResponseWriter, text string) {
	_ = json.NewEncoder(w).Encode(map[string]any{"model": "judge-1-0613", "choices": []any{map[string]any{"message": map[string]any{"content": text}}}})
}

// TestOpenAIJudge: m votes with the model's words, asked with what the judge must know. Method: a server that votes +1, then -1, then nothing
// valid, and records what it was asked.
func TestOpenAIJudge(t *testing.T) {
	var mu sync.Mutex
	var asked string
	cfg := chatServer(t, func(n int, w http.ResponseWriter, body map[string]any) {
		mu.Lock()
		asked = fmt.Sprint(body)
		mu.Unlock()
		say(w, []string{`Good. \boxed{1}`, `\boxed{1} no: \boxed{-1}`, "I do not know"}[n%3])
	})
	judge, err := NewOpenAIJudge("llm", cfg)
	if err != nil {
		t.Fatal(err)
	}
	turn := ran("ls", observation(toolResult, "file.txt"))
	turn.NextState[0].Message.ToolCallId = &turn.Action.Response.ToolCalls[0].Id
	votes, err := judge.Votes(t.Context(), turn)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, v := range votes {
		counts[fmt.Sprint(show(v.Vote))]++
		if v.GetModel() != "judge-1-0613" || v.GetRationale() == "" || v.Error != nil {
			t.Errorf("vote %v", v)
		}
	}
	if len(votes) != 3 || counts["1"] != 1 || counts["-1"] != 1 || counts["none"] != 1 {
		t.Errorf("votes %v", counts)
	}
	for _, want := range []string{"Result of the tool bash, which the assistant called", "[calls the tool bash with", "file.txt", "Do a1", "temperature:0.6", `\boxed{-1}`} {
		if !strings.Contains(asked, want) {
			t.Errorf("the request does not hold %q: %s", want, asked)
		}
	}
}

// TestOpenAIRetries: what may pass is tried again, what may not is a failed vote, and nothing waits longer than allowed. Method: a server
// that fails in each way.
func TestOpenAIRetries(t *testing.T) {
	fail := func(status int, header ...string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			if len(header) == 2 {
				w.Header().Set(header[0], header[1])
			}
			w.WriteHeader(status)
		}
	}
	for name, c := range map[string]struct {
		fail     func(w http.ResponseWriter)
		failures int
		requests int
		error    string
	}{
		"429 passes":         {fail(http.StatusTooManyRequests, "Retry-After", "3600"), 2, 3, ""},
		"500 passes":         {fail(http.StatusInternalServerError), 1, 2, ""},
		"503 stays":          {fail(http.StatusServiceUnavailable), 99, 4, "after 4 attempts: the model's server answered 503"},
		"401 is for good":    {fail(http.StatusUnauthorized), 99, 1, "after 1 attempts: the model's server answered 401"},
		"no JSON":            {func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") }, 1, 2, ""},
		"no choices":         {func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"choices": []}`) }, 99, 4, "no choices"},
		"a dropped response": {func(w http.ResponseWriter) { panic(http.ErrAbortHandler) }, 1, 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			cfg := chatServer(t, func(n int, w http.ResponseWriter, _ map[string]any) {
				requests.Add(1)
				if n < c.failures {
					c.fail(w)
					return
				}
				say(w, `\boxed{1}`)
			})
			cfg.Votes, cfg.Attempts = 1, 4
			judge, err := NewOpenAIJudge("llm", cfg)
			if err != nil {
				t.Fatal(err)
			}
			votes, err := judge.Votes(t.Context(), closed(observation(userReplyK, "ok")))
			if err != nil {
				t.Fatal(err)
			}
			if int(requests.Load()) != c.requests {
				t.Errorf("%d requests, want %d", requests.Load(), c.requests)
			}
			if v := votes[0]; (c.error == "") != (v.Error == nil) || !strings.Contains(v.GetError(), c.error) || (v.Vote == nil) != (c.error != "") {
				t.Errorf("vote %v, want the error %q", v, c.error)
			}
			if strings.Contains(fmt.Sprint(votes), "secret") {
				t.Error("the key is in the vote")
			}
		})
	}
}

// TestOpenAIEndsWithContext: an ended ctx stops the turn rather than becoming a vote, so that a stage that shuts down judges nothing.
// Method: cancel while the server is silent.
func TestOpenAIEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	cfg := chatServer(t, func(int, http.ResponseWriter, map[string]any) {
		cancel()
		<-release
	})
	defer close(release)
	finder, err := NewOpenAIFinder("llm", cfg)
	if err != nil {
		t.Fatal(err)
	}
	if votes, err := finder.Hints(ctx, closed(observation(userReplyK, "ok"))); err == nil {
		t.Errorf("votes %v", votes)
	}
}

// TestOpenAIConcurrency: no more requests at once than allowed. Method: count those inside the server while many turns are judged.
func TestOpenAIConcurrency(t *testing.T) {
	var inside, most atomic.Int32
	cfg := chatServer(t, func(_ int, w http.ResponseWriter, _ map[string]any) {
		n := inside.Add(1)
		defer inside.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(time.Millisecond)
		say(w, `\boxed{1}`)
	})
	cfg.Concurrency = 2
	judge, err := NewOpenAIJudge("llm", cfg)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := judge.Votes(t.Context(), closed(observation(userReplyK, "ok"))); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if most.Load() > 2 {
		t.Errorf("%d requests at once, 2 are allowed", most.Load())
	}
}

// TestOpenAIFinder: a model's decision and hint. Method: a server with one hint and two refusals to give one.
func TestOpenAIFinder(t *testing.T) {
	cfg := chatServer(t, func(n int, w http.ResponseWriter, _ map[string]any) {
		say(w, []string{`\boxed{1} [HINT_START] Show every step of the sum. [HINT_END]`, `\boxed{-1}`, "?"}[n%3])
	})
	finder, err := NewOpenAIFinder("llm", cfg)
	if err != nil {
		t.Fatal(err)
	}
	out := processOne(t, NewDirect(DirectConfig{Finders: []Finder{finder}}), closed(observation(userReplyK, "And the steps?")))
	selected, ok := out[len(out)-1].Payload.(*schemas.HintSelected)
	if !ok || selected.GetHint() != "Show every step of the sum." || len(out) != 4 || selected.GetFinder() != "llm" {
		t.Errorf("got %v", out)
	}
}

// TestDescribeTurnIsBounded: a request stays within its bound, and long texts keep their beginning and end. Method: a huge output and a huge result.
func TestDescribeTurnIsBounded(t *testing.T) {
	turn := ran("ls", observation(toolResult, "BEGIN "+strings.Repeat("é", 100_000)+" END"))
	turn.Action.Response.Parts = textMessage(schemas.Role_ROLE_ASSISTANT, strings.Repeat("y", 100_000)).Parts
	text := describeTurn(turn, 9000)
	if len(text) > 9000+300 || !strings.Contains(text, "BEGIN") || !strings.Contains(text, "END") {
		t.Errorf("%d bytes: %.300s", len(text), text)
	}
}

// TestChatConfig: a mistake in the configuration says what is needed, and the key is never printed. Method: one mistake at a time.
func TestChatConfig(t *testing.T) {
	good := ChatConfig{BaseURL: "http://localhost:1/v1", Model: "m", APIKey: "secret"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	hot := 3.0
	for want, break_ := range map[string]func(*ChatConfig){
		"base_url":          func(c *ChatConfig) { c.BaseURL = "localhost" },
		"model":             func(c *ChatConfig) { c.Model = "" },
		"votes":             func(c *ChatConfig) { c.Votes = -1 },
		"temperature":       func(c *ChatConfig) { c.Temperature = &hot },
		"timeout":           func(c *ChatConfig) { c.Timeout = -1 },
		"max_request_bytes": func(c *ChatConfig) { c.MaxRequestBytes = 10 },
	} {
		c := good
		break_(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	printed, err := json.Marshal(good.APIKey)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s %q", good, good, good, good.APIKey, good.APIKey) + string(printed); strings.Contains(text, "secret") {
		t.Errorf("the key is printed: %s", text)
	}
}

// TestRetryAfter: seconds and dates, and nothing else. Method: header values.
func TestRetryAfter(t *testing.T) {
	date := "Mon, 02 Jan 2006 15:04:05 GMT"
	for value, want := range map[string]time.Duration{
		"2": 2 * time.Second, "0.5": 500 * time.Millisecond, "": 0, "-1": 0, "soon": 0, "1e300": 0, "NaN": 0,
		"Mon, 02 Jan 2006 15:04:15 GMT": 10 * time.Second, "Mon, 02 Jan 2006 15:04:00 GMT": 0,
	} {
		if got := retryAfter(http.Header{"Retry-After": {value}, "Date": {date}}); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}
