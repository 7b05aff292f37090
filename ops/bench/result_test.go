package bench_test

import (
	"encoding/json"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/bench"
)

// TestReportJSON shows that what programs read is there under its names: the main result at the top, its extras beside it, others below "more".
// Method: marshal and read back.
func TestReportJSON(t *testing.T) {
	b, err := json.Marshal(bench.Report{
		Main: bench.Result{Name: "sink", Unit: "rows/s", Value: 7, Baseline: 10, Ratio: 0.7, Extra: map[string]any{"records": 3, "name": "no"}},
		More: []bench.Result{{Name: "other", Unit: "ms", Value: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Name, Unit             string
		Value, Baseline, Ratio float64
		Records                int
		More                   []struct {
			Name, Unit             string
			Value, Baseline, Ratio *float64
		}
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "sink" || got.Unit != "rows/s" || got.Value != 7 || got.Baseline != 10 || got.Ratio != 0.7 || got.Records != 3 {
		t.Errorf("the main result is %+v", got)
	}
	if len(got.More) != 1 || got.More[0].Name != "other" || got.More[0].Ratio == nil || got.More[0].Baseline == nil || *got.More[0].Value != 1 {
		t.Errorf("the other results are %+v", got.More)
	}
}
