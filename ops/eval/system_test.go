package eval_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/eval"
	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/ops/telemetry"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

func TestMain(m *testing.M) {
	clickhouse.MaybeChild()
	llama.MaybeChild()
	onnx.MaybeChild()
	os.Exit(m.Run())
}

// driftMax bounds the KL of an update of the test, nats a token.
const driftMax = 0.1

// system is an embedded system in a folder of the test's own.
func system(t *testing.T) *ops.System {
	t.Helper()
	dir, err := os.MkdirTemp("", "nextstate-eval-test-")
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
	c.Policy.RecordTopK, c.Policy.Llama.Threads = 4, 1 // threads that wait for each other crawl when other tests take their processors
	c.Train.Batch, c.Train.Set = 2, []string{"recipe.max_kl=0.1"}
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

// TestEvaluate: a short evaluation with everything real. Goal, mechanically: every judged reply is an event, a row, and a line of the results; the policy was
// updated within the bound on its drift, and what the hinted teachers preferred became likelier; the history replays byte for byte, and the last
// version is computed again to the same bytes; the frozen arm stays what it was; a second call holds no run again and says the same, as does one
// for a report of what is complete. Method: two joint
// sessions of two personas, arms hybrid and frozen, one seed.
func TestEvaluate(t *testing.T) {
	s := system(t)
	cfg := eval.Config{
		Arms: []string{"hybrid", "frozen"}, Seeds: 1, Personas: []string{"student", "ta"}, Half: personas.Tuning, Sessions: 2, Turns: 2, HeldOut: 1,
		Temperature: 0.6, MaxTokens: 48, Dir: filepath.Join(t.TempDir(), "out"), Command: "nextstate eval",
	}
	var told bytes.Buffer
	results, err := eval.Evaluate(t.Context(), cfg, s, &told)
	if err != nil {
		t.Fatalf("%v\n%s", err, told.String())
	}
	if len(results.Runs) != 2 {
		t.Fatalf("%d runs", len(results.Runs))
	}
	hybrid, frozen := results.Runs[0], results.Runs[1]
	checkRun(t, s, hybrid)
	checkRun(t, s, frozen)
	if hybrid.Updates == 0 || frozen.Updates != 0 {
		t.Errorf("%d updates, and %d of the frozen policy", hybrid.Updates, frozen.Updates)
	}
	checkFiles(t, cfg.Dir, results)
	checkLearning(t, s, hybrid.Tenant, int(hybrid.Updates))
	checkReplay(t, s, hybrid.Tenant, frozen.Tenant)

	told.Reset()
	again, err := eval.Evaluate(t.Context(), cfg, s, &told)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(told.String(), "2 of 2 runs are complete already") || strings.Contains(told.String(), "session") {
		t.Errorf("the second call told:\n%s", told.String())
	}
	if !reflect.DeepEqual(again, results) {
		t.Errorf("the second call found %+v, the first %+v", again, results)
	}

	cfg.Arms, cfg.ReportOnly = []string{"hybrid", "directive", "frozen"}, true
	partial, err := eval.Evaluate(t.Context(), cfg, s, &told)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(partial.Runs, results.Runs) {
		t.Errorf("a report of what is complete is about %+v, want %+v", partial.Runs, results.Runs)
	}
	cfg.Arms = []string{"directive"}
	if _, err := eval.Evaluate(t.Context(), cfg, s, &told); err == nil || !strings.Contains(err.Error(), "without --report-only") {
		t.Errorf("nothing is complete, and: %v", err)
	}
}

// count asks the history for a number.
func count(t *testing.T, s *ops.System, query string, args ...any) (n uint64) {
	t.Helper()
	if err := s.ClickHouse.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// checkRun holds the run's rows against what the policy was asked: every main reply that was longer than the last word's was judged, first ones in each session.
func checkRun(t *testing.T, s *ops.System, r eval.RunResult) {
	t.Helper()
	if r.Outcome != "sessions" || r.Sessions != 2 || len(r.AlignedAt) != 0 {
		t.Errorf("%s: %s after %d sessions, aligned %v", r.Arm, r.Outcome, r.Sessions, r.AlignedAt)
	}
	for _, phase := range []string{"live", "held_out"} {
		for _, persona := range []string{"student", "ta"} {
			want := map[string]uint64{"live": 2, "held_out": 1}[phase]
			if got := r.Replies[phase][persona]; got.N != want || got.BaseLogprob == nil || *got.BaseLogprob >= 0 {
				t.Errorf("%s: %s replies to the %s: %+v", r.Arm, phase, persona, got)
			}
		}
	}
	judged := count(t, s, "SELECT count() FROM reply_evaluated WHERE tenant = ? AND phase = 'live'", r.Tenant)
	events := count(t, s, "SELECT count() FROM events WHERE tenant = ? AND kind = 'ReplyEvaluated'", r.Tenant)
	rows := count(t, s, "SELECT count() FROM reply_evaluated WHERE tenant = ?", r.Tenant)
	// A session's main turns are its judged replies and the reply to the last word.
	turns := count(t, s, "SELECT toUInt64(count() - uniqExact(session)) FROM turn_closed WHERE tenant = ?", r.Tenant)
	if judged < 4 || judged != turns || events != rows {
		t.Errorf("%s: %d judged replies, %d turns; %d events, %d rows", r.Arm, judged, turns, events, rows)
	}
	if total := r.Seconds["total"]; !(total > 0) || !(r.Seconds["decode"] > 0) || r.Seconds["other"] > total {
		t.Errorf("%s: the time went to %v", r.Arm, r.Seconds)
	}
}

func checkFiles(t *testing.T, dir string, r *eval.Results) {
	t.Helper()
	for _, f := range r.Files {
		if info, err := os.Stat(f); err != nil || info.Size() == 0 || filepath.Dir(f) != dir {
			t.Errorf("%s: %v", f, err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var read eval.Results
	if err := json.Unmarshal(b, &read); err != nil || len(read.Runs) != len(r.Runs) || read.Runs[0].Tenant != r.Runs[0].Tenant {
		t.Errorf("results.json: %v, %+v", err, read)
	}
}

// checkLearning holds the newest version of a run against the base model, on the samples that it learned from.
func checkLearning(t *testing.T, s *ops.System, tenant string, updates int) {
	t.Helper()
	c := s.Config
	c.Tenant = tenant
	own, err := ops.Open(t.Context(), c, ops.NeedAll, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	}()
	policies, err := ops.ReadPolicies(t.Context(), own)
	if err != nil {
		t.Fatal(err)
	}
	all := policies.All()
	if len(all) != updates {
		t.Fatalf("%d versions of %d updates", len(all), updates)
	}
	trained := map[string]bool{}
	for _, v := range all {
		if kl, ok := v.Metrics["step_kl"]; !ok || kl > driftMax {
			t.Errorf("update %d drifted by %v nats a token, at most %v was set", v.Update, kl, driftMax)
		}
		for _, id := range v.SampleIDs {
			trained[id] = true
		}
	}
	newest, ok := policies.Version(policies.Serve()[0])
	if !ok {
		t.Fatalf("version %s is not known", policies.Serve()[0])
	}
	store, err := own.OpenBlobs()
	if err != nil {
		t.Fatal(err)
	}
	var sum [32]byte
	if _, err := hex.Decode(sum[:], []byte(newest.GGUF)); err != nil {
		t.Fatal(err)
	}
	adapter, err := store.File(t.Context(), sum)
	if err != nil {
		t.Fatal(err)
	}
	if err := own.Policy.Swap(t.Context(), newest.Version, adapter); err != nil {
		t.Fatal(err)
	}
	gain, hinted := 0.0, 0
	for _, e := range samplesOf(t, own, tenant) {
		if p := e.Payload.(*schemas.SampleAssembled); trained[e.ID] && p.GetTeacher() != nil { //nolint:forcetypeassert // samplesOf gives no other
			gain += preferred(t, own.Policy, newest.Version, p)
			hinted++
		}
	}
	if hinted == 0 || !(gain > 0) {
		t.Errorf("what the teachers of %d hinted samples preferred gained %v nats", hinted, gain)
	}
	same := false
	if err := ops.RebuildPolicy(t.Context(), own, policies, newest, func(r ops.RebuiltVersion) { same = r.Same() }); err != nil || !same {
		t.Errorf("the newest version, computed again: the same %v, %v", same, err)
	}
}

// preferred is by how much the tokens that a hinted teacher prefers became likelier from the base model to a version, and the others less likely: the sum over
// the student's likeliest tokens of (p_teacher - p_base) (l_version - l_base), nats a token.
func preferred(t *testing.T, engine policy.Engine, version string, p *schemas.SampleAssembled) float64 {
	t.Helper()
	k := int(p.GetTokens().GetTopK().GetK())
	r := &policy.ScoreRequest{
		Version: policy.Base, Prompt: p.GetTokens().GetPromptIds(), Response: p.GetTokens().GetResponseIds(), Temperature: p.GetSampling().GetTemperature(),
	}
	for i := range r.Response {
		r.At = append(r.At, p.GetTokens().GetTopK().GetIds()[i*k:(i+1)*k])
	}
	base, err := engine.Score(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.Version = version
	now, err := engine.Score(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i, row := range base.At {
		for j, l := range row {
			teacher := math.Exp(float64(p.GetTeacher().GetLogprobsAtStudent()[i*k+j]))
			sum += (teacher - math.Exp(float64(l))) * float64(now.At[i][j]-l)
		}
	}
	return sum / float64(len(r.Response))
}

// samplesOf reads a tenant's samples from the log.
func samplesOf(t *testing.T, s *ops.System, tenant string) (all []schemas.Event) {
	t.Helper()
	bounds, err := s.Log.Bounds(t.Context(), schemas.TopicSamples)
	if err != nil {
		t.Fatal(err)
	}
	for partition, b := range bounds {
		cursor, err := s.Log.Open(t.Context(), schemas.TopicSamples, partition, b.First)
		if err != nil {
			t.Fatal(err)
		}
		for next := b.First; next < b.Next; {
			records, err := cursor.Next(t.Context(), 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				next = r.Offset + 1
				e, err := schemas.Decode(r)
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := e.Payload.(*schemas.SampleAssembled); ok && e.Tenant == tenant {
					all = append(all, e)
				}
			}
		}
		if err := cursor.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// checkReplay derives everything again: of all runs at once, and of each alone.
func checkReplay(t *testing.T, s *ops.System, tenants ...string) {
	t.Helper()
	replay := func(tenant string) ops.ReplayReport {
		report, err := ops.Replay(t.Context(), s, ops.ReplayOptions{Tenant: tenant})
		if err != nil || !report.Equal() || report.Derived < 10 {
			t.Errorf("tenant %q: %v: %s %+v", tenant, err, report.Line(), report.Differences)
		}
		return report
	}
	all := replay("")
	for _, tenant := range tenants {
		own := replay(tenant)
		all.Events -= own.Events
		all.Derived -= own.Derived
	}
	if all.Events != 0 || all.Derived != 0 {
		t.Errorf("the runs together lack %d interactions and %d derived events", all.Events, all.Derived)
	}
}

// TestEvaluateStops: an evaluation that is stopped says how it goes on, and its run is begun anew under another tenant. Method: the context ends at the first line
// that names the run; then the history is asked for attempts, and another one is stopped.
func TestEvaluateStops(t *testing.T) {
	s := system(t)
	cfg := eval.Config{
		Arms: []string{"frozen"}, Seeds: 1, Personas: []string{"student"}, Half: personas.Tuning, Sessions: 2, Turns: 1,
		Temperature: 0.6, MaxTokens: 20, Dir: t.TempDir(),
	}
	attempt := func(at string) string {
		t.Helper()
		ctx, stop := context.WithCancelCause(t.Context())
		told := &stopper{at: at, stop: func() { stop(errors.New("enough")) }}
		if _, err := eval.Evaluate(ctx, cfg, s, told); err == nil || !strings.Contains(told.text.String(), "stopped after 0 of 1 runs") {
			t.Fatalf("stopped with %v\n%s", err, told.text.String())
		}
		return told.text.String()
	}
	first := attempt("session  1")
	if second := attempt("session  1"); strings.Contains(first, "-2)") || !strings.Contains(second, "-2)") {
		t.Errorf("the first attempt told:\n%s\nthe second:\n%s", first, second)
	}
	if n := count(t, s, "SELECT count() FROM evaluation_ended"); n != 0 {
		t.Errorf("%d runs ended", n)
	}
}

// stopper stops at a text.
type stopper struct {
	at   string
	stop func()
	text bytes.Buffer
}

func (s *stopper) Write(b []byte) (int, error) {
	s.text.Write(b)
	if strings.Contains(s.text.String(), s.at) {
		s.stop()
	}
	return len(b), nil
}
