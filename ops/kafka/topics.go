package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/segmentio/kafka-go"

	"github.com/nextstate-rl/nextstate/schemas"
)

// maxMessageBytes is the topics' max.message.bytes: the largest record with headers and framing.
const maxMessageBytes = schemas.MaxRecordBytes + 256<<10

// errTopicMissing is why ensureTopics asks again: the brokers do not all know a new topic at once.
var errTopicMissing = errors.New("not there yet")

// ensureTopics creates the topics that are missing and waits until every partition has a leader.
func (l *Log) ensureTopics(ctx context.Context) error {
	err := l.retry(ctx, func(ctx context.Context) error {
		missing, err := l.missingTopics(ctx)
		if err != nil || len(missing) == 0 {
			return err
		}
		if err := l.createTopics(ctx, missing); err != nil {
			return err
		}
		return fmt.Errorf("topics %v: %w", missing, errTopicMissing)
	})
	if err != nil {
		return fmt.Errorf("kafka: topics at %v: %w", l.config.Brokers, err)
	}
	return nil
}

// missingTopics returns the topics that do not exist, by their names with prefix.
func (l *Log) missingTopics(ctx context.Context) ([]string, error) {
	wanted := l.prefixed(l.config.Topics)
	meta, err := l.client.Metadata(ctx, &kafka.MetadataRequest{Topics: wanted})
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, t := range meta.Topics {
		if errors.Is(t.Error, kafka.UnknownTopicOrPartition) {
			continue
		}
		if t.Error != nil {
			return nil, fmt.Errorf("topic %s: %w", t.Name, t.Error)
		}
		found[t.Name] = true
		if len(t.Partitions) != l.config.Partitions {
			return nil, &partitionCountError{topic: t.Name, has: len(t.Partitions), wants: l.config.Partitions}
		}
		for _, p := range t.Partitions {
			if p.Error != nil {
				return nil, fmt.Errorf("topic %s, partition %d: %w", t.Name, p.ID, p.Error)
			}
		}
	}
	var missing []string
	for _, t := range wanted {
		if !found[t] {
			missing = append(missing, t)
		}
	}
	return missing, nil
}

// partitionCountError refuses a topic whose partition count is not the configured one. It is permanent.
type partitionCountError struct {
	topic      string
	has, wants int
}

func (e *partitionCountError) Error() string {
	return fmt.Sprintf("topic %s has %d partitions and the configuration says %d; sessions are bound to partitions, so the count of a topic never changes: "+
		"set kafka.partitions to %d, or kafka.topic_prefix for new topics", e.topic, e.has, e.wants, e.has)
}

func (l *Log) createTopics(ctx context.Context, topics []string) error {
	retention := "-1"
	if l.config.Retention > 0 {
		retention = strconv.FormatInt(l.config.Retention.Milliseconds(), 10)
	}
	request := &kafka.CreateTopicsRequest{}
	for _, t := range topics {
		request.Topics = append(request.Topics, kafka.TopicConfig{
			Topic: t, NumPartitions: l.config.Partitions, ReplicationFactor: l.config.Replication,
			ConfigEntries: []kafka.ConfigEntry{
				{ConfigName: "cleanup.policy", ConfigValue: "delete"},
				{ConfigName: "retention.ms", ConfigValue: retention},
				{ConfigName: "max.message.bytes", ConfigValue: strconv.Itoa(maxMessageBytes)},
				// One copy may be down without stopping appends; none that was acknowledged is on one machine only.
				{ConfigName: "min.insync.replicas", ConfigValue: strconv.Itoa(max(1, l.config.Replication-1))},
			},
		})
	}
	res, err := l.client.CreateTopics(ctx, request)
	if err != nil {
		return err
	}
	for _, t := range topics {
		if err := res.Errors[t]; err != nil && !errors.Is(err, kafka.TopicAlreadyExists) {
			return fmt.Errorf("creating topic %s: %w", t, err)
		}
	}
	return nil
}
