package gateway_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// actor is a policy that plays the part that the last message names; otherwise it says what it was told.
func actor() gateway.Policy {
	var mu sync.Mutex
	busy := 0
	return policyOf{policyFunc(func(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
		p := &script{}
		var last strings.Builder
		for _, part := range r.Messages[len(r.Messages)-1].GetParts() {
			last.WriteString(part.GetText())
		}
		switch last.String() {
		case "call weather":
			p.calls = []*schemas.ToolCall{{Name: "weather", Arguments: `{"city":"Ulm"}`}}
		case "busy twice":
			mu.Lock()
			busy++
			enough := busy > 2
			mu.Unlock()
			if !enough {
				return nil, &gateway.PolicyError{Status: 429, Message: "busy"}
			}
		case "always busy":
			return nil, &gateway.PolicyError{Status: 429, Message: "busy"}
		case "too long":
			return nil, &gateway.PolicyError{Status: 400, Code: "context_length_exceeded", Message: "too long"}
		case "crash":
			return nil, &gateway.PolicyError{Status: 503, Message: "the engine is being restarted"}
		case "crash later":
			p = failsAt(1, &gateway.PolicyError{Status: 503, Message: "the engine is being restarted"})
		case "hang":
			p, _, _ = waits(1)
		}
		return p.Sample(ctx, r, emit)
	})}
}

// policyOf has the versions of script.
type policyOf struct{ policyFunc }

func (policyOf) Versions(ctx context.Context) ([]gateway.Version, error) {
	return (&script{}).Versions(ctx)
}

// clients is a copy of the folder with the clients' scripts, where their packages are installed.
func clients(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "clients"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestPythonClient runs the official Python client: whole and streamed answers, tools, log-probs, choices, models, errors as the right
// exceptions, retries, the async client. Method: the pinned package from its registry, a gateway with a scripted policy, and the events after.
func TestPythonClient(t *testing.T) {
	dir := clients(t)
	// Beside the script, where Python looks first.
	command(t, dir, "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--only-binary=:all:",
		"--root-user-action=ignore", "--target=.", "-r", "requirements.txt")
	s, _ := live(t, actor(), nil)
	out := command(t, dir, "python3", "check.py", s.URL+"/v1", "nsk_a", "scripted")
	if n := strings.Count(out, "ok "); n != 9 {
		t.Errorf("%d checks ran, want 9:\n%s", n, out)
	}
	s.afterClients(t)
}

// TestNodeClient runs the official npm client in the same way, its loop of tool calls included.
func TestNodeClient(t *testing.T) {
	t.Parallel()
	dir := clients(t)
	command(t, dir, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--no-package-lock")
	s, _ := live(t, actor(), nil)
	out := command(t, dir, "node", "check.mjs", s.URL+"/v1", "nsk_a", "scripted")
	if n := strings.Count(out, "ok "); n != 9 {
		t.Errorf("%d checks ran, want 9:\n%s", n, out)
	}
	s.afterClients(t)
}

// afterClients holds what the log must say after a client's script: every tool's result is the next state of the turn that called, and a
// request that was tried three times is one turn.
func (s served) afterClients(t *testing.T) {
	t.Helper()
	asked, results, busy := []string{}, 0, 0
	for _, e := range s.stored(t) {
		switch p := e.Payload.(type) {
		case *schemas.ActionTaken:
			if len(p.GetResponse().GetToolCalls()) > 0 {
				asked = append(asked, e.ID)
			}
			if parts := p.GetResponse().GetParts(); len(parts) > 0 && parts[0].GetText() == "You said: busy twice" {
				busy++
			}
		case *schemas.NextStateObserved:
			for _, o := range p.GetObservations() {
				if o.GetKind() == schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT {
					results++
					if !slices.Contains(asked, p.GetTurnId()) {
						t.Errorf("a tool's result is the next state of %s, which called nothing", p.GetTurnId())
					}
				}
			}
		}
	}
	if results != 1 || busy > 1 {
		t.Errorf("%d results of tools (want 1), %d turns of the request that was tried again (want at most 1)", results, busy)
	}
}
