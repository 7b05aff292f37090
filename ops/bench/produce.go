package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	bus "github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	produceEvents = 40_000
	// feeders are the goroutines that hand events over, on both sides.
	feeders = 4
	// barePrefix is before the topics that baselines write.
	barePrefix = "bare-"
)

// Produce measures the client from typed events to acknowledged records: it encodes and checks each event, batches, and appends. Baseline:
// kafka-go's writer with the same records ready encoded, on the same broker, with the same acknowledgement, batches and compression.
func Produce(ctx context.Context, e *Env) (results []Result, err error) {
	s, err := e.system(ctx, "produce", ops.NeedLog)
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, s.Close) }()
	bare, err := e.bareTopics(ctx, s, schemas.TopicInteractions)
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, bare.Close) }()

	events, records, err := e.encoded(e.events(produceEvents))
	if err != nil {
		return nil, err
	}
	shares := make([][]schemas.Event, feeders)
	messages := make([][]kafka.Message, feeders)
	for i, event := range events {
		n := event.Session[len(event.Session)-1] % feeders // a session stays with one feeder
		shares[n] = append(shares[n], event)
		messages[n] = append(messages[n], kafkaMessage(records[i]))
	}
	r, err := e.compare(ctx, "client", "events/s",
		func(ctx context.Context) (float64, error) { return throughClient(ctx, s.Log, shares) },
		func(ctx context.Context) (float64, error) {
			return throughWriter(ctx, s.Endpoints().Brokers[0], messages)
		})
	if err != nil {
		return nil, err
	}
	ours, err := total(ctx, s.Log, schemas.TopicInteractions)
	if err != nil {
		return nil, err
	}
	theirs, err := total(ctx, bare, schemas.TopicInteractions)
	if err != nil {
		return nil, err
	}
	if want := int64(len(events) * (e.runs() + 1)); ours != want || theirs != want {
		return nil, fmt.Errorf("%d records were written by the client and %d by the bare writer, want %d each", ours, theirs, want)
	}
	return []Result{r.higher("produce", "events/s", map[string]any{
		"events": len(events), "payload_bytes_per_event": payloadBytes(records), "goroutines": feeders,
	})}, nil
}

// throughClient sends all events and waits until the last is acknowledged.
func throughClient(ctx context.Context, log schemas.Appender, shares [][]schemas.Event) (float64, error) {
	start, n := time.Now(), 0
	c, err := client.New(log, client.Config{Tenant: Tenant, Source: "bench/1"}) //nolint:contextcheck // a client lives until it is closed
	if err != nil {
		return 0, err
	}
	var g errgroup.Group
	for _, share := range shares {
		n += len(share)
		g.Go(func() error {
			var session *client.Session
			last := ""
			for _, event := range share {
				if event.Session != last {
					session, last = c.Session(event.Session), event.Session
				}
				if _, err := session.Send(ctx, event.Payload, client.ID(event.ID), client.At(event.Time)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	if closed := c.Close(ctx); err == nil {
		err = closed
	}
	return float64(n) / time.Since(start).Seconds(), err
}

// throughWriter hands each share over whole, which lets kafka-go fill its batches.
func throughWriter(ctx context.Context, broker string, shares [][]kafka.Message) (float64, error) {
	start, n := time.Now(), 0
	w := bareWriter(broker, barePrefix+schemas.TopicInteractions)
	var g errgroup.Group
	for _, share := range shares {
		n += len(share)
		g.Go(func() error { return w.WriteMessages(ctx, share...) })
	}
	err := g.Wait()
	if closed := w.Close(); err == nil {
		err = closed
	}
	return float64(n) / time.Since(start).Seconds(), err
}

// bareTopics creates topics for baselines on the system's broker, and reads them. The caller closes it.
func (e *Env) bareTopics(ctx context.Context, s *ops.System, topics ...string) (*bus.Log, error) {
	cfg := s.Config.Kafka
	cfg.Brokers, cfg.TopicPrefix, cfg.Topics = s.Endpoints().Brokers, barePrefix, topics
	return bus.Open(ctx, cfg, e.Logger, nil)
}

// closing runs a close and keeps the first error.
func closing(err error, closer func() error) error {
	if closed := closer(); err == nil {
		return closed
	}
	return err
}
