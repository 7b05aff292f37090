package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// instant is an upstream without a network.
type instant struct{ typ, body string }

// RoundTrip implements http.RoundTripper.
func (i instant) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return nil, err
	}
	h := http.Header{"Content-Type": {i.typ}}
	return &http.Response{StatusCode: 200, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h, Body: io.NopCloser(strings.NewReader(i.body)), ContentLength: int64(len(i.body)), Request: r}, nil
}

// BenchmarkRelay shows what relaying and recording cost beside the network: one new message in a conversation of ten, and a whole or a streamed answer.
func BenchmarkRelay(b *testing.B) {
	for name, up := range map[string]instant{
		"whole":  {"application/json", `{"id":"c","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"an answer"},"finish_reason":"stop"}]}`},
		"stream": {"text/event-stream", strings.Repeat("data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n", 64) + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"},
	} {
		b.Run(name, func(b *testing.B) {
			g, err := New(Config{Upstream: UpstreamConfig{URL: "http://127.0.0.1:1/v1"}}, Deps{Log: memlog.New(1), Keys: oneKey{}}, Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
			if err != nil {
				b.Fatal(err)
			}
			g.relay.direct = up
			handler := g.Handler()
			history := strings.Repeat(`{"role":"user","content":"`+strings.Repeat("words ", 30)+`"},{"role":"assistant","content":"an answer"},`, 5)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				body := fmt.Sprintf(`{"model":"m","stream":true,"messages":[%s{"role":"user","content":"question %d"}]}`, history, i)
				r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
				r.Header.Set("Authorization", "Bearer "+KeyPrefix+"x")
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code != http.StatusOK || w.Body.Len() != len(up.body) {
					b.Fatalf("%d %d bytes", w.Code, w.Body.Len())
				}
			}
		})
	}
}
