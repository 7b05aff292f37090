package bench

import (
	"context"
	"runtime"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// codecEvents are enough not to stay in the processor's caches, as events of the log do not.
const codecEvents = 20_000

// Decode measures schemas.Decode: the envelope from the headers, the payload, and its checks. Baseline: proto.Unmarshal of the payload alone.
func Decode(ctx context.Context, e *Env) ([]Result, error) {
	_, records, err := e.encoded(e.events(codecEvents))
	if err != nil {
		return nil, err
	}
	var cost, bare allocations
	r, err := e.compare(ctx, "decode", "events/s",
		func(context.Context) (float64, error) {
			return cost.measure(len(records), func(i int) error {
				_, err := schemas.Decode(records[i])
				return err
			})
		},
		func(context.Context) (float64, error) {
			return bare.measure(len(records), func(i int) error {
				payload := newPayload(records[i])
				return proto.Unmarshal(records[i].Value, payload)
			})
		})
	if err != nil {
		return nil, err
	}
	return []Result{r.higher("decode", "events/s", codecExtra(records, cost, bare))}, nil
}

// Encode measures schemas.Encode: checks, deterministic payload, key and headers. Baseline: proto.Marshal of the payload alone.
func Encode(ctx context.Context, e *Env) ([]Result, error) {
	events, records, err := e.encoded(e.events(codecEvents))
	if err != nil {
		return nil, err
	}
	var cost, bare allocations
	r, err := e.compare(ctx, "encode", "events/s",
		func(context.Context) (float64, error) {
			return cost.measure(len(events), func(i int) error {
				_, err := schemas.Encode(events[i])
				return err
			})
		},
		func(context.Context) (float64, error) {
			return bare.measure(len(events), func(i int) error {
				_, err := proto.Marshal(events[i].Payload)
				return err
			})
		})
	if err != nil {
		return nil, err
	}
	return []Result{r.higher("encode", "events/s", codecExtra(records, cost, bare))}, nil
}

// newPayload makes the empty message that a record holds, by the kind in its headers, as the baseline must know it somehow.
func newPayload(r schemas.Record) proto.Message {
	const prefix = len("nextstate.v1.")
	for _, h := range r.Headers {
		if h.Key == "ce_type" {
			if kind, ok := schemas.KindByName(string(h.Value[prefix:])); ok {
				return kind.New()
			}
		}
	}
	return nil
}

// allocations of the latest measurement, for each event.
type allocations struct{ count, bytes float64 }

// measure calls do for each of n events in one goroutine and returns events/s.
func (a *allocations) measure(n int, do func(i int) error) (float64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for i := range n {
		if err := do(i); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	a.count, a.bytes = float64(after.Mallocs-before.Mallocs)/float64(n), float64(after.TotalAlloc-before.TotalAlloc)/float64(n)
	return float64(n) / took.Seconds(), nil
}

func codecExtra(records []schemas.Record, cost, bare allocations) map[string]any {
	return map[string]any{
		"events": len(records), "payload_bytes_per_event": payloadBytes(records),
		"allocations_per_event": cost.count, "allocated_bytes_per_event": cost.bytes,
		"baseline_allocations_per_event": bare.count, "baseline_allocated_bytes_per_event": bare.bytes,
	}
}

func payloadBytes(records []schemas.Record) int {
	total := 0
	for _, r := range records {
		total += len(r.Value)
	}
	return total / max(1, len(records))
}
