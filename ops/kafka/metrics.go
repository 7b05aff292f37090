package kafka

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/schemas"
)

// metrics are the log's, labelled by topic without prefix.
type metrics struct {
	appendRecords, appendBytes, readRecords, readBytes *prometheus.CounterVec
	commits, rebalances, failures                      *prometheus.CounterVec
	retries                                            prometheus.Counter
	appendSeconds                                      prometheus.Histogram
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	topic := []string{"topic"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		appendRecords: counter("kafka_append_records_total", "Records that were appended and acknowledged.", topic...),
		appendBytes:   counter("kafka_append_bytes_total", "Bytes of key, headers and value of records that were appended and acknowledged.", topic...),
		readRecords:   counter("kafka_read_records_total", "Records that cursors handed out.", topic...),
		readBytes:     counter("kafka_read_bytes_total", "Bytes of key, headers and value of records that cursors handed out.", topic...),
		commits:       counter("kafka_commits_total", "Commits by outcome: ok, fenced, failed.", "topic", "outcome"),
		rebalances:    counter("kafka_rebalances_total", "Generations of consumer groups that this process joined.", topic...),
		failures:      counter("kafka_owner_failures_total", "Handlers of owned partitions that failed and started over.", topic...),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kafka_append_retries_total", Help: "Append requests that were sent again because the answer was an error, or none came.",
		}),
		appendSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kafka_append_seconds", Help: "Time of successful Append calls until all records were acknowledged.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
	}
	var err error
	for _, c := range []**prometheus.CounterVec{
		&m.appendRecords, &m.appendBytes, &m.readRecords, &m.readBytes, &m.commits, &m.rebalances, &m.failures,
	} {
		err = errors.Join(err, register(r, c))
	}
	err = errors.Join(err, register(r, &m.retries), register(r, &m.appendSeconds))
	if err != nil {
		return nil, fmt.Errorf("kafka: metrics: %w", err)
	}
	return m, nil
}

// register registers c, or replaces it by the same collector of another log in this process.
func register[C prometheus.Collector](r prometheus.Registerer, c *C) error {
	err := r.Register(*c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		existing, ok := there.ExistingCollector.(C)
		if !ok {
			return err
		}
		*c = existing
		return nil
	}
	return err
}

func (m *metrics) appended(records []schemas.Record, took time.Duration) {
	m.appendSeconds.Observe(took.Seconds())
	count(records, m.appendRecords, m.appendBytes)
}

func (m *metrics) read(records []schemas.Record) {
	count(records, m.readRecords, m.readBytes)
}

// count adds up runs of records of one topic, so that a call costs a few additions.
func count(records []schemas.Record, number, size *prometheus.CounterVec) {
	for i := 0; i < len(records); {
		topic, n, total := records[i].Topic, 0, 0
		for ; i < len(records) && records[i].Topic == topic; i++ {
			n++
			total += recordSize(&records[i])
		}
		number.WithLabelValues(topic).Add(float64(n))
		size.WithLabelValues(topic).Add(float64(total))
	}
}

func (m *metrics) committed(topic string, err error) {
	outcome := "ok"
	switch {
	case errors.Is(err, schemas.ErrFenced):
		outcome = "fenced"
	case err != nil:
		outcome = "failed"
	}
	m.commits.WithLabelValues(topic, outcome).Inc()
}
