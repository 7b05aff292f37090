package llama

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// TestMain also is the parent that TestParentDies kills: it starts a server, prints the child's pid, and waits.
func TestMain(m *testing.M) {
	MaybeChild()
	if len(os.Args) == 4 && os.Args[1] == "parent" {
		logger := slog.New(slog.DiscardHandler)
		s, err := Start(context.Background(), Config{Library: os.Args[2], Model: os.Args[3], Context: 512}, logger, prometheus.NewRegistry())
		if err != nil {
			os.Stdout.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Stdout.WriteString(strconv.Itoa(s.Pid()) + "\n")
		_, err = s.Generate(context.Background(), &Request{Prompt: make([]uint32, 400)}, func(Token) error { return nil })
		os.Stdout.WriteString(err.Error() + "\n")
	}
	os.Exit(m.Run())
}

// Goal: a child that dies in mid-stream fails its requests with 503, is started again with its versions, and the process lives. Method: SIGKILL, then
// SIGABRT (what ggml's abort raises), while requests stream; wait for the next child; the versions and their tokens are as before.
func TestChildDies(t *testing.T) {
	s := start(t, config(t))
	swapTo(t, s, "v1", writeLoRA(t, smol(), "llama", 1))
	swapTo(t, s, "v2", writeLoRA(t, smol(), "llama", 2))
	swapTo(t, s, Base, "")
	swapTo(t, s, "v1", "")
	names := s.Versions()
	want, _ := generate(t, s, &Request{Prompt: prompt(t, 1, 20), MaxTokens: 6})
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGABRT} {
		pid := s.Pid()
		var all sync.WaitGroup
		streaming := make(chan struct{}, 4)
		for i := range 4 {
			all.Go(func() {
				n := 0
				result, err := s.Generate(t.Context(), &Request{Prompt: prompt(t, uint64(i), 20)}, func(Token) error {
					if n++; n == 3 {
						streaming <- struct{}{}
					}
					return nil
				})
				if status(err) != http.StatusServiceUnavailable || result.Version != "v1" || n < 3 {
					t.Errorf("%s in mid-stream: %v after %d tokens, %+v", sig, err, n, result)
				}
			})
		}
		for range 4 {
			<-streaming
		}
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		for s.Pid() == 0 || s.Pid() == pid {
			time.Sleep(5 * time.Millisecond)
		}
		if got := s.Versions(); !slices.Equal(got, names) {
			t.Errorf("versions after %s: %v, want %v", sig, got, names)
		}
		if got, result := generate(t, s, &Request{Prompt: prompt(t, 1, 20), MaxTokens: 6}); result.Version != "v1" || !slices.Equal(ids(got), ids(want)) {
			t.Errorf("after %s: %v, want %v; %+v", sig, ids(got), ids(want), result)
		}
	}
}

// Goal: the child ends with its parent, also when the parent is killed while native code runs. Method: a parent of its own, with a request in work; SIGKILL.
func TestParentDies(t *testing.T) {
	cfg := config(t)
	parent := exec.CommandContext(t.Context(), os.Args[0], "parent", cfg.Library, cfg.Model)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 256)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatalf("the parent said %q", line[:n])
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	for running(pid) {
		time.Sleep(5 * time.Millisecond)
	}
}

// running says whether a process lives; one that has ended and waits to be reaped does not.
func running(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

// Goal: what cannot be loaded is said at the start, with the reason. Method: a model cut off, one of an unknown architecture, text, no file; a folder
// without the library; settings that contradict each other.
func TestStartRefuses(t *testing.T) {
	good := config(t)
	data, err := os.ReadFile(good.Model)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	unknown, err := os.Create(filepath.Join(dir, "other.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer unknown.Close()
	if err := gguf.Write(unknown, []gguf.Pair{{Key: "general.architecture", Value: "abcde"}}, nil); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"cut off":      {func(c *Config) { c.Model = file("cut.gguf", data[:len(data)/2]) }, "cut.gguf"},
		"architecture": {func(c *Config) { c.Model = unknown.Name() }, "architecture"},
		"text":         {func(c *Config) { c.Model = file("text.gguf", []byte("hello")) }, "not a GGUF"},
		"adapter":      {func(c *Config) { c.Model = writeLoRA(t, smol(), "llama", 1) }, "lora-1.gguf"},
		"missing":      {func(c *Config) { c.Model = filepath.Join(dir, "none.gguf") }, "none.gguf"},
		"library":      {func(c *Config) { c.Library = dir }, "assets fetch llama"},
		"batch":        {func(c *Config) { c.Batch = 4 }, "raise batch"},
		"queue":        {func(c *Config) { c.Queue = -1 }, "queue"},
		"nothing":      {func(c *Config) { *c = Config{} }, "library and model"},
	} {
		cfg := good
		c.change(&cfg)
		s, err := Start(t.Context(), cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
		t.Logf("%s: %v", what, err)
	}
}

// Goal: an idle child takes no CPU: ggml's threads sleep. Method: its CPU time over a second after work, which spinning threads would fill.
func TestIdle(t *testing.T) {
	s := start(t, config(t))
	generate(t, s, &Request{Prompt: prompt(t, 1, 20), MaxTokens: 5})
	time.Sleep(100 * time.Millisecond)
	before := ticks(t, s.Pid())
	time.Sleep(time.Second)
	if used := ticks(t, s.Pid()) - before; used > 20 {
		t.Errorf("an idle child took %d ms of CPU in a second", used*10)
	}
}

// ticks of 10 ms that a process has computed.
func ticks(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		t.Fatal(err)
	}
	system, err := strconv.Atoi(fields[12])
	if err != nil {
		t.Fatal(err)
	}
	return user + system
}
