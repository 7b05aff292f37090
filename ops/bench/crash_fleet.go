package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
)

// member is one process of a crash run. Whoever or whatever ends it, it is started again, as an operator's supervisor would.
type member struct {
	name string
	args []string
	env  *Env

	mu sync.Mutex
	// process is nil between two lives.
	process *os.Process
	// killed is set when the next end is ours.
	killed bool
	lives  int
	// ends are the last words of lives that ended although nobody killed them.
	ends []string
}

// keep runs the process again and again until ctx ends; then it asks it to end in order, and kills it when it does not.
func (m *member) keep(ctx context.Context) error {
	for ctx.Err() == nil {
		said := &tail{}
		cmd := exec.Command(m.env.Binary, m.args...) //nolint:gosec,noctx // our own binary; ended below, in order
		cmd.Env, cmd.Stdout, cmd.Stderr = childEnvironment(), io.Discard, said
		ended := make(chan error, 1)
		if err := startTied(cmd, ended); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		m.mu.Lock()
		m.process, m.killed = cmd.Process, false
		m.lives++
		m.mu.Unlock()
		err := m.wait(ctx, cmd, ended)
		m.mu.Lock()
		m.process = nil
		if !m.killed && ctx.Err() == nil {
			m.ends = append(m.ends, fmt.Sprintf("%s: %v: %s", m.name, err, said))
		}
		m.mu.Unlock()
		if !sleep(ctx, 200*time.Millisecond) {
			break
		}
	}
	return nil
}

// wait returns when the process has ended, which it is told to when ctx ends.
func (m *member) wait(ctx context.Context, cmd *exec.Cmd, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGCONT, 0}, {syscall.SIGTERM, 45 * time.Second}, {syscall.SIGKILL, time.Minute}} {
		_ = cmd.Process.Signal(step.signal) // it may have ended
		select {
		case err := <-ended:
			return err
		case <-time.After(step.wait):
		}
	}
	return errors.New("the process does not end")
}

// pid of the running process; 0 between two lives.
func (m *member) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil {
		return 0
	}
	return m.process.Pid
}

// signal sends a signal, and reports whether there was a process to take it.
func (m *member) signal(s syscall.Signal) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process == nil || m.process.Signal(s) != nil {
		return false
	}
	m.killed = m.killed || s == syscall.SIGKILL
	return true
}

// fleet is all processes of a crash run.
type fleet struct {
	env     *Env
	data    string
	running *errgroup.Group
	// stopStages ends the stages, stopServers the process that owns the data folder.
	stopStages, stopServers context.CancelFunc
	stages                  []*member
	stagesDone              *errgroup.Group
	servers                 *member
}

// sessionTimeout is after how long a dead or sleeping stage loses its partitions: short, so that a crash run sees many owners.
const sessionTimeout = 3 * time.Second

// idleTimeout closes the sessions that the load leaves open, and cuts some that a stopped broker interrupted.
const idleTimeout = 8 * time.Second

// crashStages are the processes that run stages, in the order of the data; those with the same name are replicas.
var crashStages = [][]string{
	{"gateway"}, {"pair"}, {"pair"}, {"evaluate", "direct"}, {"evaluate", "direct"}, {"assemble"}, {"assemble"}, {"clickhouse"}, {"clickhouse"},
}

// startFleet starts the servers and all stages; it waits for nothing. Those who share a line of stages share a process; more are further flags of all.
func (e *Env) startFleet(ctx context.Context, data string, stages [][]string, brokers []string, more ...string) *fleet {
	f := &fleet{env: e, data: data, running: new(errgroup.Group), stagesDone: new(errgroup.Group)}
	flags := append([]string{"--data", data, "--policy-engine", "none", "--tenant", Tenant, "--kafka-session-timeout", sessionTimeout.String()}, more...)
	if len(brokers) > 0 {
		flags = append(flags, "--kafka-brokers", strings.Join(brokers, ","))
	}
	flags = append(flags, e.assetFlags()...)
	stagesCtx, stopStages := context.WithCancel(ctx)
	serversCtx, stopServers := context.WithCancel(ctx)
	f.stopStages, f.stopServers = stopStages, stopServers
	f.servers = &member{name: "servers", args: append(slices.Clone(flags), "up", "--stages", "none"), env: e}
	f.running.Go(func() error { return f.servers.keep(serversCtx) })
	for _, names := range stages {
		m := &member{name: "stage " + strings.Join(names, "+"), args: append(append(slices.Clone(flags), "run"), names...), env: e}
		f.stages = append(f.stages, m)
		f.stagesDone.Go(func() error { return m.keep(stagesCtx) })
	}
	return f
}

// endStages ends the stages in order.
func (f *fleet) endStages() error {
	f.stopStages()
	return f.stagesDone.Wait()
}

// close ends everything.
func (f *fleet) close() error {
	err := f.endStages()
	f.stopServers()
	return errors.Join(err, f.running.Wait())
}

// named are the members with a name.
func (f *fleet) named(name string) []*member {
	if name == f.servers.name {
		return []*member{f.servers}
	}
	var found []*member
	for _, m := range f.stages {
		if m.name == name {
			found = append(found, m)
		}
	}
	return found
}

// child finds a process by what it is called: a child of a member. 0: it does not run now.
func (f *fleet) child(of *member, label string) int {
	root := of.pid()
	if root == 0 {
		return 0
	}
	processes, err := tree(root)
	if err != nil {
		return 0 // the root ended meanwhile
	}
	for _, p := range processes {
		if p.parent == root && p.label == label {
			return p.pid
		}
	}
	return 0
}

// killServers kills the process that owns the data folder, and with it the embedded broker. Its children have to end by themselves: an error
// tells who did not.
func (f *fleet) killServers(ctx context.Context) (bool, error) {
	root := f.servers.pid()
	if root == 0 {
		return false, nil
	}
	processes, err := tree(root)
	if err != nil || !f.servers.signal(syscall.SIGKILL) {
		return false, nil //nolint:nilerr // it ended meanwhile
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		var left []string
		for _, p := range processes {
			if p.pid != root && folder.Alive(p.pid) {
				left = append(left, fmt.Sprintf("%s (process %d)", p.label, p.pid))
			}
		}
		if len(left) == 0 {
			return true, nil
		}
		if time.Now().After(deadline) {
			return true, fmt.Errorf("30 s after their parent was killed these still run: %s", strings.Join(left, ", "))
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return true, ctx.Err()
		}
	}
}

// ends are the last words of processes that ended although nobody killed them.
func (f *fleet) ends() (all []string) {
	for _, m := range append(slices.Clone(f.stages), f.servers) {
		m.mu.Lock()
		all = append(all, m.ends...)
		m.mu.Unlock()
	}
	return all
}

// tail keeps the end of what a process writes. For one writer, and readers after it has ended.
type tail struct{ text []byte }

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if n := len(t.text) - 4000; n > 0 {
		t.text = t.text[n:]
	}
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.text)) }

// assetFlags hand on where fetched servers are.
func (e *Env) assetFlags() (flags []string) {
	if c := e.Config.Assets; c.Cache != "" {
		flags = append(flags, "--assets-cache", c.Cache)
	}
	if c := e.Config.Assets; c.Prefetched != "" {
		flags = append(flags, "--assets-prefetched", c.Prefetched)
	}
	return flags
}

// childEnvironment is ours without the settings of nextstate, but for where assets are.
func childEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "NEXTSTATE_") && !strings.HasPrefix(v, "NEXTSTATE_ASSETS")
	})
}
