package ops

import (
	"context"

	"github.com/nextstate-rl/nextstate/schemas"
)

// updateLog is what the topic policies says of the updates of a tenant: which samples they took, and whether they have ended. For one goroutine.
type updateLog struct {
	policies *Policies
	tenant   string
	// took names the update of a sample; ended are the updates that gave a version or were skipped.
	took  map[string]string
	ended map[string]bool
	fold  fold
}

func newUpdateLog(s *System) *updateLog {
	u := &updateLog{policies: NewPolicies(s.Config.Tenant), tenant: s.Config.Tenant, took: map[string]string{}, ended: map[string]bool{}}
	u.fold = fold{system: s, topic: schemas.TopicPolicies, apply: u.apply}
	return u
}

func (u *updateLog) apply(e schemas.Event) {
	if e.Tenant != u.tenant || e.Session != PolicySession {
		return
	}
	u.policies.Apply(e)
	switch p := e.Payload.(type) {
	case *schemas.UpdateStarted:
		for _, id := range p.GetSampleIds() {
			u.took[id] = e.ID
		}
	case *schemas.PolicyPublished:
		u.ended[p.GetUpdateId()] = true
	case *schemas.UpdateSkipped:
		u.ended[p.GetUpdateId()] = true
	}
}

// newest is the version that is to be served.
func (u *updateLog) newest() string { return u.policies.Serve()[0] }

// trained counts the samples whose update has ended.
func (u *updateLog) trained(ctx context.Context, ids []string) (int, error) {
	if err := u.fold.catchUp(ctx); err != nil {
		return 0, err
	}
	n := 0
	for _, id := range ids {
		if u.ended[u.took[id]] {
			n++
		}
	}
	return n, nil
}
