package ops_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/cli"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
)

// Goal: of any order of publishing and rolling back it is clear what is to be served: the newest version that was not rolled back and does not descend from
// one that was. Method: words of the topic as letters; v1>v2 publishes v2 as the child of v1, v3<v1 rolls back from v3 to v1.
func TestPoliciesServe(t *testing.T) {
	for _, c := range []struct{ topic, serve, withdrawn string }{
		{"", "base", ""},
		{"base>a a>b", "b a base", ""},
		{"base>a base>a a>b", "b a base", ""},
		{"base>a a>b b>c c<a", "a base", "b c"},
		{"base>a a>b b<a b>c", "a base", "b c"}, // c was on its way
		{"base>a a>b b<a a>c", "c a base", "b"},
		{"base>a a>b b<a a>c c<b", "b a base", "c"}, // b is wanted again
		{"base>a a>b a<base", "base", "a b"},
		{"base>a a<base base>b", "b base", "a"},
		{"base>a a>b b<lost", "b a base", ""},
		{"base>a lost<base", "base a", ""},
		{"lost>a a>b b<base", "base a", "b"},
	} {
		p := ops.NewPolicies("default")
		for _, word := range strings.Fields(c.topic) {
			e := schemas.Event{Tenant: "default", Session: ops.PolicySession}
			if parent, version, published := strings.Cut(word, ">"); published {
				e.ID, e.Payload = version, &schemas.PolicyPublished{ParentVersion: parent}
			} else {
				from, to, _ := strings.Cut(word, "<")
				e.ID, e.Payload = word, &schemas.PolicyRolledBack{FromVersion: from, ToVersion: to}
			}
			p.Apply(e)
			e.Tenant = "other"
			if e.ID += "!"; e.Payload != nil {
				p.Apply(e) // another tenant's
			}
		}
		var withdrawn []string
		for _, v := range p.All() {
			if v.RolledBack != "" {
				withdrawn = append(withdrawn, v.Version)
			}
		}
		if got := strings.Join(p.Serve(), " "); got != c.serve || strings.Join(withdrawn, " ") != c.withdrawn {
			t.Errorf("%q: serve %q, withdrawn %v; want %q and %q", c.topic, got, withdrawn, c.serve, c.withdrawn)
		}
	}
}

// run runs a command of the command line with a data folder, and returns what it prints.
func run(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	var commands struct {
		cli.Globals
		Policies cli.Policies `cmd:""`
	}
	var out bytes.Buffer
	commands.Bind(&out, os.Stderr)
	args = append([]string{"--data", dir, "--addr", "none", "policies"}, args...)
	options, err := cli.Options(args)
	if err != nil {
		t.Fatal(err)
	}
	parser, err := kong.New(&commands, options...)
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := parser.Parse(args)
	if err != nil {
		t.Fatal(err)
	}
	chosen.BindTo(t.Context(), (*context.Context)(nil))
	err = chosen.Run(&commands.Globals)
	return out.String(), err
}

func mustRun(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := run(t, dir, args...)
	if err != nil {
		t.Fatalf("policies %v: %v\n%s", args, err, out)
	}
	return out
}

// Goal: the commands say of versions what the log, the history and the blob store hold, and change what is served by an event or the pin. Method: bundled
// transcripts through the real system, two versions published over their samples, every command as a person types it.
func TestPoliciesCommands(t *testing.T) {
	c := config(t)
	s := open(t, c)
	caughtUp(t, s, importDemo(t, s))
	p := newPublisher(t, s)
	p.samples = hinted(t, s)
	first, second := p.publish(adapter(1)), p.publish(adapter(2))
	caughtUp(t, s, func(context.Context) error { return nil })

	list := mustRun(t, c.Dir, "list")
	lines := strings.Split(strings.TrimSpace(list), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[1], second) || !strings.Contains(lines[1], first[:8]) || !strings.HasSuffix(lines[1], "to be served") ||
		!strings.HasPrefix(lines[3], "base") {
		t.Errorf("list:\n%s", list)
	}
	for _, want := range []string{second, first, "SmolLM2-135M-Instruct", `"kl_coef":0.1`, "reward_mean", "0.5"} {
		if show := mustRun(t, c.Dir, "show", second[:8]); !strings.Contains(show, want) {
			t.Errorf("show has no %q:\n%s", want, show)
		}
	}

	var diff ops.PolicyDiff
	decode(t, mustRun(t, c.Dir, "diff", first, "base", "--json"), &diff)
	if want := change(adapter(1), nil); math.Abs(diff.NormA-want) > 1e-6*want || diff.NormB != 0 || math.Abs(diff.Distance-want) > 1e-6*want {
		t.Errorf("from the base: %+v, want %v", diff, want)
	}
	decode(t, mustRun(t, c.Dir, "diff", first, second, "--json"), &diff)
	if want := change(adapter(1), adapter(2)); math.Abs(diff.Distance-want) > 1e-6*want || *diff.Metrics["loss"][0] != 1 || *diff.Metrics["loss"][1] != 0.5 {
		t.Errorf("between two: %+v, want %v", diff, want)
	}
	if text := mustRun(t, c.Dir, "diff", first, second); !strings.Contains(text, "-0.5") {
		t.Errorf("diff:\n%s", text)
	}

	var trace ops.PolicyTrace
	decode(t, mustRun(t, c.Dir, "trace", second, "--json"), &trace)
	if len(trace.Updates) != 2 || trace.Missing != 0 || len(trace.Updates[1].Samples) != len(p.samples) {
		t.Fatalf("trace: %+v", trace)
	}
	for i, r := range trace.Updates[0].Samples {
		if r.Sample != p.samples[i] || r.Hint == "" || r.Finder != "rules" || r.Score == nil || r.Judge != "rules" || r.Response == "" && len(r.Calls) == 0 || r.NextState == "" {
			t.Errorf("sample %d: %+v", i, r)
		}
	}
	if text := mustRun(t, c.Dir, "trace", second); strings.Count(text, "hint ") < 2 || !strings.HasSuffix(text, "base\n") {
		t.Errorf("trace:\n%s", text)
	}

	dir := filepath.Join(t.TempDir(), "out")
	mustRun(t, c.Dir, "export", first[:6], dir)
	exported(t, dir, adapter(1))

	mustRun(t, c.Dir, "rollback", first, "--reason", "worse", "--by", "me")
	mustRun(t, c.Dir, "pin", "base")
	if list := mustRun(t, c.Dir, "list"); !strings.Contains(list, "rolled back: worse") || !strings.Contains(list, "to be served, pinned") {
		t.Errorf("list after a rollback and a pin:\n%s", list)
	}
	if out := mustRun(t, c.Dir, "pin", "--none"); !strings.Contains(out, first) {
		t.Errorf("without a pin: %s", out)
	}
	for _, args := range [][]string{{"rollback", first, "--reason", "again"}, {"rollback", "none", "--reason", "x"}, {"pin", "none"}, {"pin"}, {"show", "base"}, {"show", "0"}, {"diff", first, "x"}} {
		if out, err := run(t, c.Dir, args...); err == nil {
			t.Errorf("policies %v gave no error:\n%s", args, out)
		}
	}
}

// hinted are the samples of turns with a hint.
func hinted(t *testing.T, s *ops.System) []string {
	t.Helper()
	rows, err := s.ClickHouse.Query(t.Context(), "SELECT toString(event_id) FROM sample_assembled WHERE hint != '' ORDER BY event_id LIMIT 5")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil || len(ids) < 2 {
		t.Fatalf("%d samples with a hint, %v", len(ids), err)
	}
	return ids
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
}

// change is the norm of the difference of two adapters' changes of the weights, computed with the whole matrices; nil changes nothing.
func change(a, b *trainer.Adapter) float64 {
	sum := 0.0
	for i, l := range a.Layers {
		delta := make([]float64, l.Out*l.In)
		for sign, x := range map[float64]*trainer.Adapter{1: a, -1: b} {
			if x == nil {
				continue
			}
			for o := range l.Out {
				for r := range x.Rank {
					scale := sign * x.Alpha / float64(x.Rank) * float64(x.B[i][o*x.Rank+r])
					for in := range l.In {
						delta[o*l.In+in] += scale * float64(x.A[i][r*l.In+in])
					}
				}
			}
		}
		for _, v := range delta {
			sum += v * v
		}
	}
	return math.Sqrt(sum)
}

// exported checks a folder as peft wants it, with the adapter for llama.cpp.
func exported(t *testing.T, dir string, want *trainer.Adapter) {
	t.Helper()
	exportedPEFT(t, dir, want)
	var gguf bytes.Buffer
	if err := want.WriteGGUF(&gguf); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "adapter.gguf")); err != nil || !bytes.Equal(b, gguf.Bytes()) {
		t.Errorf("the exported GGUF has %d bytes, want %d; %v", len(b), gguf.Len(), err)
	}
}

func exportedPEFT(t *testing.T, dir string, want *trainer.Adapter) {
	t.Helper()
	weights, err := os.ReadFile(filepath.Join(dir, "adapter_model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := trainer.ReadAdapter(bytes.NewReader(weights), int64(len(weights)))
	if err != nil || want.Fits(got) != nil || !slices.Equal(got.B[3], want.B[3]) {
		t.Errorf("exported weights: %v", err)
	}
	var config struct {
		Type string `json:"peft_type"`
		Rank int    `json:"r"`
	}
	b, err := os.ReadFile(filepath.Join(dir, "adapter_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	decode(t, string(b), &config)
	if config.Type != "LORA" || config.Rank != want.Rank {
		t.Errorf("exported configuration: %+v", config)
	}
}
