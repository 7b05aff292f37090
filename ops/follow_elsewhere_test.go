package ops_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/gateway"
)

// elsewhere is a policy engine on another machine that keeps two versions. It fails the first swaps, as a server that is starting does, and refuses one version.
type elsewhere struct {
	policy.Engine
	mu       sync.Mutex
	failures int
	refused  string
	versions []string
	folders  map[string]string // by version
}

func (e *elsewhere) Swap(_ context.Context, version, adapter string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.failures > 0:
		e.failures--
		return &gateway.PolicyError{Status: http.StatusServiceUnavailable, Message: "starting"}
	case version == e.refused:
		return &gateway.PolicyError{Status: http.StatusBadRequest, Message: "not for this model"}
	}
	e.folders[version] = adapter
	e.versions = slices.DeleteFunc(e.versions, func(v string) bool { return v == version })
	e.versions = slices.Insert(e.versions, 0, version)
	e.versions = e.versions[:min(2, len(e.versions))]
	return nil
}

// folder is where a version was last loaded from.
func (e *elsewhere) folder(version string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.folders[version]
}

func (e *elsewhere) Versions(context.Context) ([]gateway.Version, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []gateway.Version
	for _, v := range e.versions {
		list = append(list, gateway.Version{ID: v})
	}
	return list, nil
}

// Goal: a server elsewhere is given a folder as peft has it, again after it failed, never again what it refused; a rollback serves the older version; and folders
// of versions that it has no longer go. Method: an engine that keeps two versions, behind the real log, stores and gateway.
func TestPolicyFollowsElsewhere(t *testing.T) {
	s := open(t, config(t))
	engine := &elsewhere{failures: 3, versions: []string{"base"}, folders: map[string]string{}}
	s.Policy, s.Config.Policy.Engine, s.Config.Anonymous = engine, "openai", true
	p := newPublisher(t, s)
	url, _ := gatewayOf(t, s)
	first := p.publish(adapter(1))
	lists(t, url, first)
	exportedPEFT(t, engine.folder(first), adapter(1))
	second := p.publish(adapter(2))
	lists(t, url, second)
	engine.mu.Lock()
	engine.refused = p.next()
	engine.mu.Unlock()
	p.publish(adapter(4)) // refused: the next one is served all the same
	third := p.publish(adapter(3))
	lists(t, url, third)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // they go after the switch
		folders, err := os.ReadDir(filepath.Dir(engine.folder(third)))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range folders {
			names = append(names, f.Name())
		}
		if len(names) == 2 && slices.Contains(names, second) && slices.Contains(names, third) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("folders %v; want those of %s and %s", names, second, third)
		}
	}
	p.rollBack(first)
	lists(t, url, first)
	exportedPEFT(t, engine.folder(first), adapter(1))
	if err := ops.SetPin(t.Context(), s, "base"); err != nil {
		t.Fatal(err)
	}
	lists(t, url, "base")
}
