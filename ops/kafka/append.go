package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// job is the part of one Append call that goes into one partition. It is created by the call, and worked off by the partition's lane.
type job struct {
	ctx context.Context //nolint:containedctx // the call's, so that the lane does not begin what nobody waits for
	// done gets the outcome, once. It has room for it, so the lane never waits for the caller.
	done chan error

	mu sync.Mutex
	// records is the caller's slice, and mine the indices of those that are for this partition. Read with mu held and only while not
	// abandoned: a caller whose ctx ends sets that, and then has its bytes for itself again.
	records   []schemas.Record
	mine      []int32
	abandoned bool

	// next is the index into mine of the first record that is not yet acknowledged. The lane's.
	next int
}

// finish reports the outcome. The lane calls it once.
func (j *job) finish(err error) { j.done <- err }

// abandon takes the records away from the lane.
func (j *job) abandon() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.abandoned = true
}

// Append implements schemas.Appender. Calls of several goroutines that are for the same partition share a request. After an ambiguous
// acknowledgement the records are sent again, so some may be in the log twice.
func (l *Log) Append(ctx context.Context, records ...schemas.Record) error {
	if len(records) == 0 {
		return ctx.Err()
	}
	start := time.Now()
	jobs, err := l.jobs(ctx, records)
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range jobs {
			s.job.abandon()
		}
	}()
	for _, s := range jobs {
		if err := s.lane.submit(ctx, s.job); err != nil {
			return err
		}
	}
	var failed error
	for _, s := range jobs {
		select {
		case err := <-s.job.done:
			failed = errors.Join(failed, err)
		case <-l.stopped: // a job that was queued in the moment of closing has nobody to finish it
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("kafka: append: %w", ctx.Err())
		}
	}
	if failed != nil {
		return failed
	}
	l.metrics.appended(records, time.Since(start))
	return nil
}

type sendJob struct {
	lane *lane
	job  *job
}

// jobs splits a call by partition, in the order in which the partitions first appear.
func (l *Log) jobs(ctx context.Context, records []schemas.Record) ([]sendJob, error) {
	var jobs []sendJob
	of := make(map[*lane]*job, l.config.Partitions)
	for i := range records {
		r := &records[i]
		if err := checkRecord(r); err != nil {
			return nil, err
		}
		lanes, ok := l.lanes[r.Topic]
		if !ok {
			return nil, unknownTopic(r.Topic)
		}
		ln := lanes[schemas.PartitionOf(r.Key, len(lanes))]
		j := of[ln]
		if j == nil {
			j = &job{ctx: ctx, done: make(chan error, 1), records: records}
			of[ln] = j
			jobs = append(jobs, sendJob{ln, j})
		}
		j.mine = append(j.mine, int32(i)) //nolint:gosec // a call has far fewer
	}
	return jobs, nil
}

func unknownTopic(topic string) error {
	return fmt.Errorf("kafka: topic %q is not one of those that this log was opened with: add it to Config.Topics", topic)
}
