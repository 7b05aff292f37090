package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// noPort in Config.MetricsAddr opens no port.
const noPort = "none"

// port is the private HTTP server.
type port struct {
	listener net.Listener
	server   *http.Server
	running  errgroup.Group
}

func (t *Telemetry) openPort(ctx context.Context, addr string) (*port, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("telemetry: metrics_addr: %w: choose another address, or none", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.Registry, promhttp.HandlerOpts{Registry: t.Registry}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", t.readyz)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	p := &port{listener: listener, server: &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		WriteTimeout: 5 * time.Minute, // a CPU profile may take minutes
		ErrorLog:     slog.NewLogLogger(t.Logger.Handler(), slog.LevelWarn),
	}}
	p.running.Go(func() error {
		if err := p.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return p, nil
}

// close lets requests in work finish until ctx ends, then cuts them off.
func (p *port) close(ctx context.Context) error {
	err := p.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, p.server.Close())
	}
	return errors.Join(err, p.running.Wait())
}

// readyz runs every check at once and answers with each one's result.
func (t *Telemetry) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	results, ready := t.Ready(ctx)
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, map[string]any{"ready": ready, "checks": results})
}

// Ready runs every check at once: "ok" or the error by name, and whether all were ok.
func (t *Telemetry) Ready(ctx context.Context) (results map[string]string, ready bool) {
	t.mu.Lock()
	checks := maps.Clone(t.checks)
	t.mu.Unlock()
	var (
		mu sync.Mutex
		wg sync.WaitGroup
	)
	results, ready = make(map[string]string, len(checks)), true
	for name, check := range checks {
		wg.Go(func() {
			err := check(ctx)
			mu.Lock()
			defer mu.Unlock()
			results[name] = "ok"
			if err != nil {
				results[name], ready = err.Error(), false
			}
		})
	}
	wg.Wait()
	return results, ready
}

// writeJSON answers. A client that went away cannot be told anything, so the error of writing to it has no receiver.
func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
