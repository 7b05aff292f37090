package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/alecthomas/kong"
)

// chatServer answers as the gateway's public API does, and keeps what it was asked.
type chatServer struct {
	mu       sync.Mutex
	requests []string // path, session, body
	replies  int
	// gone is closed when the client of a reply that hangs after its first piece went away; nil: no reply hangs.
	gone chan struct{}
}

func (s *chatServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace(r.URL.Path+" "+r.Header.Get("X-Nextstate-Session")+" "+string(body)))
	s.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer nk_1" {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error":{"message":"the API key is unknown","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`)
		return
	}
	if r.URL.Path != "/v1/chat/completions" {
		fmt.Fprint(w, `{"recorded":true}`)
		return
	}
	if bytes.Contains(body, []byte("too long")) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"the conversation does not fit","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`)
		return
	}
	s.mu.Lock()
	s.replies++
	n := s.replies
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Nextstate-Session", r.Header.Get("X-Nextstate-Session"))
	send := func(delta, finish string) {
		fmt.Fprintf(w, "data: {\"id\":\"chatcmpl-%d\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":%s}]}\n\n", n, delta, finish)
		w.(http.Flusher).Flush()
	}
	send("Rep", "null")
	if s.gone != nil {
		<-r.Context().Done()
		close(s.gone)
		return
	}
	send(fmt.Sprintf("ly %d", n), "null")
	if bytes.Contains(body, []byte("break")) {
		fmt.Fprint(w, "data: {\"error\":{\"message\":\"the engine died\"}}\n\n")
		return
	}
	send("", `"stop"`)
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// runChat types input into a chat and returns what it printed.
func runChat(t *testing.T, s *chatServer, input string, set func(*Chat, *Globals)) (out, errOut string, err error) {
	t.Helper()
	h := httptest.NewServer(s)
	defer h.Close()
	var o, e bytes.Buffer
	g := &Globals{}
	g.Bind(&o, &e)
	c := Chat{URL: h.URL + "/v1/", Key: "nk_1", Model: "policy", Session: "s1", in: strings.NewReader(input), interrupts: make(chan os.Signal)}
	if set != nil {
		set(&c, g)
	}
	err = c.Run(t.Context(), g)
	return o.String(), e.String(), err
}

// watchedWriter tells of the first piece that is printed.
type watchedWriter struct {
	io.Writer
	seen chan struct{}
	once sync.Once
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	defer w.once.Do(func() { close(w.seen) })
	return w.Writer.Write(p)
}

// A conversation of several turns: the history grows, feedback names the last reply, a retry drops it, a new session is begun, and each session is
// ended, by the requests that arrive at the gateway.
func TestChatConversation(t *testing.T) {
	s := &chatServer{}
	temperature := 0.5
	out, errOut, err := runChat(t, s, "hello\n/good nice\n\nmore\n/hint be brief\n/retry\n/bad\n/new\nagain", func(c *Chat, _ *Globals) {
		c.System, c.Temperature, c.MaxTokens = "Be kind.", &temperature, 64
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "Reply 1\nReply 2\nReply 3\nReply 4\n"; out != want {
		t.Errorf("printed %q, want %q", out, want)
	}
	if strings.Count(errOut, "noted") != 3 {
		t.Errorf("on standard error: %q", errOut)
	}
	const head, tail = `{"model":"policy","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hello"}`, `],"temperature":0.5,"max_tokens":64,"stream":true}`
	more := `,{"role":"assistant","content":"Reply 1"},{"role":"user","content":"more"}`
	want := []string{
		"/v1/chat/completions s1 " + head + tail,
		`/v1/feedback  {"response_id":"chatcmpl-1","score":1,"text":"nice"}`,
		"/v1/chat/completions s1 " + head + more + tail,
		`/v1/feedback  {"response_id":"chatcmpl-2","text":"be brief"}`,
		"/v1/chat/completions s1 " + head + more + tail,
		`/v1/feedback  {"response_id":"chatcmpl-3","score":-1}`,
		`/v1/sessions/s1/end  {"reason":"the user left the chat"}`,
	}
	if len(s.requests) != len(want)+2 || !reflect.DeepEqual(s.requests[:len(want)], want) {
		t.Fatalf("requests:\n%s\nwant:\n%s", strings.Join(s.requests, "\n"), strings.Join(want, "\n"))
	}
	last := s.requests[len(want)]
	if !strings.HasPrefix(last, "/v1/chat/completions chat-") || !strings.Contains(last, `{"role":"user","content":"again"}`) || strings.Contains(last, "hello") {
		t.Errorf("the new session: %s", last)
	}
	if end := s.requests[len(want)+1]; !strings.HasPrefix(end, "/v1/sessions/chat-") {
		t.Errorf("the end: %s", end)
	}
}

// --json prints one event a line and nothing else, errors included; an error of the API ends no conversation, and the exit status tells of it.
func TestChatJSON(t *testing.T) {
	s := &chatServer{}
	out, errOut, err := runChat(t, s, "hello\n/good\n/unknown\ntoo long\nbreak\n/quit\nnever said", func(_ *Chat, g *Globals) { g.JSON = true })
	if err == nil {
		t.Error("no error although turns failed")
	}
	if errOut != "" {
		t.Errorf("on standard error: %q", errOut)
	}
	var events []string
	for line := range strings.Lines(out) {
		var e chatEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		events = append(events, strings.TrimSuffix(strings.Join([]string{e.Event, e.Text, e.ResponseID, e.FinishReason, e.Message}, "|"), "|"))
	}
	want := []string{
		"text|Rep||", "text|ly 1||", "reply|Reply 1|chatcmpl-1|stop", "feedback||chatcmpl-1|",
		"error||||there is no command /unknown; /help lists them", "error||||the conversation does not fit (400)",
		"text|Rep||", "text|ly 2||", "reply|Reply 2|chatcmpl-2|", "error||||the engine died", "session_ended|||",
	}
	if !reflect.DeepEqual(events, want) {
		t.Errorf("events:\n%s\nwant:\n%s", strings.Join(events, "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(strings.Join(s.requests, ""), "never said") {
		t.Error("a line after /quit was sent")
	}
	// The refused message is not part of the history that the next one sends.
	if r := s.requests[3]; strings.Contains(r, "too long") || !strings.Contains(r, `"Reply 1"`) {
		t.Errorf("after the error: %s", r)
	}
}

// A signal stops a reply and closes its request; what came stays in the conversation. The next signal, at the prompt, leaves and ends the session.
func TestChatInterrupt(t *testing.T) {
	s := &chatServer{gone: make(chan struct{})}
	signals := make(chan os.Signal)
	in, typed := io.Pipe() // stays open: only the signal can end the chat
	defer typed.Close()
	seen := make(chan struct{})
	go func() {
		fmt.Fprintln(typed, "hello")
		<-seen
		signals <- os.Interrupt
		<-s.gone // the gateway saw the client go
		signals <- os.Interrupt
	}()
	out, _, err := runChat(t, s, "", func(c *Chat, g *Globals) {
		c.in, c.interrupts = in, signals
		g.out = &watchedWriter{Writer: g.out, seen: seen}
	})
	if err != nil {
		t.Fatal(err)
	}
	if out != "Rep [stopped]\n" {
		t.Errorf("printed %q", out)
	}
	if n := len(s.requests); n != 2 || !strings.HasPrefix(s.requests[1], "/v1/sessions/s1/end") {
		t.Errorf("requests: %v", s.requests)
	}
}

// Errors say what to do: no key, no gateway there, nothing running, a URL that is none. A model's control characters do not reach the terminal.
func TestChatErrors(t *testing.T) {
	_, errOut, err := runChat(t, &chatServer{}, "hello\n", func(c *Chat, _ *Globals) { c.Key = "wrong" })
	if err == nil || !strings.Contains(errOut, "the API key is unknown") || !strings.Contains(errOut, "nextstate keys create") {
		t.Errorf("a wrong key: %q, %v", errOut, err)
	}
	_, errOut, err = runChat(t, &chatServer{}, "/retry\nhello\n/good\n", func(c *Chat, _ *Globals) { c.URL = "http://127.0.0.1:1" })
	if err == nil || !strings.Contains(errOut, "cannot be reached") || !strings.Contains(errOut, "no reply to try again") || !strings.Contains(errOut, "no reply to judge") {
		t.Errorf("no gateway: %q, %v", errOut, err)
	}
	for _, address := range []string{"ftp://host", "nonsense"} {
		if _, _, err := runChat(t, &chatServer{}, "", func(c *Chat, _ *Globals) { c.URL = address }); err == nil || !strings.Contains(err.Error(), "--url") {
			t.Errorf("%s: %v", address, err)
		}
	}
	_, _, err = runChat(t, &chatServer{}, "", func(c *Chat, g *Globals) { c.URL, g.Data = "", filepath.Join(t.TempDir(), "none") })
	if err == nil || !strings.Contains(err.Error(), "nextstate up") {
		t.Errorf("nothing runs: %v", err)
	}
	if got := clean("a\x1b[2Jb\tc\nd\u009b"); got != "a\uFFFD[2Jb\tc\nd\uFFFD" {
		t.Errorf("clean: %q", got)
	}
}

// The command's flags parse beside the global ones, and by environment.
func TestChatFlags(t *testing.T) {
	t.Setenv("NEXTSTATE_KEY", "nk_env")
	var c struct {
		Globals
		Chat Chat `cmd:""`
	}
	options, err := Options(nil)
	if err != nil {
		t.Fatal(err)
	}
	parser, err := kong.New(&c, options...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"chat", "--url", "http://h:1", "--temperature", "0", "--max-tokens", "5", "--json"}); err != nil {
		t.Fatal(err)
	}
	if c.Chat.Key != "nk_env" || c.Chat.Model != "policy" || c.Chat.Temperature == nil || *c.Chat.Temperature != 0 || c.Chat.MaxTokens != 5 || !c.JSON {
		t.Errorf("parsed %+v", c.Chat)
	}
}
