package policy_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

const secretKey = "sk-very-secret"

// openHostile opens both remote engines against a server that is well until it samples; then serve answers.
func openHostile(t *testing.T, patience time.Duration, serve http.HandlerFunc) map[string]policy.Engine {
	t.Helper()
	vllm, vllmURL := newVLLM(t)
	vllm.key = secretKey
	_, sglangURL := newSGLang(t)
	engines := map[string]policy.Engine{}
	for name, behind := range map[string]string{"openai": vllmURL, "sglang": sglangURL} {
		opened := false
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if opened && (strings.HasSuffix(r.URL.Path, "/chat/completions") || r.URL.Path == "/generate") {
				_, _ = io.Copy(io.Discard, r.Body) // a server that has read a request hears when its client goes
				serve(w, r)
				return
			}
			forward(t, behind, w, r)
		}))
		t.Cleanup(h.Close)
		cfg := policy.RemoteConfig{URL: h.URL, APIKey: secretKey, Timeout: patience}
		var e policy.Engine
		var err error
		if name == "openai" {
			e, err = policy.OpenOpenAIRemote(t.Context(), cfg, slog.New(slog.DiscardHandler), nil)
		} else {
			e, err = policy.OpenSGLangRemote(t.Context(), cfg, slog.New(slog.DiscardHandler), nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		opened = true
		engines[name] = e
		t.Cleanup(func() { _ = e.Close() })
	}
	return engines
}

func forward(t *testing.T, to string, w http.ResponseWriter, r *http.Request) {
	q, err := http.NewRequestWithContext(r.Context(), r.Method, to+r.URL.Path, r.Body)
	if err != nil {
		t.Error(err)
		return
	}
	q.Header = r.Header
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer a.Body.Close()
	w.Header().Set("Content-Type", a.Header.Get("Content-Type"))
	w.WriteHeader(a.StatusCode)
	_, _ = io.Copy(w, a.Body)
}

func eventStream(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, text)
	w.(http.Flusher).Flush()
}

// Two tokens, as each server sends them.
const (
	vllmToken   = `data: {"model":"bigram","choices":[{"index":0,"delta":{"content":"a"},"token_ids":[97],"logprobs":{"content":[{"token":"token_id:97","logprob":-1,"bytes":[97],"top_logprobs":[]}]}}]}` + "\n\n"
	sglangToken = `data: {"text":"a","output_ids":[97],"meta_info":{"completion_tokens":1,"output_token_logprobs":[[-1,97,"a"]],"finish_reason":null}}` + "\n\n"
)

// hostile is a server that goes wrong when it is asked to sample: what it does, the error, and whether a response had begun.
type hostile struct {
	name    string
	serve   http.HandlerFunc
	status  int
	message string
	begun   bool
}

func token(r *http.Request) string {
	if r.URL.Path == "/generate" {
		return sglangToken
	}
	return vllmToken
}

// hostiles lists them.
func hostiles() []hostile {
	return []hostile{
		{"no events", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>hello</html>") }, 502, "content of the type", false},
		{"garbage", func(w http.ResponseWriter, _ *http.Request) { eventStream(w, "\x00\x01garbage\n\n") }, 502, "no event", false},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { eventStream(w, "data: {]\n\n") }, 502, "not what its API documents", false},
		{"no end", func(w http.ResponseWriter, r *http.Request) { eventStream(w, token(r)) }, 502, "ended before", true},
		{"no finish reason", func(w http.ResponseWriter, r *http.Request) { eventStream(w, token(r)+"data: [DONE]\n\n") }, 502, "finish reason", true},
		{"never ends", func(w http.ResponseWriter, r *http.Request) {
			for n := 1; r.Context().Err() == nil; n++ {
				eventStream(w, strings.Replace(token(r), `"completion_tokens":1`, fmt.Sprintf(`"completion_tokens":%d`, n), 1))
			}
		}, 502, "at most 9 were asked for", true},
		{"too much text", func(w http.ResponseWriter, r *http.Request) {
			for n := 1; n < 9 && r.Context().Err() == nil; n++ {
				eventStream(w, strings.NewReplacer(`"content":"a"`, `"content":"`+strings.Repeat("a", 10<<20)+`"`, `"text":"a"`, `"text":"`+strings.Repeat("a", 10<<20)+`"`,
					`"completion_tokens":1`, fmt.Sprintf(`"completion_tokens":%d`, n)).Replace(token(r)))
			}
		}, 502, "a response has more than", true},
		{"a line without end", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for r.Context().Err() == nil {
				if _, err := fmt.Fprint(w, "data: ", strings.Repeat("x", 1<<20)); err != nil {
					return
				}
			}
		}, 502, "a line of its stream", false},
		{"silent from the start", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 504, "silent", false},
		{"silent in the middle", func(w http.ResponseWriter, r *http.Request) { eventStream(w, token(r)); <-r.Context().Done() }, 504, "silent", true},
		{"wrong ids", func(w http.ResponseWriter, r *http.Request) {
			eventStream(w, strings.NewReplacer(`token_id:97`, `token_id:98`, `[-1,97,"a"]`, `[-1,98,"a"]`).Replace(token(r)))
		}, 502, "token 97 with the log-prob of token 98", false},
		{"negative ids", func(w http.ResponseWriter, r *http.Request) {
			eventStream(w, strings.NewReplacer(`"token_ids":[97]`, `"token_ids":[-1]`, `"output_ids":[97]`, `"output_ids":[-1]`).Replace(token(r)))
		}, 502, "not what its API documents", false},
		{"unequal lengths", func(w http.ResponseWriter, r *http.Request) {
			eventStream(w, strings.NewReplacer(`"token_ids":[97]`, `"token_ids":[97,97]`, `"output_ids":[97]`, `"output_ids":[97,97]`).Replace(token(r)))
		}, 502, "2", false},
		{"an error in the middle", func(w http.ResponseWriter, r *http.Request) {
			eventStream(w, token(r)+`data: {"error":{"message":"CUDA error","code":500}}`+"\n\n")
		}, 502, "CUDA error", true},
		{"the key in an error", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error":{"message":"bad key %s"}}`, r.Header.Get("Authorization"))
		}, 502, "API key", false},
		{"busy", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"error":"queue full"}`)
		}, 429, "queue full", false},
		{"not ready", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, 503, "not ready", false},
		{"broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, 502, "failed (500)", false},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusTemporaryRedirect)
		}, 502, "redirects", false},
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"detail":[{"loc":["body","top_p"],"msg":"must be positive"}]}`)
		}, 400, "must be positive", false},
		{"hangs up", func(w http.ResponseWriter, r *http.Request) {
			eventStream(w, token(r))
			panic(http.ErrAbortHandler)
		}, 502, "", true},
	}
}

// TestRemoteHostile: whatever a server does, the caller gets an error that says what is wrong, of a status that is not the caller's fault, without
// the key; a response that had begun comes with it, marked. No request outlives its caller.
func TestRemoteHostile(t *testing.T) {
	for _, test := range hostiles() {
		t.Run(test.name, func(t *testing.T) {
			patience := time.Minute
			if test.status == http.StatusGatewayTimeout {
				patience = time.Second
			}
			for name, e := range openHostile(t, patience, test.serve) {
				s, pieces, err := sampleOnce(t, e, request(storyPrompt, 9))
				if problem := wantStatus(err, test.status); problem != "" {
					t.Fatalf("%s: %s", name, problem)
				}
				if !strings.Contains(err.Error(), test.message) {
					t.Errorf("%s: %q does not say %q", name, err, test.message)
				}
				if strings.Contains(err.Error(), secretKey) {
					t.Errorf("%s: the error tells the key: %v", name, err)
				}
				var p *gateway.PolicyError
				if errors.As(err, &p); test.status == 429 && p.RetryAfter != 7*time.Second {
					t.Errorf("%s: retry after %v", name, p.RetryAfter)
				}
				if begun := s != nil; begun != test.begun || (begun && (s.FinishReason != schemas.FinishReason_FINISH_REASON_ERROR || len(pieces) == 0)) {
					t.Errorf("%s: begun: %v, %d pieces", name, s, len(pieces))
				}
			}
		})
	}
}

// TestRemoteSlowCaller: a caller that takes longer for a token than the server may be silent gets the whole response.
func TestRemoteSlowCaller(t *testing.T) {
	s, url := newVLLM(t)
	e, err := policy.OpenOpenAIRemote(t.Context(), policy.RemoteConfig{URL: url, APIKey: s.key, Timeout: 2 * time.Second}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	_, err = e.Sample(t.Context(), request(storyPrompt, 4000), func(gateway.Piece) error {
		if n++; n == 2 {
			time.Sleep(3 * time.Second)
		}
		return nil
	})
	if err != nil || n != 4000 {
		t.Errorf("%d tokens, %v", n, err)
	}
}

// TestRemoteOpen: what is wrong with an address, a model or a key is said at the start.
func TestRemoteOpen(t *testing.T) {
	s, url := newVLLM(t)
	s.adapters, s.paths["v1"] = []string{"v1"}, "/adapters/v1"
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + closed.Addr().String()
	_ = closed.Close()
	for _, test := range []struct {
		name string
		cfg  policy.RemoteConfig
		want string
	}{
		{"no address", policy.RemoteConfig{}, "http or https URL"},
		{"no URL", policy.RemoteConfig{URL: "host:8000"}, "http or https URL"},
		{"a key in the URL", policy.RemoteConfig{URL: "http://user:" + secretKey + "@127.0.0.1:1"}, "setting for it"},
		{"negative", policy.RemoteConfig{URL: url, Timeout: -1}, "timeout"},
		{"nobody there", policy.RemoteConfig{URL: nobody}, "cannot be reached"},
		{"wrong key", policy.RemoteConfig{URL: url, APIKey: secretKey}, "does not take our API key"},
		{"unknown model", policy.RemoteConfig{URL: url, APIKey: s.key, Model: "other"}, `no model "other"`},
		{"an adapter as model", policy.RemoteConfig{URL: url, APIKey: s.key, Model: "v1"}, "base model"},
	} {
		_, err := policy.OpenOpenAIRemote(t.Context(), test.cfg, slog.New(slog.DiscardHandler), nil)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), secretKey) {
			t.Errorf("openai, %s: %v, want %q", test.name, err, test.want)
		}
	}
	// A server that is vLLM is no SGLang: its key is right, its native API is missing.
	_, err = policy.OpenSGLangRemote(t.Context(), policy.RemoteConfig{URL: url, APIKey: s.key}, slog.New(slog.DiscardHandler), nil)
	if err == nil || !strings.Contains(err.Error(), "sglang") {
		t.Errorf("sglang against vLLM: %v", err)
	}
}

// TestRemoteMessages: content that the servers cannot read is refused before anything is sent, and names the message.
func TestRemoteMessages(t *testing.T) {
	for name, e := range openHostile(t, time.Minute, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") }) {
		r := request("hi", 4)
		r.Messages = append(r.Messages, &schemas.Message{Role: schemas.Role_ROLE_USER, Parts: []*schemas.Part{{Content: &schemas.Part_Blob{Blob: &schemas.Blob{MediaType: "image/png"}}}}})
		_, _, err := sampleOnce(t, e, r)
		if wantStatus(err, 400) != "" || !strings.Contains(err.Error(), "message 1") {
			t.Errorf("%s: an image: %v", name, err)
		}
	}
}
