package gateway

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Check says whether something that the gateway needs is there. It must heed ctx, which ends after two seconds.
type Check func(ctx context.Context) error

// healthz answers as long as the process can answer at all.
func (g *Gateway) healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readyz runs every check at once. The port is public: it names the checks that fail, and the log has the reasons.
func (g *Gateway) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	var (
		mu      sync.Mutex
		wg      sync.WaitGroup
		missing []string
	)
	for name, check := range g.checks {
		wg.Go(func() {
			if err := check(ctx); err != nil {
				g.logger.Warn("not ready", "check", name, "error", err)
				mu.Lock()
				defer mu.Unlock()
				missing = append(missing, name)
			}
		})
	}
	wg.Wait()
	if len(missing) == 0 {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
		return
	}
	slices.Sort(missing)
	writeJSON(w, http.StatusServiceUnavailable, map[string]any{"status": "not ready", "missing": missing})
}
