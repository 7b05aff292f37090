package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// TestClientOverHTTP shows that the client's promises hold over HTTP: every acknowledged event is stored once per id, unchanged, in the
// session's order. Method: the real client and the real gateway, a seeded log that refuses appends and loses acknowledgements.
func TestClientOverHTTP(t *testing.T) {
	d := open(t, nil, nil)
	rng := rand.New(rand.NewPCG(3, 3)) //nolint:gosec // a seeded test
	d.log.OnAppend(func([]schemas.Record) memlog.Fault {
		return []memlog.Fault{memlog.Applied, memlog.Applied, memlog.AckLost, memlog.Refused}[rng.IntN(4)]
	})
	// The gateway asks for a pause of a second, which a test does not want to wait out: the transport takes that header away.
	impatient := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err == nil {
			resp.Header.Del("Retry-After")
		}
		return resp, err
	})}
	c, err := client.New(client.HTTP(d.URL, "nsk_a", impatient), client.Config{
		Tenant: "acme", BatchRecords: 20, BackoffMin: time.Microsecond, BackoffMax: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	const sessions, each = 8, 40
	want := make([][]string, sessions)
	var wg sync.WaitGroup
	for n := range sessions {
		wg.Go(func() {
			s := c.Session(fmt.Sprint("s", n))
			for i := range each {
				f, err := s.Send(t.Context(), &schemas.ActionTaken{
					Context: client.Context(client.User("<ünïcödé & \"quotes\">")), Response: client.Assistant(fmt.Sprint(i)),
					Tokens: &schemas.Tokens{ResponseIds: []uint32{1, 2}, Logprobs: []float32{-0.1, -1e-30}},
				})
				if err != nil {
					t.Error(err)
					return
				}
				want[n] = append(want[n], f.ID())
			}
		})
	}
	wg.Wait()
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, seen := map[string][]string{}, map[string]proto.Message{}
	for _, e := range d.stored(t) {
		if first, ok := seen[e.ID]; ok {
			if !proto.Equal(first, e.Payload) {
				t.Errorf("%s: stored twice with different content", e.ID)
			}
			continue
		}
		seen[e.ID] = e.Payload
		got[e.Session] = append(got[e.Session], e.ID)
		a := e.Payload.(*schemas.ActionTaken)
		if lp := a.GetTokens().GetLogprobs(); lp[0] != -0.1 || lp[1] != -1e-30 {
			t.Errorf("log-probs %v changed on the way", lp)
		}
	}
	for n := range want {
		if !slices.Equal(got[fmt.Sprint("s", n)], want[n]) {
			t.Errorf("session %d: events or their order differ", n)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestClientErrors shows which answers the HTTP appender retries and which it gives to the caller. Method: a server that answers each
// status, and the real gateway with a wrong key and with another tenant's event.
func TestClientErrors(t *testing.T) {
	record, err := schemas.Encode(schemas.Event{ID: id1, Source: "t", Tenant: "other", Session: "s", Payload: &schemas.SessionEnded{Reason: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for status, refused := range map[int]bool{200: false, 301: false, 400: true, 401: true, 404: true, 413: true, 429: false, 500: false, 502: false, 503: false} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			_, _ = fmt.Fprint(w, "<html>proxy</html>")
		}))
		err := client.HTTP(srv.URL, "k", nil).Append(t.Context(), record)
		srv.Close()
		var h *client.HTTPError
		if !errors.As(err, &h) || errors.Is(err, client.ErrRefused) != refused || h.RetryAfter != 7*time.Second {
			t.Errorf("%d: %v (refused %v, want %v)", status, err, errors.Is(err, client.ErrRefused), refused)
		}
	}
	d := open(t, nil, nil)
	for key, say := range map[string]string{"nsk_wrong": "revoked", "nsk_a": "not the API key's"} {
		if err := client.HTTP(d.URL, key, nil).Append(t.Context(), record); !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v", key, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client.HTTP(d.URL, "nsk_a", nil).Append(ctx, record); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrRefused) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestClientSplits shows that an append larger than the gateway takes in one request goes in several. Method: 2,500 events through a
// gateway that takes 1,000 a request.
func TestClientSplits(t *testing.T) {
	d := open(t, func(c *gateway.Config) { c.MaxEvents = 1000 }, nil)
	var records []schemas.Record
	for range 2500 {
		r, err := schemas.Encode(schemas.Event{ID: schemas.NewID(), Source: "t", Tenant: "acme", Session: "s", Payload: &schemas.SessionEnded{Reason: "x"}})
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	if err := client.HTTP(d.URL+"/", "nsk_a", nil).Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	events := d.stored(t)
	if len(events) != len(records) {
		t.Fatalf("%d events, want %d", len(events), len(records))
	}
	for i, e := range events {
		if again, err := schemas.Encode(e); err != nil || !bytesEqual(again, records[i]) {
			t.Fatalf("event %d changed on the way: %v", i, err)
		}
	}
}

func bytesEqual(a, b schemas.Record) bool {
	return string(a.Value) == string(b.Value) && string(a.Key) == string(b.Key) &&
		slices.EqualFunc(a.Headers, b.Headers, func(x, y schemas.Header) bool { return x.Key == y.Key && string(x.Value) == string(y.Value) })
}
