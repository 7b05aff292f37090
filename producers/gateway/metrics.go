package gateway

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the gateway. None has an id as a label.
type metrics struct {
	requests   *prometheus.CounterVec
	events     *prometheus.CounterVec
	unrecorded *prometheus.CounterVec
	seconds    prometheus.Histogram
	first      prometheus.Histogram
	bytes      prometheus.Gauge
	sampling   prometheus.Gauge
	tokens     prometheus.Counter
	unknown    prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (metrics, error) {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_requests_total", Help: "Requests by HTTP status; 499: the client went away.",
		}, []string{"code"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_events_total", Help: "Events posted, by what became of them: ok, refused, failed.",
		}, []string{"status"}),
		unrecorded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gateway_unrecorded_total", Help: "Chat requests that were answered and not recorded, by reason.",
		}, []string{"why"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gateway_request_seconds", Help: "Time from the first byte of a request to the end of its answer.", Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 16),
		}),
		first: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gateway_first_token_seconds", Help: "Time from a chat request's admission to its first token.", Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 14),
		}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gateway_in_flight_bytes", Help: "Bytes of the requests in work.",
		}),
		sampling: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gateway_choices_sampling", Help: "Choices that are waiting for the policy or being sampled.",
		}),
		tokens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gateway_tokens_total", Help: "Tokens that the policy sampled.",
		}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gateway_unknown_fields_total", Help: "Fields of chat requests that are not known and were ignored.",
		}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.events, m.unrecorded, m.seconds, m.first, m.bytes, m.sampling, m.tokens, m.unknown} {
		if err := r.Register(c); err != nil {
			return metrics{}, fmt.Errorf("gateway: %w", err)
		}
	}
	return m, nil
}
