package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// keyring maps secrets to tenants; the tenant "down" stands for a store that cannot be asked.
type keyring map[string]string

func (k keyring) Tenant(_ context.Context, secret string) (string, error) {
	switch tenant := k[secret]; tenant {
	case "":
		return "", fmt.Errorf("lookup: %w", gateway.ErrUnknownKey)
	case "down":
		return "", errors.New("connection refused")
	default:
		return tenant, nil
	}
}

var keys = keyring{"nsk_a": "acme", "nsk_down": "down"}

type door struct {
	*httptest.Server
	log *memlog.Log
	reg *prometheus.Registry
}

func open(t *testing.T, change func(*gateway.Config), checks map[string]gateway.Check) door {
	t.Helper()
	d := door{log: memlog.New(1), reg: prometheus.NewRegistry()}
	var cfg gateway.Config
	if change != nil {
		change(&cfg)
	}
	g, err := gateway.New(cfg, gateway.Deps{Log: d.log, Keys: keys}, gateway.Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: d.reg, Checks: checks})
	if err != nil {
		t.Fatal(err)
	}
	d.Server = httptest.NewServer(g.Handler())
	t.Cleanup(d.Close)
	return d
}

type answer struct {
	status  int
	header  http.Header
	Results []struct{ ID, Status, Error string }
	Error   string
	// Accepted is what the gateway counted.
	Accepted int
}

func (d door) post(t *testing.T, key, contentType string, body io.Reader) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.URL+"/v1/events", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := d.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return a
}

// stored returns the events in the log's only partition.
func (d door) stored(t *testing.T) []schemas.Event {
	t.Helper()
	bounds, err := d.log.Bounds(t.Context(), schemas.TopicInteractions)
	if err != nil {
		t.Fatal(err)
	}
	if bounds[0].Next == bounds[0].First {
		return nil
	}
	cursor, err := d.log.Open(t.Context(), schemas.TopicInteractions, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cursor.Close()
	var events []schemas.Event
	for int64(len(events)) < bounds[0].Next {
		records, err := cursor.Next(t.Context(), 10_000)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			e, err := schemas.Decode(r)
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, e)
		}
	}
	return events
}

const (
	id1 = "01890a5d-ac96-774b-bcce-b302099a8057"
	id2 = "01890a5d-ac96-774b-bcce-b302099a8058"
	id3 = "01890a5d-ac96-774b-bcce-b302099a8059"
)

func ended(id, reason string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"type":"nextstate.v1.SessionEnded","source":"t","subject":"s","data":{"reason":%q}}`, id, reason)
}

// TestForms shows that one object, an array, concatenated objects and NDJSON all arrive, in order. Method: the same two events in each form.
func TestForms(t *testing.T) {
	a, b := ended(id1, "one"), ended(id2, "two")
	for name, c := range map[string]struct {
		typ, body string
		events    int
	}{
		"object":       {"application/cloudevents+json", a, 1},
		"pretty":       {"application/json", "\xef\xbb\xbf\n " + strings.ReplaceAll(a, ",", ",\n  ") + "\n", 1},
		"array":        {"application/cloudevents-batch+json; charset=utf-8", "[" + a + "," + b + "]", 2},
		"concatenated": {"application/json", a + "\n" + b, 2},
		"lines":        {"application/x-ndjson", "\xef\xbb\xbf" + a + "\r\n\r\n" + b + "\n", 2},
		"torn newline": {"application/x-ndjson", a + "\n" + b, 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, nil, nil)
			got := d.post(t, "nsk_a", c.typ, strings.NewReader(c.body))
			if got.status != 200 || got.Accepted != c.events || len(got.Results) != c.events || got.Results[0].Status != "ok" || got.Results[0].ID != id1 {
				t.Fatalf("%+v", got)
			}
			events := d.stored(t)
			if len(events) != c.events || events[0].ID != id1 || events[0].Tenant != "acme" {
				t.Fatalf("stored %+v", events)
			}
		})
	}
}

// TestPartial shows that each event is answered on its own and that the good ones are taken. Method: NDJSON with one bad event of each kind.
func TestPartial(t *testing.T) {
	d := open(t, func(c *gateway.Config) { c.MaxEventBytes = 2000 }, nil)
	deep := `{"type":"SessionEnded","subject":"s","data":` + strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`
	lines := []struct{ line, status, say string }{
		{ended(id1, "one"), "ok", ""},
		{`{"torn":`, "refused", "not a CloudEvents object"},
		{ended(id1, "one"), "ok", ""}, // sent twice: the same event
		{ended(id1, "other"), "refused", "already used"},
		{ended("7", "x"), "refused", "UUID"},
		{strings.Replace(ended(id2, "x"), `"source"`, `"tenant":"other","source"`, 1), "refused", "not the API key's"},
		{`{"id":"` + id2 + `","type":"nextstate.v1.HintAbsent","subject":"s","data":{"turnId":"` + id1 + `"}}`, "refused", "derived by nextstate"},
		{`{"id":"` + id2 + `","type":"nextstate.v1.Unknown","subject":"s","data":{}}`, "refused", "not known"},
		{`{"id":"` + id2 + `","type":"SessionEnded","subject":"s"}`, "refused", "data is missing"},
		{ended(id2, "\xff"), "refused", "UTF-8"},
		{deep, "refused", ""},
		{ended(id2, strings.Repeat("x", 2000)), "refused", "blob store"},
		{ended(id3, "three"), "ok", ""},
		{`{"type":"SessionEnded","subject":"s","data":{"reason":"no id"}}`, "ok", ""},
	}
	var body strings.Builder
	for _, l := range lines {
		body.WriteString(strings.ReplaceAll(l.line, `\xff`, "\xff") + "\n")
	}
	got := d.post(t, "nsk_a", "application/x-ndjson", strings.NewReader(body.String()))
	if got.status != http.StatusMultiStatus || got.Accepted != 4 || got.Error == "" || len(got.Results) != len(lines) {
		t.Fatalf("%+v", got)
	}
	for i, l := range lines {
		if r := got.Results[i]; r.Status != l.status || !strings.Contains(r.Error, l.say) {
			t.Errorf("line %d (%.60s): %+v, want %s with %q", i, l.line, r, l.status, l.say)
		}
	}
	if n := len(d.stored(t)); n != 3 {
		t.Errorf("%d events stored, want 3: a repeat is not written twice", n)
	}
	families, err := d.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "gateway_events_total" {
				counted[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if counted["ok"] != 4 || counted["refused"] != 10 {
		t.Errorf("gateway_events_total %v, want 4 ok and 10 refused", counted)
	}
}

// TestWholeRequestRefused shows the status and the words of each refusal of a whole request, and that it has no effect. Method: one
// request for each.
func TestWholeRequestRefused(t *testing.T) {
	good := ended(id1, "one")
	small := func(c *gateway.Config) { c.MaxBodyBytes, c.MaxEvents = 4096, 3 }
	chunked := func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) } // hides the length
	for name, c := range map[string]struct {
		key, typ string
		body     io.Reader
		status   int
		say      string
	}{
		"no key":         {"", "application/json", strings.NewReader(good), 401, "Bearer"},
		"unknown key":    {"nsk_x", "application/json", strings.NewReader(good), 401, "revoked"},
		"key store down": {"nsk_down", "application/json", strings.NewReader(good), 503, "later"},
		"type":           {"nsk_a", "text/xml", strings.NewReader(good), 415, "x-ndjson"},
		"broken type":    {"nsk_a", "a b", strings.NewReader(good), 415, "parsed"},
		"large":          {"nsk_a", "application/json", strings.NewReader(strings.Repeat(" ", 5000)), 413, "4096"},
		"large, chunked": {"nsk_a", "application/x-ndjson", chunked(good + "\n" + strings.Repeat(" ", 5000)), 413, "4096"},
		"too many":       {"nsk_a", "application/x-ndjson", strings.NewReader(strings.Repeat(good+"\n", 4)), 413, "more than 3"},
		"empty":          {"nsk_a", "application/json", strings.NewReader(" \n"), 400, "no event"},
		"empty array":    {"nsk_a", "application/json", strings.NewReader("[]"), 400, "no event"},
		"torn array":     {"nsk_a", "application/json", strings.NewReader("[" + good), 400, "middle"},
		"torn object":    {"nsk_a", "application/json", strings.NewReader(good + good[:40]), 400, "middle"},
		"tail":           {"nsk_a", "application/json", strings.NewReader("[" + good + "] 7"), 400, "follows"},
		"not JSON":       {"nsk_a", "application/json", strings.NewReader("hello"), 400, "JSON"},
		"deep":           {"nsk_a", "application/json", strings.NewReader(strings.Repeat("[", 4000)), 400, ""},
		"all refused":    {"nsk_a", "application/json", strings.NewReader("{}"), 400, "see results"},
		"other tenant":   {"nsk_a", "application/json", strings.NewReader(strings.Replace(good, "{", `{"tenant":"other",`, 1)), 403, "another tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, small, nil)
			got := d.post(t, c.key, c.typ, c.body)
			if got.status != c.status || !strings.Contains(got.Error, c.say) || got.Results == nil || got.Accepted != 0 {
				t.Errorf("%+v, want %d with %q", got, c.status, c.say)
			}
			if retry := got.header.Get("Retry-After"); (c.status == 503) != (retry != "") {
				t.Errorf("Retry-After %q", retry)
			}
			if n := len(d.stored(t)); n != 0 {
				t.Errorf("%d events stored, want none", n)
			}
		})
	}
}

// TestLogAway shows that nothing is answered "ok" which the log did not acknowledge. Method: a log that refuses, or that fails the second
// thousand of a request.
func TestLogAway(t *testing.T) {
	d := open(t, nil, nil)
	appends := 0
	d.log.OnAppend(func([]schemas.Record) memlog.Fault {
		appends++
		if appends == 2 {
			return memlog.Applied
		}
		return memlog.Refused
	})
	got := d.post(t, "nsk_a", "application/json", strings.NewReader(ended(id1, "one")))
	if got.status != 503 || got.Results[0].Status != "failed" || got.header.Get("Retry-After") == "" {
		t.Fatalf("%+v", got)
	}
	var body bytes.Buffer
	for range 2500 {
		body.WriteString(ended(schemas.NewID(), "one") + "\n")
	}
	got = d.post(t, "nsk_a", "application/x-ndjson", &body)
	if got.status != http.StatusMultiStatus || got.Accepted != 1000 || got.Results[999].Status != "ok" || got.Results[1000].Status != "failed" {
		t.Fatalf("status %d, accepted %d", got.status, got.Accepted)
	}
	if n := len(d.stored(t)); n != 1000 {
		t.Errorf("%d events stored, want 1000", n)
	}
}

// TestBusy shows that the bytes in work are bounded by an answer, not by memory. Method: a request that reserves everything and stops in
// the middle of its body, then another one.
func TestBusy(t *testing.T) {
	d := open(t, func(c *gateway.Config) { c.MaxBodyBytes, c.MaxInFlightBytes = 4096, 4096 }, nil)
	body, finish := io.Pipe()
	done := make(chan answer)
	go func() { done <- d.post(t, "nsk_a", "application/x-ndjson", body) }()
	if _, err := io.WriteString(finish, ended(id1, "one")+"\n"); err != nil {
		t.Fatal(err)
	}
	var got answer
	for got.status != 429 { // until the first request holds its room
		got = d.post(t, "nsk_a", "application/json", strings.NewReader(ended(id2, "two")))
	}
	if got.header.Get("Retry-After") == "" {
		t.Errorf("%+v", got)
	}
	if err := finish.Close(); err != nil {
		t.Fatal(err)
	}
	if first := <-done; first.status != 200 {
		t.Errorf("the first request: %+v", first)
	}
	if got := d.post(t, "nsk_a", "application/json", strings.NewReader(ended(id3, "three"))); got.status != 200 {
		t.Errorf("afterwards: %+v", got)
	}
}

// TestHealth shows that /healthz needs nothing and that /readyz names what is missing, without its reasons.
func TestHealth(t *testing.T) {
	missing := errors.New("password=secret")
	d := open(t, nil, map[string]gateway.Check{
		"log": func(context.Context) error { return missing }, "keys": func(context.Context) error { return nil },
	})
	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := d.Client().Do(req)
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
	if status, _ := get("/healthz"); status != 200 {
		t.Errorf("healthz %d", status)
	}
	if status, body := get("/readyz"); status != 503 || !strings.Contains(body, `["log"]`) || strings.Contains(body, "secret") {
		t.Errorf("readyz %d %s", status, body)
	}
	missing = nil
	if status, body := get("/readyz"); status != 200 {
		t.Errorf("readyz %d %s", status, body)
	}
}

// TestServe shows that a request in work is finished when the gateway is told to stop. Method: the log holds an append back until the
// context has ended.
func TestServe(t *testing.T) {
	log := memlog.New(1)
	ctx, stop := context.WithCancel(t.Context())
	inWork := make(chan struct{})
	slow := appenderFunc(func(appendCtx context.Context, records ...schemas.Record) error {
		close(inWork)
		<-ctx.Done()
		return log.Append(appendCtx, records...)
	})
	g, err := gateway.New(gateway.Config{Addr: "127.0.0.1:0"}, gateway.Deps{Log: slow, Keys: keys}, gateway.Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := g.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, l) }()
	answered := make(chan error, 1)
	go func() {
		c := client.HTTP("http://"+l.Addr().String(), "nsk_a", nil)
		record, err := schemas.Encode(schemas.Event{ID: id1, Source: "t", Tenant: "acme", Session: "s", Payload: &schemas.SessionEnded{Reason: "x"}})
		if err == nil {
			err = c.Append(t.Context(), record)
		}
		answered <- err
	}()
	<-inWork
	stop()
	if err := <-answered; err != nil {
		t.Errorf("the request in work: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}

type appenderFunc func(ctx context.Context, records ...schemas.Record) error

func (f appenderFunc) Append(ctx context.Context, records ...schemas.Record) error {
	return f(ctx, records...)
}
