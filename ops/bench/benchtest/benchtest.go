// Package benchtest is what the tests of benchmarks share.
//
// In: a test. Out: an Env of tiny sizes that the test works with, and the nextstate binary for those that start it.
//
// Invariant: a test that leaves something behind in the Env's folder fails.
package benchtest

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/bench"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// Env is an Env of tiny sizes, in a folder that has to be empty when the test ends.
func Env(t *testing.T) *bench.Env {
	t.Helper()
	dir, err := os.MkdirTemp("", "bench-test-") // not t.TempDir, whose folders the PostgreSQL user cannot enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Error(err)
		}
		for _, f := range left {
			t.Errorf("%s was left behind", f.Name())
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see above
		t.Fatal(err)
	}
	c := ops.Config{Tenant: "default", Sink: sink.DefaultConfig()}
	c.Kafka.Partitions, c.Gateway.Addr = 4, "127.0.0.1:0"
	c.Evaluate.Judges, c.Direct.Finders = []string{"rules"}, []string{"rules"}
	// Threads that wait for each other crawl beside the tests of other packages.
	c.Policy.Llama.Threads, c.Train.Threads = 1, 1
	c.Telemetry.Output = io.Discard
	c.Assets.Prefetched = os.Getenv("NEXTSTATE_ASSETS")
	return &bench.Env{
		Config: c, Dir: dir, Events: 600, Bytes: 1 << 20, Runs: 1, Seed: 3, Idle: time.Second,
		Logger: slog.New(slog.DiscardHandler), Progress: writer{t},
	}
}

// Binary builds nextstate and returns its path.
func Binary(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "nextstate")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/nextstate-rl/nextstate")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// writer shows progress in the test's log.
type writer struct{ t *testing.T }

// Write implements io.Writer.
func (w writer) Write(b []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(b))
	return len(b), nil
}
