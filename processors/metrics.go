package processors

import "github.com/prometheus/client_golang/prometheus"

// Metrics of all stages of one process. Make it once and give it to every Run.
type Metrics struct {
	events, outputs, deadLetters, retries, rebuilt, truncated, ignored *prometheus.CounterVec
	batchSeconds                                                       *prometheus.HistogramVec
}

// NewMetrics registers the metrics of the stages.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"stage"}, labels...))
	}
	m := &Metrics{
		events:      counter("stage_events_total", "Records processed for the first time by this owner."),
		outputs:     counter("stage_outputs_total", "Records appended and acknowledged, dead letters included."),
		deadLetters: counter("stage_dead_letters_total", "Records refused and kept in deadletters."),
		retries:     counter("stage_retries_total", "Transient failures that were tried again.", "action"),
		rebuilt:     counter("stage_rebuilt_total", "Records read again only to rebuild state."),
		truncated:   counter("stage_truncated_total", "Records that retention dropped before the stage read them."),
		ignored:     counter("stage_ignored_total", "Events without effect on what is derived, by reason.", "reason"),
		batchSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "stage_batch_seconds", Help: "Time to append and commit one batch.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}, []string{"stage"}),
	}
	for _, c := range []prometheus.Collector{m.events, m.outputs, m.deadLetters, m.retries, m.rebuilt, m.truncated, m.ignored, m.batchSeconds} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Ignored counts an event that a stage took without effect; give it to PairConfig.Ignored as m.Ignored(StagePair).
func (m *Metrics) Ignored(stage string) func(reason string) {
	return func(reason string) { m.ignored.WithLabelValues(stage, reason).Inc() }
}
