package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ticks is Linux's USER_HZ, the unit of the times in /proc, the same on every platform that Go knows.
const ticks = 100

// process is what /proc says of one process.
type process struct {
	pid, parent int
	label       string
	cpuSeconds  float64
	rss, pss    int64 // bytes; pss shares out what several processes map, and is 0 where it may not be read
}

// tree returns a process and its descendants with their memory. A process that ends meanwhile is left out.
func tree(root int) ([]process, error) {
	found, err := descend(root)
	for i := range found {
		readMemory(&found[i])
	}
	return found, err
}

// descend is tree without what takes time to find out: memory, and names.
func descend(root int) ([]process, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return nil, errors.New("this benchmark reads /proc, which this system has not: run it on Linux")
	}
	all := map[int]process{}
	children := map[int][]int{}
	for _, path := range stats {
		p, err := readProcess(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrProcessDone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all[p.pid] = p
		children[p.parent] = append(children[p.parent], p.pid)
	}
	var found []process
	for open := []int{root}; len(open) > 0; open = open[1:] {
		p, ok := all[open[0]]
		if !ok {
			continue
		}
		found = append(found, p)
		open = append(open, children[p.pid]...)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("process %d: %w", root, os.ErrProcessDone)
	}
	return found, nil
}

func readProcess(path string) (process, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		if strings.Contains(err.Error(), "no such process") {
			err = os.ErrProcessDone
		}
		return process{}, err
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	fields := strings.Fields(string(b[end+1:]))
	if open < 0 || len(fields) < 13 {
		return process{}, fmt.Errorf("%s has an unknown form", path)
	}
	p := process{label: string(b[open+1 : end])}
	p.pid, _ = strconv.Atoi(strings.TrimSpace(string(b[:open]))) // numbers by the kernel's word
	p.parent, _ = strconv.Atoi(fields[1])
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	p.cpuSeconds = (user + system) / ticks
	return p, nil
}

// readMemory fills in the memory, and a better name than the thread's: the ClickHouse child is our own binary under another one.
func readMemory(p *process) {
	dir := fmt.Sprintf("/proc/%d/", p.pid)
	if b, err := os.ReadFile(dir + "cmdline"); err == nil {
		if arg, _, _ := strings.Cut(string(b), "\x00"); arg != "" {
			name, _, _ := strings.Cut(filepath.Base(arg), ":") // "postgres: checkpointer"
			p.label = name
		}
	}
	p.rss = kilobytes(dir+"status", "VmRSS:")
	p.pss = kilobytes(dir+"smaps_rollup", "Pss:")
}

// kilobytes finds a line of a /proc file; 0 when it cannot be read, as of a process that has just ended.
func kilobytes(path, key string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err == nil {
				return n << 10
			}
		}
	}
	return 0
}

// memorySeries are resident bytes over time, by the label of a process; "all" is their sum.
type memorySeries map[string][]int64

// sampler watches the memory of process trees until stop.
type sampler struct {
	cancel context.CancelFunc
	done   chan struct{}
	// The goroutine's until done.
	series memorySeries
	err    error
}

// sampleMemory looks at the tree of a process again and again, in a goroutine that stop ends.
func sampleMemory(ctx context.Context, root int, every time.Duration) *sampler {
	ctx, cancel := context.WithCancel(ctx)
	s := &sampler{cancel: cancel, done: make(chan struct{}), series: memorySeries{}}
	go func() {
		defer close(s.done)
		for sleep(ctx, every) {
			processes, err := tree(root)
			if errors.Is(err, os.ErrProcessDone) {
				return
			}
			if err != nil {
				s.err = err
				return
			}
			s.add(processes)
		}
	}()
	return s
}

func (s *sampler) add(processes []process) {
	sums := map[string]int64{}
	for _, p := range processes {
		sums[p.label] += p.rss
		sums["all"] += p.rss
	}
	for label, rss := range sums {
		s.series[label] = append(s.series[label], rss)
	}
}

// stop ends the sampling and returns what was seen.
func (s *sampler) stop() (memorySeries, error) {
	s.cancel()
	<-s.done
	return s.series, s.err
}
