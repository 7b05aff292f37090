package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// waitTurns waits until the log holds n turns: what a client does not wait for is recorded all the same.
func (d door) waitTurns(t *testing.T, n int) []*schemas.ActionTaken {
	t.Helper()
	for {
		if turns := d.actions(t); len(turns) >= n {
			return turns
		}
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func textOf(a *schemas.ActionTaken) string {
	var all strings.Builder
	for _, p := range a.GetResponse().GetParts() {
		all.WriteString(p.GetText())
	}
	return all.String()
}

// TestRelayBreaks shows that an upstream that breaks off at any byte breaks off for the client too, with the same bytes, and that the turn is recorded as far
// as it went, never to be trained. Method: one streamed answer, cut at every byte, until all of it is there.
func TestRelayBreaks(t *testing.T) {
	head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	first, last := chunk("a", "null"), chunk("b", "stop")
	answer := head + framed(first, last, "data: [DONE]\n\n")
	done := strings.Index(answer, "[DONE]") + len("[DONE]")
	for cut := range len(answer) + 1 {
		up := scripted(t, answer[:cut], 1<<20)
		d := relayed(t, up, nil)
		want, got := fetch(t, chatRequest(t.Context(), t, up, askHello)), fetch(t, chatRequest(t.Context(), t, d.URL, askHello))
		if cut < len(head) {
			if got.status != http.StatusBadGateway || len(d.actions(t)) != 0 {
				t.Fatalf("cut at %d: %+v", cut, got)
			}
			continue
		}
		if got.body != want.body || (got.err == nil) != (want.err == nil) {
			t.Fatalf("cut at %d: %q %v, want %q %v", cut, got.body, got.err, want.body, want.err)
		}
		turns := d.actions(t)
		if cut < len(head)+len("XX\r\n")+len(first) && len(turns) == 0 {
			continue // not one piece of the answer came
		}
		if len(turns) != 1 {
			t.Fatalf("cut at %d: %d turns", cut, len(turns))
		}
		a := turns[0]
		broken := a.GetFinishReason() == schemas.FinishReason_FINISH_REASON_ERROR && a.GetUntrainableReason() != ""
		whole := a.GetFinishReason() == schemas.FinishReason_FINISH_REASON_STOP && a.GetUntrainableReason() == "" && textOf(a) == "ab"
		if !strings.HasPrefix("ab", textOf(a)) || !broken && !whole || cut >= done && !whole {
			t.Fatalf("cut at %d: recorded %v", cut, a)
		}
	}
}

// TestRelayDisconnect shows that a client that leaves ends the upstream's work at once, and that the turn is recorded as far as it went, marked and
// never trained. Method: a client that leaves before the headers, after them, and after each piece.
func TestRelayDisconnect(t *testing.T) {
	for after := -1; after <= 3; after++ {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			asked, left := make(chan struct{}), make(chan struct{})
			up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if after >= 0 {
					w.Header().Set("Content-Type", "text/event-stream")
					_ = http.NewResponseController(w).Flush()
				}
				for range after {
					_, _ = io.WriteString(w, chunk("a", "null"))
					_ = http.NewResponseController(w).Flush()
				}
				close(asked)
				<-r.Context().Done()
				close(left)
			})
			d := relayed(t, up, nil)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			req := chatRequest(ctx, t, d.URL, askHello)
			if after < 0 {
				go func() {
					<-asked
					leave()
				}()
				if _, err := d.Client().Do(req); err == nil {
					t.Fatal("there is an answer")
				}
				<-left
				checkTurn(t, d, "-", "")
				return
			}
			res, err := d.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if _, err := io.ReadFull(res.Body, make([]byte, after*len(chunk("a", "null")))); err != nil {
				t.Fatal(err)
			}
			leave()
			<-left
			if after == 0 { // nothing was said
				return
			}
			a := d.waitTurns(t, 1)[0]
			if a.GetFinishReason() != schemas.FinishReason_FINISH_REASON_ABORTED || a.GetUntrainableReason() == "" || textOf(a) != strings.Repeat("a", after) {
				t.Errorf("recorded %v", a)
			}
		})
	}
}

// TestRelaySilence shows that a stream whose upstream falls silent is ended and recorded. Method: one piece, and then nothing.
func TestRelaySilence(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk("a", "null"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	d := relayed(t, up, func(c *gateway.Config, _ *gateway.Deps) { c.Upstream.IdleTimeout = 50 * time.Millisecond })
	got := fetch(t, chatRequest(t.Context(), t, d.URL, askHello))
	if got.err == nil || got.body != chunk("a", "null") {
		t.Errorf("%q, %v", got.body, got.err)
	}
	a := d.waitTurns(t, 1)[0]
	if a.GetFinishReason() != schemas.FinishReason_FINISH_REASON_ERROR || a.GetUntrainableReason() == "" {
		t.Errorf("recorded %v", a)
	}
}

// TestRelayRetry shows that an official client's retry gets the first answer again, byte for byte, and makes no second turn. Method: the same
// request three times, as such a client sends it, to an upstream that counts.
func TestRelayRetry(t *testing.T) {
	calls := 0
	up := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, chunk(fmt.Sprint(calls), "stop")+"data: [DONE]\n\n")
	})
	d := relayed(t, up, nil)
	var first fetched
	for i := range 3 {
		req := chatRequest(t.Context(), t, d.URL, askHello)
		req.Header.Set("X-Stainless-Retry-Count", fmt.Sprint(i))
		got := fetch(t, req)
		if i == 0 {
			first = got
		}
		if got.body != first.body || got.body == "" || got.header.Get("Content-Type") != "text/event-stream" || got.header.Get("X-Nextstate-Turn") != first.header.Get("X-Nextstate-Turn") {
			t.Errorf("try %d: %+v, want %+v", i, got, first)
		}
	}
	if calls != 1 {
		t.Errorf("the upstream was asked %d times", calls)
	}
	checkTurn(t, d, "1", "")
}

// TestRelayAgent shows that an agent's conversation is one session whose turns have their next states, with several choices, tools and images. Method:
// two requests of a tool loop, then the events.
func TestRelayAgent(t *testing.T) {
	answers := []string{
		`{"id":"r1","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"t1","type":"function","function":{"name":"ls","arguments":"{}"}}]},"finish_reason":"tool_calls"},{"index":1,"message":{"role":"assistant","content":"no"},"finish_reason":"stop"}]}`,
		`{"id":"r2","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"done"},"finish_reason":"stop"}]}`,
	}
	asked := 0
	up := upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answers[asked])
		asked++
	})
	d := relayed(t, up, nil)
	const tools = `"tools":[{"type":"function","function":{"name":"ls","description":"list","parameters":{"type":"object"}}}]`
	const user = `{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}`
	for _, body := range []string{
		`{"model":"m","n":2,` + tools + `,"messages":[` + user + `]}`,
		`{"model":"m",` + tools + `,"messages":[` + user + `,{"role":"assistant","content":null,"tool_calls":[{"id":"t1","type":"function","function":{"name":"ls","arguments":"{}"}}]},{"role":"tool","tool_call_id":"t1","content":"a.txt"},{"role":"odd","content":7}]}`,
	} {
		if got := fetch(t, chatRequest(t.Context(), t, d.URL, body)); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	var sessions []string
	turns := map[string]*schemas.ActionTaken{}
	var next []*schemas.NextStateObserved
	for _, e := range d.stored(t) {
		switch p := e.Payload.(type) {
		case *schemas.ActionTaken:
			turns[p.GetResponseId()+textOf(p)], sessions = p, append(sessions, e.Session)
		case *schemas.NextStateObserved:
			next = append(next, p)
			if e.Session != sessions[0] {
				t.Errorf("the next state went to %s", e.Session)
			}
		}
	}
	if len(turns) != 3 || len(next) != 1 || sessions[0] != sessions[2] || sessions[0] == sessions[1] {
		t.Fatalf("%d turns, %d next states, sessions %q", len(turns), len(next), sessions)
	}
	first, second := turns["r1"], turns["r2done"]
	if first.GetResponse().GetToolCalls()[0].GetName() != "ls" || first.GetContext().GetTools()[0].GetName() != "ls" || turns["r1no"].ParentSession == nil {
		t.Errorf("the first turn: %v", first)
	}
	if blob := first.GetContext().GetMessages()[0].GetParts()[1].GetBlob(); blob.GetMediaType() != "image/png" || blob.GetSizeBytes() != 3 {
		t.Errorf("the image: %v", blob)
	}
	if obs := next[0].GetObservations(); len(obs) != 2 || obs[0].GetMessage().GetToolCallId() != "t1" || obs[1].GetMessage().GetParts()[0].GetText() != `{"role":"odd","content":7}` {
		t.Errorf("the next state: %v", next[0])
	}
	if n := len(second.GetContext().GetMessages()); second.GetContext().ParentTurnId == nil || n != 2 {
		t.Errorf("the second turn's context: %v", second.GetContext())
	}
}

// TestRelayMany shows that many answers at once do not mix. Method: 64 clients of eight requests each, whose answers name their question.
func TestRelayMany(t *testing.T) {
	up := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, rest, _ := strings.Cut(string(body), "question-")
		number, _, _ := strings.Cut(rest, "\"")
		w.Header().Set("Content-Type", "text/event-stream")
		for _, part := range []string{"answer", "-", number} {
			_, _ = io.WriteString(w, chunk(part, "null"))
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, chunk("", "stop")+"data: [DONE]\n\n")
	})
	d := relayed(t, up, nil)
	d.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 64 //nolint:forcetypeassert // httptest's
	const clients, each = 64, 8
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			for i := range each {
				question := fmt.Sprint(c*each + i)
				res, err := d.Client().Do(chatRequest(t.Context(), t, d.URL, `{"stream":true,"messages":[{"role":"user","content":"question-`+question+`"}]}`))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if want := chunk("answer", "null") + chunk("-", "null") + chunk(question, "null") + chunk("", "stop") + "data: [DONE]\n\n"; err != nil || string(body) != want {
					t.Errorf("question %s: %q, %v", question, body, err)
				}
			}
		})
	}
	all.Wait()
	turns := d.actions(t)
	if len(turns) != clients*each {
		t.Fatalf("%d turns, want %d", len(turns), clients*each)
	}
	for _, a := range turns {
		question := strings.TrimPrefix(a.GetContext().GetMessages()[0].GetParts()[0].GetText(), "question-")
		if textOf(a) != "answer-"+question {
			t.Errorf("question %s got %q", question, textOf(a))
		}
	}
}
