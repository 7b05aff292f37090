package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/producers/importers"
)

// build compiles the binary exactly as the README says, and returns its folder.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "nextstate"), ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// process is a running nextstate with its output.
type process struct {
	cmd *exec.Cmd
	out *bytes.Buffer
}

// up starts `nextstate up` and waits until it is ready.
func up(t *testing.T, bin, data string, env []string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(filepath.Join(bin, "nextstate"), "up", "--json"), out: new(bytes.Buffer)}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = env, p.out, p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-exited:
			if code := p.cmd.ProcessState.ExitCode(); code != 0 && code != 130 {
				t.Errorf("up ended with %v:\n%s", err, p.out)
			}
		case <-time.After(60 * time.Second):
			_ = p.cmd.Process.Kill()
			t.Errorf("up did not end within 60 s of SIGTERM:\n%s", p.out)
		}
	})
	for deadline := time.Now().Add(3 * time.Minute); ; {
		var e struct{ HTTP string }
		if b, err := os.ReadFile(filepath.Join(data, "endpoints.json")); err == nil && json.Unmarshal(b, &e) == nil && e.HTTP != "" {
			return p
		}
		select {
		case err := <-exited:
			exited <- err
			t.Fatalf("up ended: %v\n%s", err, p.out)
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("up was not ready in time:\n%s", p.out)
		}
	}
}

// block is a fenced block of a document.
type block struct {
	where, language, text string
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

func blocks(t *testing.T) []block {
	t.Helper()
	files, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []block
	for _, f := range append([]string{"README.md"}, files...) {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range fence.FindAllSubmatchIndex(b, -1) {
			line := 1 + bytes.Count(b[:m[0]], []byte("\n"))
			all = append(all, block{fmt.Sprintf("%s:%d", f, line), string(b[m[2]:m[3]]), string(b[m[4]:m[5]])})
		}
	}
	return all
}

// elsewhere are the commands of the README that other tests run, or that run the tests.
var elsewhere = []string{
	"go run . demo --logs",    // TestDemo
	"go run . demo",           // TestDemoLive
	"go test ./...",           // this
	"go build -o nextstate .", // build
}

// TestDocs keeps the documentation true. Goal: every command and query in README.md and docs/ works as it stands, one after the other, for a
// reader who has built the binary and lies in a folder with transcripts. Method: run them against a real `up` with the bundled transcripts.
func TestDocs(t *testing.T) {
	bin := build(t)
	work, data := t.TempDir(), filepath.Join(dataDir(t), "data")
	if err := os.CopyFS(filepath.Join(work, "transcripts"), importers.Demo()); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(bin, "nextstate"), filepath.Join(work, "nextstate")); err != nil {
		t.Fatal(err)
	}
	python := pythonWith(t, "clickhouse-driver==0.2.10", "openai==3.57.0")
	// The README's commands name the default address of the gateway, so it is used here.
	env := append(os.Environ(), "NEXTSTATE_DATA="+data, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	up(t, bin, data, env)

	all, ran := blocks(t), map[string]int{}
	// The reader of a page has imported something: the README's commands come first.
	for _, b := range all {
		var cmd *exec.Cmd
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		switch b.language {
		case "sh":
			cmd = exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", without(b.text, elsewhere))
		case "sql":
			cmd = exec.CommandContext(ctx, filepath.Join(bin, "nextstate"), "sql", "-o", "TSVWithNames", b.text)
		case "python":
			cmd = exec.CommandContext(ctx, python, "-c", b.text)
		case "go", "":
			cancel()
			continue // Go is compiled by the client's examples; a block without a language shows something
		default:
			t.Errorf("%s: a block in %q: sh, sql, python, go, or no language", b.where, b.language)
			cancel()
			continue
		}
		cmd.Dir, cmd.Env = work, env
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("%s: %v\n%s\n%s", b.where, err, b.text, out)
			continue
		}
		ran[b.language]++
		switch {
		case b.language == "sql" && bytes.Count(out, []byte("\n")) < 2:
			t.Errorf("%s: no rows:\n%s\n%s", b.where, b.text, out)
		case b.language == "python" && len(out) == 0:
			t.Errorf("%s: nothing printed:\n%s", b.where, b.text)
		}
	}
	t.Logf("blocks run: %v", ran)
	if ran["sh"] < 10 || ran["sql"] < 8 || ran["python"] < 1 {
		t.Errorf("only %v blocks were run of %d: the documents are not found", ran, len(all))
	}
}

// without drops lines that are run elsewhere; a comment behind a command is kept, it harms nobody.
func without(script string, drop []string) string {
	lines := strings.Split(script, "\n")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool {
		command, _, _ := strings.Cut(l, "#")
		return slices.Contains(drop, strings.TrimSpace(command))
	}), "\n")
}

// pythonWith makes a virtual environment with one package and returns its interpreter.
func pythonWith(t *testing.T, requirements ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "venv")
	pip := append([]string{filepath.Join(dir, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check"}, requirements...)
	for _, args := range [][]string{{"python3", "-m", "venv", dir}, pip} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return filepath.Join(dir, "bin", "python")
}

// dataDir is a folder that PostgreSQL's own user may pass through, which t.TempDir is not when root runs the tests.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nextstate-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestDemo runs the demo of the logs. Goal: it imports every bundled format, answers three questions, and its replay compares equal.
// Method: the real binary, a fresh data folder, nothing else given.
func TestDemo(t *testing.T) {
	bin := build(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "nextstate"), "demo", "--logs")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("demo: %v\n%s", err, out)
	}
	for _, want := range append([]string{"equal, byte for byte", "Why do judges say no?", "Done in"}, importers.FormatNames()...) {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the demo does not show %q:\n%s", want, out)
		}
	}
}

// TestExitStatus holds the promises of --help about exit codes. Method: run the binary with good, bad and impossible arguments.
func TestExitStatus(t *testing.T) {
	bin := build(t)
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.jsonl"), filepath.Join(dir, "bad.jsonl")
	line := `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"}]}` + "\n"
	for name, text := range map[string]string{good: line, bad: line + "{\"messages\": 7}\n" + line + "{\"messages\":[{\"role\""} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("kafka:\n  brokesr: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"version"}, 0, "nextstate"},
		{[]string{"import", "--dry-run", "--json", good}, 0, `"actions": 1`},
		{[]string{"import", "--dry-run", "--json", bad}, 3, `"malformed": 2`},
		{[]string{"import", "--dry-run", filepath.Join(dir, "none")}, 1, "no such file"},
		{[]string{"tail", "nonsense"}, 1, "there is no topic"},
		{[]string{"import"}, 2, "expected"},
		{[]string{"--config", config, "config", "print"}, 2, `unknown key "kafka-brokesr"`},
		{[]string{"up", "--sink-rows", "0"}, 1, "rows"},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "nextstate"), c.args...)
		cmd.Env = append(os.Environ(), "NEXTSTATE_DATA="+filepath.Join(dir, "data"))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		code := 0
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != c.code || !bytes.Contains(out, []byte(c.says)) {
			t.Errorf("%v: exit status %d, want %d and %q:\n%s", c.args, code, c.code, c.says, out)
		}
	}
}
