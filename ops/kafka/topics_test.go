package kafka_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/schemas"
)

// ownOnce owns a topic until as many handlers have begun as it has partitions, and returns how many did.
func ownOnce(t *testing.T, l *kafka.Log, topic string) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var begun atomic.Int64
	if err := l.Own(ctx, "group", topic, func(own context.Context, c schemas.Claim) error {
		if err := c.Commit(own, schemas.Commit{Offset: 1}); err != nil {
			t.Errorf("commit: %v", err)
		}
		if begun.Add(1) == partitions {
			cancel()
		}
		<-own.Done()
		return nil
	}); err != nil {
		t.Errorf("own: %v", err)
	}
	return int(begun.Load())
}

// Goal: topics are created as configured, and one that has another partition count is refused with the remedy. Method: open twice, the second
// time with more partitions; look at the topic's configuration.
func TestPartitionCountIsKept(t *testing.T) {
	c := config([]string{startBroker(t)}, 1)
	open(t, c)
	open(t, c) // the same again is fine
	more := c
	more.Partitions = 8
	_, err := kafka.Open(t.Context(), more, quietLogger(t), nil)
	if err == nil || !strings.Contains(err.Error(), "has 4 partitions and the configuration says 8") || !strings.Contains(err.Error(), "kafka.partitions to 4") {
		t.Errorf("another partition count: error %v, want one that says what to do", err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	described, err := kadm.NewClient(client).DescribeTopicConfigs(t.Context(), c.TopicPrefix+schemas.TopicTurns)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, r := range described {
		for _, k := range r.Configs {
			got[k.Key] = k.MaybeValue()
		}
	}
	if got["retention.ms"] != "-1" || got["cleanup.policy"] != "delete" || got["max.message.bytes"] != "10747904" {
		t.Errorf("the topic's configuration is %v", got)
	}
}

// Goal: a topic that takes smaller records than ours refuses the large one only, though others were in the same request. Method: a topic
// with a limit of 100 kB; one call for each record, all at once, one of them with 200 kB.
func TestOnlyTheGuiltyRecordFails(t *testing.T) {
	c := config([]string{startBroker(t)}, 1)
	c.Topics = []string{schemas.TopicTurns}
	c.Compression = "none"
	client, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	limit := "100000"
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), partitions, 1, map[string]*string{"max.message.bytes": &limit}, c.TopicPrefix+schemas.TopicTurns); err != nil {
		t.Fatal(err)
	}
	l := open(t, c)
	const n = 40
	results := make(chan error, n)
	for i := range n {
		r := schemas.Record{Topic: schemas.TopicTurns, Key: []byte("acme/s"), Value: make([]byte, 10_000)}
		if i == n/2 {
			r.Value = make([]byte, 200_000)
		}
		go func() { results <- l.Append(t.Context(), r) }()
	}
	refused := 0
	for range n {
		if err := <-results; errors.Is(err, schemas.ErrTooLarge) {
			refused++
		} else if err != nil {
			t.Errorf("append: %v", err)
		}
	}
	if refused != 1 {
		t.Errorf("%d records were refused, want 1", refused)
	}
	b, err := l.Bounds(t.Context(), schemas.TopicTurns)
	if err != nil {
		t.Fatal(err)
	}
	if got := b[schemas.PartitionOf([]byte("acme/s"), partitions)].Next; got != n-1 {
		t.Errorf("%d records in the log, want %d", got, n-1)
	}
}

// Goal: misuse is an error that says what is wrong, a closed log included, and metrics count what happened. Method: the calls, then the registry.
func TestMisuseAndMetrics(t *testing.T) {
	c := config([]string{startBroker(t)}, 1)
	registry := prometheus.NewRegistry()
	l, err := kafka.Open(t.Context(), c, quietLogger(t), registry)
	if err != nil {
		t.Fatal(err)
	}
	second, err := kafka.Open(t.Context(), c, quietLogger(t), registry) // shares the metrics
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Append(t.Context(), schemas.Record{Topic: "nonsense"}); err == nil || !strings.Contains(err.Error(), "Config.Topics") {
		t.Errorf("unknown topic: %v", err)
	}
	if err := l.Own(t.Context(), "g", "nonsense", nil); err == nil {
		t.Error("an unknown topic can be owned")
	}
	if err := l.Append(t.Context(), schemas.Record{Topic: schemas.TopicTurns}, schemas.Record{Topic: schemas.TopicHints}); err != nil {
		t.Fatal(err)
	}
	if n := ownOnce(t, l, schemas.TopicTurns); n != partitions {
		t.Errorf("%d partitions were owned", n)
	}
	if got := total(t, registry, "kafka_append_records_total"); got != 2 {
		t.Errorf("kafka_append_records_total is %v, want 2", got)
	}
	if got := total(t, registry, "kafka_commits_total"); got != partitions {
		t.Errorf("kafka_commits_total is %v, want %d", got, partitions)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Append(t.Context(), schemas.Record{Topic: schemas.TopicTurns}); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("append to a closed log: %v", err)
	}
}

// total adds up a counter over its labels.
func total(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
