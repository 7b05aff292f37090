package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
)

// An `up` is left alone for half the time before it counts as idle, and is then watched.
const idleFor = 10 * time.Second

// Up measures `nextstate up` from its start, in a data folder that exists, until /readyz answers; then the CPU time and memory of the process
// and all its children while nothing happens. Baseline: the servers alone, `up --stages none`.
func Up(ctx context.Context, e *Env) ([]Result, error) {
	data := filepath.Join(e.Dir, "up")
	// The first start makes the data folder; it is not measured.
	if _, err := e.up(ctx, data, "all", 0); err != nil {
		return nil, err
	}
	var full, bare upFigures
	quick := func(into *upFigures, stages string) measure {
		return func(ctx context.Context) (float64, error) {
			f, err := e.up(ctx, data, stages, 0)
			*into = f
			return f.ready, err
		}
	}
	r, err := e.compare(ctx, "up", "s", quick(&full, "all"), quick(&bare, "none"))
	if err != nil {
		return nil, err
	}
	results := []Result{lower("up", "s", median(r.subject), median(r.baseline), map[string]any{"rounds": rounded(r.subject), "baseline_rounds": rounded(r.baseline)})}
	idle := or(e.Idle, idleFor)
	if full, err = e.up(ctx, data, "all", idle); err != nil {
		return nil, err
	}
	if bare, err = e.up(ctx, data, "none", idle); err != nil {
		return nil, err
	}
	return append(results,
		lower("idle_cpu", "percent of a core", full.cpuPercent, bare.cpuPercent, map[string]any{"seconds": idle.Seconds(), "processes": full.cpuByLabel}),
		lower("idle_memory", "MB", full.rssMB, bare.rssMB, map[string]any{"pss_mb": full.pssMB, "baseline_pss_mb": bare.pssMB, "processes": full.rssByLabel}),
	), nil
}

// upFigures are those of one `up`.
type upFigures struct {
	ready                    float64 // s
	cpuPercent, rssMB, pssMB float64
	cpuByLabel, rssByLabel   map[string]float64
}

// up starts it, waits until it is ready, watches it, and stops it.
func (e *Env) up(ctx context.Context, data, stages string, watch time.Duration) (f upFigures, err error) {
	start := time.Now()
	c, err := e.start(ctx, data, "up", "--stages", stages)
	if err != nil {
		return f, err
	}
	defer func() { err = closing(err, c.stop) }()
	if err := c.ready(ctx, data, stages == "all"); err != nil {
		return f, err
	}
	f.ready = time.Since(start).Seconds()
	if watch == 0 {
		return f, nil
	}
	e.note("up --stages %s: watching it idle for %v", stages, watch)
	if !sleep(ctx, watch/2) {
		return f, ctx.Err()
	}
	before, err := tree(c.cmd.Process.Pid)
	if err != nil {
		return f, err
	}
	from := time.Now()
	if !sleep(ctx, watch) {
		return f, ctx.Err()
	}
	seconds := time.Since(from).Seconds()
	after, err := tree(c.cmd.Process.Pid)
	if err != nil {
		return f, err
	}
	f.idle(before, after, seconds)
	return f, nil
}

func (f *upFigures) idle(before, after []process, seconds float64) {
	was := map[int]float64{}
	for _, p := range before {
		was[p.pid] = p.cpuSeconds
	}
	f.cpuByLabel, f.rssByLabel = map[string]float64{}, map[string]float64{}
	for _, p := range after {
		percent := 100 * (p.cpuSeconds - was[p.pid]) / seconds
		f.cpuPercent += percent
		f.cpuByLabel[p.label] += percent
		f.rssMB += megabytes(p.rss)
		f.pssMB += megabytes(p.pss)
		f.rssByLabel[p.label] += megabytes(p.rss)
	}
}

func megabytes(b int64) float64 { return float64(b) / (1 << 20) }

// attach opens the system of a running child.
func (e *Env) attach(ctx context.Context, data string) (*ops.System, error) {
	c := e.config("attached")
	c.Dir = data
	s, err := ops.Open(ctx, c, ops.NeedAll, e.Progress)
	if err == nil && !s.Attached {
		err = closing(fmt.Errorf("nobody runs with the data folder %s", data), s.Close)
	}
	return s, err
}
