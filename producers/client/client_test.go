package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

func open(t *testing.T, log schemas.Appender, change func(*client.Config)) *client.Client {
	t.Helper()
	cfg := client.Config{Tenant: "acme", BackoffMin: time.Microsecond, BackoffMax: time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	c, err := client.New(log, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// history reads every event of the topic interactions, partition by partition.
func history(t *testing.T, log schemas.Log) []schemas.Event {
	t.Helper()
	bounds, err := log.Bounds(t.Context(), schemas.TopicInteractions)
	if err != nil {
		t.Fatal(err)
	}
	var events []schemas.Event
	for p, b := range bounds {
		cursor, err := log.Open(t.Context(), schemas.TopicInteractions, p, b.First)
		if err != nil {
			t.Fatal(err)
		}
		for at := b.First; at < b.Next; {
			records, err := cursor.Next(t.Context(), 1000)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				e, err := schemas.Decode(r)
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, e)
				at = r.Offset + 1
			}
		}
		if err := cursor.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return events
}

func action(response string, messages ...*schemas.Message) *schemas.ActionTaken {
	return &schemas.ActionTaken{Context: client.Context(messages...), Response: client.Assistant(response), Model: "m"}
}

// TestTypedCalls shows that each typed call writes one event of its kind, in order and with the envelope of the client. Method: one
// session through all calls against the log in memory.
func TestTypedCalls(t *testing.T) {
	log := memlog.New(4)
	c := open(t, log, nil)
	s := c.Session("s-1")
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	turn, err := s.Action(t.Context(), action("hello", client.User("hi")), client.At(at), client.TraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	if err != nil {
		t.Fatal(err)
	}
	score := 1.0
	steps := []error{
		s.NextState(t.Context(), []*schemas.Observation{client.Reply("thanks"), client.Tests(3, 1, "TestX")}),
		s.NextStateOf(t.Context(), turn, []*schemas.Observation{client.ToolError("c1", "boom"), client.Terminal("out", 2), client.Diff("-a\n+b")}),
		s.Feedback(t.Context(), &schemas.FeedbackGiven{TurnId: &turn, Score: &score}),
		s.Outcome(t.Context(), &schemas.OutcomeReported{Score: 1, Checker: "pytest"}),
		s.End(t.Context(), "done", nil),
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	events := history(t, log)
	for _, e := range events {
		kinds = append(kinds, e.Kind())
		if e.Tenant != "acme" || e.Session != "s-1" || e.Source != "client/go" {
			t.Errorf("%s: envelope %q %q %q", e.Kind(), e.Tenant, e.Session, e.Source)
		}
	}
	want := []string{"ActionTaken", "NextStateObserved", "NextStateObserved", "FeedbackGiven", "OutcomeReported", "SessionEnded"}
	if !slices.Equal(kinds, want) {
		t.Fatalf("kinds %v, want %v", kinds, want)
	}
	first := events[0]
	if first.ID != turn || !first.Time.Equal(at) || !strings.HasPrefix(first.TraceParent, "00-0af") {
		t.Errorf("options are lost: %+v", first)
	}
	if k := first.Payload.(*schemas.ActionTaken).GetKind(); k != schemas.TurnKind_TURN_KIND_MAIN {
		t.Errorf("kind %v, want main by default", k)
	}
}

// TestDelta shows when an action refers to its parent instead of writing the conversation again. Method: a conversation that grows, one
// that is rewritten, a side call, the end of the session, and a parent that is too old; the written contexts are compared with the rule.
func TestDelta(t *testing.T) {
	log := memlog.New(1)
	c := open(t, log, nil)
	s := c.Session("s")
	send := func(a *schemas.ActionTaken) string {
		t.Helper()
		before := proto.Clone(a)
		id, err := s.Action(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(before, a) {
			t.Error("the caller's action was changed")
		}
		return id
	}
	talk := []*schemas.Message{client.System("be kind"), client.User("one")}
	one := send(action("1", talk...))
	talk = append(talk, client.Assistant("1"), client.User("two"))
	two := send(action("2", talk...))
	side := action("a title", client.User("title?"))
	side.Kind = schemas.TurnKind_TURN_KIND_SIDE
	send(side)
	talk = append(talk, client.Assistant("2"), client.User("three"))
	three := send(action("3", talk...))
	rewritten := append([]*schemas.Message{client.System("be rude")}, talk[1:]...)
	send(action("4", append(rewritten, client.Assistant("3"), client.User("four"))...))
	if err := s.End(t.Context(), "done", nil); err != nil {
		t.Fatal(err)
	}
	five := send(action("5", append(rewritten, client.Assistant("3"), client.User("four"), client.Assistant("4"), client.User("five"))...))
	talk = append(rewritten, client.Assistant("3"), client.User("four"), client.Assistant("4"), client.User("five"), client.Assistant("5"), client.User("six"))
	offered := action("6", talk...)
	offered.Context.Tools = []*schemas.Tool{{Name: "bash"}}
	send(offered)
	send(action("7", append(talk, client.Assistant("6"), client.User("seven"))...)) // without tools: a delta would inherit them
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = three
	want := []struct {
		parent   string
		messages int
	}{{"", 2}, {one, 1}, {"", 1}, {two, 1}, {"", 8}, {"", 10}, {five, 1}, {"", 14}}
	i := 0
	for _, e := range history(t, log) {
		a, ok := e.Payload.(*schemas.ActionTaken)
		if !ok {
			continue
		}
		if got := a.GetContext(); got.GetParentTurnId() != want[i].parent || len(got.GetMessages()) != want[i].messages {
			t.Errorf("action %d: parent %q and %d messages, want %q and %d", i, got.GetParentTurnId(), len(got.GetMessages()), want[i].parent, want[i].messages)
		}
		i++
	}
	if i != len(want) {
		t.Fatalf("%d actions, want %d", i, len(want))
	}
}

// TestDeltaOnlyOfAcknowledged shows that an action never refers to a turn that the log may not have. Method: the log holds the first
// append back while a second action, which continues the first, is sent; only a third, sent after the acknowledgements, is short.
func TestDeltaOnlyOfAcknowledged(t *testing.T) {
	log := memlog.New(1)
	gate := make(chan struct{})
	c := open(t, appenderFunc(func(ctx context.Context, records ...schemas.Record) error {
		<-gate
		return log.Append(ctx, records...)
	}), nil)
	s := c.Session("s")
	talk := []*schemas.Message{client.User("one")}
	var futures []*client.Future
	for i := range 2 {
		f, err := s.Send(t.Context(), action(fmt.Sprint(i), talk...))
		if err != nil {
			t.Fatal(err)
		}
		futures = append(futures, f)
		talk = append(talk, client.Assistant(fmt.Sprint(i)), client.User("go on"))
	}
	close(gate)
	for _, f := range futures {
		if err := f.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Action(t.Context(), action("2", talk...)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var parents []string
	for _, e := range history(t, log) {
		parents = append(parents, e.Payload.(*schemas.ActionTaken).GetContext().GetParentTurnId())
	}
	if want := []string{"", "", futures[1].ID()}; !slices.Equal(parents, want) {
		t.Fatalf("parents %q, want %q", parents, want)
	}
}

type appenderFunc func(ctx context.Context, records ...schemas.Record) error

func (f appenderFunc) Append(ctx context.Context, records ...schemas.Record) error {
	return f(ctx, records...)
}

// TestFaultyLog shows that every acknowledged event is in the log, that nothing but repeats under the same id is in it besides, and that
// each session keeps its order. Method: a seeded log that refuses appends, loses acknowledgements and applies appends in part, under
// many sessions at once.
func TestFaultyLog(t *testing.T) {
	const seed, sessions, each = 7, 40, 50
	log := memlog.New(4)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // a seeded test
	faulty := appenderFunc(func(ctx context.Context, records ...schemas.Record) error {
		mu.Lock()
		fault, part := rng.IntN(6), rng.IntN(len(records)+1)
		mu.Unlock()
		switch fault {
		case 0:
			return errors.New("away")
		case 1: // a part is written, the rest is not, and nobody says which
			return errors.Join(log.Append(ctx, records[:part]...), errors.New("cut off"))
		case 2:
			errs := make([]error, len(records))
			for i := range errs[part:] {
				errs[part+i] = errors.New("not taken")
			}
			return errors.Join(log.Append(ctx, records[:part]...), &client.PartialError{Errs: errs})
		}
		return log.Append(ctx, records...)
	})
	retries := 0
	var retryMu sync.Mutex
	c := open(t, faulty, func(cfg *client.Config) {
		cfg.BatchRecords, cfg.Linger, cfg.BufferedBytes = 16, 100*time.Microsecond, 200_000
		cfg.OnRetry = func(int, error) { retryMu.Lock(); retries++; retryMu.Unlock() }
	})
	sent := make([][]string, sessions)
	var wg sync.WaitGroup
	for n := range sessions {
		wg.Go(func() {
			s := c.Session(fmt.Sprint("s", n))
			for i := range each {
				f, err := s.Send(t.Context(), &schemas.NextStateObserved{Observations: []*schemas.Observation{client.Reply(fmt.Sprint(i))}})
				if err != nil {
					t.Error(err)
					return
				}
				sent[n] = append(sent[n], f.ID())
			}
		})
	}
	wg.Wait()
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if retries == 0 {
		t.Fatal("no fault was met: the test shows nothing")
	}
	got := map[string][]string{}
	seen := map[string]bool{}
	for _, e := range history(t, log) {
		if !seen[e.ID] { // the first event with an id wins
			seen[e.ID] = true
			got[e.Session] = append(got[e.Session], e.ID)
		}
	}
	for n := range sent {
		if !slices.Equal(got[fmt.Sprint("s", n)], sent[n]) {
			t.Errorf("session %d: order or events differ (%d of %d)", n, len(got[fmt.Sprint("s", n)]), len(sent[n]))
		}
	}
}

// TestPermanentErrors shows that one event which the log will never take fails alone. Method: a log that refuses a whole append when one
// record is marked.
func TestPermanentErrors(t *testing.T) {
	log := memlog.New(1)
	gate := make(chan struct{})
	c := open(t, appenderFunc(func(ctx context.Context, records ...schemas.Record) error {
		<-gate
		for _, r := range records {
			if strings.Contains(string(r.Value), "poison") {
				return fmt.Errorf("record of %d bytes: %w", len(r.Value), schemas.ErrTooLarge)
			}
		}
		return log.Append(ctx, records...)
	}), nil)
	s := c.Session("s")
	var futures []*client.Future
	for _, text := range []string{"first", "a", "poison", "b"} {
		f, err := s.Send(t.Context(), &schemas.NextStateObserved{Observations: []*schemas.Observation{client.Reply(text)}})
		if err != nil {
			t.Fatal(err)
		}
		futures = append(futures, f)
	}
	close(gate)
	for i, f := range futures {
		err := f.Wait(t.Context())
		if (i == 2) != errors.Is(err, schemas.ErrTooLarge) || i != 2 && err != nil {
			t.Errorf("event %d: %v", i, err)
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(history(t, log)); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
}

// TestRefusedAtOnce shows what never reaches the log and what the error says. Method: one call for each rule.
func TestRefusedAtOnce(t *testing.T) {
	c := open(t, memlog.New(1), nil)
	for name, send := range map[string]func() error{
		"session": func() error { return c.Session("").End(t.Context(), "done", nil) },
		"id":      func() error { return c.Session("s").End(t.Context(), "done", nil, client.ID("7")) },
		"reason":  func() error { return c.Session("s").End(t.Context(), "", nil) },
		"context": func() error {
			_, err := c.Session("s").Action(t.Context(), &schemas.ActionTaken{Response: client.Assistant("x")})
			return err
		},
		"producers write": func() error { _, err := c.Session("s").Send(t.Context(), &schemas.HintAbsent{}); return err },
		"UTF-8":           func() error { return c.Session("s").End(t.Context(), "\xff", nil) },
	} {
		if err := send(); !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Session("s").End(t.Context(), "done", nil); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestBackpressure shows that a log that stands still blocks the caller instead of filling memory, and that Close gives up in time and
// says so. Method: an appender that waits for its context, a buffer of two events, a third call with a context that ends.
func TestBackpressure(t *testing.T) {
	c := open(t, appenderFunc(func(ctx context.Context, _ ...schemas.Record) error { <-ctx.Done(); return ctx.Err() }),
		func(cfg *client.Config) { cfg.BufferedBytes = 2000 })
	s := c.Session("s")
	end := &schemas.SessionEnded{Reason: "done"}
	var futures []*client.Future
	for range 2 {
		f, err := s.Send(t.Context(), end)
		if err != nil {
			t.Fatal(err)
		}
		futures = append(futures, f)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Send(ctx, end); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "buffer") {
		t.Errorf("full buffer: %v", err)
	}
	if err := futures[0].Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	for _, f := range futures {
		if err := f.Wait(t.Context()); !errors.Is(err, client.ErrUnacknowledged) {
			t.Errorf("given up: %v", err)
		}
	}
}

// TestConfig shows that each setting that cannot work is refused with its name.
func TestConfig(t *testing.T) {
	for want, cfg := range map[string]client.Config{
		"Tenant":     {},
		"BatchBytes": {Tenant: "a", BatchBytes: -1},
		"Lanes":      {Tenant: "a", Lanes: 1000},
		"Linger":     {Tenant: "a", Linger: -1},
		"BackoffMin": {Tenant: "a", BackoffMin: 2, BackoffMax: 1},
	} {
		if _, err := client.New(memlog.New(1), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
