package llama

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway"
)

// Bounds of the supervision.
const (
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 10 * time.Second
	steady       = time.Minute // a child that lived so long did not die of its start
	tailBytes    = 4 << 10     // of the child's log, for errors
	lineBytes    = 16 << 10
)

// process is one child: its pipes and the calls that wait for it.
type process struct {
	cmd  *exec.Cmd
	in   *os.File
	log  *slog.Logger
	info Info

	ready   chan struct{} // closed when info is there
	done    chan struct{} // closed when the child has ended and every call knows
	reading sync.WaitGroup
	err     error // how it ended; read after done

	writing sync.Mutex
	out     *frameWriter

	mu      sync.Mutex
	calls   map[uint64]*call
	last    uint64
	gone    bool
	tail    []byte
	names   []string       // of the versions that are loaded, newest first
	changed func([]string) // told of names; nil: nobody
}

// spawn executes our own binary as the child and waits until it has the model.
func spawn(ctx context.Context, cfg *Config, logger *slog.Logger, changed func([]string)) (*process, error) {
	arg, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	p := &process{
		log: logger, ready: make(chan struct{}), done: make(chan struct{}), calls: map[uint64]*call{}, changed: changed,
	}
	p.cmd = exec.Command("/proc/self/exe") //nolint:noctx // outlives the start's ctx; end kills it
	p.cmd.Args = []string{childName, string(arg)}
	// A backtrace by gdb, which ggml would run, takes seconds, and asks for a debugger.
	p.cmd.Env = append(os.Environ(), "GGML_NO_BACKTRACE=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C at the terminal is ours, not the engine's
	if err := p.start(); err != nil {
		return nil, fmt.Errorf("start the child: %w", err)
	}
	select {
	case <-p.ready:
		return p, nil
	case <-p.done:
		return nil, p.startFailure()
	case <-ctx.Done():
		p.end()
		return nil, fmt.Errorf("the model was not loaded in time: %w", ctx.Err())
	}
}

// start makes the pipes and the child. What goes wrong closes them.
func (p *process) start() error {
	var files []*os.File
	closeAll := func(from int) {
		for _, f := range files[from:] {
			_ = f.Close()
		}
	}
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(0)
			return err
		}
		files = append(files, r, w)
	}
	p.cmd.Stdin, p.cmd.ExtraFiles, p.cmd.Stdout, p.cmd.Stderr = files[0], []*os.File{files[3]}, files[5], files[5]
	err := p.cmd.Start()
	for _, f := range []*os.File{files[0], files[3], files[5]} { // the child has its own
		_ = f.Close()
	}
	if err != nil {
		for _, f := range []*os.File{files[1], files[2], files[4]} {
			_ = f.Close()
		}
		return err
	}
	p.in, p.out = files[1], newFrameWriter(files[1])
	p.reading.Go(func() { p.read(files[2]) })
	p.reading.Go(func() { p.listen(files[4]) })
	go func() { // ends with the child, which end or the caller's death ends
		p.reading.Wait()
		p.err = p.cmd.Wait()
		_ = p.in.Close()
		p.failAll()
		close(p.done)
	}()
	return nil
}

// read hands the child's reports to the calls. No call delays another: each keeps what it has not yet read, a context of tokens at most.
func (p *process) read(from *os.File) {
	defer from.Close()
	frames := newFrameReader(from)
	for {
		var r report
		if err := frames.read(&r); err != nil {
			if !errors.Is(err, io.EOF) {
				p.note("read the child's reports: " + err.Error())
			}
			_ = p.cmd.Process.Kill() // without its reports it is of no use; it may have gone already
			return
		}
		if r.Versions != nil {
			p.mu.Lock()
			p.names = r.Versions
			changed := p.changed
			p.mu.Unlock()
			if changed != nil {
				changed(r.Versions)
			}
		}
		if r.Ready != nil {
			p.info = *r.Ready
			close(p.ready)
		}
		p.mu.Lock()
		for _, e := range r.Events {
			if c := p.calls[e.ID]; c != nil {
				c.push(e)
			}
		}
		p.mu.Unlock()
	}
}

// listen logs what native code writes, and keeps its end for errors.
func (p *process) listen(from *os.File) {
	defer from.Close()
	lines := bufio.NewReaderSize(from, lineBytes)
	for {
		line, _, err := lines.ReadLine()
		if err != nil {
			return
		}
		if text := strings.TrimSpace(string(line)); text != "" {
			p.note(text)
		}
	}
}

func (p *process) note(text string) {
	p.log.Debug("llama.cpp says", "text", text)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tail = append(append(p.tail, text...), '\n')
	if over := len(p.tail) - tailBytes; over > 0 {
		p.tail = p.tail[over:]
	}
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.TrimSpace(string(p.tail))
}

// startFailure says why the child ended before it was ready: in its own words, or with all that native code wrote.
func (p *process) startFailure() error {
	text := p.said()
	if at := strings.LastIndex(text, failedMark); at >= 0 {
		return errors.New(strings.TrimPrefix(text[at:], failedMark))
	}
	if strings.Contains(text, "libffi") {
		text += " (Debian, Ubuntu: `apt-get install libffi8`)"
	}
	if p.err == nil {
		return fmt.Errorf("the child ended: %s", text)
	}
	return fmt.Errorf("the child failed: %w: %s", p.err, text)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// end kills the child, which keeps nothing that is worth an orderly end, and waits.
func (p *process) end() {
	_ = p.cmd.Process.Kill() // it may have gone already
	<-p.done
}

// failAll tells every call that the child has gone, and those that come later.
func (p *process) failAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	for _, c := range p.calls {
		c.push(event{ID: c.id, Failed: lost()})
	}
}

func lost() *failure {
	return &failure{Status: http.StatusServiceUnavailable, Message: "the policy engine died and is being started again; try again"}
}

// call is one command's way back. Its queue is bounded by what a command can bring: a context of tokens.
type call struct {
	id      uint64
	process *process
	command command
	sent    bool // for the caller's goroutine, as is over
	over    bool
	verb    verb

	mu      sync.Mutex
	events  []event
	wake    chan struct{} // holds one
	started time.Time
}

func (p *process) open() *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	c := &call{id: p.last, process: p, wake: make(chan struct{}, 1)}
	p.calls[c.id] = c
	if p.gone {
		c.push(event{ID: c.id, Failed: lost()})
	}
	return c
}

func (c *call) push(e event) {
	c.mu.Lock()
	c.events = append(c.events, e)
	if e.Started != nil {
		c.started = time.Now()
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// next sends the command when that is still to be done, and waits for events.
func (c *call) next(ctx context.Context) ([]event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !c.sent {
		c.sent = true
		c.process.send(&c.command)
		c.command = command{ID: c.id}
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.wake:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	events := c.events
	c.events = nil
	if n := len(events); n > 0 && events[n-1].Started == nil && events[n-1].Token == nil {
		c.over = true
	}
	return events, nil
}

// send writes a command. An error means that the child is gone or going: its end fails the call.
func (p *process) send(c *command) {
	p.writing.Lock()
	defer p.writing.Unlock()
	if err := p.out.write(c); err != nil {
		_ = p.cmd.Process.Kill() // a frame that was cut off makes all others unreadable; it may have gone already
	}
}

// close forgets a call, and cancels it where the child still works for it.
func (p *process) close(c *call) {
	p.mu.Lock()
	delete(p.calls, c.id)
	p.mu.Unlock()
	if c.sent && !c.over {
		p.send(&command{ID: c.id, Cancel: true})
	}
}

// swap has the child make a version the newest.
func (p *process) swap(ctx context.Context, version, adapter string) error {
	c := p.open()
	defer p.close(c)
	c.command = command{ID: c.id, Swap: &swap{Version: version, Adapter: adapter}}
	events, err := c.next(ctx)
	if err != nil {
		return err
	}
	for _, e := range events {
		if e.Failed != nil {
			return e.Failed.policy()
		}
	}
	return nil
}

// supervise starts the child again whenever it dies, until ctx ends, with the versions that it had.
func (s *Server) supervise(ctx context.Context, p *process) {
	backoff := backoffFirst
	for {
		began := time.Now()
		select {
		case <-ctx.Done():
			p.end()
			return
		case <-p.done:
		}
		s.mu.Lock()
		s.process, s.down = nil, fmt.Errorf("%w: %s", orEnded(p.err), p.said())
		s.mu.Unlock()
		s.log.ErrorContext(ctx, "llama.cpp died and is started again", "error", s.down)
		if time.Since(began) > steady {
			backoff = backoffFirst
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(backoff):
			}
			backoff = min(2*backoff, backoffMost)
			next, err := s.again(ctx)
			if err == nil {
				p = next
				break
			}
			s.log.ErrorContext(ctx, "llama.cpp cannot be started", "error", err)
			s.mu.Lock()
			s.down = err
			s.mu.Unlock()
		}
		s.metrics.restarts.Inc()
	}
}

func orEnded(err error) error {
	if err == nil {
		return errors.New("it ended")
	}
	return err
}

// again starts a child and gives it the versions, oldest first, so that the newest is the newest again. An adapter whose file does not load any more
// is left out, and said: those that can be served are.
func (s *Server) again(ctx context.Context) (*process, error) {
	s.mu.Lock()
	names, adapters := s.names, maps.Clone(s.adapters)
	s.mu.Unlock()
	p, err := spawn(ctx, &s.cfg, s.log, nil)
	if err != nil {
		return nil, err
	}
	for i := len(names) - 1; i >= 0; i-- {
		err := p.swap(ctx, names[i], adapters[names[i]])
		var refused *gateway.PolicyError
		switch {
		case err == nil:
		case errors.As(err, &refused) && refused.Status == http.StatusBadRequest:
			s.log.ErrorContext(ctx, "a policy version cannot be loaded again", "version", names[i], "error", err)
		default:
			p.end()
			return nil, err
		}
	}
	p.mu.Lock()
	p.changed = s.versionsChanged
	names = p.names
	p.mu.Unlock()
	s.versionsChanged(names)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process, s.down = p, nil
	return p, nil
}
