package crashtest_test

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops/bench"
	"github.com/nextstate-rl/nextstate/ops/bench/benchtest"
	"github.com/nextstate-rl/nextstate/ops/embedded/apache"
)

// TestCrashTrain shows that kill -9 of a trainer, of its engine, of the broker and of Postgres at any moment uses each sample in exactly one update, publishes
// one version for each update, and leaves versions that are computed again from the log with the same bytes. Method: the real binary with two trainers, one of
// which waits for the other's ledger, on a tiny model; kills at random moments while samples come, some of them hostile or repeated; then ledger,
// log and blob store are compared, and `policies rebuild` computes the last version again.
func TestCrashTrain(t *testing.T) {
	binary := benchtest.Binary(t)
	t.Run("Embedded", func(t *testing.T) {
		crashTrain(t, binary, bench.CrashPlan{Kills: 20, Pause: 700 * time.Millisecond}, "trainer", "engine", "servers", "postgres")
	})
	t.Run("Apache", func(t *testing.T) {
		cluster := apache.ForTest(t, 1, slog.New(slog.DiscardHandler))
		if cluster == nil {
			return
		}
		crashTrain(t, binary, bench.CrashPlan{Kills: 16, Pause: 700 * time.Millisecond, Kafka: cluster}, "trainer", "engine", "servers", "postgres", "kafka")
	})
}

// crashTrain runs a plan with the flags' seed and kills, and wants no fault, every target hit, and that there was something to lose.
func crashTrain(t *testing.T, binary string, plan bench.CrashPlan, targets ...string) {
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
	report, err := e.CrashTrainRun(t.Context(), plan)
	if err != nil {
		t.Fatalf("seed %d: %v", e.Seed, err)
	}
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	if report.Killed() != plan.Kills {
		t.Errorf("%d kills, want %d", report.Killed(), plan.Kills)
	}
	if report.Samples < 50 || report.Updates < 15 || report.Versions != report.Updates || report.Rebuilt != report.Versions || report.Hostile == 0 ||
		report.Repeats == 0 || report.Takeovers < 3 {
		t.Errorf("this run shows little: %+v", report)
	}
	for _, target := range targets {
		if report.Kills[target] == 0 {
			t.Errorf("%s was never killed: %v", target, report.Kills)
		}
	}
}
