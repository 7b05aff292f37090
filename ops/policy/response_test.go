package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy/chat"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

func smolTokenizer(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	f, err := gguf.Open(filepath.Join(assets.ForTest(t, assets.SmolLM2), assets.SmolLM2File))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.New(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestResponse: text, stop strings, half characters and tool calls come out of tokens as they should. Method: the tokens of a text are fed in one by one;
// the pieces' texts must make the response's text, and what was emitted before the last token shows that nothing is held back longer than needed.
func TestResponse(t *testing.T) {
	tok := smolTokenizer(t)
	const callText = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"
	for _, c := range []struct {
		name, response string
		stops          []string
		tools          bool
		text, calls    string
		stopped        bool
	}{
		{name: "plain", response: "Hello, world 🙂!", text: "Hello, world 🙂!"},
		{name: "end token", response: "Hi.<|im_end|>", text: "Hi."},
		{name: "stop", response: "one two three", stops: []string{"two"}, text: "one ", stopped: true},
		{name: "stop across tokens", response: "one\n\nUser: two", stops: []string{"x", "\nUser:"}, text: "one\n", stopped: true},
		{name: "the first stop", response: "abcdef", stops: []string{"ef", "cd"}, text: "ab", stopped: true},
		{name: "half a stop", response: "one tw", stops: []string{"two"}, text: "one tw"},
		{name: "half a character", response: "x\xf0\x9f\x99", text: "x\ufffd"},
		{name: "half a character and a stop", response: "x\xe4\xb8", stops: []string{"x\ufffdy"}, text: "x\ufffd"},
		{name: "call", response: "Wait. " + callText + "<|im_end|>", tools: true, text: "Wait. ", calls: `add {"a": 1}`},
		{name: "call without tools", response: callText, text: callText},
		{name: "unfinished call", response: callText[:30], tools: true, text: callText[:30]},
		{name: "call without its last tag", response: strings.TrimSuffix(callText, "</tool_call>"), tools: true, calls: `add {"a": 1}`},
		{name: "stop after a call", response: callText + "STOP more", stops: []string{"STOP"}, tools: true, calls: `add {"a": 1}`, stopped: true},
	} {
		var text strings.Builder
		var calls []*schemas.ToolCall
		w := &response{tok: tok, stops: c.stops, emit: func(p gateway.Piece) error {
			text.WriteString(p.Text)
			calls = append(calls, p.ToolCalls...)
			return nil
		}}
		if c.tools {
			w.parser = chat.NewParser(nil)
		}
		var err error
		for i, id := range tok.EncodeSpecial(c.response) {
			if err = w.token(llama.Token{ID: id, Logprob: -float32(i)}); err != nil {
				break
			}
		}
		if errors.Is(err, errStopped) != c.stopped {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := w.flush(); err != nil {
			t.Error(err)
		}
		m := w.message()
		got := ""
		for _, p := range m.GetParts() {
			got += p.GetText()
		}
		if got != c.text || text.String() != c.text {
			t.Errorf("%s: text %q, pieces %q, want %q", c.name, got, text.String(), c.text)
		}
		said := ""
		for _, x := range calls {
			said += fmt.Sprint(x.GetName(), " ", x.GetArguments())
		}
		if said != c.calls || len(calls) != len(m.GetToolCalls()) {
			t.Errorf("%s: calls %q, want %q", c.name, said, c.calls)
		}
	}
}

// TestResponseHolds: with a stop string, only what may be its beginning waits.
func TestResponseHolds(t *testing.T) {
	w := &response{stops: []string{"STOP"}}
	for _, c := range [][2]string{{"a", "a"}, {"bS", "b"}, {"T", ""}, {"x", "STx"}, {"SSTO", "S"}, {"!", "STO!"}} {
		if got := w.untilStop(c[0]); got != c[1] {
			t.Errorf("after %q: %q, want %q", c[0], got, c[1])
		}
	}
}

// TestEngineDies: when the child dies in mid-stream, what was sampled until then comes back, marked as an error, and the engine answers again later.
func TestEngineDies(t *testing.T) {
	e, err := OpenEmbedded(t.Context(), Config{
		Model: filepath.Join(assets.ForTest(t, assets.SmolLM2), assets.SmolLM2File), Library: assets.ForTest(t, assets.Llama),
		Llama: llama.Config{Parallel: 1, Context: 512, Batch: 256, Threads: 1},
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	request := &gateway.SampleRequest{Messages: []*schemas.Message{
		{Role: schemas.Role_ROLE_USER, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: "Tell me a very long story."}}}},
	}}
	n := 0
	s, err := e.Sample(t.Context(), request, func(gateway.Piece) error {
		if n++; n == 5 {
			return syscall.Kill(e.server.Pid(), syscall.SIGKILL)
		}
		return nil
	})
	var bad *gateway.PolicyError
	if !errors.As(err, &bad) || bad.Status != 503 {
		t.Fatalf("error %v", err)
	}
	if s == nil || s.FinishReason != schemas.FinishReason_FINISH_REASON_ERROR || len(s.Tokens.GetResponseIds()) < 5 || s.Version != Base {
		t.Fatalf("what was sampled until then: %v", s)
	}
	for { // until the child is there again; a test that waits in vain runs into the limit of go test
		_, err := e.Sample(t.Context(), request, func(gateway.Piece) error { return nil })
		if err == nil {
			return
		}
		if !errors.As(err, &bad) || bad.Status != 503 {
			t.Fatal(err)
		}
	}
}
