package processors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// simPartitions is the number of partitions in a simulation.
const simPartitions = 2

// TestSimulation: whatever crashes, every derived event exists, first with the right content, and nothing else exists. Method: for each
// seed, random interactions, some with tokens for a teacher, in a log whose appends are refused, lose their acknowledgement or happen twice; all four stages run with
// members that die before or after any append or commit, are fenced, and come back. Then the log is compared with a derivation in memory
// that nothing disturbed.
func TestSimulation(t *testing.T) {
	const seeds = 200
	var mu sync.Mutex
	var kills, derived, repeated int
	t.Run("seeds", func(t *testing.T) {
		for worker := range 4 {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				t.Parallel()
				for seed := worker; seed < seeds; seed += 4 {
					s := newSimulation(t, uint64(seed)) //nolint:gosec // small
					s.run()
					d, r := s.check()
					mu.Lock()
					kills, derived, repeated = kills+s.kills, derived+d, repeated+r
					mu.Unlock()
					if t.Failed() {
						t.Fatalf("seed %d", seed)
					}
				}
			})
		}
	})
	t.Logf("%d seeds: %d crashes, %d derived events, %d repeated records", seeds, kills, derived, repeated)
	if kills < seeds || repeated == 0 {
		t.Errorf("%d crashes and %d repeated records: the simulation simulates nothing", kills, repeated)
	}
}

type simulation struct {
	t      *testing.T
	log    *memlog.Log
	stages []Stage
	cfg    PairConfig

	mu    sync.Mutex
	r     *rand.Rand
	kills int
	left  int // crashes still to come
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{
		t: t, r: rand.New(rand.NewPCG(seed, 2)), left: 12, cfg: PairConfig{DedupRecords: 9, Idle: 25 * time.Second},
		log: memlog.NewWith(simPartitions, memlog.Options{Handover: 2 * time.Millisecond, Backoff: 200 * time.Microsecond}),
	}
	if err := s.log.Append(t.Context(), encode(t, taughtEvents(seed, 90))...); err != nil {
		t.Fatal(err)
	}
	s.log.OnAppend(func([]schemas.Record) memlog.Fault {
		switch s.roll(20) {
		case 0:
			return memlog.Refused
		case 1:
			return memlog.AckLost
		case 2:
			return memlog.Duplicated
		}
		return memlog.Applied
	})
	direct := DirectConfig{Workers: 1 + s.roll(3), Teacher: arithmetic{}, Contexts: ContextsConfig{Turns: s.log, Bytes: 100 << s.roll(10)}}
	s.stages = []Stage{
		PairStage(s.cfg), EvaluateStage(EvaluateConfig{Workers: 1 + s.roll(3)}), DirectStage(direct), AssembleStage(s.log),
	}
	return s
}

func (s *simulation) roll(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r.IntN(n)
}

// run runs every stage until all of them processed everything.
func (s *simulation) run() {
	ctx, cancel := context.WithTimeout(s.t.Context(), 60*time.Second)
	defer cancel()
	var members sync.WaitGroup
	for _, stage := range s.stages {
		for range 1 + s.roll(2) {
			members.Go(func() { s.member(ctx, stage) })
		}
	}
	for !s.done() {
		if ctx.Err() != nil {
			s.t.Error("the stages did not finish")
			break
		}
		if s.roll(20) == 0 && s.mayKill() {
			stage := s.stages[s.roll(len(s.stages))]
			s.log.Fence(GroupPrefix+stage.Name, stage.Topic)
		}
		time.Sleep(300 * time.Microsecond)
	}
	cancel()
	members.Wait()
}

func (s *simulation) mayKill() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 {
		return false
	}
	s.left--
	s.kills++
	return true
}

// member is one process of a stage, and its successors.
func (s *simulation) member(ctx context.Context, stage Stage) {
	o := quick(s.t)
	for ctx.Err() == nil {
		life, die := context.WithCancel(ctx)
		m := &mortal{Log: s.log, s: s, die: die, steps: 1 + s.roll(8)}
		if err := Run(life, stage, m, o); err != nil {
			s.t.Error(err)
		}
		die()
	}
}

// done reports whether each stage processed all of its topic. Stages are asked in the order of the data: what a stage writes is in the
// log before it commits.
func (s *simulation) done() bool {
	for _, stage := range s.stages {
		bounds, err := s.log.Bounds(s.t.Context(), stage.Topic)
		if err != nil {
			s.t.Fatal(err)
		}
		for p, b := range bounds {
			if b.Next > 0 && processed(s.t, s.log, stage, p) < b.Next {
				return false
			}
		}
	}
	return true
}

// check compares the log with an undisturbed derivation.
func (s *simulation) check() (derived, repeated int) {
	s.log.OnAppend(nil)
	want := map[string]schemas.Event{}
	for p := range simPartitions {
		direct := DirectConfig{Teacher: arithmetic{}, Contexts: ContextsConfig{Turns: emptyReader{}}} // all of it is in memory
		for _, e := range deriveAll(s.t, DeriveOptions{Pair: s.cfg, Direct: direct}, decoded(s.t, s.log, schemas.TopicInteractions, p)) {
			if _, known := want[e.ID]; !known {
				want[e.ID] = e
			}
		}
	}
	seen := map[string]bool{}
	for _, topic := range []string{schemas.TopicTurns, schemas.TopicVerdicts, schemas.TopicHints, schemas.TopicSamples, schemas.TopicDeadLetters} {
		for p := range simPartitions {
			for _, e := range decoded(s.t, s.log, topic, p) {
				if seen[e.ID] {
					repeated++
					continue
				}
				seen[e.ID] = true
				w, ok := want[e.ID]
				if !ok {
					s.t.Errorf("%s %s must not exist: %v", e.Kind(), e.ID, e.Payload)
				} else if !proto.Equal(timeless(e.Payload), timeless(w.Payload)) || e.Session != w.Session || !e.LogTime.Equal(w.LogTime) {
					s.t.Errorf("%s %s is\n%v\nwant\n%v", e.Kind(), e.ID, e.Payload, w.Payload)
				}
			}
		}
	}
	for id, w := range want {
		if !seen[id] {
			s.t.Errorf("%s %s is missing: %v", w.Kind(), id, w.Payload)
		}
	}
	return len(seen), repeated
}

// timeless leaves out the offset of the turn, which depends on how often a crash made pair repeat itself.
func timeless(m proto.Message) proto.Message {
	m = proto.Clone(m)
	switch p := m.(type) {
	case *schemas.TurnJudged:
		p.TurnOffset = 0
	case *schemas.HintSelected:
		p.TurnOffset = 0
	case *schemas.HintAbsent:
		p.TurnOffset = 0
	}
	return m
}

var errDead = errors.New("this process is dead")

// mortal is the log as seen by a process that dies after some steps: before or after an append or a commit takes effect. From then on
// nothing that it does has an effect.
type mortal struct {
	*memlog.Log
	s   *simulation
	die context.CancelFunc

	mu    sync.Mutex
	steps int
	dead  bool
}

// step does one thing, unless the process is dead or dies first.
func (m *mortal) step(do func() error) error {
	m.mu.Lock()
	if m.dead {
		m.mu.Unlock()
		return errDead
	}
	m.steps--
	dies := m.steps <= 0 && m.s.mayKill()
	m.dead = dies
	m.mu.Unlock()
	if !dies {
		return do()
	}
	defer m.die()
	if m.s.roll(2) == 0 {
		_ = do() // the effect is there, and nobody hears of it
	}
	return errDead
}

// Append implements schemas.Appender.
func (m *mortal) Append(ctx context.Context, records ...schemas.Record) error {
	return m.step(func() error { return m.Log.Append(ctx, records...) })
}

// Own implements schemas.Owner.
func (m *mortal) Own(ctx context.Context, group, topic string, own func(context.Context, schemas.Claim) error) error {
	return m.Log.Own(ctx, group, topic, func(ctx context.Context, c schemas.Claim) error { return own(ctx, mortalClaim{c, m}) })
}

type mortalClaim struct {
	schemas.Claim
	m *mortal
}

// Commit implements schemas.Claim.
func (c mortalClaim) Commit(ctx context.Context, commit schemas.Commit) error {
	return c.m.step(func() error { return c.Claim.Commit(ctx, commit) })
}
