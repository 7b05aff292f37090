package ops_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/telemetry"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// trainChildVariable makes the test binary a trainer: its arguments are the data folder of running servers and the model.
const trainChildVariable = "NEXTSTATE_TEST_TRAIN_CHILD"

func maybeTrainChild() {
	if os.Getenv(trainChildVariable) == "" {
		return
	}
	ctx := context.Background() // until it is killed
	c := ops.Config{Dir: os.Args[1], Tenant: "default", Sink: sink.DefaultConfig(), Train: tinyTraining()}
	c.Evaluate.Judges, c.Direct.Finders = []string{"rules"}, []string{"rules"}
	c.Policy.Model = os.Args[2]
	c.Telemetry = telemetry.Config{LogLevel: "error", MetricsAddr: "none"}
	s, err := ops.Open(ctx, c, ops.NeedLog|ops.NeedPostgres|ops.AttachOnly, os.Stderr)
	if err == nil {
		err = errors.Join(ops.RunStages(ctx, s, "train"), s.Close())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// tinyTraining takes samples of the base however old they are.
func tinyTraining() ops.TrainConfig {
	return ops.TrainConfig{Engine: ops.TrainONNX, Batch: 2, Wait: time.Hour, Rank: 2, Alpha: 4, Threads: 1, Seed: 3, MaxTokens: 64, MaxStaleness: 1000}
}

// tinyModel writes a model of the llama family with one block, random weights, and room for the tokens of appendSamples.
func tinyModel(t *testing.T) string {
	t.Helper()
	const hidden, heads, kv, size, ffn, vocabulary = 16, 4, 2, 4, 24, 2000
	r := rand.New(rand.NewPCG(3, 4))
	var tensors []gguf.Source
	for _, tensor := range []struct {
		name  string
		shape []int
	}{
		{"token_embd.weight", []int{hidden, vocabulary}},
		{"output_norm.weight", []int{hidden}},
		{"blk.0.attn_norm.weight", []int{hidden}},
		{"blk.0.ffn_norm.weight", []int{hidden}},
		{"blk.0.attn_q.weight", []int{hidden, heads * size}},
		{"blk.0.attn_k.weight", []int{hidden, kv * size}},
		{"blk.0.attn_v.weight", []int{hidden, kv * size}},
		{"blk.0.attn_output.weight", []int{heads * size, hidden}},
		{"blk.0.ffn_gate.weight", []int{hidden, ffn}},
		{"blk.0.ffn_up.weight", []int{hidden, ffn}},
		{"blk.0.ffn_down.weight", []int{ffn, hidden}},
	} {
		n := 1
		for _, d := range tensor.shape {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * 0.3)
			if len(tensor.shape) == 1 {
				x[i]++
			}
		}
		tensors = append(tensors, gguf.Source{Name: tensor.name, Shape: tensor.shape, Chunks: gguf.Numbers(x)})
	}
	var out bytes.Buffer
	err := gguf.Write(&out, []gguf.Pair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "llama.block_count", Value: uint32(1)},
		{Key: "llama.embedding_length", Value: uint32(hidden)},
		{Key: "llama.attention.head_count", Value: uint32(heads)},
		{Key: "llama.attention.head_count_kv", Value: uint32(kv)},
		{Key: "llama.feed_forward_length", Value: uint32(ffn)},
		{Key: "llama.context_length", Value: uint32(64)},
	}, tensors)
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err == nil {
		err = os.WriteFile(path, out.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// trainerChild starts a trainer as a process of its own.
func trainerChild(t *testing.T, dir, model string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir, model)
	cmd.Env = append(os.Environ(), trainChildVariable+"=1")
	said := &bytes.Buffer{}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, said
}

// begunUpdates counts them in the ledger.
func begunUpdates(t *testing.T, s *ops.System) (n int) {
	t.Helper()
	if err := s.Postgres.QueryRow(t.Context(), `SELECT count(*) FROM updates`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Goal: a trainer that is killed with SIGKILL, whenever that is, trains each sample once and ends with the weights that its log gives. Method: the real servers
// and the real training engine on a tiny model; sixty samples come slowly while trainer after trainer is killed, fifteen in all, each a random moment after none to two updates of its own; a last one
// finishes. The ledger and the log then name every sample once, the versions are a chain without a gap, and every version, computed again from the log
// alone, has the same bytes.
func TestTrainerKills(t *testing.T) {
	const samples, kills = 60, 15
	c := config(t)
	c.Policy.Model, c.Train = tinyModel(t), tinyTraining()
	s := open(t, c)
	random := rand.New(rand.NewPCG(1, 2))
	var feeding errgroup.Group
	feeding.Go(func() error {
		for n := range samples {
			appendSamples(t, s, n, n+1)
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	})
	for range kills {
		cmd, said := trainerChild(t, c.Dir, c.Policy.Model)
		target := min(begunUpdates(t, s)+random.IntN(3), samples/2-1)
		for deadline := time.Now().Add(time.Minute); begunUpdates(t, s) < target; time.Sleep(2 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("a trainer did not get to update %d in a minute", target)
			}
		}
		time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Errorf("a trainer ended by itself: %v: %s", err, said)
		}
		_ = cmd.Wait() // killed
	}
	if err := feeding.Wait(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ops.RunStages(ctx, s, "train") }()
	newest := published(t, s, samples/2)
	var rows, open, outbox int
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := s.Postgres.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM update_samples), (SELECT count(*) FROM updates WHERE status <> 'published'), (SELECT count(*) FROM trainer_outbox)`).
			Scan(&rows, &open, &outbox)
		if err != nil || rows != samples || open != 0 || time.Now().After(deadline) {
			t.Fatalf("the ledger holds %d samples of %d, %d updates without a version, %d events that were not delivered; %v", rows, samples, open, outbox, err)
		}
		if outbox == 0 {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	p, err := ops.ReadPolicies(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	count, parent := map[string]int{}, "base"
	for i, v := range p.All() {
		if v.Update != uint64(i+1) || v.Parent != parent {
			t.Errorf("version %d is of update %d, from %s", i+1, v.Update, v.Parent)
		}
		parent = v.Version
		for _, id := range v.SampleIDs {
			count[id]++
		}
	}
	for n := range samples {
		if id := schemas.ContentID("rebuild", fmt.Sprint(n)); count[id] != 1 {
			t.Errorf("sample %d counts %d times", n, count[id])
		}
	}
	var same, other []string
	err = ops.RebuildPolicy(t.Context(), s, p, newest, func(r ops.RebuiltVersion) {
		if r.Same() {
			same = append(same, fmt.Sprint(r))
		} else {
			other = append(other, fmt.Sprint(r))
		}
	})
	if err != nil || len(same) != samples/2 || len(other) != 0 {
		t.Errorf("%d versions computed again have the same bytes, others: %s; %v", len(same), strings.Join(other, "\n"), err)
	}
}
