package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"time"
)

// Sizes of the gateway benchmark.
const (
	gatewayRequests    = 1000 // a paced round, and a fifth of a saturated one
	gatewayConnections = 16
	// gatewayPace is how often each connection of a paced round sends a request: all 16 together 200 times a second, a small part of what either
	// side can do, so that what is measured is the way and not a queue.
	gatewayPace = 80 * time.Millisecond
)

// Gateway measures the gateway before an upstream that answers at once, with recording on: what it adds to a request's time, and how many requests a
// second it takes. Baseline: a FastAPI proxy that forwards and records the same, on the same machine, one process each. Load, upstream, gateway and
// baseline are processes of their own.
func Gateway(ctx context.Context, e *Env) (results []Result, err error) {
	if _, err := raiseFiles(); err != nil {
		return nil, err
	}
	up, err := e.helper(childSpec{Role: "upstream", Drip: streamDrip})
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, up.kill) }()
	ours, err := e.helper(childSpec{Role: "gateway", Upstream: "http://" + up.addr + "/v1", Dir: filepath.Join(e.Dir, "spool")})
	if err != nil {
		return nil, err
	}
	b := &gatewayBench{Env: e, up: up, ours: ours}
	results, err = b.run(ctx)
	said, ended := ours.stop()
	if err == nil {
		err = ended
	}
	if err != nil {
		return nil, err
	}
	var report childReport
	if err := json.Unmarshal(said, &report); err != nil {
		return nil, fmt.Errorf("the gateway's last words %q: %w", said, err)
	}
	if report.Turns != b.asked {
		return nil, fmt.Errorf("the gateway answered %d requests and recorded %d turns", b.asked, report.Turns)
	}
	results[0].Extra["recorded_turns"], results[0].Extra["recorded_other_events"] = report.Turns, report.Others
	streams, err := e.gatewayStreams(ctx, up)
	if err != nil {
		return nil, err
	}
	inference, err := e.sessionInference(ctx)
	return append(results, streams, inference), err
}

// gatewayBench is the part of the benchmark that one gateway serves.
type gatewayBench struct {
	*Env
	up, ours, theirs *helper
	asked            int64 // requests that the gateway answered
	rounds           int
}

func (b *gatewayBench) run(ctx context.Context) (results []Result, err error) {
	for _, stream := range []bool{true, false} {
		added, err := b.added(ctx, stream)
		if err != nil {
			return nil, err
		}
		results = append(results, added...)
	}
	if b.theirs, err = b.proxy(ctx, "http://"+b.up.addr+"/v1"); err != nil {
		return nil, err
	}
	defer func() { err = closing(err, b.theirs.kill) }()
	var saturated []Result
	for _, stream := range []bool{true, false} {
		r, err := b.saturated(ctx, stream)
		if err != nil {
			return nil, err
		}
		saturated = append(saturated, r)
	}
	return append(saturated, results...), nil
}

// load sends requests to a process. Each round's agents have names of their own.
func (b *gatewayBench) load(ctx context.Context, to *helper, l load) (loadFigures, error) {
	b.rounds++
	l.addr, l.connections, l.name = to.addr, gatewayConnections, fmt.Sprint("r", b.rounds)
	f, err := l.run(ctx)
	if to == b.ours {
		b.asked += int64(len(f.whole))
	}
	return f, err
}

// added measures the time of a request straight to the upstream and through the gateway, paced, in alternation.
func (b *gatewayBench) added(ctx context.Context, stream bool) ([]Result, error) {
	var p50, p99, first50 [2][]float64 // of the upstream and the gateway, round by round, ms
	n := b.events(gatewayRequests)
	for round := range b.runs() + 1 {
		for i := range 2 {
			side := (i + round) % 2
			f, err := b.load(ctx, []*helper{b.up, b.ours}[side], load{stream: stream, requests: n, every: gatewayPace})
			if err != nil {
				return nil, err
			}
			if round == 0 {
				continue
			}
			p50[side] = append(p50[side], milliseconds(percentile(f.whole, 50)))
			p99[side] = append(p99[side], milliseconds(percentile(f.whole, 99)))
			first50[side] = append(first50[side], milliseconds(percentile(f.first, 50)))
			b.note("paced %s, %s: p50 %.3f ms, p99 %.3f ms", form(stream), []string{"direct ", "gateway"}[side], last(p50[side]), last(p99[side]))
		}
	}
	name := "gateway_added_" + form(stream)
	figures := func(quantile string, goal float64, of [2][]float64) Result {
		direct, through := median(of[0]), median(of[1])
		return Result{Name: name + "_" + quantile, Unit: "ms", Value: max(0, through-direct), Extra: map[string]any{
			"direct_ms": direct, "through_ms": through, "direct_rounds": rounded3(of[0]), "through_rounds": rounded3(of[1]), "goal_ms": goal,
			"connections": gatewayConnections, "requests_a_second": float64(gatewayConnections) / gatewayPace.Seconds(), "requests_a_round": n,
			"pacing": "each connection sends when a request is due and then reads the answer to its end; direct and through the gateway in alternation",
		}}
	}
	results := []Result{figures("p50", 0.2, p50), figures("p99", 0.5, p99)}
	if stream {
		results = append(results, figures("first_piece_p50", 0.2, first50))
	}
	return results, nil
}

// saturated measures requests a second when every connection asks again at once, and what a request costs each side's process.
func (b *gatewayBench) saturated(ctx context.Context, stream bool) (Result, error) {
	costs := map[*helper][]float64{}
	side := func(h *helper, requests int) measure {
		return func(ctx context.Context) (float64, error) {
			before, err := h.cpu()
			if err != nil {
				return 0, err
			}
			f, err := b.load(ctx, h, load{stream: stream, requests: requests})
			if err != nil {
				return 0, err
			}
			after, err := h.cpu()
			costs[h] = append(costs[h], 1000*(after-before)/float64(len(f.whole)))
			return float64(len(f.whole)) / f.seconds, err
		}
	}
	n := b.events(gatewayRequests)
	r, err := b.compare(ctx, "gateway", "requests/s", side(b.ours, 5*n), side(b.theirs, max(n/5, gatewayConnections)))
	if err != nil {
		return Result{}, err
	}
	name := "gateway"
	if !stream {
		name = "gateway_whole"
	}
	ours, theirs := median(costs[b.ours][1:]), median(costs[b.theirs][1:])
	return r.higher(name, "requests/s", map[string]any{
		"form": form(stream), "connections": gatewayConnections, "upstream_tokens": instantTokens, "upstream_tokens_a_write": instantBurst, "goal_ratio": 20,
		"cpu_ms_per_request": ours, "baseline_cpu_ms_per_request": theirs, "cpu_per_request_ratio": theirs / ours,
		"baseline_is": "FastAPI and one shared httpx.AsyncClient on uvicorn: ops/bench/proxy",
	}), nil
}

func form(stream bool) string {
	if stream {
		return "stream"
	}
	return "whole"
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func last(v []float64) float64 { return v[len(v)-1] }

// rounded3 is rounded to microseconds, for figures in ms.
func rounded3(v []float64) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = math.Round(x*1000) / 1000
	}
	return out
}
