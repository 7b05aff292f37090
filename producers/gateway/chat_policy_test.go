package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// script is a policy that samples what it is told, one word a token. It honours contexts and errors of emit as the interface wants it.
type script struct {
	// words makes the response; nil: the words of the last message, after "You said:".
	words func(r *gateway.SampleRequest) []string
	// calls are made after the words.
	calls []*schemas.ToolCall
	// before is called before each word with its number; an error ends the sampling.
	before func(ctx context.Context, r *gateway.SampleRequest, n int) error
}

func (p *script) Versions(context.Context) ([]gateway.Version, error) {
	return []gateway.Version{{ID: "v2", Model: "script", Created: time.Unix(1_700_000_000, 0)}, {ID: "base", Model: "script"}}, nil
}

func (p *script) Sample(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
	words := echo(r)
	if p.words != nil {
		words = p.words(r)
	}
	out := &gateway.Sampled{
		Version: r.Version, Model: "script", Sampling: r.Sampling, FinishReason: schemas.FinishReason_FINISH_REASON_STOP,
		Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}, Tokens: &schemas.Tokens{},
	}
	var text strings.Builder
	step := func(p1 gateway.Piece, n int) error {
		if p.before != nil {
			if err := p.before(ctx, r, n); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		text.WriteString(p1.Text)
		out.Tokens.ResponseIds = append(out.Tokens.ResponseIds, uint32(n))
		out.Tokens.Logprobs = append(out.Tokens.Logprobs, -0.5)
		p1.Token = &gateway.TokenLogprob{ID: uint32(n), Bytes: []byte(p1.Text), Logprob: -0.5}
		for k := range r.TopLogprobs {
			p1.Top = append(p1.Top, gateway.TokenLogprob{ID: uint32(k), Bytes: []byte{0xf0, 0x9f}, Logprob: -float32(k)})
		}
		return emit(p1)
	}
	finish := func(err error) (*gateway.Sampled, error) {
		if text.Len() > 0 {
			out.Response.Parts = []*schemas.Part{{Content: &schemas.Part_Text{Text: text.String()}}}
		}
		in, n := uint64(len(r.Messages)), uint64(len(out.Tokens.ResponseIds))
		out.Usage = &schemas.Usage{InputTokens: &in, OutputTokens: &n}
		return out, err
	}
	for n, w := range words {
		if most := r.Sampling.GetMaxTokens(); most > 0 && uint32(n) == most {
			out.FinishReason = schemas.FinishReason_FINISH_REASON_LENGTH
			return finish(nil)
		}
		if err := step(gateway.Piece{Text: w}, n); err != nil {
			return finish(err)
		}
	}
	for n, call := range p.calls {
		call := &schemas.ToolCall{Id: call.GetId(), Name: call.GetName(), Arguments: call.GetArguments()}
		out.Response.ToolCalls = append(out.Response.ToolCalls, call)
		out.FinishReason = schemas.FinishReason_FINISH_REASON_TOOL_CALLS
		if err := step(gateway.Piece{ToolCalls: []*schemas.ToolCall{call}}, len(words)+n); err != nil {
			return finish(err)
		}
	}
	return finish(nil)
}

func echo(r *gateway.SampleRequest) []string {
	last := r.Messages[len(r.Messages)-1]
	words := []string{"You", " said:"}
	for _, p := range last.GetParts() {
		for _, w := range strings.Fields(p.GetText()) {
			words = append(words, " "+w)
		}
	}
	return words
}

// served is a gateway with a policy behind a real HTTP server.
type served struct {
	door
	gateway *gateway.Gateway
	client  *http.Client
}

func serve(t *testing.T, p gateway.Policy, change func(*gateway.Config, *gateway.Deps)) served {
	t.Helper()
	d := door{log: memlog.New(1), reg: prometheus.NewRegistry()}
	var cfg gateway.Config
	deps := gateway.Deps{Log: d.log, Keys: keys, Policy: p}
	if change != nil {
		change(&cfg, &deps)
	}
	g, err := gateway.New(cfg, deps, gateway.Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: d.reg})
	if err != nil {
		t.Fatal(err)
	}
	d.Server = httptest.NewServer(g.Handler())
	t.Cleanup(d.Close)
	return served{d, g, d.Client()}
}

// send posts a body with a key and returns the answer, whose body the caller closes.
func (s served) send(ctx context.Context, t *testing.T, method, path, body string, header map[string]string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer nsk_a")
	for k, v := range header {
		if req.Header.Set(k, v); v == "" {
			req.Header.Del(k)
		}
		if k == "Host" {
			req.Host = v
		}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// said is the answer to one request, read to its end.
type said struct {
	status int
	header http.Header
	body   string
}

func (s served) post(t *testing.T, path, body string, header map[string]string) said {
	t.Helper()
	resp := s.send(t.Context(), t, http.MethodPost, path, body, header)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return said{resp.StatusCode, resp.Header, string(b)}
}

// fault reads an error in OpenAI's shape.
func (a said) fault(t *testing.T) (message, kind, param, code string) {
	t.Helper()
	var b struct {
		Error *struct{ Message, Type, Param, Code *string }
	}
	if err := json.Unmarshal([]byte(a.body), &b); err != nil || b.Error == nil || b.Error.Message == nil || b.Error.Type == nil {
		t.Fatalf("%d: no error in OpenAI's shape: %s", a.status, a.body)
	}
	value := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	return *b.Error.Message, *b.Error.Type, value(b.Error.Param), value(b.Error.Code)
}

// actions are the turns in the log.
func (s served) actions(t *testing.T) (actions []*schemas.ActionTaken) {
	t.Helper()
	for _, e := range s.stored(t) {
		if a, ok := e.Payload.(*schemas.ActionTaken); ok {
			actions = append(actions, a)
		}
	}
	return actions
}

var errBroken = errors.New("secret: native code aborted")

func bodyOf(t *testing.T, r io.Reader) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
