package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/producers/spool"
	"github.com/nextstate-rl/nextstate/schemas"
)

// helperName is the os.Args[0] of a process of the gateway benchmark: how MaybeChild knows it, and what ps shows.
const helperName = "nextstate-bench"

// childSpec is the argument of such a process.
type childSpec struct {
	// Role is "upstream" or "gateway".
	Role string `json:"role"`
	// Upstream of a gateway, and the folder of its spool.
	Upstream string `json:"upstream,omitempty"`
	Dir      string `json:"dir,omitempty"`
	// Drip is the time between two tokens of the upstream's endless streams.
	Drip time.Duration `json:"drip,omitempty"`
}

// childReport is what a gateway says when it has ended.
type childReport struct {
	// Turns and Others are the events that its log acknowledged: ActionTaken, and the rest.
	Turns  int64 `json:"turns"`
	Others int64 `json:"others"`
}

// MaybeChild turns this process into a part of the gateway benchmark when it was started as one, and does not return then. main and the TestMain of
// a package that runs benchmarks call it first.
func MaybeChild() {
	if len(os.Args) != 2 || os.Args[0] != helperName {
		return
	}
	if err := runChild(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runChild serves until its standard input ends, which it does with the parent.
func runChild(arg string) error {
	var spec childSpec
	if err := json.Unmarshal([]byte(arg), &spec); err != nil {
		return fmt.Errorf("the argument of %s: %w", helperName, err)
	}
	if _, err := raiseFiles(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if spec.Role == "upstream" {
		return runInstant(ctx, spec)
	}
	return runGateway(ctx, spec)
}

func runInstant(ctx context.Context, spec childSpec) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	context.AfterFunc(ctx, func() { os.Exit(0) }) // its streams never end
	return newInstant(spec.Drip).serve(l)
}

// runGateway serves with recording on: every event is in the spool's files before its answer ends, and drains into a log that acknowledges at
// once. What a Kafka client and a broker cost is the benchmark produce's to say.
func runGateway(ctx context.Context, spec childSpec) error {
	ops.ServeMemory() // as the command does
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	registry := prometheus.NewRegistry()
	var log countingLog
	journal, err := spool.Open(spool.Config{Dir: spec.Dir}, &log, spool.Instruments{Logger: logger, Registerer: registry})
	if err != nil {
		return err
	}
	g, err := gateway.New(
		gateway.Config{Addr: "127.0.0.1:0", Anonymous: Tenant, Upstream: gateway.UpstreamConfig{URL: spec.Upstream}},
		gateway.Deps{Log: &log, Journal: journal}, gateway.Instruments{Logger: logger, Registerer: registry})
	if err != nil {
		return errors.Join(err, journal.Close())
	}
	l, err := g.Listen(ctx)
	if err != nil {
		return errors.Join(err, journal.Close())
	}
	draining, drained := context.WithCancel(context.WithoutCancel(ctx))
	defer drained()
	var parts errgroup.Group
	parts.Go(func() error { return journal.Run(draining) })
	parts.Go(func() error {
		defer drained() // the journal drains after the last turn
		return g.Serve(ctx, l)
	})
	fmt.Println(l.Addr())
	if err := errors.Join(parts.Wait(), journal.Close()); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(childReport{Turns: log.turns.Load(), Others: log.others.Load()})
}

// countingLog acknowledges and counts.
type countingLog struct{ turns, others atomic.Int64 }

// Append implements schemas.Appender.
func (l *countingLog) Append(_ context.Context, records ...schemas.Record) error {
	for i := range records {
		count := &l.others
		for _, h := range records[i].Headers {
			if h.Key == "ce_type" && string(h.Value) == "nextstate.v1.ActionTaken" {
				count = &l.turns
			}
		}
		count.Add(1)
	}
	return nil
}

// helper is a running process of the gateway benchmark.
type helper struct {
	cmd   *exec.Cmd
	addr  string
	stdin io.Closer
	out   *bufio.Reader
	pipe  io.Closer // what out reads
	ended chan error
	said  *lockedTail
}

// lockedTail is a tail that is read while it is written.
type lockedTail struct {
	mu sync.Mutex
	tail
}

// Write implements io.Writer.
func (t *lockedTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tail.Write(p)
}

func (t *lockedTail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tail.String()
}

// helper starts our own binary in a role and returns when it serves.
func (e *Env) helper(spec childSpec) (*helper, error) {
	arg, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary) //nolint:gosec,noctx // our own binary; it ends with its standard input
	cmd.Args = []string{helperName, string(arg)}
	h, err := startHelper(cmd)
	if err != nil {
		return nil, err
	}
	line, err := h.out.ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s %s: %w: %s", helperName, spec.Role, err, h.said), h.kill())
	}
	h.addr = line[:len(line)-1]
	return h, nil
}

func startHelper(cmd *exec.Cmd) (*helper, error) {
	h := &helper{cmd: cmd, ended: make(chan error, 1), said: &lockedTail{}}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, write, err := os.Pipe() // not StdoutPipe, whose end is closed by Wait, which runs beside the reading
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = write, h.said
	h.stdin, h.out, h.pipe = in, bufio.NewReader(out), out
	err = startTied(cmd, h.ended)
	if err := errors.Join(err, write.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err), out.Close())
	}
	return h, nil
}

// stop ends the process in order and returns the last line that it printed.
func (h *helper) stop() (last []byte, err error) {
	if err := h.stdin.Close(); err != nil {
		return nil, err
	}
	last, err = io.ReadAll(h.out)
	err = errors.Join(err, h.pipe.Close())
	if ended := <-h.ended; err == nil && ended != nil {
		err = fmt.Errorf("%s: %w: %s", helperName, ended, h.said)
	}
	return last, err
}

// kill ends it at once.
func (h *helper) kill() error {
	_ = h.cmd.Process.Kill() // it may have ended
	_ = h.pipe.Close()       // nobody reads it any more
	if err := <-h.ended; err != nil && !h.cmd.ProcessState.Exited() {
		return nil // by the signal, as it was to be
	}
	return fmt.Errorf("%s ended before it was told to: %s", filepath.Base(h.cmd.Path), h.said)
}

// cpu is the processor time of the process so far, in seconds.
func (h *helper) cpu() (float64, error) {
	p, err := readProcess(fmt.Sprintf("/proc/%d/stat", h.cmd.Process.Pid))
	return p.cpuSeconds, err
}

// rss is its resident memory in bytes.
func (h *helper) rss() int64 {
	return kilobytes(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid), "VmRSS:")
}

// raiseFiles raises the number of files that this process may open as far as it may, and returns it.
func raiseFiles() (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("raise the limit of open files: %w", err)
	}
	return limit.Cur, nil
}
