package ops_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/cli"
	"github.com/nextstate-rl/nextstate/schemas"
)

// appendSamples appends samples as assemble does, each of a session of its own: a few tokens and a reward.
func appendSamples(t *testing.T, s *ops.System, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		var prompt, response []uint32
		var logprobs []float32
		for i := range 12 {
			prompt = append(prompt, uint32(100+37*i+n))
			response = append(response, uint32(500+91*i+n))
			logprobs = append(logprobs, -2)
		}
		r, err := schemas.Encode(schemas.Event{
			ID: schemas.ContentID("rebuild", fmt.Sprint(n)), Source: "assemble/1", Tenant: "default", Session: fmt.Sprintf("session-%d", n),
			Payload: &schemas.SampleAssembled{
				TurnId: schemas.ContentID("turn", fmt.Sprint(n)), Kind: schemas.SampleKind_SAMPLE_KIND_EVALUATIVE, Reward: float64(1 - 2*(n%2)),
				Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}, Model: "SmolLM2-135M-Instruct", PolicyVersion: proto.String("base"),
				Tokens:   &schemas.Tokens{PromptIds: prompt, ResponseIds: response, LogprobsSampled: logprobs},
				Sampling: &schemas.Sampling{Temperature: proto.Float64(1)},
			},
		})
		if err == nil {
			err = s.Log.Append(t.Context(), r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Goal: what the trainer publishes is served by the gateway, and is computed again from the log with the same bytes, also when the files of the blob store are
// lost, of which those that were asked for are back; a version that was published with other files than its update gives is found out. The training engine starts at the first minibatch,
// and a version computed again on another number of threads is the same. Method: the real trainer, gateway and engines, which train because the
// embedded policy is served; two updates of two samples each on one thread, computed again where two are the default; a third that names the same samples
// and the first one's files.
func TestPolicyRebuild(t *testing.T) {
	c := policyConfig(t)
	c.Train = ops.TrainConfig{Engine: ops.TrainAuto, Batch: 2, Rank: 4, Alpha: 8, Threads: 1, Seed: 3, MaxTokens: 128}
	s := open(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ops.RunStages(ctx, s, "gateway", "train") }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	claimed(t, s)
	if n := trainingEngines(t); n != 0 {
		t.Errorf("%d training engines before the first minibatch", n)
	}
	appendSamples(t, s, 0, 2)
	first := published(t, s, 1)
	if n := trainingEngines(t); n != 1 || first.Engine != "onnx" {
		t.Errorf("%d training engines after the first update, which says %q", n, first.Engine)
	}
	appendSamples(t, s, 2, 4)
	second := published(t, s, 2)
	<-s.Listening()
	lists(t, "http://"+s.Endpoints().HTTP+"/v1", second.Version)
	if second.Parent != first.Version || first.Parent != "base" || second.GGUF == first.GGUF {
		t.Errorf("published %+v and %+v", first, second)
	}
	for _, v := range []*ops.PolicyVersion{first, second} {
		for _, hash := range []string{v.PEFT, v.GGUF, v.Checkpoint} {
			if err := os.Remove(filepath.Join(s.Blobs(), hash[:2], hash[2:4], hash)); err != nil {
				t.Fatal(err)
			}
		}
	}
	out := mustRun(t, c.Dir, "rebuild", second.Version, "--store", "--train-threads", "2", "--policy-model", c.Policy.Model)
	if strings.Count(out, "the same bytes") != 2 || !strings.Contains(out, "update 2 of 2 samples") {
		t.Errorf("rebuild:\n%s", out)
	}
	mustRun(t, c.Dir, "export", second.Version, t.TempDir())
	if list := mustRun(t, c.Dir, "list"); strings.Count(list, " served") != 1 || strings.Count(list, " loaded") != 2 {
		t.Errorf("list:\n%s", list)
	}

	p := newPublisher(t, s)
	p.parent, p.updates, p.samples, p.objective = second.Version, 2, second.SampleIDs, string(second.Objective)
	forged := p.publishFiles(sum(t, first.PEFT), sum(t, first.GGUF))
	out, err := run(t, c.Dir, "rebuild", forged, "--train-threads", "1", "--policy-model", c.Policy.Model)
	if !errors.Is(err, cli.ErrPartly) || strings.Count(out, "the same bytes") != 2 || strings.Count(out, "other bytes") != 1 {
		t.Errorf("rebuild of a version with other files: %v\n%s", err, out)
	}
}

// Goal: by default a process trains only what it serves. Method: the stage train of systems without the embedded policy ends at once; of one whose gateway is
// not in the process, it claims no ledger and ends with its context.
func TestTrainAuto(t *testing.T) {
	for name, set := range map[string]func(*ops.Config){
		"no policy": func(c *ops.Config) { c.Policy.Engine = ops.NoPolicy }, "an upstream": func(c *ops.Config) { c.Gateway.Upstream.URL = "http://127.0.0.1:1/v1" },
		"no engine": func(c *ops.Config) { c.Train.Engine = ops.NoTraining },
	} {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			c.Train.Engine = ops.TrainAuto
			set(&c)
			if err := ops.RunStages(t.Context(), open(t, c), "train"); err != nil {
				t.Error(err)
			}
		})
	}
	c := config(t)
	c.Train.Engine, c.Policy.Model = ops.TrainAuto, tinyModel(t)
	s := open(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := ops.RunStages(ctx, s, "train"); err != nil || ctx.Err() == nil {
		t.Errorf("without a gateway the trainer ended early: %v", err)
	}
	if n := trainers(t, s); n != 0 {
		t.Errorf("without a gateway %d ledgers were claimed", n)
	}
}

// trainers counts the ledgers that were ever claimed.
func trainers(t *testing.T, s *ops.System) (n int) {
	t.Helper()
	if err := s.Postgres.QueryRow(t.Context(), "SELECT count(*) FROM trainers").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// claimed waits until the trainer works.
func claimed(t *testing.T, s *ops.System) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); trainers(t, s) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the trainer did not claim its ledger within a minute")
		}
	}
}

// trainingEngines counts the children of this process that are training engines.
func trainingEngines(t *testing.T) (n int) {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range list {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		_, after, _ := strings.Cut(string(text), ") ") // the name may hold anything
		if fields := strings.Fields(after); len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		args, err := os.ReadFile(filepath.Join(filepath.Dir(stat), "cmdline"))
		if err == nil && strings.HasPrefix(string(args), "nextstate-train") {
			n++
		}
	}
	return n
}

// sum is a hash as it stands in an event.
func sum(t *testing.T, hash string) []byte {
	t.Helper()
	b, err := hex.DecodeString(hash)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// published waits for the version of an update.
func published(t *testing.T, s *ops.System, update int) *ops.PolicyVersion {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		p, err := ops.ReadPolicies(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if all := p.All(); len(all) >= update {
			return all[update-1]
		}
	}
	t.Fatalf("update %d was not published within a minute", update)
	return nil
}
