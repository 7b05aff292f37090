package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Extract returns ctx with the trace context of an event as its remote parent; ctx itself when traceparent holds none.
func Extract(ctx context.Context, traceparent string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
}

// TraceParent writes the span of ctx for an event's header; "" when there is none.
func TraceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// Links are the distinct traces of a batch's events, at most limit, for the one span of that batch.
func Links(traceparents []string, limit int) []trace.Link {
	var links []trace.Link
	seen := make(map[string]bool, min(len(traceparents), limit))
	for _, tp := range traceparents {
		if len(links) == limit {
			break
		}
		if tp == "" || seen[tp] {
			continue
		}
		seen[tp] = true
		if sc := trace.SpanContextFromContext(Extract(context.Background(), tp)); sc.IsValid() {
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	return links
}
