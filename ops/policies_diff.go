package ops

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/blobs"
	"github.com/nextstate-rl/nextstate/trainer"
)

// shortestPrefix of a version that Find takes for it.
const shortestPrefix = 4

// Find finds the version that begins with prefix, or the base model's name: then the version is nil.
func (p *Policies) Find(prefix string) (*PolicyVersion, error) {
	if prefix == policy.Base {
		return nil, nil //nolint:nilnil // the base model is no published version
	}
	var found *PolicyVersion
	for _, v := range p.All() {
		switch {
		case v.Version == prefix:
			return v, nil
		case len(prefix) < shortestPrefix || !strings.HasPrefix(v.Version, prefix):
		case found != nil:
			return nil, fmt.Errorf("several policy versions begin with %q: give more of the one that you mean", prefix)
		default:
			found = v
		}
	}
	if found == nil {
		return nil, fmt.Errorf("there is no policy version %.100q: 'nextstate policies list' names those that there are", prefix)
	}
	return found, nil
}

// PolicyDiff compares two versions.
type PolicyDiff struct {
	A string `json:"a"`
	B string `json:"b"`
	// Metrics by name, of A and of B; nil where a version has none of that name.
	Metrics map[string][2]*float64 `json:"metrics"`
	// NormA and NormB are the L2 norms of what each changes in the base model's weights, and Distance that of the difference.
	NormA    float64 `json:"weights_norm_a"`
	NormB    float64 `json:"weights_norm_b"`
	Distance float64 `json:"weights_distance"`
}

// MetricNames in the order of the alphabet.
func (d PolicyDiff) MetricNames() []string { return slices.Sorted(maps.Keys(d.Metrics)) }

// DiffPolicies compares two versions; nil is the base model.
func DiffPolicies(ctx context.Context, store *blobs.Directory, a, b *PolicyVersion) (PolicyDiff, error) {
	d := PolicyDiff{A: policy.Base, B: policy.Base, Metrics: map[string][2]*float64{}}
	var adapters [2]*trainer.Adapter
	for i, v := range []*PolicyVersion{a, b} {
		if v == nil {
			continue
		}
		*[]*string{&d.A, &d.B}[i] = v.Version
		for name, value := range v.Metrics {
			both := d.Metrics[name]
			both[i] = &value
			d.Metrics[name] = both
		}
		var err error
		if adapters[i], err = v.Adapter(ctx, store); err != nil {
			return d, err
		}
	}
	aa, bb, ab := product(adapters[0], adapters[0]), product(adapters[1], adapters[1]), product(adapters[0], adapters[1])
	d.NormA, d.NormB = math.Sqrt(aa), math.Sqrt(bb)
	d.Distance = math.Sqrt(max(0, aa+bb-2*ab)) // rounding may make it a little less than 0
	if math.IsNaN(d.Distance) {
		return d, errors.New("the weights hold numbers that are not finite")
	}
	return d, nil
}

// product is the sum over the elements of x's change of the weights times y's. With W = s B A per layer it is tr((Bx' By)(Ay Ax')) sx sy, which needs no
// matrix of the layer's own size. An adapter that is nil changes nothing.
func product(x, y *trainer.Adapter) float64 {
	if x == nil || y == nil {
		return 0
	}
	layers := map[string]int{}
	for i, l := range y.Layers {
		layers[l.PEFT] = i
	}
	sum := 0.0
	for i, l := range x.Layers {
		j, both := layers[l.PEFT]
		if !both || y.Layers[j].In != l.In || y.Layers[j].Out != l.Out {
			continue
		}
		for r := range x.Rank {
			for q := range y.Rank {
				var left, right float64
				for o := range l.Out {
					left += float64(x.B[i][o*x.Rank+r]) * float64(y.B[j][o*y.Rank+q])
				}
				for in := range l.In {
					right += float64(x.A[i][r*l.In+in]) * float64(y.A[j][q*l.In+in])
				}
				sum += left * right
			}
		}
	}
	return sum * x.Alpha / float64(x.Rank) * y.Alpha / float64(y.Rank)
}
