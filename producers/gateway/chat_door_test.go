package gateway_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// TestWho shows whose request is taken: keys of tenants, and, when that is configured, programs on this machine without one. Method: a table
// of headers with and without the configuration.
func TestWho(t *testing.T) {
	local := serve(t, &script{}, func(c *gateway.Config, _ *gateway.Deps) { c.Anonymous = "home" })
	strict := serve(t, &script{}, nil)
	for name, c := range map[string]struct {
		s      served
		header map[string]string
		status int
		code   string
		tenant string
	}{
		"key":                      {strict, nil, 200, "", "acme"},
		"no key":                   {strict, map[string]string{"Authorization": ""}, 401, "invalid_api_key", ""},
		"other secret":             {strict, map[string]string{"Authorization": "Bearer sk-other"}, 401, "invalid_api_key", ""},
		"revoked":                  {strict, map[string]string{"Authorization": "Bearer nsk_gone"}, 401, "invalid_api_key", ""},
		"long":                     {strict, map[string]string{"Authorization": "Bearer " + strings.Repeat("x", 5000)}, 401, "invalid_api_key", ""},
		"store down":               {strict, map[string]string{"Authorization": "Bearer nsk_down"}, 503, "service_unavailable", ""},
		"own header":               {strict, map[string]string{"Authorization": "Bearer sk-upstream", "X-Nextstate-Key": "nsk_a"}, 200, "", "acme"},
		"local":                    {local, map[string]string{"Authorization": ""}, 200, "", "home"},
		"local, other secret":      {local, map[string]string{"Authorization": "Bearer sk-any"}, 200, "", "home"},
		"local, key":               {local, nil, 200, "", "acme"},
		"local, revoked":           {local, map[string]string{"Authorization": "Bearer nsk_gone"}, 401, "invalid_api_key", ""},
		"local name":               {local, map[string]string{"Authorization": "", "Host": "localhost:80"}, 200, "", "home"},
		"rebound name":             {local, map[string]string{"Authorization": "", "Host": "evil.example"}, 403, "api_key_needed", ""},
		"rebound name like ours":   {local, map[string]string{"Authorization": "", "Host": "127.0.0.1.evil.example"}, 403, "api_key_needed", ""},
		"rebound name, with a key": {local, map[string]string{"Host": "gateway.example"}, 200, "", "acme"},
		"page elsewhere":           {local, map[string]string{"Authorization": "", "Origin": "https://evil.example"}, 403, "api_key_needed", ""},
		"page without origin":      {local, map[string]string{"Authorization": "", "Origin": "null"}, 403, "api_key_needed", ""},
		"page here":                {local, map[string]string{"Authorization": "", "Origin": "http://localhost:3000"}, 200, "", "home"},
		"form":                     {local, map[string]string{"Authorization": "", "Content-Type": "text/plain"}, 415, "", ""},
		"compressed":               {strict, map[string]string{"Content-Encoding": "gzip"}, 415, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(c.s.stored(t))
			got := c.s.post(t, "/v1/chat/completions", hello, c.header)
			if got.status != c.status {
				t.Fatalf("%+v, want %d", got, c.status)
			}
			stored := c.s.stored(t)[before:]
			if c.status != 200 {
				if _, _, _, code := got.fault(t); code != c.code || len(stored) != 0 {
					t.Errorf("code %q, want %q; %d events", code, c.code, len(stored))
				}
			} else if len(stored) != 1 || stored[0].Tenant != c.tenant {
				t.Errorf("%+v", stored)
			}
		})
	}
	if got := local.post(t, "/v1/events", "{}", map[string]string{"Authorization": ""}); got.status != 401 {
		t.Errorf("events without a key: %+v", got)
	}
}

// TestSessions shows by what a request names its session and the kind of its turn. Method: URL, header, metadata, and what wins.
func TestSessions(t *testing.T) {
	s := serve(t, &script{}, nil)
	named := func(session string) string {
		return `{"messages":[{"role":"user","content":"x"}],"metadata":{"session_id":"` + session + `"}}`
	}
	for name, c := range map[string]struct {
		path, body string
		header     map[string]string
		session    string
		kind       schemas.TurnKind
	}{
		"url":      {"/s/one%2Ftwo/v1/chat/completions", named("meta"), map[string]string{"X-Nextstate-Session": "head"}, "one/two", schemas.TurnKind_TURN_KIND_MAIN},
		"header":   {"/v1/chat/completions", named("meta"), map[string]string{"X-Nextstate-Session": "head"}, "head", schemas.TurnKind_TURN_KIND_MAIN},
		"metadata": {"/v1/chat/completions", named("meta"), nil, "meta", schemas.TurnKind_TURN_KIND_MAIN},
		"side":     {"/s/sidelong/v1/chat/completions", hello, map[string]string{"X-Nextstate-Turn-Kind": "side"}, "sidelong", schemas.TurnKind_TURN_KIND_SIDE},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(s.stored(t))
			got := s.post(t, c.path, c.body, c.header)
			stored := s.stored(t)[before:]
			if got.status != 200 || got.header.Get("X-Nextstate-Session") != c.session || len(stored) != 1 || stored[0].Session != c.session ||
				stored[0].Payload.(*schemas.ActionTaken).GetKind() != c.kind {
				t.Errorf("%+v\n%+v", got, stored)
			}
		})
	}
	for path, header := range map[string]map[string]string{
		"/s/" + strings.Repeat("x", 600) + "/v1/chat/completions": nil,
		"/s/a%00b/v1/chat/completions":                            nil,
		"/v1/chat/completions":                                    {"X-Nextstate-Turn-Kind": "odd"},
	} {
		if got := s.post(t, path, hello, header); got.status != 400 {
			t.Errorf("%.40s %v: %+v", path, header, got)
		}
	}
	if got := s.get(t, "/s/x/v1/models"); got.status != 200 {
		t.Errorf("%+v", got)
	}
}

// TestConversation shows a session from its first message to its end: the next state of each turn, a retry that is the same turn, feedback, the
// end. Method: the requests of an agent, and the events in order.
func TestConversation(t *testing.T) {
	s := serve(t, &script{}, nil)
	first := s.post(t, "/v1/chat/completions", hello, map[string]string{"Idempotency-Key": "k1"})
	again := s.post(t, "/v1/chat/completions", hello, map[string]string{"Idempotency-Key": "k1"})
	if again.body != first.body || again.header.Get("X-Nextstate-Turn") != first.header.Get("X-Nextstate-Turn") {
		t.Errorf("the retry was answered otherwise:\n%+v\n%+v", first, again)
	}
	next := `{"stream":true,"messages":[{"role":"user","content":"hello there"},{"role":"assistant","content":"You said: hello there"},{"role":"user","content":"not so loud"}]}`
	second := s.post(t, "/v1/chat/completions", next, map[string]string{"X-Stainless-Retry-Count": "0"})
	retried := s.post(t, "/v1/chat/completions", next, map[string]string{"X-Stainless-Retry-Count": "1"})
	if retried.body != second.body || retried.header.Get("Content-Type") != second.header.Get("Content-Type") {
		t.Errorf("the streamed retry was answered otherwise:\n%+v\n%+v", second, retried)
	}
	turn, session := second.header.Get("X-Nextstate-Turn"), second.header.Get("X-Nextstate-Session")
	for body, status := range map[string]int{
		`{"response_id":"chatcmpl-` + turn + `","score":-1,"text":"too loud","correction":"psst","user":"ann"}`: 200,
		`{"turn_id":"` + turn + `","score":2}`:     400,
		`{"turn_id":"` + turn + `"}`:               400,
		`{"score":1}`:                              400,
		`{"turn_id":"` + id1 + `","score":1}`:      404,
		`{"turn_id":"` + turn + `","stars":1}`:     400,
		`{"turn_id":"` + turn + `","score":"bad"}`: 400,
		`[]`: 400,
	} {
		if got := s.post(t, "/v1/feedback", body, nil); got.status != status {
			t.Errorf("feedback %s: %+v, want %d", body, got, status)
		}
	}
	if got := s.post(t, "/v1/sessions/"+session+"/end", `{"reason":"solved"}`, nil); got.status != 200 {
		t.Errorf("end: %+v", got)
	}
	if got := s.post(t, "/v1/sessions/other/end", ``, nil); got.status != 200 {
		t.Errorf("end without a body: %+v", got)
	}
	if got := s.post(t, "/v1/sessions/other/end", `{"why":1}`, nil); got.status != 400 {
		t.Errorf("end with another field: %+v", got)
	}
	stored := s.stored(t)
	kinds := make([]string, len(stored))
	for i, e := range stored {
		kinds[i] = e.Kind()
	}
	if got := strings.Join(kinds, " "); got != "ActionTaken NextStateObserved ActionTaken FeedbackGiven SessionEnded SessionEnded" {
		t.Fatalf("events %s", got)
	}
	if n := stored[1].Payload.(*schemas.NextStateObserved); n.GetTurnId() != first.header.Get("X-Nextstate-Turn") || n.GetObservations()[0].GetMessage().GetParts()[0].GetText() != "not so loud" {
		t.Errorf("next state %v", n)
	}
	if f := stored[3].Payload.(*schemas.FeedbackGiven); f.GetTurnId() != turn || f.GetScore() != -1 || f.GetCorrection() != "psst" || f.GetUser() != "ann" {
		t.Errorf("feedback %v", f)
	}
	if stored[4].Session != session || stored[4].Payload.(*schemas.SessionEnded).GetReason() != "solved" {
		t.Errorf("end %v", stored[4])
	}
}

// TestBusyPolicyRetried shows that a request which the policy had no room for can come again without a trace of the first try: one turn, one
// next state. Method: a policy that is busy once, in the second turn of a session.
func TestBusyPolicyRetried(t *testing.T) {
	busy := false
	s := serve(t, &script{before: func(context.Context, *gateway.SampleRequest, int) error {
		if busy {
			return &gateway.PolicyError{Status: 429, Message: "busy"}
		}
		return nil
	}}, nil)
	first := s.post(t, "/v1/chat/completions", hello, nil)
	next := `{"messages":[{"role":"user","content":"hello there"},{"role":"assistant","content":"You said: hello there"},{"role":"user","content":"go on"}]}`
	busy = true
	if got := s.post(t, "/v1/chat/completions", next, map[string]string{"X-Stainless-Retry-Count": "0"}); got.status != 429 {
		t.Fatalf("%+v", got)
	}
	busy = false
	got := s.post(t, "/v1/chat/completions", next, map[string]string{"X-Stainless-Retry-Count": "1"})
	if got.status != 200 || got.header.Get("X-Nextstate-Session") != first.header.Get("X-Nextstate-Session") {
		t.Errorf("%+v", got)
	}
	kinds := ""
	for _, e := range s.stored(t) {
		kinds += e.Kind() + " "
	}
	if kinds != "ActionTaken NextStateObserved ActionTaken " {
		t.Errorf("events %s", kinds)
	}
}

// TestModels shows the list of what can be asked for, and the answers about one. Method: the script's versions.
func TestModels(t *testing.T) {
	s := serve(t, &script{}, nil)
	var list struct {
		Object string
		Data   []struct{ ID, Object, Root string }
	}
	got := s.get(t, "/v1/models")
	if err := json.Unmarshal([]byte(got.body), &list); err != nil || len(list.Data) != 3 || list.Object != "list" ||
		list.Data[0].ID != "policy" || list.Data[1].ID != "v2" || list.Data[2].ID != "base" || list.Data[0].Root != "script" || list.Data[0].Object != "model" {
		t.Errorf("%v %s", err, got.body)
	}
	if got := s.get(t, "/v1/models/v2"); got.status != 200 || !strings.Contains(got.body, `"id":"v2"`) {
		t.Errorf("%+v", got)
	}
	for path, code := range map[string]string{"/v1/models/v3": "model_not_found", "/v1/nothing": "unknown_url", "/v1/chat/completions": "unknown_url"} {
		got := s.get(t, path)
		if _, _, _, c := got.fault(t); got.status != 404 || c != code {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := s.post(t, "/v1/chat/completions", strings.Replace(hello, "policy", "base", 1), nil); got.header.Get("X-Nextstate-Version") != "base" || !strings.Contains(got.body, `"model":"base"`) {
		t.Errorf("an older version: %+v", got)
	}
	none := serve(t, nil, nil)
	if got := none.post(t, "/v1/chat/completions", hello, nil); got.status != 404 {
		t.Errorf("without a policy: %+v", got)
	}
	if got := none.get(t, "/v1/models"); got.status != 200 || !strings.Contains(got.body, `"data":[]`) {
		t.Errorf("without a policy: %+v", got)
	}
}

// TestLimits shows the bounds on rate, requests in work and bytes in work. Method: bounds of one or two.
func TestLimits(t *testing.T) {
	s := serve(t, &script{}, func(c *gateway.Config, _ *gateway.Deps) { c.Rate, c.Burst = 0.01, 2 })
	for try := range 3 {
		got := s.post(t, "/v1/chat/completions", hello, nil)
		if try < 2 && got.status != 200 || try == 2 && (got.status != 429 || got.header.Get("Retry-After") == "" || got.header.Get("Retry-After") == "0") {
			t.Errorf("rate, try %d: %+v", try, got)
		}
	}
	p, there, _ := waits(1)
	s = serve(t, p, func(c *gateway.Config, _ *gateway.Deps) { c.MaxRequests = 1 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp := s.send(ctx, t, http.MethodPost, "/v1/chat/completions", streamed, nil)
	defer resp.Body.Close()
	<-there
	if got := s.post(t, "/v1/chat/completions", hello, nil); got.status != 429 {
		t.Errorf("requests: %+v", got)
	}
	p, there, _ = waits(1)
	s = serve(t, p, func(c *gateway.Config, _ *gateway.Deps) { c.MaxBodyBytes, c.MaxInFlightBytes = 1024, 1024 })
	large := strings.Replace(streamed, "hello", strings.Repeat("x", 900), 1)
	busy := s.send(ctx, t, http.MethodPost, "/v1/chat/completions", large, nil)
	defer busy.Body.Close()
	<-there
	if got := s.post(t, "/v1/chat/completions", large, nil); got.status != 429 {
		t.Errorf("bytes: %+v", got)
	}
	if err := (gateway.Config{OnJournalFull: "maybe"}).Validate(); err == nil {
		t.Error("an unknown setting passed")
	}
}

// blobs is a store in memory.
type blobs map[[32]byte][]byte

func (b blobs) Put(_ context.Context, content []byte) ([32]byte, error) {
	sum := sha256.Sum256(content)
	b[sum] = bytes.Clone(content)
	return sum, nil
}

// TestBlobs shows that content that is not text is kept under the hash that the event has. Method: an image, a sound, a file.
func TestBlobs(t *testing.T) {
	kept := blobs{}
	s := serve(t, &script{}, func(_ *gateway.Config, d *gateway.Deps) { d.Blobs = kept })
	got := s.post(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAEC"}},
		{"type":"input_audio","input_audio":{"data":"AQI=","format":"wav"}},{"type":"file","file":{"file_data":"data:application/pdf;base64,AwQ="}},
		{"type":"image_url","image_url":"https://example.com/cat.png"},{"type":"file","file":{"file_id":"file-7"}}]}]}`, nil)
	if got.status != 200 {
		t.Fatalf("%+v", got)
	}
	parts := s.actions(t)[0].GetContext().GetMessages()[0].GetParts()
	for i, want := range []struct{ media, content, uri string }{
		{"image/png", "\x00\x01\x02", ""},
		{"audio/wav", "\x01\x02", ""},
		{"application/pdf", "\x03\x04", ""},
		{"image/*", "", "https://example.com/cat.png"},
		{"application/octet-stream", "", "file-7"},
	} {
		b := parts[i].GetBlob()
		if b.GetMediaType() != want.media || b.GetUri() != want.uri || want.content != "" && string(kept[[32]byte(b.GetSha256())]) != want.content {
			t.Errorf("part %d: %v", i, b)
		}
	}
	if len(kept) != 3 {
		t.Errorf("%d blobs are kept, want 3", len(kept))
	}
}

// TestTLS shows the gateway with a certificate, by HTTP/1.1 and HTTP/2, and that a stream that lasts longer than the server's timeouts ends
// whole by both. Method: a self-signed certificate, clients that trust it.
func TestTLS(t *testing.T) {
	cert, key, pool := certificate(t)
	slow := &script{before: func(ctx context.Context, _ *gateway.SampleRequest, _ int) error {
		select {
		case <-time.After(80 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	s, _ := live(t, slow, func(c *gateway.Config, _ *gateway.Deps) {
		c.TLSCert, c.TLSKey = cert, key
		c.ReadTimeout, c.AppendTimeout, c.WriteTimeout, c.Heartbeat = 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 20*time.Millisecond
	})
	s.URL = strings.Replace(s.URL, "http:", "https:", 1)
	for proto, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: h2}
		s.client = &http.Client{Transport: transport}
		resp := s.send(t.Context(), t, http.MethodPost, "/v1/chat/completions", streamed, nil)
		body := bodyOf(t, resp.Body)
		resp.Body.Close()
		if resp.Proto != proto || !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("%s: %s %s", proto, resp.Proto, body)
		}
		transport.CloseIdleConnections()
	}
}

func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", keyDER), pool
}
