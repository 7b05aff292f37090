package ops_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/producers/spool"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// Goal: when the log is gone and the spool is full, the gateway says so and refuses, or, by configuration, serves and says that the turn is not recorded;
// when the log is back it records again; and the log has exactly the turns that were said to be recorded. Method: a small spool before a log that refuses
// everything for a while, in both modes.
func TestGatewayWithoutRoom(t *testing.T) {
	for _, mode := range []gateway.JournalFull{gateway.JournalFullRefuse, gateway.JournalFullServe} {
		t.Run(string(mode), func(t *testing.T) {
			log := memlog.New(1)
			log.OnAppend(func([]schemas.Record) memlog.Fault { return memlog.Refused })
			url, journal := fullGateway(t, mode, log)
			turns := map[string]bool{} // by id: recorded
			n := 0
			ask := func() (status int, recorded bool) {
				n++
				resp := postChat(t, url, fmt.Sprintf("session-%d", n), strings.Repeat("words ", 200))
				recorded = resp.StatusCode == http.StatusOK && resp.Header.Get("X-Nextstate-Recorded") != "false"
				if resp.StatusCode == http.StatusOK {
					turns[resp.Header.Get("X-Nextstate-Turn")] = recorded
				} else if resp.Header.Get("Retry-After") == "" {
					t.Errorf("status %d without Retry-After", resp.StatusCode)
				}
				return resp.StatusCode, recorded
			}
			status, recorded := ask()
			for recorded && n < 1000 {
				status, recorded = ask()
			}
			want := map[gateway.JournalFull]int{gateway.JournalFullRefuse: http.StatusServiceUnavailable, gateway.JournalFullServe: http.StatusOK}[mode]
			if recorded || status != want || len(turns) < 10 {
				t.Fatalf("after %d turns: status %d, recorded %v; want %d, not recorded", len(turns), status, recorded, want)
			}
			log.OnAppend(nil)
			if err := journal.Drained(t.Context()); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(10 * time.Second); !recorded; time.Sleep(50 * time.Millisecond) {
				if status, recorded = ask(); time.Now().After(deadline) {
					t.Fatalf("10 s after the log came back: status %d, recorded %v", status, recorded)
				}
			}
			if err := journal.Drained(t.Context()); err != nil {
				t.Fatal(err)
			}
			inLog := map[string]int{}
			for _, e := range events(t, log) {
				if e.Kind() == "ActionTaken" {
					inLog[e.ID]++
				}
			}
			for id, recorded := range turns {
				if inLog[id] == 1 != recorded || inLog[id] > 1 {
					t.Errorf("turn %s: recorded %v, and %d times in the log", id, recorded, inLog[id])
				}
			}
		})
	}
}

// fullGateway serves an instant policy with a spool of 64 KiB before a log.
func fullGateway(t *testing.T, mode gateway.JournalFull, log schemas.Appender) (url string, journal *spool.Spool) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	journal, err := spool.Open(spool.Config{Dir: t.TempDir(), MaxBytes: 64 << 10, SegmentBytes: 16 << 10, BackoffMax: 10 * time.Millisecond}, log,
		spool.Instruments{Logger: logger, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running errgroup.Group
	running.Go(func() error { return journal.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := running.Wait(); err != nil {
			t.Error(err)
		}
		if err := journal.Close(); err != nil {
			t.Error(err)
		}
	})
	g, err := gateway.New(gateway.Config{OnJournalFull: mode}, gateway.Deps{Log: log, Keys: oneKey{}, Policy: echo{}, Journal: journal},
		gateway.Instruments{Logger: logger, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(g.Handler())
	t.Cleanup(server.Close)
	return server.URL + "/v1/chat/completions", journal
}

// postChat sends one message and returns the answer without its body.
func postChat(t *testing.T, url, session, text string) *http.Response {
	t.Helper()
	body := fmt.Sprintf(`{"model":"policy","messages":[{"role":"user","content":%q}]}`, text)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+gatewaySecret)
	r.Header.Set("X-Nextstate-Session", session)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp
}

// events reads the interactions of a log with one partition.
func events(t *testing.T, log *memlog.Log) (all []schemas.Event) {
	t.Helper()
	bounds, err := log.Bounds(t.Context(), schemas.TopicInteractions)
	if err != nil {
		t.Fatal(err)
	}
	c, err := log.Open(t.Context(), schemas.TopicInteractions, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for int64(len(all)) < bounds[0].Next {
		records, err := c.Next(t.Context(), 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			e, err := schemas.Decode(r)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
		}
	}
	return all
}
