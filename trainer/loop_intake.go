package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

// readRecords bounds the records of one arrival.
const readRecords = 64

// waiting is an admitted sample.
type waiting struct {
	used    Used
	event   schemas.Event
	sample  *schemas.SampleAssembled
	arrived time.Time
}

// arrival is what one read of a partition gave.
type arrival struct {
	partition int
	events    []schemas.Event
	// dead are the letters of the records that could not be decoded.
	dead []schemas.Record
	// next is the offset after the last record.
	next int64
}

// intake is the samples on their way to an update: read from all partitions, admitted, and waiting in order of arrival.
type intake struct {
	o        *owner
	arrivals chan arrival
	next     []int64 // by partition: the record after the last one that was taken
	waiting  []*waiting
	ids      map[string]bool // of the waiting ones
	goal     []int64         // schedule CRON: the end of each partition when the time came; nil between the times
}

// newIntake starts at the low watermarks, or at the first retained record where these are gone.
func newIntake(ctx context.Context, o *owner, low []int64) (*intake, error) {
	bounds, err := o.deps.Log.Bounds(ctx, schemas.TopicSamples)
	if err != nil {
		return nil, err
	}
	in := &intake{o: o, arrivals: make(chan arrival), next: make([]int64, len(bounds)), ids: map[string]bool{}}
	for p, b := range bounds {
		if p < len(low) {
			in.next[p] = low[p]
		}
		// A log that lost its end gives the same offsets again; samples that were used are told by their ids.
		in.next[p] = min(max(in.next[p], b.First), b.Next)
	}
	return in, nil
}

// read starts a reader for each partition. They wait while the intake does not take what they read.
func (in *intake) read(ctx context.Context, running *errgroup.Group) {
	for p, from := range slices.Clone(in.next) {
		running.Go(func() (err error) {
			cursor, err := in.o.deps.Log.Open(ctx, schemas.TopicSamples, p, from)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, cursor.Close()) }()
			for {
				records, err := cursor.Next(ctx, readRecords)
				if err != nil {
					return err
				}
				a, err := decode(p, records) // the records are the cursor's, which goes on reading meanwhile
				if err != nil {
					return err
				}
				select {
				case in.arrivals <- a:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
}

func decode(partition int, records []schemas.Record) (arrival, error) {
	a := arrival{partition: partition, next: records[len(records)-1].Offset + 1}
	for _, r := range records {
		e, err := schemas.Decode(r)
		if err == nil {
			a.events = append(a.events, e)
			continue
		}
		letter, err := schemas.Encode(schemas.DeadLetter("train", fmt.Sprintf("the record cannot be decoded: %v", err), r))
		if err != nil {
			return a, err
		}
		a.dead = append(a.dead, letter)
	}
	return a, nil
}

// minibatch waits for the samples of the next update.
func (in *intake) minibatch(ctx context.Context) ([]*waiting, error) {
	for {
		if err := in.onTime(ctx); err != nil {
			return nil, err
		}
		if err := in.refuseStale(ctx); err != nil {
			return nil, err
		}
		batch := in.pick()
		in.o.deps.Metrics.waiting.Set(float64(len(in.waiting)))
		if len(batch) == in.o.cfg.Batch || len(batch) > 0 && in.due() {
			return batch, in.untilIdle(ctx)
		}
		if in.goal != nil && in.caughtUp() {
			in.goal = nil // everything is trained: until the next time
			continue
		}
		if err := in.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// wait takes the next arrival, or returns when the oldest sample has waited long enough.
func (in *intake) wait(ctx context.Context) error {
	arrivals := in.arrivals
	if len(in.waiting) >= in.o.cfg.Waiting {
		arrivals = nil // further samples wait in the log
	}
	var overdue <-chan time.Time
	if len(in.waiting) > 0 && in.goal == nil {
		timer := time.NewTimer(time.Until(in.waiting[0].arrived.Add(in.o.cfg.Wait)))
		defer timer.Stop()
		overdue = timer.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-overdue:
		return nil
	case a := <-arrivals:
		return in.take(ctx, a)
	}
}

// due reports whether fewer samples than a batch are enough.
func (in *intake) due() bool {
	if in.goal != nil {
		return in.caughtUp() || len(in.waiting) >= in.o.cfg.Waiting
	}
	return time.Since(in.waiting[0].arrived) >= in.o.cfg.Wait
}

func (in *intake) caughtUp() bool {
	for p, goal := range in.goal {
		if in.next[p] < goal {
			return false
		}
	}
	return true
}

// onTime waits for the next time of a CRON schedule, unless what has come by the last one is still being trained.
func (in *intake) onTime(ctx context.Context) error {
	s := in.o.cfg.Schedule
	if s.kind != scheduleCron || in.goal != nil {
		return nil
	}
	timer := time.NewTimer(time.Until(s.cron.Next(time.Now())))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	bounds, err := in.o.deps.Log.Bounds(ctx, schemas.TopicSamples)
	if err != nil {
		return err
	}
	in.goal = []int64{}
	for _, b := range bounds[:min(len(bounds), len(in.next))] {
		in.goal = append(in.goal, b.Next)
	}
	return nil
}

// untilIdle waits until nobody is served, if the schedule says so.
func (in *intake) untilIdle(ctx context.Context) error {
	for in.o.cfg.Schedule.kind == scheduleIdle && !in.o.deps.Idle() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(idlePoll):
		}
	}
	return nil
}

// pick chooses at most a batch of the waiting samples, the oldest first; those over the bounds of their session or user are left for later.
func (in *intake) pick() []*waiting {
	cfg := in.o.cfg
	var batch []*waiting
	sessions, users := map[string]int{}, map[string]int{}
	for _, w := range in.waiting {
		if len(batch) == cfg.Batch {
			break
		}
		user := w.sample.GetUser()
		if cfg.PerSession > 0 && sessions[w.event.Session] >= cfg.PerSession || cfg.PerUser > 0 && user != "" && users[user] >= cfg.PerUser {
			continue
		}
		sessions[w.event.Session]++
		users[user]++
		batch = append(batch, w)
	}
	return batch
}

// low are the low watermarks once the batch is used.
func (in *intake) low(batch []*waiting) []int64 {
	low := slices.Clone(in.next)
	for _, w := range in.waiting {
		if !slices.Contains(batch, w) {
			low[w.used.Partition] = min(low[w.used.Partition], w.used.Offset)
		}
	}
	return low
}

func (in *intake) remove(batch []*waiting) {
	in.waiting = slices.DeleteFunc(in.waiting, func(w *waiting) bool { return slices.Contains(batch, w) })
	for _, w := range batch {
		delete(in.ids, w.used.SampleID)
	}
	in.o.deps.Metrics.waiting.Set(float64(len(in.waiting)))
}

// take admits what one read gave. What cannot be trained is in deadletters before the intake goes on.
func (in *intake) take(ctx context.Context, a arrival) error {
	var samples []schemas.Event
	var ids []string
	dead := a.dead
	for _, e := range a.events {
		if _, ok := e.Payload.(*schemas.SampleAssembled); !ok {
			continue // a skipped turn
		}
		if in.foreign(e) {
			in.o.deps.Metrics.samples.WithLabelValues("foreign").Inc()
			continue
		}
		if reason := in.refusal(e); reason != "" {
			letter, err := deadLetter(e, reason)
			if err != nil {
				return err
			}
			dead = append(dead, letter)
			continue
		}
		samples, ids = append(samples, e), append(ids, e.ID)
	}
	if err := in.keep(ctx, dead); err != nil {
		return err
	}
	if len(ids) > 0 {
		used, err := in.o.deps.Ledger.Used(ctx, ids)
		if err != nil {
			return err
		}
		in.admit(samples, used)
	}
	in.next[a.partition] = a.next
	return nil
}

// admit has the samples wait, unless they do or did already: the log may hold an event twice.
func (in *intake) admit(samples []schemas.Event, used map[string]bool) {
	now := time.Now()
	for _, e := range samples {
		if used[e.ID] || in.ids[e.ID] {
			in.o.deps.Metrics.samples.WithLabelValues("repeated").Inc()
			continue
		}
		in.ids[e.ID] = true
		sample, _ := e.Payload.(*schemas.SampleAssembled)
		in.waiting = append(in.waiting, &waiting{Used{e.ID, e.Position.Partition, e.Position.Offset}, e, sample, now})
	}
}

// foreign says that a sample is nothing of this trainer's: another tenant's, or no reply of a policy, as those of imported logs and of models behind an
// upstream. It is no bad input, and left alone.
func (in *intake) foreign(e schemas.Event) bool {
	sample, _ := e.Payload.(*schemas.SampleAssembled)
	return e.Tenant != in.o.cfg.Tenant || !rehearsal(sample) && (sample.PolicyVersion == nil || sample.GetTokens() == nil)
}

// refusal says why a sample cannot be trained; "" when it can.
func (in *intake) refusal(e schemas.Event) string {
	sample, _ := e.Payload.(*schemas.SampleAssembled)
	if err := in.o.cfg.Recipe.admission(in.o.deps.Vocabulary).AdmitUnder(in.o.cfg.Recipe.Objective, sample); err != nil {
		return err.Error()
	}
	if rehearsal(sample) {
		return "" // no policy version answered it
	}
	if _, known := in.o.ordinals[sample.GetPolicyVersion()]; !known {
		return fmt.Sprintf("the policy version %.80q was never published by this trainer", sample.GetPolicyVersion())
	}
	return ""
}

// refuseStale dead-letters the waiting samples that too many versions have overtaken.
func (in *intake) refuseStale(ctx context.Context) error {
	var stale []*waiting
	var dead []schemas.Record
	for _, w := range in.waiting {
		n := in.o.staleness(w.sample)
		if n <= in.o.cfg.MaxStaleness {
			continue
		}
		letter, err := deadLetter(w.event, fmt.Sprintf("the sample is %d policy versions old, and at most %d are trained (--train-staleness)", n, in.o.cfg.MaxStaleness))
		if err != nil {
			return err
		}
		stale, dead = append(stale, w), append(dead, letter)
	}
	if err := in.keep(ctx, dead); err != nil {
		return err
	}
	in.remove(stale)
	return nil
}

// deadLetter is the letter of a sample that was decoded: its record is made again.
func deadLetter(e schemas.Event, reason string) (schemas.Record, error) {
	r, err := schemas.Encode(e)
	if err != nil {
		return r, err
	}
	r.Partition, r.Offset = e.Position.Partition, e.Position.Offset
	return schemas.Encode(schemas.DeadLetter("train", reason, r))
}

// keep appends dead letters; repeating it after a crash gives the same events.
func (in *intake) keep(ctx context.Context, dead []schemas.Record) error {
	if len(dead) == 0 {
		return nil
	}
	if err := in.o.deps.Log.Append(ctx, dead...); err != nil {
		return err
	}
	in.o.deps.Metrics.samples.WithLabelValues("refused").Add(float64(len(dead)))
	return nil
}
