package bench_test

import (
	"bytes"
	"math"
	"os"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops/bench"
	"github.com/nextstate-rl/nextstate/ops/bench/benchtest"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

// TestMain is the children as well.
func TestMain(m *testing.M) {
	clickhouse.MaybeChild()
	llama.MaybeChild()
	onnx.MaybeChild()
	bench.MaybeChild()
	os.Exit(m.Run())
}

// TestBenchmarks shows that every benchmark that runs in this process does its work and compares with a baseline. Method: a tiny size on real
// servers; the benchmarks themselves check that nothing is missing and that the replay is equal. The figures are looked at for being
// figures only: no test depends on the speed of the machine.
func TestBenchmarks(t *testing.T) {
	for _, b := range bench.Benchmarks() {
		if wholeProcess[b.Name] || b.Name == "train" { // its PyTorch is too large an installation for tests
			continue
		}
		t.Run(b.Name, func(t *testing.T) { run(t, benchtest.Env(t), b) })
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
	binary := benchtest.Binary(t)
	for name := range wholeProcess {
		if name == "crash" || name == "crash-train" {
			continue // package crashtest has their tests
		}
		b, err := bench.ByName(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			e := benchtest.Env(t)
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
