package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

const streamed = `{"messages":[{"role":"user","content":"hello there"}],"stream":true}`

// failsAt makes a policy that fails before its n-th word.
func failsAt(n int, err error) *script {
	return &script{before: func(_ context.Context, _ *gateway.SampleRequest, at int) error {
		if at == n {
			return err
		}
		return nil
	}}
}

// TestPolicyFails shows what a client is told, and what is recorded, when the policy fails before and after its first token. Method: a policy
// that fails there, whole and streamed answers.
func TestPolicyFails(t *testing.T) {
	full := &gateway.PolicyError{Status: 429, Message: "the queue is full", RetryAfter: 1500 * time.Millisecond}
	long := &gateway.PolicyError{Status: 400, Code: "context_length_exceeded", Param: "messages", Message: "too long"}
	for name, c := range map[string]struct {
		at      int
		err     error
		body    string
		status  int
		code    string
		actions int
	}{
		"queue full":            {0, full, hello, 429, "rate_limit_exceeded", 0},
		"queue full, streamed":  {0, full, streamed, 429, "rate_limit_exceeded", 0},
		"too long":              {0, long, hello, 400, "context_length_exceeded", 0},
		"too long, streamed":    {0, fmt.Errorf("wrapped: %w", long), streamed, 400, "context_length_exceeded", 0},
		"crash":                 {0, errBroken, hello, 500, "internal_error", 0},
		"crash later":           {2, errBroken, hello, 500, "internal_error", 1},
		"crash later, streamed": {2, errBroken, streamed, 200, "internal_error", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, failsAt(c.at, c.err), nil)
			got := s.post(t, "/v1/chat/completions", c.body, nil)
			if got.status != c.status || strings.Contains(got.body, "secret") {
				t.Fatalf("%+v, want %d", got, c.status)
			}
			if c.status == 200 {
				chunks, done := events(t, got.body)
				last := chunks[len(chunks)-1]
				if e, ok := last["error"].(map[string]any); done || !ok || e["code"] != c.code || len(chunks) != 4 {
					t.Errorf("stream ended %v with %v", done, last)
				}
			} else if _, _, _, code := got.fault(t); code != c.code {
				t.Errorf("code %q, want %q", code, c.code)
			}
			if retry := got.header.Get("Retry-After"); c.status == 429 && retry != "2" {
				t.Errorf("Retry-After %q", retry)
			}
			actions := s.actions(t)
			if len(actions) != c.actions {
				t.Fatalf("%d turns, want %d", len(actions), c.actions)
			}
			for _, a := range actions {
				if a.GetFinishReason() != schemas.FinishReason_FINISH_REASON_ERROR || a.GetUntrainableReason() == "" || a.GetResponse().GetParts()[0].GetText() != "You said:" {
					t.Errorf("turn %v", a)
				}
			}
		})
	}
}

// waits makes a policy that waits before its n-th word until the request ends, and says when it was there and when it left.
func waits(n int) (p *script, there, left chan struct{}) {
	there, left = make(chan struct{}, 2000), make(chan struct{}, 2000)
	return &script{before: func(ctx context.Context, _ *gateway.SampleRequest, at int) error {
		if at != n {
			return nil
		}
		there <- struct{}{}
		<-ctx.Done()
		left <- struct{}{}
		return ctx.Err()
	}}, there, left
}

// TestDisconnect shows that a client that goes away frees its place at once, and that its turn is recorded as far as it went, never to be
// trained; nothing sampled is no turn. Method: cut the request while the policy waits.
func TestDisconnect(t *testing.T) {
	for name, c := range map[string]struct {
		at      int
		body    string
		actions int
	}{"before a token": {0, streamed, 0}, "in the stream": {2, streamed, 1}, "in a whole answer": {3, hello, 1}} {
		t.Run(name, func(t *testing.T) {
			p, there, left := waits(c.at)
			s := serve(t, p, func(c *gateway.Config, _ *gateway.Deps) { c.MaxRequests = 1 })
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-there
				cancel()
			}()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer nsk_a")
			if resp, err := s.client.Do(req); err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				if err == nil {
					t.Error("the answer ended as if it were whole")
				}
				resp.Body.Close()
			}
			<-left
			for s.get(t, "/v1/models").status == 429 { // until the only place is free
			}
			actions := s.actions(t)
			if len(actions) != c.actions {
				t.Fatalf("%d turns, want %d", len(actions), c.actions)
			}
			for _, a := range actions {
				if a.GetFinishReason() != schemas.FinishReason_FINISH_REASON_ABORTED || !strings.Contains(a.GetUntrainableReason(), "interrupted") || len(a.GetTokens().GetResponseIds()) != c.at {
					t.Errorf("turn %v", a)
				}
			}
		})
	}
}

func (s served) get(t *testing.T, path string) said {
	t.Helper()
	resp := s.send(t.Context(), t, http.MethodGet, path, "", nil)
	defer resp.Body.Close()
	return said{resp.StatusCode, resp.Header, bodyOf(t, resp.Body)}
}

// raw opens a connection and sends the head of a request, and as much of its body as is given.
func (s served) raw(t *testing.T, length int, body string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer nsk_a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", length, body); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestStuckReader shows that a client which does not read cannot hold its place for ever. Method: an endless answer of large words, a client
// that reads nothing, a short write timeout.
func TestStuckReader(t *testing.T) {
	left := make(chan struct{})
	word := strings.Repeat("x", 64<<10)
	p := policyFunc(func(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
		defer close(left)
		for {
			if err := emit(gateway.Piece{Text: word}); err != nil {
				return &gateway.Sampled{Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: "xx"}}}}}, err
			}
		}
	})
	s := serve(t, p, func(c *gateway.Config, _ *gateway.Deps) { c.WriteTimeout = 50 * time.Millisecond })
	conn := s.raw(t, len(streamed), streamed)
	<-left
	for deadline := time.Now().Add(time.Minute); len(s.actions(t)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the turn was not recorded")
		}
	}
	if a := s.actions(t)[0]; a.GetFinishReason() != schemas.FinishReason_FINISH_REASON_ABORTED {
		t.Errorf("turn %v", a)
	}
	_ = conn.Close()
}

type policyFunc func(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error)

func (f policyFunc) Sample(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
	return f(ctx, r, emit)
}

func (policyFunc) Versions(context.Context) ([]gateway.Version, error) { return nil, nil }

// TestHalfClosed shows what becomes of a client that closes its sending side after the request: it counts as gone, as for most servers, and its
// place is free. Method: CloseWrite, then wait for the policy to be told.
func TestHalfClosed(t *testing.T) {
	p, there, left := waits(1)
	s := serve(t, p, nil)
	conn := s.raw(t, len(streamed), streamed)
	<-there
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	<-left
}

// live runs Serve, with its timeouts, on a free port.
func live(t *testing.T, p gateway.Policy, change func(*gateway.Config, *gateway.Deps)) (s served, stop func() error) {
	t.Helper()
	s = serve(t, p, func(c *gateway.Config, d *gateway.Deps) {
		c.Addr = "127.0.0.1:0"
		if change != nil {
			change(c, d)
		}
	})
	s.Server.Close()
	g := s.gateway
	ctx, cancel := context.WithCancel(t.Context())
	l, err := g.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(ctx, l) }()
	s.Server = &httptest.Server{URL: "http://" + l.Addr().String(), Listener: l}
	s.client = &http.Client{Transport: &http.Transport{}}
	var once sync.Once
	var result error
	stop = func() error {
		once.Do(func() {
			s.client.CloseIdleConnections()
			cancel()
			result = <-ended
		})
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return s, stop
}

// TestTimeouts shows that a body that trickles in is given up, and that no timeout of the server cuts a long stream. Method: a server whose
// timeouts are much shorter than the stream.
func TestTimeouts(t *testing.T) {
	slow := &script{
		words: func(*gateway.SampleRequest) []string { return strings.SplitAfter("one two three four five six", " ") },
		before: func(ctx context.Context, _ *gateway.SampleRequest, _ int) error {
			select {
			case <-time.After(100 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}
	s, _ := live(t, slow, func(c *gateway.Config, _ *gateway.Deps) {
		c.ReadTimeout, c.AppendTimeout, c.WriteTimeout, c.Heartbeat = 150*time.Millisecond, 100*time.Millisecond, 150*time.Millisecond, 30*time.Millisecond
	})
	got := s.post(t, "/v1/chat/completions", streamed, nil)
	if _, done := events(t, got.body); !done || !strings.Contains(got.body, `"six"`) || !strings.Contains(got.body, ": queued\n\n") {
		t.Errorf("stream: %s", got.body)
	}
	if got := s.post(t, "/v1/chat/completions", hello, nil); got.status != 200 || !strings.Contains(got.body, "six") {
		t.Errorf("whole: %+v", got)
	}
	conn := s.raw(t, 100, `{"messages":`)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a trickling body: %d", resp.StatusCode)
	}
}

// TestSampleTimeout shows that a policy that never ends is ended. Method: a policy that waits, a short bound.
func TestSampleTimeout(t *testing.T) {
	p, _, left := waits(1)
	s := serve(t, p, func(c *gateway.Config, _ *gateway.Deps) { c.SampleTimeout = 20 * time.Millisecond })
	got := s.post(t, "/v1/chat/completions", hello, nil)
	<-left
	if _, _, _, code := got.fault(t); got.status != 504 || code != "timeout" || len(s.actions(t)) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestDrain shows that a gateway that is told to stop lets streams end, and records those that it must cut. Method: one stream that ends
// within the time, one that does not.
func TestDrain(t *testing.T) {
	p, there, _ := waits(2)
	s, stop := live(t, p, func(c *gateway.Config, _ *gateway.Deps) { c.DrainTimeout = 50 * time.Millisecond })
	answered := make(chan string)
	go func() {
		resp := s.send(t.Context(), t, http.MethodPost, "/v1/chat/completions", streamed, nil)
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answered <- string(b)
	}()
	<-there
	if err := stop(); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("serve: %v", err)
	}
	if body := <-answered; strings.Contains(body, "[DONE]") {
		t.Errorf("the cut stream looks whole: %s", body)
	}
	if a := s.actions(t); len(a) != 1 || a[0].GetFinishReason() != schemas.FinishReason_FINISH_REASON_ABORTED {
		t.Errorf("turns %v", a)
	}
}

// TestRecordedFirst shows that the end of an answer is sent only after its turn is in the journal. Method: a journal that holds the append back.
func TestRecordedFirst(t *testing.T) {
	log := memlog.New(1)
	appending, proceed := make(chan struct{}), make(chan struct{})
	journal := appenderFunc(func(ctx context.Context, records ...schemas.Record) error {
		appending <- struct{}{}
		<-proceed
		return log.Append(ctx, records...)
	})
	s := serve(t, &script{}, func(_ *gateway.Config, d *gateway.Deps) { d.Journal = journal })
	for _, body := range []string{streamed, hello} {
		ended := make(chan string, 1)
		go func() { ended <- s.post(t, "/v1/chat/completions", body, nil).body }()
		<-appending
		select {
		case got := <-ended:
			t.Fatalf("answered before it was recorded: %s", got)
		case <-time.After(20 * time.Millisecond):
		}
		proceed <- struct{}{}
		if got := <-ended; !strings.Contains(got, "[DONE]") && body == streamed {
			t.Errorf("%s", got)
		}
	}
}

// TestJournalFull shows both answers to a journal that takes no more. Method: a journal that is full, then not.
func TestJournalFull(t *testing.T) {
	for _, mode := range []gateway.JournalFull{gateway.JournalFullRefuse, gateway.JournalFullServe} {
		t.Run(string(mode), func(t *testing.T) {
			log := memlog.New(1)
			var full atomic.Bool
			full.Store(true)
			sampled := 0
			s := serve(t, &script{before: func(_ context.Context, _ *gateway.SampleRequest, n int) error {
				if n == 0 {
					sampled++
				}
				return nil
			}}, func(c *gateway.Config, d *gateway.Deps) {
				c.OnJournalFull = mode
				d.Journal = appenderFunc(func(ctx context.Context, records ...schemas.Record) error {
					if full.Load() {
						return fmt.Errorf("append: %w", gateway.ErrJournalFull)
					}
					return log.Append(ctx, records...)
				})
			})
			for try := range 2 {
				got := s.post(t, "/v1/chat/completions", hello, nil)
				switch mode {
				case gateway.JournalFullRefuse:
					if message, _, _, code := got.fault(t); got.status != 503 || code != "recording_unavailable" || !strings.Contains(message, "spool") || sampled != 1 {
						t.Errorf("try %d: %+v, sampled %d", try, got, sampled)
					}
				case gateway.JournalFullServe:
					if got.status != 200 || got.header.Get("X-Nextstate-Recorded") != "false" || sampled != try+1 {
						t.Errorf("try %d: %+v, sampled %d", try, got, sampled)
					}
				}
			}
			got := s.post(t, "/v1/chat/completions", streamed, nil)
			if whole := strings.HasSuffix(got.body, "data: [DONE]\n\n"); whole != (mode == gateway.JournalFullServe) {
				t.Errorf("streamed: %+v", got)
			}
			full.Store(false)
			for got.status != 200 || got.header.Get("X-Nextstate-Recorded") != "" { // it is asked again soon
				got = s.post(t, "/v1/chat/completions", hello, nil)
			}
			if bounds, err := log.Bounds(t.Context(), schemas.TopicInteractions); err != nil || bounds[0].Next == 0 {
				t.Errorf("%v %v", bounds, err)
			}
		})
	}
}

// TestManyStreams shows a thousand streams at once, each whole, and all of them recorded. Method: as many clients, a policy that starts
// answering when all are there.
func TestManyStreams(t *testing.T) {
	const clients = 1000
	var there sync.WaitGroup
	there.Add(clients)
	s := serve(t, &script{before: func(_ context.Context, _ *gateway.SampleRequest, n int) error {
		if n == 0 {
			there.Done()
			there.Wait()
		}
		return nil
	}}, nil)
	s.client.Transport.(*http.Transport).MaxIdleConnsPerHost = clients
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			got := s.post(t, "/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":"agent %d"}],"stream":true}`, i), nil)
			if _, done := events(t, got.body); !done || !strings.Contains(got.body, fmt.Sprintf(`" %d"`, i)) {
				t.Errorf("client %d: %s", i, got.body)
			}
		})
	}
	all.Wait()
	sessions := map[string]bool{}
	for _, e := range s.stored(t) {
		sessions[e.Session] = true
	}
	if len(sessions) != clients {
		t.Errorf("%d sessions, want %d", len(sessions), clients)
	}
}
