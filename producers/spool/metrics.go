package spool

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	appendSeconds prometheus.Histogram
	drained       prometheus.Counter
	retries       prometheus.Counter
	refused       prometheus.Counter
	damaged       prometheus.Counter
}

func newMetrics(r prometheus.Registerer, s *Spool) (metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return value()
		})
	}
	m := metrics{
		appendSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "spool_append_seconds", Help: "Time of an append to the journal.", Buckets: prometheus.ExponentialBuckets(5e-6, 2.5, 14),
		}),
		drained: counter("spool_drained_total", "Records that the log has acknowledged."),
		retries: counter("spool_retries_total", "Appends to the log that failed and are done again."),
		refused: counter("spool_refused_total", "Records that the log refused for good, and that became dead letters."),
		damaged: counter("spool_damaged_bytes_total", "Bytes of the journal that could not be read; their files are kept aside."),
	}
	for _, c := range []prometheus.Collector{
		m.appendSeconds, m.drained, m.retries, m.refused, m.damaged,
		gauge("spool_bytes", "Bytes of the journal on disk.", func() float64 { return float64(s.bytes) }),
		gauge("spool_records", "Records that the log does not have yet.", func() float64 { return float64(s.records) }),
		gauge("spool_oldest_seconds", "Age of the oldest record that the log does not have yet; 0 when it has all.", func() float64 {
			if s.records == 0 {
				return 0
			}
			return max(0, time.Since(time.UnixMilli(s.oldest)).Seconds())
		}),
	} {
		if err := r.Register(c); err != nil {
			return metrics{}, fmt.Errorf("spool: %w", err)
		}
	}
	return m, nil
}
