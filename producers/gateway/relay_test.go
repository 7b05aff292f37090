package gateway_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// relayed opens a gateway before an upstream.
func relayed(t *testing.T, upstream string, change func(*gateway.Config, *gateway.Deps)) door {
	t.Helper()
	d := door{log: memlog.New(1), reg: prometheus.NewRegistry()}
	cfg := gateway.Config{Upstream: gateway.UpstreamConfig{URL: upstream + "/v1", APIKey: "sk-theirs"}}
	deps := gateway.Deps{Log: d.log, Keys: keys}
	if change != nil {
		change(&cfg, &deps)
	}
	g, err := gateway.New(cfg, deps, gateway.Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: d.reg})
	if err != nil {
		t.Fatal(err)
	}
	d.Server = httptest.NewServer(g.Handler())
	t.Cleanup(d.Close)
	return d
}

// upstream serves on loopback until the test ends.
func upstream(t *testing.T, serve http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(serve)
	t.Cleanup(s.Close)
	return s.URL
}

// scripted answers every connection's request with the same bytes, in pieces of a length, and closes it.
func scripted(t *testing.T, answer string, piece int) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		open.Wait()
	})
	open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				for rest := answer; rest != ""; {
					n := min(piece, len(rest))
					if _, err := io.WriteString(c, rest[:n]); err != nil {
						return
					}
					rest = rest[n:]
				}
			})
		}
	})
	return "http://" + l.Addr().String()
}

const askHello = `{"model":"big","messages":[{"role":"user","content":"hello"}],"stream":true, "x" : 1 }`

func chatRequest(ctx context.Context, t *testing.T, base, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions?api-version=7;x", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer nsk_a")
	return req
}

// fetched is an answer as a client sees it.
type fetched struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // of reading the body
}

// fetch sends a request on a connection of its own.
func fetch(t *testing.T, req *http.Request) fetched {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return fetched{err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return fetched{res.StatusCode, res.Header, res.Trailer, string(body), err}
}

// actions are the turns in the log.
func (d door) actions(t *testing.T) []*schemas.ActionTaken {
	t.Helper()
	var all []*schemas.ActionTaken
	for _, e := range d.stored(t) {
		if a, ok := e.Payload.(*schemas.ActionTaken); ok {
			all = append(all, a)
		}
	}
	return all
}

func chunk(text, finish string) string {
	if finish != "null" {
		finish = `"` + finish + `"`
	}
	return fmt.Sprintf(`data: {"id":"c","model":"big-1","choices":[{"index":0,"delta":{"content":%q},"finish_reason":%s}]}`+"\n\n", text, finish)
}

func framed(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String() + "0\r\n\r\n"
}

func zipped(t *testing.T, s string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, s); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestRelayBytes shows that a client gets from the gateway what it would get from the upstream, to the byte, and which turn is recorded of it. Method:
// answers of many forms, whole and in pieces of a byte, asked for directly and through the gateway.
func TestRelayBytes(t *testing.T) {
	const json = `{"id":"c","model":"big-1","choices":[{"index":0,"message":{"role":"assistant","content":"ab"},"finish_reason":"stop"}]}`
	sse := []string{": hi\n\n", chunk("a", "null"), chunk("b", "stop"), "data: [DONE]\n\n"}
	length := func(s string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(s), s) }
	for name, c := range map[string]struct {
		answer string
		text   string // recorded; "-": no turn
		reason string // part of untrainable_reason
	}{
		"json":                              {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Request-Id: 7\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nServer: up\r\n" + length(json), "ab", ""},
		"json in chunks":                    {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + framed(json[:20], json[20:]), "ab", ""},
		"json until close":                  {"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + json, "ab", ""},
		"stream":                            {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\nTrailer: X-Cost\r\n\r\n" + strings.TrimSuffix(framed(sse...), "\r\n") + "X-Cost: 5\r\n\r\n", "ab", ""},
		"stream without a type, torn lines": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed(strings.Join(sse, "")[:30], strings.Join(sse, "")[30:], "\n\ntail"), "ab", ""},
		"stream until close":                {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + strings.Join(sse[:3], ""), "ab", ""},
		"refused":                           {"HTTP/1.1 429 Slow Down\r\nRetry-After: 3\r\nContent-Type: application/json\r\n" + length(`{"error":{"message":"slow"}}`), "-", ""},
		"failed":                            {"HTTP/1.1 500 Oops\r\nContent-Type: text/html\r\n" + length("<h1>no"), "-", ""},
		"nothing":                           {"HTTP/1.1 204 No Content\r\n\r\n", "", "*"},
		"empty":                             {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n", "", "*"},
		"elsewhere":                         {"HTTP/1.1 307 Temporary Redirect\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n", "-", ""},
		"garbage":                           {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + length("]]\x00\xff nothing"), "", "cannot be read"},
		"zipped all the same":               {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n" + length(zipped(t, json)), "", "gzip"},
		"early hints":                       {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + length(json), "ab", ""},
	} {
		for _, piece := range []int{1, 1 << 20} {
			t.Run(fmt.Sprintf("%s by %d", name, piece), func(t *testing.T) {
				up := scripted(t, c.answer, piece)
				d := relayed(t, up, nil)
				noFollow := func(base string) fetched { return fetch(t, chatRequest(t.Context(), t, base, askHello)) }
				want, got := noFollow(up), noFollow(d.URL)
				if name == "elsewhere" { // the client followed both; the second path has no answer of a chat
					return
				}
				recorded := c.text != "-"
				if (got.header.Get("X-Nextstate-Session") != "") != recorded || (got.header.Get("X-Nextstate-Turn") != "") != recorded {
					t.Errorf("headers %v", got.header)
				}
				for _, ours := range []string{"X-Nextstate-Session", "X-Nextstate-Turn", "Date"} {
					got.header.Del(ours)
				}
				for _, h := range []string{"Connection"} {
					want.header.Del(h)
					got.header.Del(h)
				}
				if got.status != want.status || got.body != want.body || got.err != nil || want.err != nil {
					t.Errorf("got  %d %q %v\nwant %d %q %v", got.status, got.body, got.err, want.status, want.body, want.err)
				}
				if !reflect.DeepEqual(got.header, want.header) || !reflect.DeepEqual(got.trailer, want.trailer) {
					t.Errorf("got  %v %v\nwant %v %v", got.header, got.trailer, want.header, want.trailer)
				}
				checkTurn(t, d, c.text, c.reason)
			})
		}
	}
}

func checkTurn(t *testing.T, d door, text, reason string) {
	t.Helper()
	turns := d.actions(t)
	if text == "-" {
		if len(turns) != 0 {
			t.Errorf("recorded %v, want nothing", turns)
		}
		return
	}
	if len(turns) != 1 {
		t.Fatalf("%d turns were recorded, want 1", len(turns))
	}
	a := turns[0]
	said := ""
	for _, p := range a.GetResponse().GetParts() {
		said += p.GetText()
	}
	if said != text || a.GetContext().GetMessages()[0].GetParts()[0].GetText() != "hello" {
		t.Errorf("recorded %v", a)
	}
	if r := a.GetUntrainableReason(); !strings.Contains(r, strings.TrimSuffix(reason, "*")) || (r == "") != (reason == "") {
		t.Errorf("untrainable because of %q, want %q", r, reason)
	}
}

// TestRelayRequest shows what the upstream gets: the caller's bytes and headers, without what is ours or the connection's, and with its own
// credential. Method: an upstream that notes them.
func TestRelayRequest(t *testing.T) {
	type seen struct {
		target, host, body string
		length             int64
		header             http.Header
	}
	asked := make(chan seen, 10)
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		asked <- seen{r.Method + " " + r.RequestURI, r.Host, string(body), r.ContentLength, r.Header}
		w.WriteHeader(http.StatusTeapot)
	})
	passing := func(c *gateway.Config, _ *gateway.Deps) {
		c.Upstream.APIKey, c.Upstream.Credential = "", gateway.CredentialPassThrough
	}
	local := func(c *gateway.Config, d *gateway.Deps) {
		passing(c, d)
		c.Anonymous = "acme"
	}
	for name, c := range map[string]struct {
		change         func(*gateway.Config, *gateway.Deps)
		authorization  string
		key            string
		upstreamSecret string
		status         int
	}{
		"own":                      {nil, "Bearer nsk_a", "", "Bearer sk-theirs", 418},
		"own, no key":              {nil, "Bearer sk-mine", "", "", 401},
		"pass-through":             {passing, "Bearer sk-mine", "nsk_a", "Bearer sk-mine", 418},
		"pass-through, no key":     {passing, "Bearer sk-mine", "", "", 401},
		"pass-through, local":      {local, "Bearer sk-mine", "", "Bearer sk-mine", 418},
		"pass-through, revoked":    {local, "Bearer sk-mine", "nsk_old", "", 401},
		"pass-through, other kind": {passing, "Basic abc", "nsk_a", "Basic abc", 418},
	} {
		t.Run(name, func(t *testing.T) {
			d := relayed(t, up, c.change)
			req := chatRequest(t.Context(), t, d.URL, askHello)
			for k, v := range map[string]string{
				"Authorization": c.authorization, "X-Nextstate-Key": c.key, "X-Nextstate-Session": "s", "X-Custom": "1", "X-Forwarded-For": "1.2.3.4",
				"Connection": "X-Hop", "X-Hop": "1", "Proxy-Authorization": "x", "User-Agent": "agent/1", "OpenAI-Beta": "b", "Accept-Encoding": "gzip, br",
			} {
				req.Header.Del(k)
				if v != "" {
					req.Header.Set(k, v)
				}
			}
			got := fetch(t, req)
			if got.status != c.status {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
			if c.status == 401 {
				return
			}
			s := <-asked
			want := http.Header{
				"Authorization": {c.upstreamSecret}, "X-Custom": {"1"}, "User-Agent": {"agent/1"}, "Openai-Beta": {"b"}, "Accept-Encoding": {"identity"},
				"Content-Type": {"application/json"}, "Content-Length": {fmt.Sprint(len(askHello))},
			}
			if s.target != "POST /v1/chat/completions?api-version=7;x" || s.body != askHello || s.length != int64(len(askHello)) || s.host != strings.TrimPrefix(up, "http://") {
				t.Errorf("the upstream got %+v", s)
			}
			if !reflect.DeepEqual(s.header, want) {
				t.Errorf("the upstream got %v\nwant             %v", s.header, want)
			}
		})
	}
}

// TestRelayOther shows that the other paths of an upstream are there, with and without a session in the path, and are not recorded. Method: an
// upstream that says what it was asked.
func TestRelayOther(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s", r.Method, r.RequestURI, r.Header.Get("Authorization"), body)
	})
	d := relayed(t, up, func(c *gateway.Config, _ *gateway.Deps) { c.MaxBodyBytes = 2048 })
	for _, c := range []struct{ method, path, body, want string }{
		{"GET", "/v1/models?x=1", "", "GET /v1/models?x=1 Bearer sk-theirs "},
		{"GET", "/s/mine/v1/models/a%2Fb", "", "GET /v1/models/a%2Fb Bearer sk-theirs "},
		{"POST", "/v1/embeddings", "{}", "POST /v1/embeddings Bearer sk-theirs {}"},
		{"DELETE", "/v1/files/7", "", "DELETE /v1/files/7 Bearer sk-theirs "},
		{"POST", "/v1/files", strings.Repeat("x", 3000), "*larger than 2048"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, d.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer nsk_a")
		got := fetch(t, req)
		if want, part := strings.CutPrefix(c.want, "*"); got.body != c.want && !(part && got.status == 413 && strings.Contains(got.body, want)) {
			t.Errorf("%s %s: %d %q", c.method, c.path, got.status, got.body)
		}
	}
	if n := len(d.stored(t)); n != 0 {
		t.Errorf("%d events were recorded", n)
	}
}

// TestRelayFirstToken shows that a piece of a stream is with the client before the upstream sends the next. Method: the upstream waits until the client has
// what it sent, headers first.
func TestRelayFirstToken(t *testing.T) {
	next := make(chan struct{})
	up := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		for i := range 5 {
			<-next
			_, _ = io.WriteString(w, chunk(fmt.Sprint(i), "null"))
			_ = http.NewResponseController(w).Flush()
		}
		<-next
		_, _ = io.WriteString(w, chunk("", "stop")+"data: [DONE]\n\n")
	})
	d := relayed(t, up, nil)
	res, err := d.Client().Do(chatRequest(t.Context(), t, d.URL, askHello))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	for i := range 5 {
		next <- struct{}{}
		if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, fmt.Sprintf(`"content":"%d"`, i)) {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	next <- struct{}{}
	if rest, err := io.ReadAll(in); err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("%q, %v", rest, err)
	}
	checkTurn(t, d, "01234", "")
}

// TestRelayRecordsFirst shows that the end of an answer reaches the client only when the turn is in the journal, and all before it at once; and
// that an answer that cannot be recorded has no end. Method: a journal that waits, then one that fails.
func TestRelayRecordsFirst(t *testing.T) {
	const json = `{"choices":[{"message":{"content":"ab"},"finish_reason":"stop"}]}`
	sse := chunk("ab", "stop") + "data: [DONE]\n\n"
	for name, c := range map[string]struct{ typ, body, before string }{
		"stream": {"text/event-stream", sse, chunk("ab", "stop")}, "json": {"application/json", json, json[:len(json)-1]},
	} {
		t.Run(name, func(t *testing.T) {
			up := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.typ)
				_ = http.NewResponseController(w).Flush() // no Content-Length
				_, _ = io.WriteString(w, c.body)
			})
			release := make(chan error)
			d := relayed(t, up, func(_ *gateway.Config, deps *gateway.Deps) {
				log := deps.Log
				deps.Journal = appenderFunc(func(ctx context.Context, records ...schemas.Record) error {
					if err := <-release; err != nil {
						return err
					}
					return log.Append(ctx, records...)
				})
			})
			for _, fails := range []error{nil, errors.New("disk")} {
				res, err := d.Client().Do(chatRequest(t.Context(), t, d.URL, askHello))
				if err != nil {
					t.Fatal(err)
				}
				before := make([]byte, len(c.before))
				if _, err := io.ReadFull(res.Body, before); err != nil || string(before) != c.before {
					t.Fatalf("%q, %v", before, err)
				}
				release <- fails
				rest, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if fails == nil && (err != nil || c.before+string(rest) != c.body) || fails != nil && (err == nil || len(rest) != 0) {
					t.Errorf("journal: %v; then %q, %v", fails, rest, err)
				}
			}
			checkTurn(t, d, "ab", "")
		})
	}
}

// TestRelayJournalFull shows what happens when nothing can be recorded: refused, or served and marked, by configuration. Method: a journal that is full.
func TestRelayJournalFull(t *testing.T) {
	up := scripted(t, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"+chunk("a", "stop")+"data: [DONE]\n\n", 1<<20)
	full := appenderFunc(func(context.Context, ...schemas.Record) error { return fmt.Errorf("spool: %w", gateway.ErrJournalFull) })
	for mode, want := range map[gateway.JournalFull]string{gateway.JournalFullRefuse: "503 ", gateway.JournalFullServe: "200 false"} {
		d := relayed(t, up, func(c *gateway.Config, deps *gateway.Deps) { c.OnJournalFull, deps.Journal = mode, full })
		fetch(t, chatRequest(t.Context(), t, d.URL, askHello)) // shows that it is full
		got := fetch(t, chatRequest(t.Context(), t, d.URL, askHello))
		if s := fmt.Sprint(got.status, " ", got.header.Get("X-Nextstate-Recorded")); s != want {
			t.Errorf("%s: %q, want %q", mode, s, want)
		}
		if ok := strings.HasSuffix(got.body, "data: [DONE]\n\n"); ok != (mode == gateway.JournalFullServe) {
			t.Errorf("%s: %q", mode, got.body)
		}
	}
}

// TestRelayDown shows the answers when there is none. Method: an upstream that is not there, one that says nothing, one that speaks something else.
func TestRelayDown(t *testing.T) {
	quiet := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	for name, c := range map[string]struct {
		up, code string
		status   int
	}{
		"away":  {"http://127.0.0.1:1", "upstream_unreachable", 502},
		"quiet": {quiet, "upstream_timeout", 504},
		"odd":   {scripted(t, "SSH-2.0-OpenSSH_9.2\r\n\r\n", 100), "upstream_unreachable", 502},
	} {
		d := relayed(t, c.up, func(c *gateway.Config, _ *gateway.Deps) { c.Upstream.HeaderTimeout = 50 * time.Millisecond })
		got := fetch(t, chatRequest(t.Context(), t, d.URL, askHello))
		if got.status != c.status || !strings.Contains(got.body, `"code":"`+c.code+`"`) || !strings.Contains(got.body, `"type":"server_error"`) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		checkTurn(t, d, "-", "")
	}
}
