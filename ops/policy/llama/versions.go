package llama

import (
	"net/http"
	"slices"
	"time"

	"github.com/hybridgroup/yzma/pkg/llama"
)

// version is a policy version: a name for an adapter, or for none.
type version struct {
	name    string
	adapter llama.AdapterLora // 0: the base model
	users   int               // jobs that wait or run
	used    uint64            // the step when it was last asked for
	until   time.Time         // when another became the newest instead of it
}

// grace is how long a version stays after it was the newest, however many follow it: requests that were promised it are on their way.
const grace = 2 * time.Second

// versions are those that can be asked for, newest first. For the scheduler's goroutine.
type versions struct {
	list []*version
	max  int // adapters kept
}

func newVersions(keep int) versions { return versions{list: []*version{{name: Base}}, max: keep} }

// find returns the version by name; empty: the newest.
func (v *versions) find(name string) (*version, *failure) {
	if name == "" {
		return v.list[0], nil
	}
	for _, known := range v.list {
		if known.name == name {
			return known, nil
		}
	}
	return nil, &failure{
		Status: http.StatusNotFound, Code: "model_not_found", Param: "model",
		Message: "the policy version " + name + " is not loaded; ask for one that the list of models names, or for none to get the newest",
	}
}

// publish makes one the newest, known before or not.
func (v *versions) publish(one *version) {
	v.list[0].until = time.Now()
	if at := slices.Index(v.list, one); at >= 0 {
		v.list = slices.Delete(v.list, at, at+1)
	}
	v.list = slices.Insert(v.list, 0, one)
}

// surplus takes out of the list the versions that are too many, longest unused first; never one in use, the newest or just so, or Base.
func (v *versions) surplus() []*version {
	var gone []*version
	for {
		loaded, oldest := 0, -1
		for i, one := range v.list {
			if one.name == Base {
				continue
			}
			loaded++
			if i > 0 && one.users == 0 && time.Since(one.until) > grace && (oldest < 0 || one.used < v.list[oldest].used) {
				oldest = i
			}
		}
		if loaded <= v.max || oldest < 0 {
			return gone
		}
		gone = append(gone, v.list[oldest])
		v.list = slices.Delete(v.list, oldest, oldest+1)
	}
}

func (v *versions) names() []string {
	names := make([]string, len(v.list))
	for i, one := range v.list {
		names[i] = one.name
	}
	return names
}

// shared says whether a version of the list uses the adapter.
func (v *versions) shared(a llama.AdapterLora) bool {
	return slices.ContainsFunc(v.list, func(one *version) bool { return one.adapter == a })
}
