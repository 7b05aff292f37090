package ops_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/producers/blobs"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
)

// publisher appends to the topic policies as a trainer does: blobs first, then the event.
type publisher struct {
	t       *testing.T
	system  *ops.System
	store   *blobs.Directory
	updates uint64
	parent  string
	// samples and objective of every update.
	samples   []string
	objective string
}

func newPublisher(t *testing.T, s *ops.System) *publisher {
	t.Helper()
	store, err := blobs.Open(blobs.Config{Dir: s.Blobs()})
	if err != nil {
		t.Fatal(err)
	}
	return &publisher{t: t, system: s, store: store, parent: "base", objective: `{"kl_coef":0.1}`}
}

// smolLayers are two linears of each layer of SmolLM2-135M; in is the width of the hidden state.
func smolLayers(in int) []trainer.Layer {
	var layers []trainer.Layer
	for i := range 30 {
		layers = append(
			layers,
			trainer.Layer{PEFT: fmt.Sprintf("model.layers.%d.self_attn.q_proj", i), GGUF: fmt.Sprintf("blk.%d.attn_q", i), In: in, Out: in, Heads: 9},
			trainer.Layer{PEFT: fmt.Sprintf("model.layers.%d.mlp.down_proj", i), GGUF: fmt.Sprintf("blk.%d.ffn_down", i), In: 1536, Out: in},
		)
	}
	return layers
}

// adapter is a small random change of the model; the same seed gives the same one.
func adapter(seed uint64) *trainer.Adapter { return scaled(smolLayers(576), seed, 0.02) }

func scaled(layers []trainer.Layer, seed uint64, scale float64) *trainer.Adapter {
	a := trainer.NewAdapter(layers, 4, 8)
	a.Initialise(seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, b := range a.B {
		for i := range b {
			b[i] = float32(rng.NormFloat64() * scale)
		}
	}
	return a
}

// put keeps what write writes, and returns its hash.
func (p *publisher) put(write func(io.Writer) error) []byte {
	p.t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		p.t.Fatal(err)
	}
	sum, err := p.store.Put(p.t.Context(), b.Bytes())
	if err != nil {
		p.t.Fatal(err)
	}
	return sum[:]
}

// publish publishes an adapter as the child of the last version, and returns the new one.
func (p *publisher) publish(a *trainer.Adapter) string {
	p.t.Helper()
	return p.publishFiles(p.put(func(w io.Writer) error { return a.WritePEFT(w, "SmolLM2-135M-Instruct") }), p.put(a.WriteGGUF))
}

// nextUpdate and next are the ids of the next update and of the version that it makes.
func (p *publisher) nextUpdate() string {
	return schemas.DerivedID("trainer", "1", "UpdateStarted", fmt.Sprintf("%s/%d", p.parent, p.updates+1), 0)
}

func (p *publisher) next() string {
	return schemas.DerivedID("trainer", "1", "PolicyPublished", p.nextUpdate(), 0)
}

// publishFiles publishes files by their hashes.
func (p *publisher) publishFiles(peft, gguf []byte) string {
	p.t.Helper()
	update, version := p.nextUpdate(), p.next()
	p.updates++
	p.append(update, &schemas.UpdateStarted{Update: p.updates, ParentVersion: p.parent, SampleIds: p.samples, Objective: p.objective, Seed: 7, Engine: "test"})
	p.append(version, &schemas.PolicyPublished{
		Update: p.updates, UpdateId: update, ParentVersion: p.parent, PeftSha256: peft, GgufSha256: gguf, BaseModel: "SmolLM2-135M-Instruct",
		Metrics: map[string]float64{"loss": 1 / float64(p.updates), "reward_mean": 0.5, "samples": 16},
	})
	p.parent = version
	return version
}

func (p *publisher) append(id string, payload proto.Message) {
	p.t.Helper()
	r, err := schemas.Encode(schemas.Event{ID: id, Source: "trainer/1", Tenant: "default", Session: ops.PolicySession, Payload: payload})
	if err == nil {
		err = p.system.Log.Append(p.t.Context(), r)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *publisher) rollBack(version string) {
	p.t.Helper()
	policies, err := ops.ReadPolicies(p.t.Context(), p.system)
	if err == nil {
		_, err = ops.RollBack(p.t.Context(), p.system, policies, version, "worse", "test")
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// policyConfig is an embedded system with the embedded engine on one thread, without deriving anything.
func policyConfig(t *testing.T) ops.Config {
	t.Helper()
	c := config(t)
	c.Anonymous = true
	c.Policy.Library = assets.ForTest(t, assets.Llama)
	c.Policy.Model = filepath.Join(assets.ForTest(t, assets.SmolLM2), assets.SmolLM2File)
	c.Policy.Llama = llama.Config{Parallel: 4, Context: 256, Batch: 256, Threads: 1, Versions: 3}
	c.Direct.Teacher = ops.NoTeacher
	return c
}

// gatewayOf runs the gateway until the test ends or stop is called, and returns the URL of its API.
func gatewayOf(t *testing.T, s *ops.System) (url string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ops.RunStages(ctx, s, "gateway") }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the gateway: %v", err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-s.Listening():
	case err := <-ended:
		t.Fatalf("the gateway ended: %v", err)
	}
	return "http://" + s.Endpoints().HTTP + "/v1", stop
}

// answer is what a request came to.
type answer struct {
	status  int
	version string
	body    string
}

// chat asks for at most some tokens.
func chat(ctx context.Context, url, model, text string, tokens int) (answer, error) {
	body, err := json.Marshal(map[string]any{
		"model": model, "max_tokens": tokens, "messages": []map[string]string{{"role": "user", "content": text}},
	})
	if err != nil {
		return answer{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("X-Nextstate-Version"), string(b)}, err
}

// serves waits until new requests are answered by a version, and returns how long that took.
func serves(t *testing.T, url, version string) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		a, err := chat(t.Context(), url, "policy", "Hi", 1)
		if err != nil || a.status != http.StatusOK {
			t.Fatalf("a request: %+v, %v", a, err)
		}
		if a.version == version {
			return time.Since(began)
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("after 30 s version %s is served, not %s", a.version, version)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// lists waits until a version is the newest of the gateway's models, which new requests are answered by, and returns how long that took.
func lists(t *testing.T, url, version string) time.Duration {
	t.Helper()
	began := time.Now()
	for time.Since(began) < 30*time.Second {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Data []struct{ ID string } }
		err = json.NewDecoder(resp.Body).Decode(&list)
		if err := errors.Join(err, resp.Body.Close()); err != nil || len(list.Data) < 2 {
			t.Fatalf("the models: %+v, %v", list, err)
		}
		if list.Data[1].ID == version {
			return time.Since(began)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("after 30 s version %s is not the newest", version)
	return 0
}

// Goal: what is published is served, a broken version never is, a rollback and a pin hold, older versions can still be asked for, and a restart serves the
// same. Method: the real log, Postgres, gateway and engine; adapters that are whole, cut off, of another model, without numbers, or missing; every answer
// says its version.
func TestPolicyFollows(t *testing.T) {
	c := policyConfig(t)
	s := open(t, c)
	p := newPublisher(t, s)
	before := p.publish(adapter(1)) // while nobody serves
	url, stop := gatewayOf(t, s)
	if a, err := chat(t.Context(), url, "policy", "Hi", 1); err != nil || a.version != before {
		t.Errorf("the first request after the start: %+v, %v; version %s was published before", a, err, before)
	}
	first := p.publish(adapter(2))
	t.Logf("published to served: %v", serves(t, url, first))

	var whole bytes.Buffer
	if err := adapter(3).WriteGGUF(&whole); err != nil {
		t.Fatal(err)
	}
	missing := sha256.Sum256([]byte("never put"))
	peft := p.put(func(w io.Writer) error { return adapter(3).WritePEFT(w, "x") })
	broken := []string{
		p.publishFiles(peft, p.put(func(w io.Writer) error { _, err := w.Write(whole.Bytes()[:whole.Len()/2]); return err })),
		p.publish(scaled(smolLayers(540), 4, 0.02)),
		p.publish(scaled(smolLayers(576), 5, math.NaN())),
		p.publishFiles(peft, missing[:]),
	}
	second := p.publish(adapter(6)) // after them all: when it is served they were refused
	for range 2 {
		serves(t, url, second)
		for _, v := range broken {
			if a, err := chat(t.Context(), url, v, "Hi", 1); err != nil || a.status != http.StatusNotFound {
				t.Errorf("a broken version: %+v, %v", a, err)
			}
		}
	}
	last := p.publishFiles(peft, missing[:])
	if a, err := chat(t.Context(), url, first, "Hi", 1); err != nil || a.version != first {
		t.Errorf("an older version: %+v, %v", a, err)
	}

	p.rollBack(first)
	serves(t, url, first)
	p.publish(adapter(7)) // of the version that was rolled back: it is not served
	p.parent = first
	third := p.publish(adapter(8))
	serves(t, url, third)
	if err := ops.SetPin(t.Context(), s, before); err != nil {
		t.Fatal(err)
	}
	serves(t, url, before)
	fourth := p.publish(adapter(9))
	time.Sleep(2 * time.Second) // time enough to serve it, if it were to be
	serves(t, url, before)
	if err := ops.Unpin(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	serves(t, url, fourth)

	policies, err := ops.ReadPolicies(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := policies.Version(last); !ok || v.RolledBack != "worse" || policies.Serve()[0] != fourth || len(policies.All()) != 11 {
		t.Errorf("the topic says %+v, %v", v, policies.Serve())
	}
	stop()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, c)
	url, _ = gatewayOf(t, again)
	if a, err := chat(t.Context(), url, "policy", "Hi", 1); err != nil || a.version != fourth {
		t.Errorf("the first request after a restart: %+v, %v; want version %s", a, err, fourth)
	}
}

// Goal: 50 swaps under load drop no request and give no 5xx; a request has the version that was the newest when it began, to its end. Method: four clients
// ask all the time; each answer's version stands between the one that was the newest before the request and the one that was published last after it.
func TestPolicySwapsUnderLoad(t *testing.T) {
	s := open(t, policyConfig(t))
	p := newPublisher(t, s)
	url, _ := gatewayOf(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var mu sync.Mutex
	numbers, newest, answered := map[string]int{"base": 0}, 0, map[string]int{}
	answers := make(chan struct{}, 1000)
	for n := range 4 {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				mu.Lock()
				oldest := newest
				mu.Unlock()
				a, err := chat(ctx, url, "policy", fmt.Sprintf("Count to %d", n*1000+i), 8)
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				number, known := numbers[a.version]
				answered[a.version]++
				mu.Unlock()
				if err != nil || a.status != http.StatusOK || known && number < oldest {
					t.Errorf("a request during swaps: %+v, %v; its version is number %d, the newest before it was %d", a, err, number, oldest)
				}
				answers <- struct{}{}
			}
		})
	}
	const swaps = 50
	slowest, total := time.Duration(0), time.Duration(0)
	for i := 1; i <= swaps; i++ {
		version := p.publish(adapter(uint64(i % 8)))
		took := lists(t, url, version)
		slowest, total = max(slowest, took), total+took
		mu.Lock()
		numbers[version], newest = i, i
		mu.Unlock()
		<-answers
	}
	cancel()
	clients.Wait()
	t.Logf("%d swaps while versions %v answered; published to served %v in the mean, %v at most", swaps, slices.Collect(maps.Values(answered)), total/swaps, slowest)
	if len(answered) < 10 {
		t.Errorf("answers of only %d versions", len(answered))
	}
	for version := range answered {
		if _, published := numbers[version]; !published {
			t.Errorf("an answer of version %q, which was never published", version)
		}
	}
}
