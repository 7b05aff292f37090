package trainer_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer"
)

// TestLoopRefuses: what cannot be trained is dead-lettered with the reason, and nothing waits for it. Method: one bad record of each kind among good ones.
func TestLoopRefuses(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	bad := map[string]func(s *schemas.SampleAssembled){
		"never published":       func(s *schemas.SampleAssembled) { s.PolicyVersion = proto.String("elsewhere") },
		"no token ids":          func(s *schemas.SampleAssembled) { s.Tokens.PromptIds = nil },
		"not in the vocabulary": func(s *schemas.SampleAssembled) { s.Tokens.ResponseIds[0] = tinyVocabulary },
		"more than max_tokens":  func(s *schemas.SampleAssembled) { s.Tokens.PromptIds = make([]uint32, 40) },
		"no top-k of its own": func(s *schemas.SampleAssembled) {
			s.Tokens.TopK, s.Teacher.LogprobsAtStudent = nil, nil
		},
		"sampling temperature is ": func(s *schemas.SampleAssembled) { s.Sampling.Temperature = nil },
	}
	n := 100
	for _, spoil := range bad {
		e := sampleEvent(n) // n%4 < 2: with a teacher
		n += 4
		spoil(sampleOf(e))
		r.add(e)
	}
	must(t, r.log.Append(t.Context(), schemas.Record{Topic: schemas.TopicSamples, Key: []byte("default/session-1"), Value: []byte("no event")}))
	r.add(schemas.Event{ID: schemas.ContentID("skip"), Source: "assemble/1", Tenant: "default", Session: "s", Payload: &schemas.TurnSkipped{TurnId: schemas.ContentID("x"), Reason: "none"}})
	r.samples(0, 4)
	r.run(schemas.TopicPolicies, publishedCount(1))
	reasons := r.deadReasons()
	for want := range bad {
		if !slices.ContainsFunc(reasons, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("no dead letter says %q: %q", want, reasons)
		}
	}
	if len(reasons) != len(bad)+1 || !slices.ContainsFunc(reasons, func(s string) bool { return strings.Contains(s, "cannot be decoded") }) {
		t.Errorf("%d dead letters for %d bad records: %q", len(reasons), len(bad)+1, reasons)
	}
	if u := updates(r.events(schemas.TopicPolicies)); len(u) != 1 || !slices.Equal(u[0].GetSampleIds(), []string{sampleID(0), sampleID(1), sampleID(2), sampleID(3)}) {
		t.Errorf("updates %v", u)
	}
}

// TestLoopForeign: what is nothing of this trainer's is left alone: it is in no update and no dead letter. Method: samples of another tenant, of a model behind
// an upstream (no policy version) and of imported logs (no tokens) among four that are trained; the counter tells how many were passed over. Then the other
// tenant's trainer works on the same log: its samples are trained, and no id equals one of the first.
func TestLoopForeign(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	for n := range 4 {
		theirs, relayed, imported := sampleEvent(100+n), sampleEvent(200+n), sampleEvent(300+n)
		theirs.Tenant = "acme"
		sampleOf(relayed).PolicyVersion = nil
		sampleOf(imported).Tokens, sampleOf(imported).Teacher = nil, nil
		r.add(theirs, relayed, imported, sampleEvent(n))
	}
	registry := prometheus.NewRegistry()
	var err error
	r.deps.Metrics, err = trainer.NewLoopMetrics(registry)
	must(t, err)
	r.run(schemas.TopicPolicies, publishedCount(1))
	if got := counted(t, registry, "trainer_samples_total", "foreign"); got != 12 {
		t.Errorf("%v samples were foreign", got)
	}
	first := r.events(schemas.TopicPolicies)

	r.cfg.Tenant, r.shelf = "acme", trainer.NewShelf()
	r.deps.Ledger, r.deps.Metrics = trainer.NewLedgerMemory(r.shelf), loopMetrics(t)
	r.run(schemas.TopicPolicies, publishedCount(2))
	if reasons := r.deadReasons(); len(reasons) != 0 {
		t.Errorf("dead letters: %q", reasons)
	}
	all := r.events(schemas.TopicPolicies)
	u := updates(all)
	if len(u) != 2 || !slices.Equal(u[0].GetSampleIds(), []string{sampleID(0), sampleID(1), sampleID(2), sampleID(3)}) ||
		!slices.Equal(u[1].GetSampleIds(), []string{sampleID(100), sampleID(101), sampleID(102), sampleID(103)}) || u[1].GetParentVersion() != "base" {
		t.Errorf("updates %v", u)
	}
	for _, e := range all[len(first):] {
		if e.Tenant != "acme" || slices.ContainsFunc(first, func(other schemas.Event) bool { return other.ID == e.ID }) {
			t.Errorf("%s %s of tenant %s among the other tenant's", e.Kind(), e.ID, e.Tenant)
		}
	}
}

// counted is the value of a counter with a label.
func counted(t *testing.T, registry *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := registry.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// TestLoopStale: a sample that too many versions have overtaken is dead-lettered. Method: a bound of one version, nine samples of the base: after the second
// version the ninth is two versions old.
func TestLoopStale(t *testing.T) {
	r := newRig(t, tinyEngine(t), 1)
	r.cfg.MaxStaleness = 1
	r.samples(0, 9)
	r.run(schemas.TopicDeadLetters, func(events []schemas.Event) bool { return len(events) > 0 })
	if got := len(versions(r.events(schemas.TopicPolicies))); got != 2 {
		t.Errorf("%d versions", got)
	}
	if reasons := r.deadReasons(); len(reasons) != 1 || !strings.Contains(reasons[0], "2 policy versions old") {
		t.Errorf("dead letters: %q", reasons)
	}
}
