package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/nextstate-rl/nextstate/schemas"
)

const (
	// maxNote bounds Commit.Note: brokers take 4,096 bytes.
	maxNote = 4000
	// leaveWithin bounds how long a member tries to say goodbye to its group once its handlers have returned.
	leaveWithin = time.Second
	// failurePause and failurePauseMax bound how long a partition rests after its handler failed, doubling from one to the other.
	failurePause, failurePauseMax = 100 * time.Millisecond, 5 * time.Second
)

// Own implements schemas.Owner. A handler that fails starts over within the same membership, so that the other partitions of this member go
// on; one that was fenced makes the member join again.
func (l *Log) Own(ctx context.Context, group, topic string, own func(context.Context, schemas.Claim) error) error {
	if _, ok := l.lanes[topic]; !ok {
		return unknownTopic(topic)
	}
	conns := &groupConns{dial: l.config.Dial}
	cg, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: l.config.TopicPrefix + group, Brokers: l.config.Brokers, Topics: []string{l.config.TopicPrefix + topic},
		Dialer: &kafka.Dialer{
			ClientID: "nextstate", DialFunc: conns.Dial, Timeout: 5 * time.Second,
			TLS: l.transport.TLS, SASLMechanism: l.transport.SASL,
		},
		HeartbeatInterval: l.config.HeartbeatInterval, SessionTimeout: l.config.SessionTimeout, RebalanceTimeout: l.config.RebalanceTimeout,
		JoinGroupBackoff: 250 * time.Millisecond, StartOffset: kafka.FirstOffset,
	})
	if err != nil {
		return fmt.Errorf("kafka: group %s: %w", group, err)
	}
	m := &membership{log: l, group: group, topic: topic, own: own}
	defer m.leave(cg, conns)
	for ctx.Err() == nil {
		gen, err := cg.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			l.metrics.rebalances.WithLabelValues(topic).Inc()
			m.start(ctx, gen)
		case !retryable(err):
			return fmt.Errorf("kafka: joining group %s: %w", group, err)
		default:
			// kafka-go pauses and tries again by itself.
			l.logger.WarnContext(ctx, "joining the consumer group failed, trying again", slog.String("group", group), slog.Any("error", err))
		}
	}
	return nil
}

// membership is one call of Own.
type membership struct {
	log          *Log
	group, topic string
	own          func(context.Context, schemas.Claim) error
	// handlers counts the goroutines that run own. Added to by Own's goroutine only.
	handlers sync.WaitGroup
}

// start runs a handler for each partition that the generation gives us. kafka-go cancels them when the generation ends, and joins the
// next one when they have returned.
func (m *membership) start(ctx context.Context, gen *kafka.Generation) {
	for _, p := range gen.Assignments[m.log.config.TopicPrefix+m.topic] {
		m.handlers.Add(1)
		gen.Start(func(genCtx context.Context) {
			defer m.handlers.Done()
			// Own's ctx reaches the handlers through the end of the generation only. Were they cancelled by it directly, kafka-go
			// would take their return for the end of the generation and join the next one before it hears that we leave.
			handlerCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
			defer cancel()
			defer context.AfterFunc(genCtx, cancel)()
			m.handle(handlerCtx, &claim{log: m.log, group: m.group, topic: m.topic, partition: p.ID, generation: int(gen.ID), member: gen.MemberID})
		})
	}
}

// handle runs own for one partition, again and again while it fails, until ctx ends or the partition is another's.
func (m *membership) handle(ctx context.Context, c *claim) {
	for pause := failurePause; ctx.Err() == nil; pause = min(2*pause, failurePauseMax) {
		before := c.commits
		err := m.ownOnce(ctx, c)
		if ctx.Err() != nil || errors.Is(err, schemas.ErrFenced) {
			return
		}
		if c.commits > before {
			pause = failurePause // it got somewhere
		}
		if err == nil {
			err = errors.New("the handler returned while it owned the partition")
		}
		m.log.logger.WarnContext(ctx, "the owner of a partition failed, starting over from its last commit", slog.String("group", m.group),
			slog.String("topic", m.topic), slog.Int("partition", c.partition), slog.Duration("pause", pause), slog.Any("error", err))
		m.log.metrics.failures.WithLabelValues(m.topic).Inc()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (m *membership) ownOnce(ctx context.Context, c *claim) error {
	cs, err := m.log.committed(ctx, m.group, m.topic, []int{c.partition})
	if err != nil {
		return err
	}
	c.committed = cs[0]
	return m.own(ctx, c)
}

// leave ends the handlers and the membership. When the brokers do not answer the goodbye in time, the group finds out by itself.
func (m *membership) leave(cg *kafka.ConsumerGroup, conns *groupConns) {
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = cg.Close() // always nil
	}()
	m.handlers.Wait()
	select {
	case <-left:
	case <-time.After(leaveWithin):
		conns.Shut()
		<-left
	}
}

// claim implements schemas.Claim. For the goroutine that runs the handler.
type claim struct {
	log          *Log
	group, topic string
	partition    int
	generation   int
	member       string
	committed    schemas.Commit
	commits      int
}

func (c *claim) Topic() string             { return c.topic }
func (c *claim) Partition() int            { return c.partition }
func (c *claim) Committed() schemas.Commit { return c.committed }

// Commit implements schemas.Claim. The broker compares the member and its generation with the group's.
func (c *claim) Commit(ctx context.Context, to schemas.Commit) error {
	if to.Offset < 0 {
		return errors.New("kafka: commit of a negative offset")
	}
	if len(to.Note) > maxNote {
		return fmt.Errorf("kafka: the note of a commit has %d bytes, at most %d are allowed", len(to.Note), maxNote)
	}
	name := c.log.config.TopicPrefix + c.topic
	err := c.log.retry(ctx, func(ctx context.Context) error {
		res, err := c.log.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{
			GroupID: c.log.config.TopicPrefix + c.group, GenerationID: c.generation, MemberID: c.member,
			Topics: map[string][]kafka.OffsetCommit{name: {{Partition: c.partition, Offset: to.Offset, Metadata: to.Note}}},
		})
		if err != nil {
			return commitError(err)
		}
		for _, p := range res.Topics[name] {
			if p.Partition == c.partition {
				return commitError(p.Error)
			}
		}
		return fmt.Errorf("no answer for partition %d", c.partition)
	})
	c.log.metrics.committed(c.topic, err)
	if err != nil {
		return fmt.Errorf("kafka: commit of %s/%d for group %s: %w", c.topic, c.partition, c.group, err)
	}
	c.commits++
	return nil
}

// Committed implements schemas.Owner.
func (l *Log) Committed(ctx context.Context, group, topic string) ([]schemas.Commit, error) {
	lanes, ok := l.lanes[topic]
	if !ok {
		return nil, unknownTopic(topic)
	}
	all := make([]int, len(lanes))
	for p := range all {
		all[p] = p
	}
	return l.committed(ctx, group, topic, all)
}

// committed returns the group's commits of the given partitions.
func (l *Log) committed(ctx context.Context, group, topic string, partitions []int) ([]schemas.Commit, error) {
	name := l.config.TopicPrefix + topic
	out := make([]schemas.Commit, len(partitions))
	err := l.retry(ctx, func(ctx context.Context) error {
		res, err := l.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
			GroupID: l.config.TopicPrefix + group, Topics: map[string][]int{name: partitions},
		})
		if err == nil {
			err = res.Error
		}
		if errors.Is(err, kafka.GroupIdNotFound) { // kfake's answer for a group that nobody has joined; Kafka's is no commits
			for i := range out {
				out[i] = schemas.Commit{Offset: -1}
			}
			return nil
		}
		if err != nil {
			return err
		}
		found := map[int]schemas.Commit{}
		for _, p := range res.Topics[name] {
			if p.Error != nil {
				return fmt.Errorf("partition %d: %w", p.Partition, p.Error)
			}
			found[p.Partition] = schemas.Commit{Offset: p.CommittedOffset, Note: p.Metadata}
		}
		for i, p := range partitions {
			c, ok := found[p]
			if !ok {
				return fmt.Errorf("no answer for partition %d", p)
			}
			out[i] = c
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("kafka: commits of group %s in topic %s: %w", group, topic, err)
	}
	return out, nil
}
