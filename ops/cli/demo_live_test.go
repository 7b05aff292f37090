package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/personas"
)

// TestLiveConcludes: the demo says what happened, also when it proves little. Method: results as they may come, and the words that must or must not be said.
func TestLiveConcludes(t *testing.T) {
	good, bad := personas.Turn{}, personas.Turn{Judgement: personas.Judgement{Complaint: "bold"}}
	session := func(first, control personas.Turn) *personas.Session {
		return &personas.Session{Turns: []personas.Turn{first}, Control: &control}
	}
	for name, c := range map[string]struct {
		result    personas.Result
		says, not []string
	}{
		"aligned":      {personas.Result{Sessions: []*personas.Session{session(bad, bad), session(good, bad)}, AlignedAt: 2}, []string{"1 of 2", "0 of 2", "Aligned:", "up to session 2", "did not come to it"}, []string{"Not aligned"}},
		"not aligned":  {personas.Result{Sessions: []*personas.Session{session(bad, good)}}, []string{"0 of 1", "1 of 1", "Not aligned"}, []string{"Aligned:"}},
		"control also": {personas.Result{Sessions: []*personas.Session{session(good, good)}, AlignedAt: 1, ControlAt: 1}, []string{"Aligned:", "proves little"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			g := new(Globals)
			g.Bind(&out, &out)
			l := &live{g: g, learning: ops.NewLearning("default"), plan: personas.Plan{Persona: personas.All()[0]}}
			l.conclude(&c.result, time.Second)
			for _, want := range c.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is missing:\n%s", want, out.String())
				}
			}
			for _, unwanted := range c.not {
				if strings.Contains(out.String(), unwanted) {
					t.Errorf("%q is said:\n%s", unwanted, out.String())
				}
			}
		})
	}
}
