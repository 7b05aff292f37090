package trainer

import "github.com/prometheus/client_golang/prometheus"

// LoopMetrics of the trainer of one process. Make it once.
type LoopMetrics struct {
	updates, samples, retries *prometheus.CounterVec
	waiting                   prometheus.Gauge
	seconds                   prometheus.Histogram
	last                      *prometheus.GaugeVec
}

// NewLoopMetrics registers them.
func NewLoopMetrics(reg prometheus.Registerer) (*LoopMetrics, error) {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &LoopMetrics{
		updates: counter("trainer_updates_total", "Updates that ended, by outcome: published or skipped.", "outcome"),
		samples: counter("trainer_samples_total", "Samples by what became of them: used, refused, repeated, or foreign (of another tenant, or no reply of a policy).", "fate"),
		retries: counter("trainer_retries_total", "Failures that were tried again, by what failed.", "action"),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "trainer_waiting_samples", Help: "Samples in memory that wait for an update."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trainer_update_seconds", Help: "Time from the begin of an update to its publication.", Buckets: prometheus.ExponentialBuckets(0.1, 2.5, 10),
		}),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "trainer_update_metric", Help: "Metrics of the newest policy version, by name."}, []string{"name"}),
	}
	for _, c := range []prometheus.Collector{m.updates, m.samples, m.retries, m.waiting, m.seconds, m.last} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
