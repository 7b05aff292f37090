package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/nextstate-rl/nextstate/ops/telemetry"
)

func start(t *testing.T, cfg telemetry.Config) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestPort shows what the private port answers. Method: each path over HTTP, with a counter and with a check that fails and recovers.
func TestPort(t *testing.T) {
	tel := start(t, telemetry.Config{Output: io.Discard})
	if !strings.HasPrefix(tel.Addr(), "127.0.0.1:") {
		t.Fatalf("address %q: the port must be private by default", tel.Addr())
	}
	base := "http://" + tel.Addr()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "pair_events_total", Help: "x"})
	tel.Registry.MustRegister(counter)
	counter.Add(41)
	if status, body := get(t, base+"/metrics"); status != 200 || !strings.Contains(body, "pair_events_total 41") || !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics: %d", status)
	}
	if status, _ := get(t, base+"/healthz"); status != 200 {
		t.Errorf("healthz: %d", status)
	}
	if status, body := get(t, base+"/debug/pprof/goroutine?debug=1"); status != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("pprof: %d %.80s", status, body)
	}
	if status, body := get(t, base+"/readyz"); status != 200 || !strings.Contains(body, `"ready":true`) {
		t.Errorf("readyz without checks: %d %s", status, body)
	}
	tel.Handle("log", func(context.Context) error { return nil })
	tel.Handle("clickhouse", func(context.Context) error { return errors.New("connection refused") })
	if status, body := get(t, base+"/readyz"); status != 503 || !strings.Contains(body, `"clickhouse":"connection refused"`) || !strings.Contains(body, `"log":"ok"`) {
		t.Errorf("readyz: %d %s", status, body)
	}
	tel.Handle("clickhouse", func(context.Context) error { return nil })
	if status, _ := get(t, base+"/readyz"); status != 200 {
		t.Errorf("readyz recovered: %d", status)
	}
	if err := tel.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tel := start(t, telemetry.Config{MetricsAddr: "none", Output: io.Discard}); tel.Addr() != "" || tel.Close(t.Context()) != nil {
		t.Errorf("none: %q", tel.Addr())
	}
}

// TestLogger shows that level and format are kept. Method: two lines on either side of the level, in both formats.
func TestLogger(t *testing.T) {
	for format, want := range map[string]string{"json": `"msg":"taken","count":3`, "text": "msg=taken count=3", "": "msg=taken count=3"} {
		var out bytes.Buffer
		tel := start(t, telemetry.Config{LogLevel: "warn", LogFormat: format, MetricsAddr: "none", Output: &out})
		tel.Logger.Info("silent")
		tel.Logger.Warn("taken", "count", 3)
		if got := out.String(); !strings.Contains(got, want) || strings.Contains(got, "silent") {
			t.Errorf("%q: %s", format, got)
		}
	}
}

// TestSpans shows that spans reach an OTLP collector when one is configured, also those left at Close, and that the context passes
// through an event. Method: a collector that counts what is posted to it.
func TestSpans(t *testing.T) {
	var mu sync.Mutex
	posted := map[string]int{}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && bytes.Contains(body, []byte("pair batch")) && bytes.Contains(body, []byte("nextstate-test")) {
			posted[r.URL.Path]++
		}
	}))
	defer collector.Close()
	tel := start(t, telemetry.Config{OTLPEndpoint: collector.URL, Service: "nextstate-test", MetricsAddr: "none", Output: io.Discard})
	tracer := tel.TracerProvider.Tracer("test")
	ctx, span := tracer.Start(t.Context(), "produce")
	header := telemetry.TraceParent(ctx)
	span.End()
	if header == "" {
		t.Fatal("no traceparent")
	}
	ctx, child := tracer.Start(telemetry.Extract(context.Background(), header), "pair batch", trace.WithLinks(telemetry.Links([]string{header, "", header, "nonsense"}, 8)...))
	child.End()
	if got := trace.SpanContextFromContext(ctx).TraceID(); got != span.SpanContext().TraceID() {
		t.Errorf("trace %s, want %s", got, span.SpanContext().TraceID())
	}
	if links := telemetry.Links([]string{header, "", header, "nonsense"}, 8); len(links) != 1 {
		t.Errorf("%d links, want 1", len(links))
	}
	if err := tel.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if posted["/v1/traces"] != 1 {
		t.Errorf("posted %v", posted)
	}
}

// TestNoSpans shows that a foreign trace passes through a process that records none.
func TestNoSpans(t *testing.T) {
	tel := start(t, telemetry.Config{MetricsAddr: "none", Output: io.Discard})
	const header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx, span := tel.TracerProvider.Tracer("test").Start(telemetry.Extract(t.Context(), header), "x")
	defer span.End()
	if got := telemetry.TraceParent(ctx); got != header {
		t.Errorf("traceparent %q", got)
	}
}

// TestConfig shows that each setting that cannot work is refused with its name and a remedy.
func TestConfig(t *testing.T) {
	two := 2.0
	for want, cfg := range map[string]telemetry.Config{
		"log_level": {LogLevel: "loud"}, "log_format": {LogFormat: "xml"}, "metrics_addr": {MetricsAddr: "9090"},
		"otlp_endpoint": {OTLPEndpoint: "localhost:4318"}, "trace_ratio": {TraceRatio: &two},
	} {
		if _, err := telemetry.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "use") {
			t.Errorf("%s: %v", want, err)
		}
	}
}
