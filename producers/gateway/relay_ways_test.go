package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// oneKey opens one tenant.
type oneKey struct{}

func (oneKey) Tenant(context.Context, string) (string, error) { return "acme", nil }

// relayGateway opens a gateway before an upstream; the caller may change the way to it.
func relayGateway(t *testing.T, url string) (*Gateway, *httptest.Server, *memlog.Log) {
	t.Helper()
	log := memlog.New(1)
	g, err := New(Config{Upstream: UpstreamConfig{URL: url + "/v1"}}, Deps{Log: log, Keys: oneKey{}}, Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(g.Handler())
	t.Cleanup(s.Close)
	return g, s, log
}

// askOnce posts a completion and returns the whole answer.
func askOnce(t *testing.T, s *httptest.Server, question string) (int, string) {
	t.Helper()
	body := fmt.Sprintf(`{"stream":true,"messages":[{"role":"user","content":%q}]}`, question)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+KeyPrefix+"x")
	res, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// appended counts the records of the interactions.
func appended(t *testing.T, log *memlog.Log) int64 {
	t.Helper()
	bounds, err := log.Bounds(t.Context(), schemas.TopicInteractions)
	if err != nil {
		t.Fatal(err)
	}
	return bounds[0].Next - bounds[0].First
}

// TestRelayHTTP2 shows that an upstream that speaks TLS and HTTP/2 is relayed and recorded as well. Method: one on loopback, whose certificate is
// trusted for the test.
func TestRelayHTTP2(t *testing.T) {
	const stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	var protocol atomic.Value
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocol.Store(r.Proto)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
	}))
	up.EnableHTTP2 = true
	up.StartTLS()
	defer up.Close()
	g, s, log := relayGateway(t, up.URL)
	g.relay.transport.TLSClientConfig = up.Client().Transport.(*http.Transport).TLSClientConfig.Clone() //nolint:forcetypeassert // httptest's
	for i := range 3 {
		if status, body := askOnce(t, s, fmt.Sprint(i)); status != 200 || body != stream {
			t.Errorf("%d %q", status, body)
		}
	}
	if protocol.Load() != "HTTP/2.0" || appended(t, log) != 3 {
		t.Errorf("over %v, %d records", protocol.Load(), appended(t, log))
	}
}

// TestRelayReuse shows that connections to a plain upstream are used again, and that one which the upstream has closed meanwhile costs nothing but
// another. Method: an upstream that counts its connections, and one that closes each after its answer without saying so.
func TestRelayReuse(t *testing.T) {
	for name, closes := range map[string]bool{"kept": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			var opened, answered atomic.Int64
			up := httptest.NewUnstartedServer(nil)
			up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				answered.Add(1)
				const body = `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`
				if !closes {
					w.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(w, body)
					return
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				_ = conn.Close()
			})
			up.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					opened.Add(1)
				}
			}
			up.Start()
			defer up.Close()
			_, s, log := relayGateway(t, up.URL)
			const requests = 50
			for i := range requests {
				if status, body := askOnce(t, s, fmt.Sprint(i)); status != 200 {
					t.Fatalf("%d %q", status, body)
				}
			}
			want := int64(1)
			if closes {
				want = requests
			}
			if opened.Load() != want || answered.Load() != requests || appended(t, log) != requests {
				t.Errorf("%d connections, want %d; %d answers, %d records", opened.Load(), want, answered.Load(), appended(t, log))
			}
		})
	}
}

// TestRelayHead shows that the head of an answer is bounded. Method: an upstream whose headers never end, and one that only sends hints.
func TestRelayHead(t *testing.T) {
	for name, line := range map[string]string{"headers": "X-More: and more\r\n", "hints": "HTTP/1.1 103 Early Hints\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				if name == "headers" {
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
				}
				for err == nil {
					_, err = io.WriteString(conn, line)
				}
			}))
			defer up.Close()
			_, s, log := relayGateway(t, up.URL)
			if status, body := askOnce(t, s, "x"); status != http.StatusBadGateway || appended(t, log) != 0 {
				t.Errorf("%d %q, %d records", status, body, appended(t, log))
			}
		})
	}
}
