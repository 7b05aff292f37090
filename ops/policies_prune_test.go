package ops_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/schemas"
)

// file puts a small blob and returns its hash.
func (p *publisher) file(text string) []byte {
	p.t.Helper()
	return p.put(func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
}

// there says whether the blob store has a file.
func there(t *testing.T, s *ops.System, sum []byte) bool {
	t.Helper()
	name := hex.EncodeToString(sum)
	matches, err := filepath.Glob(filepath.Join(s.Blobs(), name[:2], name[2:4], name))
	if err != nil {
		t.Fatal(err)
	}
	return len(matches) == 1
}

// Goal: pruning deletes the files of the versions that nobody needs and no other file; what was half done is ended; doing it again changes nothing; going back
// to a pruned version is refused with the remedy. Method: seven versions with each reason to stay, files that two versions share, also of two tenants, one file
// that is gone already; the commands as a person types them.
func TestPoliciesPrune(t *testing.T) {
	c := config(t)
	s := open(t, c)
	p := newPublisher(t, s)
	peft, gguf, ids := map[int][]byte{}, map[int][]byte{}, map[int]string{}
	publish := func(n int, weights string) {
		peft[n], gguf[n] = p.file(fmt.Sprint("peft ", n)), p.file(weights)
		ids[n] = p.publishFiles(peft[n], gguf[n])
	}
	for n := 1; n <= 4; n++ {
		publish(n, fmt.Sprint("gguf ", n))
	}
	p.rollBack(ids[2])
	p.parent = ids[2]
	publish(5, "gguf 5")
	publish(6, "gguf of 6 and 7")
	publish(7, "gguf of 6 and 7")
	if err := ops.SetPin(t.Context(), s, ids[1]); err != nil {
		t.Fatal(err)
	}
	begunFrom(t, s, ids[3])
	publishedByOther(t, s, peft[4])
	if err := os.Remove(filepath.Join(s.Blobs(), hex.EncodeToString(peft[6])[:2], hex.EncodeToString(peft[6])[2:4], hex.EncodeToString(peft[6]))); err != nil {
		t.Fatal(err)
	}

	for _, step := range []struct {
		args   []string
		pruned []int
		stay   bool
	}{
		{[]string{"--keep", "7"}, nil, true},
		{[]string{"--keep", "1", "--dry-run"}, []int{4, 5}, true},
		{[]string{"--keep", "1"}, []int{4, 5}, false},
		{[]string{"--keep", "1"}, nil, false},
	} {
		var done ops.Pruning
		if err := json.Unmarshal([]byte(mustRun(t, c.Dir, append([]string{"prune", "--json"}, step.args...)...)), &done); err != nil {
			t.Fatal(err)
		}
		var pruned []int
		for _, v := range done.Pruned {
			pruned = append(pruned, int(v.Update))
		}
		if !slices.Equal(pruned, step.pruned) || done.Bytes != int64(len(pruned)*len("gguf 4")+len(pruned)/2*len("peft 5")) {
			t.Errorf("%v: pruned %v and %d bytes, want %v", step.args, pruned, done.Bytes, step.pruned)
		}
		for n := 1; n <= 7; n++ {
			if has, want := there(t, s, gguf[n]), step.stay || n != 4 && n != 5; has != want {
				t.Errorf("%v: the weights of version %d are there: %v", step.args, n, has)
			}
			if has, want := there(t, s, peft[n]), n != 6 && (step.stay || n != 5); has != want { // another tenant needs that of 4
				t.Errorf("%v: the adapter of version %d is there: %v", step.args, n, has)
			}
		}
	}

	list := mustRun(t, c.Dir, "list")
	for n := 1; n <= 7; n++ {
		for line := range strings.Lines(list) {
			if strings.HasPrefix(line, ids[n]) && strings.Contains(line, "pruned") != (n >= 4 && n <= 6) {
				t.Errorf("list: %s", line)
			}
		}
	}
	for _, args := range [][]string{{"rollback", ids[5], "--reason", "test"}, {"pin", ids[5]}, {"export", ids[5], t.TempDir()}, {"diff", ids[5], "base"}} {
		if _, err := run(t, c.Dir, args...); err == nil || !strings.Contains(err.Error(), "policies rebuild "+ids[5]+" --store") {
			t.Errorf("%v: %v", args, err)
		}
	}
	if _, err := run(t, c.Dir, "prune", "--keep=-1"); err == nil {
		t.Error("--keep -1 was accepted")
	}
}

// begunFrom writes an update that is under way into the ledger.
func begunFrom(t *testing.T, s *ops.System, parent string) {
	t.Helper()
	if _, err := s.Postgres.Exec(t.Context(), "INSERT INTO trainers (tenant) VALUES ('default')"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Postgres.Exec(t.Context(), "INSERT INTO updates (tenant, number, update_id, parent, status, started, started_at) VALUES ('default', 1, $1, $2, 'started', '', now())",
		schemas.NewID(), parent)
	if err != nil {
		t.Fatal(err)
	}
}

// publishedByOther publishes a version of another tenant with a file.
func publishedByOther(t *testing.T, s *ops.System, sum []byte) {
	t.Helper()
	r, err := schemas.Encode(schemas.Event{
		ID: schemas.NewID(), Source: "trainer/1", Tenant: "other", Session: ops.PolicySession,
		Payload: &schemas.PolicyPublished{Update: 1, UpdateId: schemas.NewID(), ParentVersion: "base", PeftSha256: sum, GgufSha256: sum, BaseModel: "m"},
	})
	if err == nil {
		err = s.Log.Append(t.Context(), r)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Goal: the trainer prunes as it publishes, and goes on; what is computed again and stored stays and can be pinned, until it is released. Method: the real trainer
// that keeps one version, three updates, the real commands.
func TestTrainerPrunes(t *testing.T) {
	c := config(t)
	c.Policy.Model = policyConfig(t).Policy.Model
	c.Train = ops.TrainConfig{Engine: ops.TrainONNX, Batch: 2, Rank: 4, Alpha: 8, Threads: 1, Seed: 3, MaxTokens: 128, Keep: 1}
	s := open(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ops.RunStages(ctx, s, "train") }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	var versions []*ops.PolicyVersion
	update := func() {
		n := len(versions)
		appendSamples(t, s, 2*n, 2*n+2)
		versions = append(versions, published(t, s, n+1))
	}
	weights := func(v *ops.PolicyVersion, want int) {
		t.Helper()
		n := 0
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			n = 0
			for _, hash := range []string{v.PEFT, v.GGUF, v.Checkpoint} {
				if there(t, s, sum(t, hash)) {
					n++
				}
			}
			if n == want {
				return
			}
		}
		t.Errorf("%d files of version %d are there, want %d", n, v.Update, want)
	}
	update()
	update()
	weights(versions[0], 0)
	flags := []string{"--train-threads", "1", "--policy-model", c.Policy.Model}
	if out := mustRun(t, c.Dir, append([]string{"rebuild", versions[0].Version}, flags...)...); strings.Count(out, "the same bytes") != 1 {
		t.Errorf("rebuild:\n%s", out)
	}
	weights(versions[0], 0)
	mustRun(t, c.Dir, append([]string{"rebuild", versions[0].Version, "--store"}, flags...)...)
	update()
	weights(versions[1], 0)
	weights(versions[0], 3)
	mustRun(t, c.Dir, "pin", versions[0].Version)
	mustRun(t, c.Dir, "prune", "--keep", "1", "--rebuilt")
	weights(versions[0], 3)
	mustRun(t, c.Dir, "pin", "--none")
	mustRun(t, c.Dir, "prune", "--keep", "1", "--rebuilt")
	weights(versions[0], 0)
	weights(versions[2], 3)
}
