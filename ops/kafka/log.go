package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	// requestTimeout bounds one request to a broker that is not meant to wait.
	requestTimeout = 15 * time.Second
	// retryFor bounds how long requests other than appends are repeated.
	retryFor = 30 * time.Second
	// bufferCount bounds the batch buffers that are kept for the next request.
	bufferCount = 16
)

// Log is schemas.Log on Kafka. Safe for concurrent use. The one who opened it closes it, after everybody who uses it has stopped.
type Log struct {
	config     Config
	logger     *slog.Logger
	metrics    *metrics
	transport  *kafka.Transport
	client     *kafka.Client
	compressor *zstd.Encoder
	// buffers are free batch buffers, for all lanes together.
	buffers chan []byte
	// lanes are the senders, by topic without prefix and by partition. Complete after Open, and not changed any more.
	lanes map[string][]*lane

	// ctx ends the lanes and cursors; it is the log's life, not a call's.
	ctx     context.Context //nolint:containedctx // see above
	cancel  context.CancelFunc
	closing chan struct{}
	// stopped is closed when no lane runs any more.
	stopped   chan struct{}
	closeOnce sync.Once
}

var _ schemas.Log = (*Log)(nil)

// Open connects to Kafka, creates the topics that are missing, and refuses those with another partition count than configured. Metrics go
// to registerer, which may be nil; several logs may share one. The caller closes the log.
func Open(ctx context.Context, c Config, logger *slog.Logger, registerer prometheus.Registerer) (*Log, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	tlsConfig, err := c.TLS.config()
	if err != nil {
		return nil, err
	}
	mechanism, err := c.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	compressor, err := newCompressor(c.Compression)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	m, err := newMetrics(registerer)
	if err != nil {
		return nil, err
	}
	l := &Log{
		config: c, logger: logger, metrics: m, compressor: compressor, buffers: make(chan []byte, bufferCount),
		lanes: map[string][]*lane{}, closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.transport = &kafka.Transport{
		ClientID: "nextstate", Dial: c.Dial, TLS: tlsConfig, SASL: mechanism, DialTimeout: 5 * time.Second,
		MetadataTTL: 3 * time.Second, MetadataTopics: l.prefixed(c.Topics), Context: l.ctx,
	}
	l.client = &kafka.Client{Addr: kafka.TCP(c.Brokers...), Transport: l.transport}
	if err := l.ensureTopics(ctx); err != nil {
		l.cancel()
		l.transport.CloseIdleConnections()
		return nil, err
	}
	l.startLanes()
	return l, nil
}

func (l *Log) startLanes() {
	var running sync.WaitGroup
	for _, t := range l.config.Topics {
		lanes := make([]*lane, l.config.Partitions)
		for p := range lanes {
			lanes[p] = newLane(l, l.config.TopicPrefix+t, p)
			running.Go(func() { lanes[p].run(l.ctx) })
		}
		l.lanes[t] = lanes
	}
	go func() {
		running.Wait()
		close(l.stopped)
	}()
}

// Close ends appends with ErrClosed, and frees the connections. Cursors and Own must have ended.
func (l *Log) Close() error {
	l.closeOnce.Do(func() {
		close(l.closing)
		l.cancel()
		<-l.stopped
		l.transport.CloseIdleConnections()
	})
	return nil
}

func (l *Log) prefixed(topics []string) []string {
	out := make([]string, len(topics))
	for i, t := range topics {
		out[i] = l.config.TopicPrefix + t
	}
	return out
}

// Bounds implements schemas.Reader.
func (l *Log) Bounds(ctx context.Context, topic string) ([]schemas.Bounds, error) {
	lanes, ok := l.lanes[topic]
	if !ok {
		return nil, unknownTopic(topic)
	}
	all := make([]int, len(lanes))
	for p := range all {
		all[p] = p
	}
	return l.bounds(ctx, topic, all)
}

// bounds returns the bounds of the given partitions, which are ascending.
func (l *Log) bounds(ctx context.Context, topic string, partitions []int) ([]schemas.Bounds, error) {
	name := l.config.TopicPrefix + topic
	var wanted []kafka.OffsetRequest
	for _, p := range partitions {
		wanted = append(wanted, kafka.FirstOffsetOf(p), kafka.LastOffsetOf(p))
	}
	out := make([]schemas.Bounds, len(partitions))
	err := l.retry(ctx, func(ctx context.Context) error {
		res, err := l.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{name: wanted}})
		if err != nil {
			return err
		}
		found := map[int]schemas.Bounds{}
		for _, o := range res.Topics[name] {
			if o.Error != nil {
				return fmt.Errorf("partition %d: %w", o.Partition, o.Error)
			}
			found[o.Partition] = schemas.Bounds{First: o.FirstOffset, Next: o.LastOffset}
		}
		for i, p := range partitions {
			b, ok := found[p]
			if !ok {
				return fmt.Errorf("partition %d: %w", p, kafka.UnknownTopicOrPartition)
			}
			out[i] = b
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("kafka: offsets of topic %s: %w", name, err)
	}
	return out, nil
}

// retry repeats a request that failed in a way that may pass, with growing pauses, for retryFor at most.
func (l *Log) retry(ctx context.Context, request func(context.Context) error) error {
	deadline := time.Now().Add(retryFor)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			return request(ctx)
		}()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w (last failure: %w)", ctx.Err(), err)
		case !retryable(err) || errors.Is(err, schemas.ErrFenced):
			return err
		case time.Now().Add(pause).After(deadline):
			return fmt.Errorf("no success for %v: are the brokers reachable, and is the login right? %w", retryFor, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last failure: %w)", ctx.Err(), err)
		case <-l.closing:
			return ErrClosed
		case <-time.After(pause):
		}
	}
}

// buffer returns an empty buffer, one that was used before if there is one.
func (l *Log) buffer() []byte {
	select {
	case b := <-l.buffers:
		return b[:0]
	default:
		return nil
	}
}

// recycle takes a buffer that nobody reads any more. Large and surplus ones are left to the garbage collector.
func (l *Log) recycle(b []byte) {
	if cap(b) > 2*maxBatchBytes {
		return
	}
	select {
	case l.buffers <- b:
	default:
	}
}
