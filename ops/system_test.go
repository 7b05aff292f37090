package ops_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/ops/telemetry"
	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/producers/importers"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

func TestMain(m *testing.M) {
	clickhouse.MaybeChild()
	llama.MaybeChild()
	onnx.MaybeChild()
	maybeGatewayChild()
	maybeTrainChild()
	os.Exit(m.Run())
}

// config is that of an embedded system in a folder of the test's own.
func config(t *testing.T) ops.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "nextstate-ops-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // PostgreSQL's own user passes through
		t.Fatal(err)
	}
	c := ops.Config{Dir: filepath.Join(dir, "data"), Tenant: "default", Sink: sink.DefaultConfig()}
	c.Kafka.Partitions = 2
	c.Evaluate.Judges, c.Direct.Finders = []string{"rules"}, []string{"rules"}
	c.Gateway.Addr = "127.0.0.1:0"
	c.Telemetry = telemetry.Config{LogLevel: "error", MetricsAddr: "none"}
	return c
}

func open(t *testing.T, c ops.Config) *ops.System {
	t.Helper()
	s, err := ops.Open(t.Context(), c, ops.NeedAll, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// caughtUp runs the stages while do works, and until nothing lags.
func caughtUp(t *testing.T, s *ops.System, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := s.While(ctx, func(ctx context.Context) error {
		if err := do(ctx); err != nil {
			return err
		}
		return ops.WaitCaughtUp(ctx, s.Log, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func importDemo(t *testing.T, s *ops.System) func(context.Context) error {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, importers.Demo()); err != nil {
		t.Fatal(err)
	}
	files, err := importers.Files([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context) error {
		for _, f := range files {
			if _, err := importers.Import(ctx, importers.Options{Tenant: "default", EndSessions: true}, f, s.Log); err != nil {
				return err
			}
		}
		return nil
	}
}

func status(t *testing.T, s *ops.System) ops.Status {
	t.Helper()
	st, err := ops.ReadStatus(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestReplay. Goal: a replay equals what was derived, from Kafka and from ClickHouse; importing again changes nothing; and when the rules are
// others, the report says in words what they change. Method: the bundled transcripts twice through the real system, then replays, the last
// under a configuration that asks a model nobody asked.
func TestReplay(t *testing.T) {
	c := config(t)
	s := open(t, c)
	caughtUp(t, s, importDemo(t, s))
	before := status(t, s)
	caughtUp(t, s, importDemo(t, s))
	if after := status(t, s); after.Turns != before.Turns || after.Turns.Closed == 0 || after.Turns.Closed != after.Turns.Samples+after.Turns.Skipped {
		t.Errorf("turns after a second import: %+v, before: %+v; each closed turn is a sample or skipped", after.Turns, before.Turns)
	}
	for _, source := range []string{"auto", "kafka", "clickhouse"} {
		report, err := ops.Replay(t.Context(), s, ops.ReplayOptions{Source: source})
		if err != nil {
			t.Fatal(err)
		}
		if !report.Equal() || report.Same < 2*int64(before.Turns.Closed) {
			t.Errorf("replay from %s: %+v", source, report)
		}
	}
	if _, err := ops.Replay(t.Context(), s, ops.ReplayOptions{Source: "tape"}); err == nil {
		t.Error("an unknown source is taken")
	}

	s.Config.Evaluate.Judges = []string{"openai"}
	s.Config.Model = ops.ModelConfig{URL: "http://127.0.0.1:9/v1", Model: "never asked", Votes: 3, Concurrency: 1}
	report, err := ops.Replay(t.Context(), s, ops.ReplayOptions{MaxDifferences: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if report.Changed == 0 || report.Missing == 0 || int64(len(report.Differences)) != report.Changed+report.Missing || report.Extra != 0 {
		t.Errorf("a replay with other judges: %s, %d differences shown", report.Line(), len(report.Differences))
	}
	var words strings.Builder
	for _, d := range report.Differences {
		words.WriteString(d.String())
	}
	if !strings.Contains(words.String(), "rules votes") || !strings.Contains(words.String(), "+ (none)") {
		t.Errorf("the differences do not say what went:\n%s", words.String())
	}
}

// TestDeadLetters. Goal: what a stage cannot take is listed with its reason and bytes, and can be retried with one effect once its cause is
// mended. Method: a next state that comes before anything else of its session, which then ends, and a record that is no event; then the action comes, and
// the next state is retried twice.
func TestDeadLetters(t *testing.T) {
	s := open(t, config(t))
	caughtUp(t, s, func(ctx context.Context) error {
		c, err := client.New(s.Log, client.Config{Tenant: "default", Source: "test"})
		if err != nil {
			return err
		}
		early := c.Session("early")
		if err := early.NextState(ctx, []*schemas.Observation{client.Reply("no, that is wrong")}); err != nil {
			return err
		}
		if err := early.End(ctx, "over", nil); err != nil {
			return err
		}
		if err := s.Log.Append(ctx, schemas.Record{Topic: schemas.TopicInteractions, Key: []byte("x"), Value: []byte("\x00junk")}); err != nil {
			return err
		}
		return c.Close(ctx)
	})
	letters, err := ops.DeadLetters(t.Context(), s, ops.DeadLetterFilter{})
	if err != nil {
		t.Fatal(err)
	}
	var orphan ops.DeadLetter
	junk := 0
	for _, l := range letters {
		switch {
		case l.Session == "early":
			orphan = l
		case string(l.Letter.GetValue()) == "\x00junk":
			junk++
		}
	}
	if !strings.Contains(orphan.Reason, "without its action") || junk != 2 { // pair and the sink both refuse junk
		t.Fatalf("dead letters: %+v", letters)
	}
	closed := status(t, s).Turns.Closed
	caughtUp(t, s, func(ctx context.Context) error {
		c, err := client.New(s.Log, client.Config{Tenant: "default", Source: "test"})
		if err != nil {
			return err
		}
		if _, err := c.Session("early").Action(ctx, &schemas.ActionTaken{
			Kind: schemas.TurnKind_TURN_KIND_MAIN, Context: client.Context(client.User("2+2?")), Response: client.Assistant("5"),
		}); err != nil {
			return err
		}
		for range 2 {
			if id, err := ops.Retry(ctx, s.Log, orphan); err != nil || id == "" {
				t.Errorf("retry: id %q, %v", id, err)
			}
		}
		return c.Close(ctx)
	})
	if now := status(t, s).Turns.Closed; now != closed+1 {
		t.Errorf("%d turns are closed after the retry, want %d", now, closed+1)
	}
}

// TestAttach. Goal: a second process does not start servers in a folder that is in use; it works with those that run. Method: two systems, one
// folder; the second reads what the first wrote.
func TestAttach(t *testing.T) {
	c := config(t)
	first := open(t, c)
	caughtUp(t, first, importDemo(t, first))
	second := open(t, c)
	if !second.Attached || first.Attached {
		t.Errorf("attached: first %t, second %t", first.Attached, second.Attached)
	}
	if a, b := status(t, first).Turns, status(t, second).Turns; a != b || a.Closed == 0 {
		t.Errorf("the two see different turns: %+v and %+v", a, b)
	}
}
