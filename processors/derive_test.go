package processors

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// FuzzDerive: no sequence of events makes a stage panic or lose a turn. Method: the fuzzer's bytes choose the events; then every session is
// ended, and every main action that was not refused must have exactly one turn, verdict, hint decision and sample decision.
func FuzzDerive(f *testing.F) {
	for seed := range byte(20) {
		f.Add([]byte{seed, 200 - seed, seed * 7})
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		var seed [32]byte
		copy(seed[:], choices)
		checkComplete(t, eventsFrom(rand.New(rand.NewChaCha8(seed)), 20+len(choices)%100)) //nolint:gosec // reproducible on purpose
	})
}

// TestDeriveComplete is the property of FuzzDerive on many seeds. Method: see there.
func TestDeriveComplete(t *testing.T) {
	for seed := range uint64(300) {
		checkComplete(t, randomEvents(seed, 100))
	}
}

func checkComplete(t *testing.T, events []schemas.Event) {
	t.Helper()
	s := newScript()
	s.events = events
	s.now = events[len(events)-1].LogTime
	for _, session := range []string{"s0", "s1", "s2", "s3"} {
		s.end(session, session+" ends")
	}
	counts := map[string]map[string]int{} // by turn and kind
	refused := map[int64]bool{}
	for _, e := range deriveAll(t, DeriveOptions{}, s.events) {
		if e.Source == "" || e.Session == "" {
			t.Fatalf("%s without source or session", e.Kind())
		}
		if _, err := schemas.Encode(e); err != nil {
			t.Fatal(err)
		}
		kind, turn := e.Kind(), ""
		switch p := e.Payload.(type) {
		case *schemas.TurnClosed:
			turn = p.GetTurnId()
		case *schemas.TurnJudged:
			turn = p.GetTurnId()
		case *schemas.HintSelected:
			turn, kind = p.GetTurnId(), "hint"
		case *schemas.HintAbsent:
			turn, kind = p.GetTurnId(), "hint"
		case *schemas.SampleAssembled:
			turn, kind = p.GetTurnId(), "sample"
		case *schemas.TurnSkipped:
			turn, kind = p.GetTurnId(), "sample"
		case *schemas.DeadLettered:
			refused[int64(p.GetPosition().GetOffset())] = true //nolint:gosec // small
			continue
		default:
			continue
		}
		if counts[turn] == nil {
			counts[turn] = map[string]int{}
		}
		counts[turn][kind]++
	}
	seen, taken := map[string]bool{}, map[string]bool{}
	for _, e := range s.events {
		a, ok := e.Payload.(*schemas.ActionTaken)
		if !ok || a.GetKind() != schemas.TurnKind_TURN_KIND_MAIN || seen[e.ID] {
			continue
		}
		seen[e.ID] = true // what comes again has no effect, the repeat of a refused action included
		if refused[e.Position.Offset] {
			continue
		}
		taken[e.ID] = true
		for _, kind := range []string{"TurnClosed", "TurnJudged", "hint", "sample"} {
			if counts[e.ID][kind] != 1 {
				t.Fatalf("action %s at %d has %d of %s", e.ID, e.Position.Offset, counts[e.ID][kind], kind)
			}
		}
	}
	for turn := range counts {
		if !taken[turn] {
			t.Fatalf("turn %s has no action that was taken", turn)
		}
	}
}

// TestHistoryReplaysTheSame: the history keeps each event once, with its offset, and gives the same derived events as the log with its repeats.
// Method: random scripts, with idle times, against the same without the repeats.
func TestHistoryReplaysTheSame(t *testing.T) {
	for seed := range uint64(100) {
		events := randomEvents(seed, 100)
		seen := map[string]bool{}
		var once []schemas.Event
		for _, e := range events {
			if !seen[e.ID] {
				once = append(once, e)
			}
			seen[e.ID] = true
		}
		o := DeriveOptions{Pair: PairConfig{Idle: 20 * time.Second}}
		log, history := deriveAll(t, o, events), deriveAll(t, o, once)
		if len(log) != len(history) {
			t.Fatalf("seed %d: %d events from the log, %d from the history", seed, len(log), len(history))
		}
		for i := range log {
			a, b := encode(t, log[i:i+1])[0], encode(t, history[i:i+1])[0]
			if log[i].ID != history[i].ID || string(a.Value) != string(b.Value) || !a.Time.Equal(b.Time) {
				t.Fatalf("seed %d, event %d: %v, want %v", seed, i, history[i], log[i])
			}
		}
	}
}

// TestDuplicatesChangeNothing: a producer that repeats records, near or in the same session, changes no derived event. Method: scripts without
// repeats against the same with each event repeated at a random place after it.
func TestDuplicatesChangeNothing(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // reproducible on purpose
		once := manyTurns(3, 6)
		var twice []schemas.Event
		pending := []schemas.Event{}
		for _, e := range once {
			twice = append(twice, e)
			pending = append(pending, e)
			for len(pending) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(pending))
				twice = append(twice, pending[i])
				pending = slices.Delete(pending, i, i+1)
			}
		}
		for i := range twice {
			twice[i].Position.Offset = int64(i)
		}
		want, got := deriveAll(t, DeriveOptions{}, once), deriveAll(t, DeriveOptions{}, twice)
		if len(got) != len(want) || len(want) == 0 {
			t.Fatalf("seed %d: %d events, want %d", seed, len(got), len(want))
		}
		for i := range want {
			if got[i].ID != want[i].ID || !proto.Equal(got[i].Payload, want[i].Payload) {
				t.Fatalf("seed %d, event %d: %v, want %v", seed, i, got[i], want[i])
			}
		}
	}
}

// TestDeriveReadsRecordedVotes: a replay calls no model and yields the same events. Method: derive with a judge and a finder that never answer
// the same twice, record the votes, derive again from the record.
func TestDeriveReadsRecordedVotes(t *testing.T) {
	events := manyTurns(2, 4)
	for i, e := range events { // replies that the rules cannot read
		if n, ok := e.Payload.(*schemas.NextStateObserved); ok {
			n.Observations = observed("hm " + string(rune('a'+i)))
		}
	}
	calls := 0
	model := judgeFunc{"llm", func() ([]*schemas.VoteCast, error) {
		calls++
		return []*schemas.VoteCast{{Vote: proto.Int32(int32(calls%3 - 1)), Rationale: "call"}, {}}, nil //nolint:gosec // small
	}}
	finder := finderCalls{&calls}
	live := deriveAll(t, DeriveOptions{
		Evaluate: EvaluateConfig{Judges: []Judge{RulesJudge{}, model}}, Direct: DirectConfig{Finders: []Finder{RulesFinder{}, finder}},
	}, events)
	votes, hints := map[string][]*schemas.VoteCast{}, map[string][]*schemas.HintVoteCast{}
	for _, e := range live {
		switch p := e.Payload.(type) {
		case *schemas.VoteCast:
			votes[p.GetTurnId()] = append(votes[p.GetTurnId()], p)
		case *schemas.HintVoteCast:
			hints[p.GetTurnId()] = append(hints[p.GetTurnId()], p)
		}
	}
	before := calls
	replayed := deriveAll(t, DeriveOptions{
		Evaluate: EvaluateConfig{Judges: []Judge{RulesJudge{}, RecordedJudge{"llm", func(_ context.Context, turn string) ([]*schemas.VoteCast, error) { return votes[turn], nil }}}},
		Direct:   DirectConfig{Finders: []Finder{RulesFinder{}, RecordedFinder{"llm", func(_ context.Context, turn string) ([]*schemas.HintVoteCast, error) { return hints[turn], nil }}}},
	}, events)
	if calls != before || calls != 16 {
		t.Errorf("%d calls live, %d in the replay", before, calls-before)
	}
	if len(live) != len(replayed) {
		t.Fatalf("%d events live, %d in the replay", len(live), len(replayed))
	}
	for i := range live {
		a, b := encode(t, live[i:i+1])[0], encode(t, replayed[i:i+1])[0]
		if string(a.Value) != string(b.Value) || live[i].ID != replayed[i].ID || !a.Time.Equal(b.Time) {
			t.Errorf("event %d: %v, want %v", i, replayed[i], live[i])
		}
	}
}

type finderCalls struct{ calls *int }

func (f finderCalls) Name() string { return "llm" }
func (f finderCalls) Hints(context.Context, *schemas.TurnClosed) ([]*schemas.HintVoteCast, error) {
	*f.calls++
	return hinted("Hint number " + string(rune('A'+*f.calls))), nil
}

// TestDeriveEndsWithErrors: the first error of the source or of the sink ends the derivation. Method: one of each.
func TestDeriveEndsWithErrors(t *testing.T) {
	events := manyTurns(1, 2)
	if err := Derive(t.Context(), sequence(events), DeriveOptions{}, func(schemas.Event) error { return errDead }); !errors.Is(err, errDead) {
		t.Errorf("got %v", err)
	}
	broken := func(yield func(schemas.Event, error) bool) { yield(schemas.Event{}, errDead) }
	if err := Derive(t.Context(), broken, DeriveOptions{}, func(schemas.Event) error { return nil }); !errors.Is(err, errDead) {
		t.Errorf("got %v", err)
	}
	if err := Derive(t.Context(), sequence(events), DeriveOptions{TurnOffset: func(string) (int64, bool) { return 42, true }}, func(e schemas.Event) error {
		if j, ok := e.Payload.(*schemas.TurnJudged); ok && j.GetTurnOffset() != 42 {
			t.Errorf("turn_offset %d", j.GetTurnOffset())
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
