package ops_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/schemas"
)

// tell appends a session of one turn: a user asks, the policy answers, the user replies.
func tell(ctx context.Context, c *client.Client, session, user, question, reply string) error {
	s := c.Session(session)
	ids, logprobs := []uint32{0, 1, 0}, []float32{-0.1, -0.1, -0.1}
	a := &schemas.ActionTaken{
		Kind: schemas.TurnKind_TURN_KIND_MAIN, Context: client.Context(client.User(question)), Response: client.Assistant("an answer"), User: &user,
		PolicyVersion: proto.String("base"), Sampling: &schemas.Sampling{Temperature: proto.Float64(0.6)},
		Tokens: &schemas.Tokens{PromptIds: []uint32{1}, ResponseIds: ids, LogprobsSampled: logprobs, TopK: &schemas.TopK{K: 1, Ids: ids, Logprobs: logprobs}},
	}
	if _, err := s.Action(ctx, a); err != nil {
		return err
	}
	if err := s.NextState(ctx, []*schemas.Observation{client.Reply(reply)}); err != nil {
		return err
	}
	return s.End(ctx, "over", nil)
}

// session has a user talk, and waits until what the session gave stands.
func session(t *testing.T, s *ops.System, name, user, question, reply string) {
	t.Helper()
	caughtUp(t, s, func(ctx context.Context) error {
		c, err := client.New(s.Log, client.Config{Tenant: s.Config.Tenant, Source: "test"})
		if err != nil {
			return err
		}
		if err := tell(ctx, c, name, user, question, reply); err != nil {
			return err
		}
		if err := c.Close(ctx); err != nil {
			return err
		}
		if err := ops.WaitCaughtUp(ctx, s.Log, nil); err != nil {
			return err
		}
		return ops.WaitStanding(ctx, s)
	})
}

// TestStandingHints. Goal: a hint stands over the sessions of its user, teaches satisfied turns too, and none of another user; withdrawn it teaches no more;
// what was derived is derived again byte for byte, whatever stands now and whether the flag is set. Method: sessions through the real system, one after the
// other, with an engine of arithmetic as the teacher; then replays from both sources.
func TestStandingHints(t *testing.T) {
	cfg := config(t)
	cfg.Direct.Standing = true
	s := open(t, cfg)
	engine := &scoring{}
	s.Policy = engine
	session(t, s, "one", "ann", "What is 2+2?", "No, show every step")
	session(t, s, "two", "ann", "What is 3+3?", "Perfect, thanks!")
	session(t, s, "three", "bob", "What is 4+4?", "Perfect, thanks!")
	session(t, s, "four", "ann", "What is 5+5?", "No, answer in French")

	standing, err := ops.ReadStanding(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	hints := standing.Hints("default", "ann")
	if len(hints) != 2 || hints[0].Hint != "Answer in French." || hints[1].Hint != "Show every step." || len(standing.All("default")) != 2 {
		t.Fatalf("standing: %+v", standing.All("default"))
	}
	origins, err := ops.HintOrigins(t.Context(), s, hints)
	if err != nil {
		t.Fatal(err)
	}
	if o := origins[1]; o.Session != "one" || o.NextState != "No, show every step" || o.Response != "an answer" || o.Samples != 3 || o.Rehearsed != 0 {
		t.Errorf("the origin of the first hint: %+v", o)
	}
	if err := ops.WithdrawHint(t.Context(), s, hints[1], "enough of it", "test"); err != nil {
		t.Fatal(err)
	}
	session(t, s, "five", "ann", "What is 6+6?", "Perfect, thanks!")

	want := map[string]string{
		"one": "combined -1 Show every step.", "two": "combined 1 Show every step.", "three": "evaluative 1 ",
		"four": "combined -1 Answer in French.\nShow every step.", "five": "combined 1 Answer in French.",
	}
	rows, err := s.ClickHouse.Query(t.Context(), `SELECT session, concat(sample_kind, ' ', toString(reward), ' ', ifNull(hint, '')), ifNull(teacher_version, '') FROM sample_assembled`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name, got, teacher string
		if err := rows.Scan(&name, &got, &teacher); err != nil {
			t.Fatal(err)
		}
		if got != want[name] || (teacher == "base") != strings.Contains(got, "combined") {
			t.Errorf("session %s: %q of teacher %q, want %q", name, got, teacher, want[name])
		}
		delete(want, name)
	}
	if err := rows.Err(); err != nil || len(want) > 0 {
		t.Errorf("no sample of %v (%v)", want, err)
	}
	asked := engine.asked.Load()
	for _, on := range []bool{true, false} {
		s.Config.Direct.Standing = on
		for _, source := range []string{"auto", "kafka", "clickhouse"} {
			report, err := ops.Replay(t.Context(), s, ops.ReplayOptions{Source: source})
			if err != nil {
				t.Fatal(err)
			}
			if !report.Equal() || report.Same < 5*5 {
				t.Errorf("replay from %s, flag %t: %s %+v", source, on, report.Line(), report.Differences)
			}
		}
	}
	if engine.asked.Load() != asked {
		t.Error("a replay asked the teacher")
	}
	if err := ops.WithdrawHint(t.Context(), s, find(t, s, hints[1].ID), "twice", "test"); err == nil {
		t.Error("a hint is withdrawn twice")
	}
}

func find(t *testing.T, s *ops.System, id string) (found processors.StandingHint) {
	t.Helper()
	standing, err := ops.ReadStanding(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	all := standing.All(s.Config.Tenant)
	i := slices.IndexFunc(all, func(h processors.StandingHint) bool { return h.ID == id })
	if i < 0 {
		t.Fatalf("no hint %s", id)
	}
	return all[i]
}

// TestSameSubjectOfPersonas: what one of the scripted users asks for in many words is mostly one subject, and never that of another. Method: all pairs of their
// corrections.
func TestSameSubjectOfPersonas(t *testing.T) {
	for _, p := range personas.All() {
		same, pairs := 0, 0
		for _, q := range personas.All() {
			for i, a := range p.Asks {
				for j, b := range q.Asks {
					about := processors.SameSubject(a, b)
					switch {
					case p.Name != q.Name && about:
						t.Errorf("%s and %s ask for the same: %q and %q", p.Name, q.Name, a, b)
					case p.Name == q.Name && i < j:
						pairs++
						if about {
							same++
						}
					}
				}
			}
		}
		if 4*same < 3*pairs {
			t.Errorf("%s: %d of %d pairs are about the same subject; want three quarters", p.Name, same, pairs)
		}
	}
}
