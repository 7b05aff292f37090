package bench_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/bench"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
)

// TestGenerate shows that generated sessions are what every benchmark and the kill tests count on: reproducible, of the promised size, unique
// ids, and one turn for each action. Method: generate twice, encode, and give each session to pair.
func TestGenerate(t *testing.T) {
	first, again := slices.Collect(bench.Generate(7, 40)), slices.Collect(bench.Generate(7, 60))
	ids := map[string]bool{}
	bytes, events, actions, turns := 0, 0, 0, 0
	pair := processors.NewPair(processors.PairConfig{})
	for i, session := range first {
		if len(session) != len(again[i]) {
			t.Fatalf("session %d has %d events, then %d", i, len(session), len(again[i]))
		}
		for j, e := range session {
			r, err := schemas.Encode(e)
			if err != nil {
				t.Fatal(err)
			}
			same, err := schemas.Encode(again[i][j])
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(r, same) {
				t.Fatalf("session %d, event %d differs with the same seed", i, j)
			}
			if ids[e.ID] {
				t.Fatalf("session %d, event %d has an id that was used before", i, j)
			}
			ids[e.ID] = true
			bytes, events = bytes+len(r.Value), events+1
			if _, ok := e.Payload.(*schemas.ActionTaken); ok {
				actions++
			}
			e.Position = schemas.Position{Topic: schemas.TopicInteractions, Offset: int64(events)}
			out, err := pair.Process(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			for _, derived := range out {
				closed, ok := derived.Payload.(*schemas.TurnClosed)
				if !ok {
					t.Fatalf("session %d, event %d: pair derived %s", i, j, derived.Kind())
				}
				if len(closed.GetNextState()) == 0 {
					t.Errorf("turn %s has no next state", closed.GetTurnId())
				}
				turns++
			}
		}
		if n := len(session); n < 2*10 || session[n-1].Kind() != "SessionEnded" {
			t.Errorf("session %d has %d events and ends with %s", i, n, session[n-1].Kind())
		}
	}
	if turns != actions {
		t.Errorf("%d turns from %d actions", turns, actions)
	}
	if mean := bytes / events; mean < 800 || mean > 1200 {
		t.Errorf("an event has %d bytes, want about 1 KB", mean)
	}
	if other := slices.Collect(bench.Generate(8, 1))[0]; other[0].ID == first[0][0].ID {
		t.Error("another seed gives the same events")
	}
}
