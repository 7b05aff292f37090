package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	// maxBatchBytes bounds what is put into one request to one partition, unless a single record is larger.
	maxBatchBytes = 1 << 20
	// maxBatchRecords bounds the same by number.
	maxBatchRecords = 4096
	// laneJobs bounds the calls that wait for one partition; more of them block.
	laneJobs = 256
)

// lane sends to one partition, one request at a time, in one goroutine that the Log owns. Whatever has queued up meanwhile goes into the
// next request: under load requests fill up, and without load nothing waits.
type lane struct {
	log       *Log
	topic     string // with the prefix
	partition int
	queue     chan *job
	encoder   batchEncoder
	// limit is how many records the next request may hold: fewer after the broker refused a request for one of its records, so that
	// only that record's call fails.
	limit int
}

func newLane(l *Log, topic string, partition int) *lane {
	return &lane{
		log: l, topic: topic, partition: partition, queue: make(chan *job, laneJobs),
		encoder: batchEncoder{zstd: l.compressor}, limit: maxBatchRecords,
	}
}

// submit queues a job, waiting for room.
func (ln *lane) submit(ctx context.Context, j *job) error {
	select {
	case <-ln.log.closing:
		return ErrClosed
	default:
	}
	select {
	case ln.queue <- j:
		return nil
	case <-ln.log.closing:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("kafka: append: %w", ctx.Err())
	}
}

// run works until the log closes; then calls that still wait fail with ErrClosed.
func (ln *lane) run(ctx context.Context) {
	var open []*job
	for {
		open = ln.gather(ctx, open)
		if ctx.Err() != nil {
			ln.fail(open)
			return
		}
		if len(open) > 0 {
			open = ln.send(ctx, open)
		}
	}
}

// fail ends what can no longer be sent. A job that is queued after this finds the log closing, or its caller's ctx ends.
func (ln *lane) fail(open []*job) {
	for {
		for _, j := range open {
			j.finish(ErrClosed)
		}
		select {
		case j := <-ln.queue:
			open = []*job{j}
		default:
			return
		}
	}
}

// gather adds the queued jobs to the open ones, up to a request full, waiting for the first.
func (ln *lane) gather(ctx context.Context, open []*job) []*job {
	records := 0
	for _, j := range open {
		records += len(j.mine) - j.next
	}
	if len(open) == 0 {
		select {
		case j := <-ln.queue:
			open, records = append(open, j), len(j.mine)
		case <-ctx.Done():
			return open
		}
	}
	for records < ln.limit {
		select {
		case j := <-ln.queue:
			open, records = append(open, j), records+len(j.mine)
		default:
			return open
		}
	}
	return open
}

// part is a job's share of one request.
type part struct {
	job *job
	n   int
}

// send makes one request of the first open jobs, repeats it until it is answered, and returns the jobs that are still open.
func (ln *lane) send(ctx context.Context, open []*job) []*job {
	batch, parts, err := ln.fill(open)
	if err == nil && len(parts) > 0 {
		err = ln.deliver(ctx, batch, parts)
	}
	total := 0
	for _, p := range parts {
		total += p.n
	}
	if err != nil && total > 1 && blamesRecord(err) {
		ln.limit = max(total/2, 1)
		return open
	}
	if err == nil {
		ln.limit = min(ln.limit*2, maxBatchRecords)
	}
	still := open[:0]
	for i, j := range open {
		switch {
		case i < len(parts) && err != nil:
			j.finish(err)
			continue
		case i < len(parts):
			j.next += parts[i].n
		}
		if j.next == len(j.mine) {
			j.finish(nil)
			continue
		}
		still = append(still, j)
	}
	clear(open[len(still):])
	return still
}

// fill encodes as much of the open jobs as one request may hold: one part for each of the first len(parts) jobs. An abandoned job has an
// empty part that counts it as done.
func (ln *lane) fill(open []*job) ([]byte, []part, error) {
	var records []*schemas.Record
	var parts []part
	size := 0
	// The locks are held until the bytes are copied, so that no caller gets its memory back too early.
	for _, j := range open {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.abandoned {
			j.next = len(j.mine)
			parts = append(parts, part{j, 0})
			continue
		}
		p := part{job: j}
		for _, i := range j.mine[j.next:] {
			r := &j.records[i]
			n := recordSize(r) + 32
			if len(records) > 0 && (size+n > maxBatchBytes || len(records) >= ln.limit) {
				break
			}
			records, size = append(records, r), size+n
			p.n++
		}
		if p.n == 0 {
			break
		}
		parts = append(parts, p)
	}
	if len(records) == 0 {
		return nil, parts, nil
	}
	batch, body, err := ln.encoder.encode(ln.log.buffer(), ln.log.buffer(), records, time.Now())
	ln.log.recycle(body)
	return batch, parts, err
}

// deliver repeats one request until the broker has answered for good, nobody waits for it any more, or the time is up.
func (ln *lane) deliver(ctx context.Context, batch []byte, parts []part) error {
	if batch == nil {
		return nil // nothing but abandoned jobs
	}
	deadline := time.Now().Add(ln.log.config.AppendTimeout)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := ln.produce(ctx, batch)
		if err == nil {
			// After an error the batch is left to the garbage collector: kafka-go may still be sending it.
			ln.log.recycle(batch)
			return nil
		}
		if !retryable(err) {
			return err
		}
		if ctx.Err() != nil {
			return ErrClosed
		}
		if time.Now().Add(pause).After(deadline) {
			return fmt.Errorf("kafka: append to %s/%d: not acknowledged for %v: are the brokers reachable? %w", ln.topic, ln.partition, ln.log.config.AppendTimeout, err)
		}
		if !anybodyWaits(parts) {
			return context.Canceled
		}
		ln.log.metrics.retries.Inc()
		select {
		case <-ctx.Done():
			return ErrClosed
		case <-time.After(pause):
		}
	}
}

func anybodyWaits(parts []part) bool {
	for _, p := range parts {
		if p.job.ctx.Err() == nil {
			return true
		}
	}
	return false
}

// produce makes the request once.
func (ln *lane) produce(ctx context.Context, batch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	res, err := ln.log.client.RawProduce(ctx, &kafka.RawProduceRequest{
		Topic: ln.topic, Partition: ln.partition, RequiredAcks: kafka.RequireAll,
		RawRecords: protocol.RawRecordSet{Reader: bytes.NewReader(batch)},
	})
	if err != nil {
		return err
	}
	switch {
	case res.Error == nil:
		return nil
	case errors.Is(res.Error, kafka.MessageSizeTooLarge), errors.Is(res.Error, kafka.RecordListTooLarge):
		return fmt.Errorf("kafka: topic %s takes no batch of %d bytes: raise its max.message.bytes to %d: %w",
			ln.topic, len(batch), maxMessageBytes, schemas.ErrTooLarge)
	default:
		return fmt.Errorf("kafka: append to %s/%d: %w", ln.topic, ln.partition, res.Error)
	}
}
