package ops

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// PolicySession is the session of all events about policy versions: those of a tenant are in one partition, in order.
const PolicySession = "policy"

// PolicyVersion is a published policy version with the update that made it.
type PolicyVersion struct {
	Version   string    `json:"version"`
	Parent    string    `json:"parent_version"`
	Published time.Time `json:"published"`
	Update    uint64    `json:"update"`
	UpdateID  string    `json:"update_id"`
	// SampleIDs, Objective, Seed and Engine are those of UpdateStarted; empty when the log and the history have it not.
	SampleIDs []string        `json:"sample_ids"`
	Objective json.RawMessage `json:"objective,omitempty"`
	Seed      uint64          `json:"seed"`
	Engine    string          `json:"engine"`

	BaseModel string `json:"base_model"`
	// Metrics by name, those that are finite.
	Metrics map[string]float64 `json:"metrics"`
	// SHA-256 of the files in the blob store, hexadecimal; Checkpoint may be empty.
	PEFT       string `json:"peft_sha256"`
	GGUF       string `json:"gguf_sha256"`
	Checkpoint string `json:"checkpoint_sha256,omitempty"`
	// RolledBack says why the version is not to be served; empty: it may be.
	RolledBack string `json:"rolled_back,omitempty"`
}

// Policies is what the topic policies says: every version of a tenant, and which is to be served. For one goroutine.
type Policies struct {
	tenant   string
	updates  map[string]*schemas.UpdateStarted
	versions map[string]*PolicyVersion
	// published are the versions in order; serve are those that may be served, the one to be served last.
	published, serve []string
	// restored are those that an operator went back to.
	restored map[string]bool
}

// NewPolicies is a topic that says nothing yet.
func NewPolicies(tenant string) *Policies {
	return &Policies{tenant: tenant, updates: map[string]*schemas.UpdateStarted{}, versions: map[string]*PolicyVersion{}, restored: map[string]bool{}}
}

// ReadPolicies reads the whole topic: from the log what it retains, from ClickHouse what it does not.
func ReadPolicies(ctx context.Context, s *System) (*Policies, error) {
	p := NewPolicies(s.Config.Tenant)
	return p, eachPolicyRecord(ctx, s, p.record)
}

// eachPolicyRecord reads the whole topic, of all tenants.
func eachPolicyRecord(ctx context.Context, s *System, do func(schemas.Record) error) error {
	log := s.gatewayLog()
	h := history{log: log}
	if s.ClickHouse != nil {
		h.store = sink.NewHistory(s.ClickHouse)
	}
	partitions, err := log.Bounds(ctx, schemas.TopicPolicies) // ClickHouse is asked only for what the log retains no longer: without it the policy is served
	if err != nil {
		return err
	}
	for partition := range partitions {
		if err := h.each(ctx, schemas.TopicPolicies, partition, do); err != nil {
			return err
		}
	}
	return nil
}

// record applies a record; one that is no event of ours is in the dead letters.
func (p *Policies) record(r schemas.Record) error {
	if e, err := schemas.Decode(r); err == nil {
		p.Apply(e)
	}
	return nil
}

// Apply takes the next event of the topic. An event that was there before has no effect.
func (p *Policies) Apply(e schemas.Event) {
	if e.Tenant != p.tenant || e.Session != PolicySession {
		return
	}
	switch payload := e.Payload.(type) {
	case *schemas.UpdateStarted:
		if _, known := p.updates[e.ID]; !known {
			p.updates[e.ID] = payload
		}
	case *schemas.PolicyPublished:
		p.publish(e, payload)
	case *schemas.PolicyRolledBack:
		p.rollBack(payload)
	}
}

func (p *Policies) publish(e schemas.Event, n *schemas.PolicyPublished) {
	if _, known := p.versions[e.ID]; known {
		return
	}
	v := &PolicyVersion{
		Version: e.ID, Parent: n.GetParentVersion(), Published: e.LogTime.UTC(), Update: n.GetUpdate(), UpdateID: n.GetUpdateId(), BaseModel: n.GetBaseModel(),
		Metrics: finite(n.GetMetrics()), PEFT: hex.EncodeToString(n.GetPeftSha256()), GGUF: hex.EncodeToString(n.GetGgufSha256()),
		Checkpoint: hex.EncodeToString(n.GetCheckpointSha256()), SampleIDs: []string{},
	}
	if u := p.updates[v.UpdateID]; u != nil {
		v.SampleIDs, v.Seed, v.Engine = append(v.SampleIDs, u.GetSampleIds()...), u.GetSeed(), u.GetEngine()
		if objective := []byte(u.GetObjective()); json.Valid(objective) {
			v.Objective = objective
		}
	}
	p.versions[e.ID] = v
	p.published = append(p.published, e.ID)
	if parent := p.versions[v.Parent]; parent != nil && parent.RolledBack != "" {
		v.RolledBack = "it descends from " + v.Parent + ", which was rolled back"
		return
	}
	p.serve = append(p.serve, e.ID)
}

// rollBack withdraws the versions between the two and all that descend from them, and puts the older one back. One that was never published cannot be put
// back, and nothing changes; the trainer sees it in the same way.
func (p *Policies) rollBack(n *schemas.PolicyRolledBack) {
	to := p.versions[n.GetToVersion()]
	if to == nil && n.GetToVersion() != policy.Base {
		return
	}
	reason := n.GetReason()
	if reason == "" {
		reason = "no reason was given"
	}
	for _, id := range p.path(n.GetFromVersion(), n.GetToVersion()) {
		p.versions[id].RolledBack = reason
	}
	for _, id := range p.published { // parents come before their children
		v := p.versions[id]
		if parent := p.versions[v.Parent]; v.RolledBack == "" && parent != nil && parent.RolledBack != "" {
			v.RolledBack = "it descends from " + v.Parent + ", which was rolled back"
		}
	}
	if to != nil {
		to.RolledBack = ""
		p.restored[to.Version] = true
	}
	p.serve = slices.DeleteFunc(p.serve, func(id string) bool {
		v := p.versions[id]
		return id == n.GetToVersion() || v != nil && v.RolledBack != ""
	})
	p.serve = append(p.serve, n.GetToVersion())
}

// path are the versions from one back to another, which is left out; only the first when the other is no ancestor of it.
func (p *Policies) path(from, to string) []string {
	var path []string
	id := from
	for ; id != to && p.versions[id] != nil && !slices.Contains(path, id); id = p.versions[id].Parent {
		path = append(path, id)
	}
	if id != to && len(path) > 1 {
		return path[:1]
	}
	return path
}

// Serve lists what may be served, best first: the newest version that was not rolled back, then those before it, and the base model at last.
func (p *Policies) Serve() []string {
	list := slices.Clone(p.serve)
	slices.Reverse(list)
	if !slices.Contains(list, policy.Base) {
		list = append(list, policy.Base)
	}
	return list
}

// Version finds a version.
func (p *Policies) Version(id string) (*PolicyVersion, bool) {
	v, known := p.versions[id]
	return v, known
}

// All are the versions in the order in which they were published.
func (p *Policies) All() []*PolicyVersion {
	all := make([]*PolicyVersion, len(p.published))
	for i, id := range p.published {
		all[i] = p.versions[id]
	}
	return all
}

// Ancestry is a version and what it descends from, newest first, without the base model.
func (p *Policies) Ancestry(id string) []*PolicyVersion {
	var list []*PolicyVersion
	for v := p.versions[id]; v != nil && !slices.Contains(list, v); v = p.versions[v.Parent] {
		list = append(list, v)
	}
	return list
}

// finite are the numbers that JSON can hold.
func finite(metrics map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for name, v := range metrics {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			out[name] = v
		}
	}
	return out
}
