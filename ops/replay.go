package ops

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// ReplayOptions say where from, where to and how.
type ReplayOptions struct {
	// Source is auto (Kafka, and ClickHouse for what Kafka retains no longer), kafka or clickhouse.
	Source string
	// To receives the derived events, in topics of its own; nil: they are only compared.
	To schemas.Appender
	// Tenant, when it is set, is the only one whose interactions are derived and compared: tenants may have been derived with different settings.
	Tenant string
	// Rejudge asks the configured judges, finders and teacher again instead of reading what was said.
	Rejudge bool
	// MaxDifferences bounds those that are kept in the report; all are counted. Default 100.
	MaxDifferences int
	// Progress is called now and then with the interactions read so far. It may be nil.
	Progress func(events int64)
}

// ReplayReport says what a replay found.
type ReplayReport struct {
	// Events were read; Derived came out of them.
	Events  int64 `json:"events"`
	Derived int64 `json:"derived"`
	// Same: equal byte for byte. Changed: the same id or signal, other content. Missing: recorded, but not derived now. Extra: derived now only.
	// Reversioned: the same content under the id of another processor version.
	Same        int64        `json:"same"`
	Reversioned int64        `json:"reversioned"`
	Changed     int64        `json:"changed"`
	Missing     int64        `json:"missing"`
	Extra       int64        `json:"extra"`
	Differences []Difference `json:"differences"`
	// Gaps are ranges of interactions that neither the log nor the history holds: repeats at the end of what the history holds, or records that
	// were deleted before a sink had stored them.
	Gaps []string `json:"gaps,omitempty"`
	// Rehearsals are the samples of rehearsals: they are derived from no interaction, so they are counted and not compared.
	Rehearsals int64   `json:"rehearsal_samples,omitempty"`
	Seconds    float64 `json:"seconds"`
}

// Difference is one derived event that is not as it was.
type Difference struct {
	Kind    string `json:"kind"`
	Tenant  string `json:"tenant"`
	Session string `json:"session"`
	TurnID  string `json:"turn_id"`
	// Was and Now say what the event says; empty: there is none.
	Was string `json:"was"`
	Now string `json:"now"`
}

// Equal reports whether everything was derived byte for byte as it was.
func (r ReplayReport) Equal() bool { return r.Changed+r.Missing+r.Extra+r.Reversioned == 0 }

// Line is the report in one line.
func (r ReplayReport) Line() string {
	verdict := "equal, byte for byte"
	if !r.Equal() {
		verdict = fmt.Sprintf("%d changed, %d missing, %d extra, %d the same under another processor version", r.Changed, r.Missing, r.Extra, r.Reversioned)
	}
	if len(r.Gaps) > 0 {
		verdict += "; neither in the log nor in the history: " + strings.Join(r.Gaps, ", ")
	}
	if r.Rehearsals > 0 {
		verdict += fmt.Sprintf("; %d samples of rehearsals left out, which are derived from no interaction", r.Rehearsals)
	}
	return fmt.Sprintf("%d interactions gave %d derived events in %.1f s: %s", r.Events, r.Derived, r.Seconds, verdict)
}

// Replay derives everything again with the processors that the stages run, and compares it with what was derived. No model is called: votes
// that a model gave, and a teacher's scores, are read from the log, unless Rejudge is set. Stages should have caught up before, or what they have not derived yet
// counts as extra.
func Replay(ctx context.Context, s *System, o ReplayOptions) (ReplayReport, error) {
	start := time.Now()
	h, err := s.history(o.Source)
	if err != nil {
		return ReplayReport{}, err
	}
	n, err := h.partitions(ctx, schemas.TopicInteractions)
	if err != nil {
		return ReplayReport{}, err
	}
	if o.MaxDifferences == 0 {
		o.MaxDifferences = 100
	}
	r := &replay{system: s, o: o, h: h, report: ReplayReport{Differences: []Difference{}}}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * runtime.GOMAXPROCS(0)) // one waits for records while the other derives
	for p := range n {
		group.Go(func() error {
			if err := r.partition(ctx, p); err != nil {
				return fmt.Errorf("replay of partition %d: %w", p, err)
			}
			return nil
		})
	}
	err = group.Wait()
	r.report.Seconds = time.Since(start).Seconds()
	return r.report, err
}

type replay struct {
	system *System
	o      ReplayOptions
	h      history
	mu     sync.Mutex
	report ReplayReport
}

// partition replays one partition: its derived records are loaded as an index, then crossed off.
func (r *replay) partition(ctx context.Context, partition int) (err error) {
	was, err := r.h.load(ctx, partition)
	if err != nil {
		return err
	}
	gap, err := r.h.gap(ctx, schemas.TopicInteractions, partition)
	if err != nil {
		return err
	}
	if gap != "" {
		r.mu.Lock()
		r.report.Gaps = append(r.report.Gaps, gap)
		r.mu.Unlock()
	}
	hints := &pages{h: r.h, topic: schemas.TopicHints, partition: partition}
	defer func() { err = errors.Join(err, hints.close()) }()
	o, err := r.options(was, hints)
	if err != nil {
		return err
	}
	p := &partitionReplay{replay: r, partition: partition, was: was}
	if err := processors.Derive(ctx, p.interactions(ctx), o, func(e schemas.Event) error { return p.compare(ctx, e) }); err != nil {
		return err
	}
	return p.finish(ctx)
}

// options are those of the live stages, with what models said read from the record.
func (r *replay) options(was *recorded, hints *pages) (processors.DeriveOptions, error) {
	cfg := r.system.Config
	judges, err := cfg.judges(r.system.HTTPClient)
	if err != nil {
		return processors.DeriveOptions{}, err
	}
	finders, err := cfg.finders(r.system.HTTPClient)
	if err != nil {
		return processors.DeriveOptions{}, err
	}
	direct, err := r.system.direct(finders)
	if err != nil {
		return processors.DeriveOptions{}, err
	}
	direct.Contexts.Turns = r.h.readers()[0]
	// What stood when a turn was derived is a fact, also when models are asked again.
	direct.Standing = processors.RecordedStanding{Lookup: func(_ context.Context, turn string) ([]*schemas.HintVoteCast, error) {
		return votesOf(was.hints[turn], (*schemas.HintVoteCast).GetFinder, processors.StandingFinder), nil
	}}
	if !r.o.Rejudge {
		direct.Teacher = processors.RecordedTeacher{Lookup: recordedTeacher{was, hints}.lookup}
		direct.Contexts.Turns = nil // what was said is asked for by turn
		for i, j := range judges {
			if name := j.Name(); name != "rules" {
				judges[i] = processors.RecordedJudge{Judge: name, Lookup: func(_ context.Context, turn string) ([]*schemas.VoteCast, error) {
					return votesOf(was.votes[turn], (*schemas.VoteCast).GetJudge, name), nil
				}}
			}
		}
		for i, f := range finders {
			if name := f.Name(); name != "rules" {
				finders[i] = processors.RecordedFinder{Finder: name, Lookup: func(_ context.Context, turn string) ([]*schemas.HintVoteCast, error) {
					return votesOf(was.hints[turn], (*schemas.HintVoteCast).GetFinder, name), nil
				}}
			}
		}
	}
	return processors.DeriveOptions{
		Pair: cfg.Pair, Evaluate: processors.EvaluateConfig{Judges: judges}, Direct: direct,
		TurnOffset: func(turn string) (int64, bool) {
			id, err := uuid.Parse(schemas.DerivedID(processors.StagePair, processors.PairVersion, "TurnClosed", turn, 0))
			offset, ok := was.turns[id]
			return offset, err == nil && ok
		},
	}, nil
}

// votesOf returns copies of the votes of one judge or finder: evaluate and direct fill in their fields.
func votesOf[T proto.Message](votes []T, by func(T) string, name string) []T {
	var own []T
	for _, v := range votes {
		if by(v) == name {
			own = append(own, proto.Clone(v).(T)) //nolint:forcetypeassert // a clone has the type of its original
		}
	}
	return own
}

// partitionReplay is one partition on its way.
type partitionReplay struct {
	*replay
	partition int
	was       *recorded
	events    int64
	derived   int64
	same      int64
	// unmatched were derived now under ids that are not recorded.
	unmatched []schemas.Event
	// seen are the ids that were derived: a repeated interaction derives an id again, and the first one counts.
	seen map[uuid.UUID]bool
	out  []schemas.Record
}

// interactions decodes the partition; what cannot be decoded was dead-lettered live.
func (p *partitionReplay) interactions(ctx context.Context) iter.Seq2[schemas.Event, error] {
	stop := errors.New("stop")
	return func(yield func(schemas.Event, error) bool) {
		err := p.h.each(ctx, schemas.TopicInteractions, p.partition, func(rec schemas.Record) error {
			e, err := schemas.Decode(rec)
			if err != nil {
				return nil //nolint:nilerr // it was dead-lettered live
			}
			if p.foreign(e) {
				return nil
			}
			p.events++
			if p.o.Progress != nil && p.events%10_000 == 0 {
				p.mu.Lock()
				p.o.Progress(p.report.Events + p.events)
				p.mu.Unlock()
			}
			if !yield(e, nil) {
				return stop
			}
			return nil
		})
		if err != nil && !errors.Is(err, stop) {
			yield(schemas.Event{}, err)
		}
	}
}

// foreign says that an event is of a tenant that is left out.
func (p *partitionReplay) foreign(e schemas.Event) bool {
	return p.o.Tenant != "" && e.Tenant != p.o.Tenant
}

// maxUnmatched bounds what a replay of another processor version holds for its diff.
const maxUnmatched = 200_000

func (p *partitionReplay) compare(ctx context.Context, e schemas.Event) error {
	if e.Kind() == "DeadLettered" {
		return nil // told by the stage's own topic; its origin is part of the log
	}
	rec, err := schemas.Encode(e)
	if err != nil {
		return err
	}
	id := uuid.MustParse(e.ID)
	was, known := p.was.entries[id]
	switch {
	case !known && !p.repeated(id):
		p.derived++
		p.append(ctx, rec)
		if len(p.unmatched) < maxUnmatched {
			p.unmatched = append(p.unmatched, e)
		} else {
			p.count(func(r *ReplayReport) { r.Extra++ })
		}
	case known && !was.seen:
		was.seen = true
		p.was.entries[id] = was
		p.derived++
		p.append(ctx, rec)
		if digest := sink.DigestOf(rec); was.hash == [16]byte(digest[:16]) {
			p.same++
			break
		}
		old, err := p.h.event(ctx, p.was.topics[was.topic], p.partition, was.offset)
		if err != nil {
			return err
		}
		p.difference(&old, &e)
	}
	return p.flush(ctx, 1000)
}

func (p *partitionReplay) repeated(id uuid.UUID) bool {
	if p.seen == nil {
		p.seen = map[uuid.UUID]bool{}
	}
	again := p.seen[id]
	p.seen[id] = true
	return again
}

func (p *partitionReplay) append(_ context.Context, rec schemas.Record) {
	if p.o.To != nil {
		p.out = append(p.out, rec)
	}
}

func (p *partitionReplay) flush(ctx context.Context, atLeast int) error {
	if len(p.out) < atLeast || len(p.out) == 0 {
		return nil
	}
	err := p.o.To.Append(ctx, p.out...)
	p.out = p.out[:0]
	return err
}

// finish pairs what was recorded but not derived with what was derived but not recorded: by what it is about, whatever its id.
func (p *partitionReplay) finish(ctx context.Context) error {
	if err := p.flush(ctx, 1); err != nil {
		return err
	}
	p.count(func(r *ReplayReport) { r.Events += p.events; r.Derived += p.derived; r.Same += p.same })
	now := make(map[string]*schemas.Event, len(p.unmatched))
	for i := range p.unmatched {
		now[about(p.unmatched[i])] = &p.unmatched[i]
	}
	err := p.unseen(ctx, func(old schemas.Event) {
		if p.foreign(old) {
			return
		}
		if sample, ok := old.Payload.(*schemas.SampleAssembled); ok && sample.GetKind() == schemas.SampleKind_SAMPLE_KIND_REHEARSAL {
			p.count(func(r *ReplayReport) { r.Rehearsals++ })
			return
		}
		key := about(old)
		p.difference(&old, now[key])
		delete(now, key)
	})
	if err != nil {
		return err
	}
	for _, e := range p.unmatched {
		if _, left := now[about(e)]; left {
			p.difference(nil, &e)
			delete(now, about(e))
		}
	}
	return nil
}

// fewUnseen is how many records are read again one by one; more are found by reading their topics through.
const fewUnseen = 20

// unseen calls do with the recorded events that were not derived again, in the order of topics and offsets.
func (p *partitionReplay) unseen(ctx context.Context, do func(schemas.Event)) error {
	left := p.was.unseen()
	if len(left) <= fewUnseen {
		for _, w := range left {
			old, err := p.h.event(ctx, p.was.topics[w.topic], p.partition, w.offset)
			if errors.Is(err, errNoEvent) {
				continue
			}
			if err != nil {
				return err
			}
			do(old)
		}
		return nil
	}
	for t, topic := range p.was.topics {
		next := slices.IndexFunc(left, func(w entry) bool { return int(w.topic) == t })
		if next < 0 {
			continue
		}
		err := p.h.each(ctx, topic, p.partition, func(rec schemas.Record) error {
			for next < len(left) && int(left[next].topic) == t && left[next].offset < rec.Offset {
				next++
			}
			if next == len(left) || int(left[next].topic) != t || left[next].offset != rec.Offset {
				return nil
			}
			if e, err := schemas.Decode(rec); err == nil {
				do(e)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// about is what a derived event is about: its kind, turn, and place among its kind. A sample and the reason why there is none are about the
// same, as are a hint and its absence.
func about(e schemas.Event) string {
	kind := e.Kind()
	switch kind {
	case "TurnSkipped":
		kind = "SampleAssembled"
	case "HintAbsent":
		kind = "HintSelected"
	}
	id := func(parts ...any) string { return kind + "/" + e.Tenant + "/" + e.Session + fmt.Sprint(parts...) }
	switch p := e.Payload.(type) {
	case *schemas.VoteCast:
		return id(p.GetTurnId(), "/", p.GetJudge(), "/", p.GetIndex())
	case *schemas.HintVoteCast:
		return id(p.GetTurnId(), "/", p.GetFinder(), "/", p.GetIndex())
	case *schemas.TeacherScored:
		return id(p.GetTurnId(), "/", p.GetHintIndex())
	case interface{ GetTurnId() string }:
		return id(p.GetTurnId())
	default:
		return id(e.ID)
	}
}

// difference counts and keeps one pair; was or now is nil when there is none.
func (p *partitionReplay) difference(was, now *schemas.Event) {
	any := was
	if any == nil {
		any = now
	}
	d := Difference{Kind: any.Kind(), Tenant: any.Tenant, Session: any.Session, TurnID: turnOf(*any)}
	if was != nil {
		d.Was = Summary(*was)
	}
	if now != nil {
		d.Now = Summary(*now)
	}
	p.count(func(r *ReplayReport) {
		switch {
		case was == nil:
			r.Extra++
		case now == nil:
			r.Missing++
		case was.ID != now.ID && sameSignal(was.Payload, now.Payload):
			r.Reversioned++
			return
		default:
			r.Changed++
		}
		if len(r.Differences) < p.o.MaxDifferences {
			r.Differences = append(r.Differences, d)
		}
	})
}

// sameSignal compares payloads but for the place of the turn in its topic.
func sameSignal(a, b proto.Message) bool {
	return proto.Equal(withoutOffset(a), withoutOffset(b))
}

func withoutOffset(m proto.Message) proto.Message {
	m = proto.Clone(m)
	if f := m.ProtoReflect().Descriptor().Fields().ByName("turn_offset"); f != nil {
		m.ProtoReflect().Clear(f)
	}
	return m
}

func turnOf(e schemas.Event) string {
	if p, ok := e.Payload.(interface{ GetTurnId() string }); ok {
		return p.GetTurnId()
	}
	return ""
}

func (p *partitionReplay) count(change func(*ReplayReport)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.report)
}

// String renders a difference for people.
func (d Difference) String() string {
	shown := func(s string) string {
		if s == "" {
			return "(none)"
		}
		return strings.Join(strings.Fields(s), " ")
	}
	return fmt.Sprintf("%s %s turn %s\n  - %s\n  + %s", d.Kind, d.Session, d.TurnID, shown(d.Was), shown(d.Now))
}
