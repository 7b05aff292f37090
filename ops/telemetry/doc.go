// Package telemetry is what a process reports about itself: logs (slog), metrics (Prometheus), spans (OpenTelemetry), health and profiles.
//
// In: one Config, validated once. Out: a Telemetry with the logger, registry and tracer provider that main hands to every part, and one
// private HTTP port with /metrics, /healthz, /readyz and /debug/pprof/.
//
// Invariants:
//   - Nothing here is global: who wants to log, count or trace is given the means.
//   - The port is for operators: it has no authentication and listens on 127.0.0.1 unless the configuration says otherwise.
//   - Without an OTLP endpoint no span is recorded and none leaves the process; trace contexts still pass through events.
//
// Read telemetry.go first, then port.go; trace.go carries spans through event headers.
package telemetry
