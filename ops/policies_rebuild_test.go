package ops_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
// lost, which then are back; a version that was published with other files than its update gives is found out. Method: the real trainer, gateway and engines;
// two updates of two samples each; a third that names the same samples and the first one's files.
func TestPolicyRebuild(t *testing.T) {
	c := policyConfig(t)
	c.Train = ops.TrainConfig{Engine: ops.TrainONNX, Batch: 2, Rank: 4, Alpha: 8, Threads: 1, Seed: 3, MaxTokens: 128}
	s := open(t, c)
	appendSamples(t, s, 0, 2)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ops.RunStages(ctx, s, "gateway", "train") }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	first := published(t, s, 1)
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
	out := mustRun(t, c.Dir, "rebuild", second.Version, "--train-threads", "1", "--policy-model", c.Policy.Model)
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
