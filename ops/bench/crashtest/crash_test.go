package crashtest_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops/bench"
	"github.com/nextstate-rl/nextstate/ops/bench/benchtest"
	"github.com/nextstate-rl/nextstate/ops/embedded/apache"
)

// The flags of the kill tests: go test ./ops/bench/crashtest -crash.seed 7 -crash.kills 500 -timeout 1h
var (
	crashSeed  = flag.Uint64("crash.seed", 0, "seed of the kill tests; 0 takes a new one, which is logged")
	crashKills = flag.Int("crash.kills", 0, "kills of each kill test; 0 takes its own number")
)

// TestCrash shows that kill -9 of any stage, of the broker, of ClickHouse and of Postgres at any moment loses no acknowledged event, derives each
// event exactly once, and leaves the views right and no orphan behind: on the embedded servers, and on Apache Kafka with real ClickHouse and
// Postgres. Method: the real binary, each stage a process with a replica; kills at random moments while a load runs; then the history is
// compared with what was acknowledged, and with what derivation in memory makes of the log.
func TestCrash(t *testing.T) {
	binary := benchtest.Binary(t)
	t.Run("Embedded", func(t *testing.T) {
		crash(t, binary, bench.CrashPlan{Kills: 32, Pause: 800 * time.Millisecond}, "servers")
	})
	t.Run("Apache", func(t *testing.T) {
		cluster := apache.ForTest(t, 1, slog.New(slog.DiscardHandler))
		if cluster == nil {
			return
		}
		report := crash(t, binary, bench.CrashPlan{Kills: 24, Pause: 800 * time.Millisecond, Kafka: cluster}, "servers", "kafka")
		if report.Kills["kafka"] < 3 {
			t.Errorf("the broker was killed %d times, 3 are the least", report.Kills["kafka"])
		}
	})
}

// crashTargets are killed in every run, whatever its seed.
var crashTargets = []string{
	"stage pair", "stage evaluate+direct", "stage assemble", "stage clickhouse", "stage gateway", "clickhouse", "postgres",
}

// crash runs a plan with the flags' seed and kills, and wants no fault, every target hit, and that there was something to lose.
func crash(t *testing.T, binary string, plan bench.CrashPlan, more ...string) *bench.CrashReport {
	t.Helper()
	e := benchtest.Env(t)
	e.Binary, e.Seed = binary, *crashSeed
	for e.Seed == 0 {
		e.Seed = rand.Uint64N(1 << 32) //nolint:gosec // logged, so that the run can be done again
	}
	if *crashKills > 0 {
		plan.Kills = *crashKills
	}
	t.Logf("seed %d: the same targets and load again with -crash.seed %d", e.Seed, e.Seed)
	report, err := e.CrashRun(t.Context(), plan)
	if err != nil {
		t.Fatalf("seed %d: %v", e.Seed, err)
	}
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	if report.Killed() != plan.Kills {
		t.Errorf("%d kills, want %d", report.Killed(), plan.Kills)
	}
	if report.Acknowledged < 100 || report.Derived < report.Acknowledged || report.Hostile == 0 || report.Repeats == 0 {
		t.Errorf("this run shows little: %+v", report)
	}
	for _, target := range append(more, crashTargets...) {
		if report.Kills[target] == 0 {
			t.Errorf("%s was never killed: %v", target, report.Kills)
		}
	}
	return report
}

// TestCrashReport shows that a run with a fault is an error that says how to do it again, and a result that counts it. Method: a report by hand.
func TestCrashReport(t *testing.T) {
	clean := bench.CrashReport{CrashTally: bench.CrashTally{Seed: 7, Kills: map[string]int{"stage pair": 2, "postgres": 1}}}
	if err := clean.Err(); err != nil || clean.Killed() != 3 || clean.Result().Value != 0 {
		t.Errorf("a clean report: %v, %d kills, %v", err, clean.Killed(), clean.Result())
	}
	for _, key := range []string{"kills", "acknowledged", "lost", "duplicated", "seed"} {
		if _, ok := clean.Result().Extra[key]; !ok {
			t.Errorf("the result has no %s", key)
		}
	}
	if _, err := benchtest.Env(t).CrashRun(t.Context(), bench.CrashPlan{}); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a plan without kills: %v", err)
	}
}
