package bench_test

import (
	"bytes"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/bench"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// TestMain is the ClickHouse child as well.
func TestMain(m *testing.M) {
	clickhouse.MaybeChild()
	llama.MaybeChild()
	bench.MaybeChild()
	os.Exit(m.Run())
}

// env is an Env of tiny sizes.
func env(t *testing.T) *bench.Env {
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
	c.Telemetry.Output = io.Discard
	c.Assets.Prefetched = os.Getenv("NEXTSTATE_ASSETS")
	return &bench.Env{
		Config: c, Dir: dir, Events: 600, Bytes: 1 << 20, Runs: 1, Seed: 3, Idle: time.Second,
		Logger: slog.New(slog.DiscardHandler), Progress: testWriter{t},
	}
}

// testWriter shows progress in the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(b))
	return len(b), nil
}

// TestBenchmarks shows that every benchmark that runs in this process does its work and compares with a baseline. Method: a tiny size on real
// servers; the benchmarks themselves check that nothing is missing and that the replay is equal. The figures are looked at for being
// figures only: no test depends on the speed of the machine.
func TestBenchmarks(t *testing.T) {
	for _, b := range bench.Benchmarks() {
		if wholeProcess[b.Name] || b.Name == "train" { // its PyTorch is too large an installation for tests
			continue
		}
		t.Run(b.Name, func(t *testing.T) { run(t, env(t), b) })
	}
}

// wholeProcess are those that start the nextstate binary.
var wholeProcess = map[string]bool{"up": true, "memory": true, "crash": true, "crash-train": true}

func run(t *testing.T, e *bench.Env, b bench.Benchmark) {
	t.Helper()
	start := time.Now()
	report, err := e.Run(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s took %.1f s", b.Name, time.Since(start).Seconds())
	for _, r := range append([]bench.Result{report.Main}, report.More...) {
		t.Log(r)
		if r.Name == "" || r.Unit == "" {
			t.Errorf("%+v has no name or unit", r)
		}
		for _, v := range []float64{r.Value, r.Baseline, r.Ratio} {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				t.Errorf("%s: %v is no figure", r.Name, v)
			}
		}
	}
	if m := report.Main; m.Value <= 0 || m.Baseline <= 0 || m.Ratio <= 0 {
		t.Errorf("the main result is %+v", m)
	}
}

// TestUpAndMemory shows the same of the benchmarks that start the nextstate binary. Method: build it, and let them run it.
func TestUpAndMemory(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "nextstate")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/nextstate-rl/nextstate")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name := range wholeProcess {
		b, err := bench.ByName(name)
		if name == "crash" || name == "crash-train" {
			continue // they have tests of their own
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			e := env(t)
			e.Binary = binary
			run(t, e, b)
		})
	}
}

// TestByName shows that a wrong name is answered with the right ones. Method: ask.
func TestByName(t *testing.T) {
	if _, err := bench.ByName("speed"); err == nil || !bytes.Contains([]byte(err.Error()), []byte("sink")) {
		t.Errorf("the error is %v", err)
	}
}
