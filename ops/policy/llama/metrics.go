package llama

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	tokens                   *prometheus.CounterVec
	running                  *prometheus.GaugeVec
	swaps, restarts, refused prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "policy_tokens_total", Help: "Tokens of prompts, of their cached beginnings, sampled, and scored.",
		}, []string{"what"}),
		running:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "policy_requests", Help: "Requests that wait or are in work."}, []string{"verb"}),
		swaps:    counter("policy_swaps_total", "Policy versions that were made the newest."),
		restarts: counter("policy_restarts_total", "Starts of the engine's child after it died."),
		refused:  counter("policy_refused_requests_total", "Requests that were refused because the queue was full."),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.tokens, m.running, m.swaps, m.restarts, m.refused} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("llama: %w", err)
		}
	}
	return m, nil
}
