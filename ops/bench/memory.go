package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
)

const (
	memoryEvents = 1_000_000
	memoryBytes  = 100 << 20
	sampleEvery  = 200 * time.Millisecond
)

// Memory measures the resident memory of `up` and its servers while events pass through all stages, and of `import` while it reads a large
// file. The baseline of each is its own median in the second quarter of the time, when caches are warm: memory that is bounded stays there
// (growth: the median of the last quarter, divided by the baseline). --events 10000000 --bytes 1073741824 for the full claim.
func Memory(ctx context.Context, e *Env) (results []Result, err error) {
	data := filepath.Join(e.Dir, "memory")
	c, err := e.start(ctx, data, "up")
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, c.stop) }()
	if err := c.ready(ctx, data, true); err != nil {
		return nil, err
	}
	s, err := e.attach(ctx, data)
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, s.Close) }()

	start := time.Now()
	watching := sampleMemory(ctx, c.cmd.Process.Pid, sampleEvery)
	n, err := e.passThrough(ctx, s, e.events(memoryEvents))
	series, failed := watching.stop()
	if err = closing(err, func() error { return failed }); err != nil {
		return nil, err
	}
	seconds := time.Since(start).Seconds()
	e.note("%d events were derived and stored in %.0f s", n, seconds)
	results = memoryResults("memory", series, map[string]any{"events": n, "seconds": seconds, "events_per_second": float64(n) / seconds})

	imported, err := e.memoryOfImport(ctx, s, c, data)
	return append(results, imported...), err
}

// passThrough appends events and waits until every stage has done its work. Appending never runs far ahead of the stages, so that what is
// measured is a pipeline at work all the time.
func (e *Env) passThrough(ctx context.Context, s *ops.System, n int) (done int, err error) {
	const (
		step  = 20_000
		ahead = 200_000
	)
	f := filler{log: s.Log, seed: e.Seed}
	for done < n {
		more, err := f.fill(ctx, min(step, n-done))
		if err != nil {
			return done, err
		}
		done += more
		if err := e.waitLag(ctx, s, ahead); err != nil {
			return done, err
		}
	}
	return done, e.waitLag(ctx, s, 0)
}

// waitLag waits until no more records are on their way.
func (e *Env) waitLag(ctx context.Context, s *ops.System, most int64) error {
	for {
		lag, err := lagOf(ctx, s.Log, ops.StageNames())
		if err != nil || lag <= most {
			return err
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// memoryOfImport imports a generated file by the command, and watches it and the servers.
func (e *Env) memoryOfImport(ctx context.Context, s *ops.System, up *child, data string) ([]Result, error) {
	path := filepath.Join(e.Dir, "large.jsonl")
	size := or(e.Bytes, memoryBytes)
	if _, _, err := writeTranscript(path, e.Seed+1, 0, size); err != nil {
		return nil, err
	}
	start := time.Now()
	c, err := e.start(ctx, data, "import", "--json", "--format", transcriptFormat, path)
	if err != nil {
		return nil, err
	}
	importing, servers := sampleMemory(ctx, c.cmd.Process.Pid, sampleEvery), sampleMemory(ctx, up.cmd.Process.Pid, sampleEvery)
	err = c.wait()
	if err == nil {
		err = e.waitLag(ctx, s, 0)
	}
	ours, failed := importing.stop()
	theirs, alsoFailed := servers.stop()
	for _, f := range []error{failed, alsoFailed, os.Remove(path)} {
		err = closing(err, func() error { return f })
	}
	if err != nil {
		return nil, err
	}
	extra := map[string]any{"bytes": size, "seconds": time.Since(start).Seconds()}
	delete(ours, "all") // it has no children
	return append(memoryResults("import_memory", ours, extra), memoryResults("memory_while_importing", theirs, extra)...), nil
}

// memoryResults makes one result for each process, that of all together first.
func memoryResults(name string, series memorySeries, extra map[string]any) []Result {
	var labels []string
	for label := range series {
		labels = append(labels, label)
	}
	slices.Sort(labels)
	if i := slices.Index(labels, "all"); i > 0 {
		labels = append([]string{"all"}, slices.Delete(labels, i, i+1)...)
	}
	var results []Result
	for _, label := range labels {
		v := series[label]
		warm, last := percentile(v[len(v)/4:(len(v)+1)/2], 50), percentile(v[3*len(v)/4:], 50)
		r := lower(name, "MB", megabytes(slices.Max(v)), megabytes(warm), map[string]any{
			"last_quarter_median": megabytes(last), "samples": len(v), "process": label, "mb_over_time": thin(v),
		})
		if label != "all" {
			r.Name = fmt.Sprintf("%s_%s", name, label)
		}
		if warm > 0 {
			r.Extra["growth"] = float64(last) / float64(warm)
		}
		for k, x := range extra {
			r.Extra[k] = x
		}
		results = append(results, r)
	}
	return results
}

// thin keeps 20 points of a series, in MB.
func thin(v []int64) []float64 {
	const points = 20
	out := make([]float64, 0, points)
	for i := range min(points, len(v)) {
		out = append(out, megabytes(v[i*len(v)/min(points, len(v))]))
	}
	return rounded(out)
}
