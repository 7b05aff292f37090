package clickhouse

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	rows, batches, duplicates, dead, lost, retries *prometheus.CounterVec
	seconds, delay                                 *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.005, 2, 14)}, []string{"topic"})
	}
	m := &metrics{
		rows:       counter("sink_rows_total", "Rows inserted into ClickHouse.", "table"),
		batches:    counter("sink_batches_total", "Ranges inserted into ClickHouse.", "topic"),
		duplicates: counter("sink_duplicates_total", "Records dropped because their event id stands at a smaller offset.", "topic"),
		dead:       counter("sink_dead_letters_total", "Records that could not be decoded or were refused by ClickHouse.", "topic"),
		lost:       counter("sink_lost_records_total", "Records that the log dropped before the sink read them.", "topic"),
		retries:    counter("sink_retries_total", "Tries that a store did not take.", "what"),
		seconds:    histogram("sink_batch_seconds", "From the end of a batch to its last insert."),
		delay:      histogram("sink_delay_seconds", "From the record time of a batch's first record until the batch can be queried."),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.rows, m.batches, m.duplicates, m.dead, m.lost, m.retries, m.seconds, m.delay} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("clickhouse sink: %w", err)
		}
	}
	return m, nil
}
