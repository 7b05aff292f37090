package ops_test

import (
	"testing"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/schemas"
)

// TestSummaryOfTraining. Goal: `tail policies` says what the trainer did, and nothing of a metric that is absent. Method: one event of each kind.
func TestSummaryOfTraining(t *testing.T) {
	for want, e := range map[string]schemas.Event{
		"update 3 of base, 2 samples, engine onnx":                {Payload: &schemas.UpdateStarted{Update: 3, ParentVersion: "base", SampleIds: []string{"a", "b"}, Engine: "onnx"}},
		"update 3 of small, loss 0.1235, gradient norm 2":         {Payload: &schemas.PolicyPublished{Update: 3, BaseModel: "small", Metrics: map[string]float64{"grad_norm": 2, "loss": 0.123456}}},
		"update 3 of small":                                       {Payload: &schemas.PolicyPublished{Update: 3, BaseModel: "small"}},
		"7f0c to base by ann: replies are shorter than they were": {Payload: &schemas.PolicyRolledBack{FromVersion: "7f0c", ToVersion: "base", By: "ann", Reason: "replies are shorter than they were"}},
	} {
		if got := ops.Summary(e); got != want {
			t.Errorf("summary %q, want %q", got, want)
		}
	}
}
