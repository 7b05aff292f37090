package policy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// loader loads and unloads adapters on a server, and samples with them.
type loader interface {
	gateway.Policy
	load(ctx context.Context, name, adapter string) error
	unload(ctx context.Context, name string) error
}

// version is one policy version as a server has it.
type version struct {
	id string
	// name is what the server knows it by: the base model's name or the adapter's; base tells them apart.
	name    string
	base    bool
	created time.Time
	// used orders the versions by their last use; busy counts the requests in work. Both under versions.mu.
	used uint64
	busy int
}

// versions is the table of what a server has loaded, the newest first. Safe for concurrent use.
type versions struct {
	model string // the base model's name
	keep  int

	swapping sync.Mutex // one swap at a time; held while the server loads

	mu    sync.Mutex
	list  []*version
	clock uint64
}

func newVersions(model string, keep int) *versions {
	return &versions{model: model, keep: keep, list: []*version{{id: Base, name: model, base: true, created: time.Now()}}}
}

// add puts a version that the server already has behind the newest ones.
func (v *versions) add(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !slices.ContainsFunc(v.list, func(o *version) bool { return o.id == name }) {
		v.list = append(v.list, &version{id: name, name: name, created: time.Now()})
	}
}

// begin finds the version of a request, which keeps it until end.
func (v *versions) begin(id string) (*version, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := 0
	if id != "" {
		if at = slices.IndexFunc(v.list, func(o *version) bool { return o.id == id }); at < 0 {
			return nil, unknownVersion(id)
		}
	}
	v.clock++
	found := v.list[at]
	found.used = v.clock
	found.busy++
	return found, nil
}

func (v *versions) end(o *version) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o.busy--
}

// gone forgets a version that the server no longer has, so that the next swap loads it again.
func (v *versions) gone(o *version) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !o.base {
		v.list = slices.DeleteFunc(v.list, func(x *version) bool { return x == o })
	}
}

func unknownVersion(id string) error {
	return &gateway.PolicyError{
		Status: http.StatusNotFound, Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("there is no policy version %.100q: /v1/models lists those that may be asked for, and %q is the newest", id, gateway.PolicyName),
	}
}

// all lists the versions, the newest first.
func (v *versions) all() []gateway.Version {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make([]gateway.Version, len(v.list))
	for i, o := range v.list {
		out[i] = gateway.Version{ID: o.id, Model: v.model, Created: o.created}
	}
	return out
}

// swap makes id the newest, loading adapter first unless it is there, and sampling a token with it. Requests in work are not touched: they name their version to the server.
func (v *versions) swap(ctx context.Context, l loader, id, adapter string) error {
	if id == "" {
		return &gateway.PolicyError{Status: http.StatusBadRequest, Message: "a policy version needs an id"}
	}
	v.swapping.Lock()
	defer v.swapping.Unlock()
	if v.promote(id) {
		return nil
	}
	if adapter == "" {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.list = slices.Insert(v.list, 0, &version{id: id, name: v.model, base: true, created: time.Now()})
		return nil
	}
	if err := v.makeRoom(ctx, l); err != nil {
		return err
	}
	if err := l.load(ctx, id, adapter); err != nil {
		return fmt.Errorf("loading the policy version %s: %w", id, err)
	}
	v.add(id) // behind the others: nobody is given it who does not ask for it
	if err := probe(ctx, l, id); err != nil {
		v.drop(id)
		return errors.Join(fmt.Errorf("trying the policy version %s: %w", id, err), l.unload(ctx, id))
	}
	v.promote(id)
	return nil
}

// probe samples one token with a version.
func probe(ctx context.Context, l loader, id string) error {
	one, word := uint32(1), &schemas.Part{Content: &schemas.Part_Text{Text: "Hello"}}
	_, err := l.Sample(ctx, &gateway.SampleRequest{
		Version: id, Messages: []*schemas.Message{{Role: schemas.Role_ROLE_USER, Parts: []*schemas.Part{word}}}, Sampling: &schemas.Sampling{MaxTokens: &one},
	}, func(gateway.Piece) error { return nil })
	return err
}

func (v *versions) drop(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.list = slices.DeleteFunc(v.list, func(o *version) bool { return o.id == id })
}

// promote moves a version that is loaded to the front.
func (v *versions) promote(id string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := slices.IndexFunc(v.list, func(o *version) bool { return o.id == id })
	if at < 0 {
		return false
	}
	o := v.list[at]
	v.list = slices.Insert(slices.Delete(v.list, at, at+1), 0, o)
	return true
}

// makeRoom unloads the adapter that is longest unused, when as many are loaded as are kept. One with requests in work stays: then there is one more.
func (v *versions) makeRoom(ctx context.Context, l loader) error {
	for {
		victim := v.victim()
		if victim == nil {
			return nil
		}
		if err := l.unload(ctx, victim.name); err != nil {
			return fmt.Errorf("unloading the policy version %s: %w", victim.id, err)
		}
	}
}

// victim takes the version to unload out of the table: nobody can begin with it any more.
func (v *versions) victim() *version {
	v.mu.Lock()
	defer v.mu.Unlock()
	adapters, at := 0, -1
	for i, o := range v.list {
		if o.base {
			continue
		}
		adapters++
		if o.busy == 0 && (at < 0 || o.used < v.list[at].used) {
			at = i
		}
	}
	if adapters < v.keep || at < 0 {
		return nil
	}
	o := v.list[at]
	v.list = slices.Delete(v.list, at, at+1)
	return o
}
