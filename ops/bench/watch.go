package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/nextstate-rl/nextstate/schemas"
)

// watchedLog is a log that notes when a stage began to read, and closes done when the stage has written or committed as much as was wanted.
// It adds one atomic operation a call.
type watchedLog struct {
	schemas.Log
	// wantAppended records are acknowledged, or wantCommitted records are committed, then done is closed; 0: not waited for.
	wantAppended, wantCommitted int64

	appended, committed atomic.Int64
	begin               sync.Once
	began               time.Time
	end                 sync.Once
	ended               time.Time
	done                chan struct{}
}

func watch(log schemas.Log, wantAppended, wantCommitted int64) *watchedLog {
	return &watchedLog{Log: log, wantAppended: wantAppended, wantCommitted: wantCommitted, done: make(chan struct{})}
}

// Append implements schemas.Appender.
func (w *watchedLog) Append(ctx context.Context, records ...schemas.Record) error {
	err := w.Log.Append(ctx, records...)
	if err == nil {
		w.check(w.appended.Add(int64(len(records))), w.wantAppended)
	}
	return err
}

// Open implements schemas.Reader.
func (w *watchedLog) Open(ctx context.Context, topic string, partition int, offset int64) (schemas.Cursor, error) {
	w.begin.Do(func() { w.began = time.Now() })
	return w.Log.Open(ctx, topic, partition, offset)
}

// Own implements schemas.Owner.
func (w *watchedLog) Own(ctx context.Context, group, topic string, own func(context.Context, schemas.Claim) error) error {
	return w.Log.Own(ctx, group, topic, func(ctx context.Context, c schemas.Claim) error {
		return own(ctx, &watchedClaim{Claim: c, log: w})
	})
}

func (w *watchedLog) check(have, want int64) {
	if want > 0 && have >= want {
		w.end.Do(func() {
			w.ended = time.Now()
			close(w.done)
		})
	}
}

// seconds from the first read to the end; after done.
func (w *watchedLog) seconds() float64 { return w.ended.Sub(w.began).Seconds() }

// watchedClaim counts what its one owner commits. For one goroutine.
type watchedClaim struct {
	schemas.Claim
	log *watchedLog
	at  int64
}

// Commit implements schemas.Claim.
func (c *watchedClaim) Commit(ctx context.Context, commit schemas.Commit) error {
	err := c.Claim.Commit(ctx, commit)
	if err == nil && commit.Offset > c.at {
		c.log.check(c.log.committed.Add(commit.Offset-c.at), c.log.wantCommitted)
		c.at = commit.Offset
	}
	return err
}

// while runs a stage until the watched log is done, and returns the seconds that it took.
func (w *watchedLog) while(ctx context.Context, run func(context.Context) error) (float64, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }() // ends with ctx; waited for below
	select {
	case err := <-ended:
		if err == nil {
			err = ctx.Err()
		}
		return 0, err
	case <-w.done:
		stop()
		return w.seconds(), <-ended
	}
}

// readAll reads what every partition of a topic holds.
func readAll(ctx context.Context, log schemas.Reader, topic string, each func(partition int, r schemas.Record) error) error {
	bounds, err := log.Bounds(ctx, topic)
	if err != nil {
		return err
	}
	for p, b := range bounds {
		if b.First == b.Next {
			continue
		}
		cursor, err := log.Open(ctx, topic, p, b.First)
		if err != nil {
			return err
		}
		err = readTo(ctx, cursor, b.Next, func(r schemas.Record) error { return each(p, r) })
		if closed := cursor.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readTo(ctx context.Context, cursor schemas.Cursor, end int64, each func(schemas.Record) error) error {
	for {
		records, err := cursor.Next(ctx, 1000)
		if err != nil {
			return err
		}
		for _, r := range records {
			if err := each(r); err != nil {
				return err
			}
			if r.Offset+1 >= end {
				return nil
			}
		}
	}
}

// total is how many records a topic holds.
func total(ctx context.Context, log schemas.Reader, topics ...string) (n int64, err error) {
	for _, topic := range topics {
		bounds, err := log.Bounds(ctx, topic)
		if err != nil {
			return 0, err
		}
		for _, b := range bounds {
			n += b.Next - b.First
		}
	}
	return n, nil
}

// kafkaMessage is a record as kafka-go writes it.
func kafkaMessage(r schemas.Record) kafka.Message {
	m := kafka.Message{Key: r.Key, Value: r.Value, Time: r.Time, Headers: make([]kafka.Header, len(r.Headers))}
	for i, h := range r.Headers {
		m.Headers[i] = kafka.Header{Key: h.Key, Value: h.Value}
	}
	return m
}

// bareWriter is kafka-go's own writer with what the client promises: acknowledged by all replicas, each key in its partition, zstd.
func bareWriter(broker, topic string) *kafka.Writer {
	return &kafka.Writer{
		Addr: kafka.TCP(broker), Topic: topic, Balancer: &kafka.Murmur2Balancer{Consistent: true}, RequiredAcks: kafka.RequireAll,
		BatchSize: 1000, BatchBytes: 1 << 20, BatchTimeout: 5 * time.Millisecond, Compression: kafka.Zstd, WriteTimeout: time.Minute,
	}
}

// bareReader is kafka-go's own reader of one partition, from its first record.
func bareReader(broker, topic string, partition int) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{broker}, Topic: topic, Partition: partition, MinBytes: 1, MaxBytes: 10 << 20, QueueCapacity: 1000, MaxWait: 100 * time.Millisecond,
	})
}
