package ops_test

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/keys"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// serving is a policy engine that only says which versions it has.
type serving struct {
	policy.Engine
	versions []gateway.Version
}

func (s serving) Versions(context.Context) ([]gateway.Version, error) { return s.versions, nil }
func (serving) Swap(context.Context, string, string) error            { return nil }

// trained are the events of two updates that have a sample in common: the first, number 1, published a version; the second, number 3, has only begun, and
// number 2 is not known.
func trained(t *testing.T, s *ops.System) (version string) {
	t.Helper()
	event := func(id string, p schemas.Event) schemas.Record {
		p.ID, p.Source, p.Tenant, p.Session = id, "trainer/1", "default", "policy"
		r, err := schemas.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first, version, second := schemas.DerivedID("trainer", "1", "UpdateStarted", "base/1", 0), schemas.DerivedID("trainer", "1", "PolicyPublished", "x", 0),
		schemas.DerivedID("trainer", "1", "UpdateStarted", "x/3", 0)
	sample, base := schemas.NewID(), policy.Base
	err := s.Log.Append(t.Context(),
		event(sample, schemas.Event{Payload: &schemas.SampleAssembled{
			TurnId: schemas.NewID(), Kind: schemas.SampleKind_SAMPLE_KIND_EVALUATIVE, Reward: -1, Response: client.Assistant("5"), PolicyVersion: &base,
		}}),
		event(first, schemas.Event{Payload: &schemas.UpdateStarted{Update: 1, ParentVersion: policy.Base, SampleIds: []string{sample}, Objective: "{}", Engine: "onnx"}}),
		event(version, schemas.Event{Payload: &schemas.PolicyPublished{
			Update: 1, UpdateId: first, ParentVersion: policy.Base, PeftSha256: make([]byte, 32), GgufSha256: make([]byte, 32), BaseModel: "small",
			Metrics: map[string]float64{"loss": 0.5, "grad_norm": 2, "kl": math.NaN()},
		}}),
		event(second, schemas.Event{Payload: &schemas.UpdateStarted{Update: 3, ParentVersion: version, SampleIds: []string{sample, schemas.NewID()}, Objective: "{}", Engine: "onnx"}}))
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// TestStatusOfTraining. Goal: status says which sessions are open, how the turns of each version were judged, and what each
// update did; also while there is nothing yet. Method: a real system; turns of two versions, one session of them ended; the events of two updates.
func TestStatusOfTraining(t *testing.T) {
	s := open(t, config(t))
	if st := status(t, s); len(st.Updates) != 0 || len(st.Versions) != 0 || st.Sessions != (ops.SessionCounts{}) {
		t.Errorf("status of nothing: %+v", st)
	}
	version := trained(t, s)
	caughtUp(t, s, func(ctx context.Context) error {
		c, err := client.New(s.Log, client.Config{Tenant: "default", Source: "test"})
		if err != nil {
			return err
		}
		for name, v := range map[string]string{"old": policy.Base, "new": version} {
			session := c.Session(name)
			if _, err := session.Action(ctx, &schemas.ActionTaken{
				Kind: schemas.TurnKind_TURN_KIND_MAIN, Model: "small", PolicyVersion: &v, Context: client.Context(client.User("2+2?")), Response: client.Assistant("5"),
			}); err != nil {
				return err
			}
			if err := session.NextState(ctx, []*schemas.Observation{client.Reply("No, that is wrong. Add them properly.")}); err != nil {
				return err
			}
		}
		if err := c.Session("old").End(ctx, "over", nil); err != nil {
			return err
		}
		return c.Close(ctx)
	})
	st := status(t, s)
	if st.Updates[0].Skipped != "" {
		t.Errorf("an update in work was skipped: %+v", st.Updates[0])
	}
	caughtUp(t, s, func(ctx context.Context) error {
		skipped, err := schemas.Encode(schemas.Event{
			ID: schemas.NewID(), Source: "trainer/1", Tenant: "default", Session: "policy",
			Payload: &schemas.UpdateSkipped{Update: 3, UpdateId: st.Updates[0].ID, ParentVersion: version, Reason: "not finite"},
		})
		if err != nil {
			return err
		}
		return s.Log.Append(ctx, skipped)
	})
	if st = status(t, s); st.Updates[0].Skipped != "not finite" || st.Updates[1].Skipped != "" {
		t.Errorf("skipped updates %+v", st.Updates)
	}
	if st.Sessions != (ops.SessionCounts{Open: 1, Ended: 1}) || st.Recent.Bad != 2 || st.Recent.Good+st.Recent.Neutral+st.Recent.Unjudged != 0 {
		t.Errorf("sessions %+v, recent %+v: one of two sessions ended, and both turns are bad", st.Sessions, st.Recent)
	}
	if len(st.Updates) != 2 || st.Updates[0].Update != 3 || st.Updates[0].Samples != 2 || st.Updates[0].Version != "" || len(st.Updates[0].Metrics) != 0 ||
		st.Updates[1].Version != version || st.Updates[1].Published == nil || len(st.Updates[1].Metrics) != 2 || st.Updates[1].Metrics["loss"] != 0.5 {
		t.Errorf("updates %+v", st.Updates)
	}
	if len(st.Versions) != 2 || st.Versions[0].ID != version || *st.Versions[0].Update != 1 || st.Versions[0].Turns != 1 || *st.Versions[0].MeanScore != -1 ||
		st.Versions[1].ID != policy.Base || *st.Versions[1].Update != 0 || st.Versions[1].Bad != 1 {
		t.Errorf("versions %+v", st.Versions)
	}
	var first, second int64
	err := s.ClickHouse.QueryRow(t.Context(), "SELECT maxIf(staleness, update = 1), maxIf(staleness, update = 3) FROM staleness WHERE sampled_by = 'base' HAVING count() = 2").Scan(&first, &second)
	if err != nil || first != 0 || second != 1 {
		t.Errorf("staleness %d and %d, %v: one version was published between the two updates", first, second, err)
	}
}

// TestServing. Goal: status finds out what the gateway serves, says how when the gateway wants a key, and marks the versions; as JSON too. Method: the real gateway
// with an engine that has three versions, one of which the history does not know.
func TestServing(t *testing.T) {
	s, version := open(t, config(t)), schemas.NewID()
	if got, err := ops.ReadServing(t.Context(), s, ""); err != nil || got.URL != "" || got.Error != "" {
		t.Errorf("serving without a gateway: %+v, %v", got, err)
	}
	s.Policy = serving{versions: []gateway.Version{{ID: "unknown", Model: "small"}, {ID: version, Model: "small"}, {ID: policy.Base, Model: "small"}}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return ops.RunStages(ctx, s, "gateway") })
	select {
	case <-s.Listening():
	case <-ctx.Done():
		t.Fatal(running.Wait())
	}
	// Without Config.Anonymous the gateway wants a key.
	if got, err := ops.ReadServing(ctx, s, ""); err != nil || !strings.Contains(got.Error, "--key") {
		t.Errorf("serving without a key: %+v, %v", got, err)
	}
	store, err := keys.New(s.Postgres, keys.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.AddTenant(ctx, "default"); err != nil {
		t.Fatal(err)
	}
	_, key, err := store.Create(ctx, "default", "status")
	if err != nil {
		t.Fatal(err)
	}
	got, err := ops.ReadServing(ctx, s, key)
	if err != nil || got.Error != "" || got.Model != "small" || got.Version != "unknown" || !slices.Equal(got.Loaded, []string{"unknown", version, policy.Base}) {
		t.Errorf("serving: %+v, %v", got, err)
	}
	update := uint64(1)
	st := ops.Status{Versions: []ops.VersionStatus{{ID: version, Update: &update}}}
	st.Serve(got)
	if len(st.Versions) != 3 || st.Versions[0].ID != version || st.Versions[0].Served || !st.Versions[0].Loaded || st.Versions[1].ID != policy.Base || !st.Versions[2].Served || st.Versions[2].ID != "unknown" {
		t.Errorf("versions with what is served: %+v", st.Versions)
	}
	if b, err := json.Marshal(st); err != nil || !strings.Contains(string(b), `"served":true`) {
		t.Errorf("as JSON: %s, %v", b, err)
	}
	cancel()
	if err := running.Wait(); err != nil {
		t.Error(err)
	}
}
