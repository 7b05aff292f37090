package onnx

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/nextstate-rl/nextstate/trainer"
)

// ChildConfig is what Start needs.
type ChildConfig struct {
	// Library is the path of ONNX Runtime's library, Model that of the GGUF.
	Library, Model string
	Config
}

// Child is an Engine in a process of its own, of low priority, which holds the weights. It implements trainer.Engine; for one goroutine. When the process dies during a
// call, the call fails with what the process said, and the next call starts it again.
type Child struct {
	cfg     ChildConfig
	log     *slog.Logger
	ready   ready
	process *process // nil: it died
}

// Start executes our own binary, whose main has called MaybeChild, and returns when the model is loaded. ctx bounds the start. Close it.
func Start(ctx context.Context, cfg ChildConfig, logger *slog.Logger) (*Child, error) {
	if os.Args[0] == startName || os.Args[0] == childName {
		return nil, errors.New("the training engine: this is the child; main (TestMain in tests) has to call onnx.MaybeChild first")
	}
	c := &Child{cfg: cfg, log: logger}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Child) start(ctx context.Context) (err error) {
	if c.process, err = spawn(c.cfg, c.log); err != nil {
		return fmt.Errorf("start the training engine: %w", err)
	}
	a, err := c.exchange(ctx, nil)
	if err != nil {
		return err
	}
	if a.Ready == nil {
		c.Close()
		return errors.New("the training engine did not say that it is ready: an executable of another version?")
	}
	c.ready = *a.Ready
	return nil
}

// Layers implements trainer.Engine.
func (c *Child) Layers() []trainer.Layer { return c.ready.Layers }

// Vocabulary is the number of tokens of the model.
func (c *Child) Vocabulary() int { return c.ready.Vocabulary }

// PID is the process's, 0 when it has died.
func (c *Child) PID() int {
	if c.process == nil {
		return 0
	}
	return c.process.cmd.Process.Pid
}

// Logprobs implements trainer.Engine. The end of ctx ends the process.
func (c *Child) Logprobs(ctx context.Context, a *trainer.Adapter, sequences []trainer.Sequence) (logprobs [][][]float32, entropy [][]float32, err error) {
	got, err := c.do(ctx, a, &order{Sequences: sequences})
	if err != nil {
		return nil, nil, err
	}
	return got.Logprobs, got.Entropy, nil
}

// Gradient implements trainer.Engine. The end of ctx ends the process.
func (c *Child) Gradient(ctx context.Context, a *trainer.Adapter, sequences []trainer.Sequence, coef [][][]float64, grad *trainer.Adapter) error {
	if err := a.Fits(grad); err != nil {
		return err
	}
	got, err := c.do(ctx, a, &order{Sequences: sequences, Gradient: true, Coef: coef})
	if err != nil {
		return err
	}
	part := grad.Zero()
	if err := unflatten(got.Gradient, part); err != nil {
		return err
	}
	grad.Add(part)
	return nil
}

func (c *Child) do(ctx context.Context, a *trainer.Adapter, o *order) (*answer, error) {
	if err := trainer.NewAdapter(c.ready.Layers, c.cfg.Rank, c.cfg.Alpha).Fits(a); err != nil {
		return nil, err
	}
	if c.process == nil {
		c.log.WarnContext(ctx, "the training engine is started again")
		if err := c.start(ctx); err != nil {
			return nil, err
		}
	}
	o.Adapter = flatten(a)
	got, err := c.exchange(ctx, o)
	if err != nil {
		return nil, err
	}
	if got.Failed != "" {
		return nil, errors.New(got.Failed)
	}
	return got, nil
}

// exchange sends an order, unless it is nil, and waits for the answer. Whatever goes wrong on the way ends the process.
func (c *Child) exchange(ctx context.Context, o *order) (*answer, error) {
	p := c.process
	stop := context.AfterFunc(ctx, p.kill)
	a, err := p.exchange(o)
	if stop() && err == nil {
		return a, nil
	}
	c.process = nil
	ended := p.end()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if text := p.said(); strings.Contains(text, failedMark) {
		return nil, errors.New("start the training engine: " + text[strings.LastIndex(text, failedMark)+len(failedMark):])
	}
	return nil, fmt.Errorf("the training engine died, and the next call starts it again (was it killed for want of memory? a smaller --train-max-tokens needs less): %w: %s",
		errors.Join(err, ended), p.said())
}

// Close ends the process.
func (c *Child) Close() {
	if c.process != nil {
		_ = c.process.end() // it was killed, says its status
		c.process = nil
	}
}

// process is one child with its pipes.
type process struct {
	cmd     *exec.Cmd
	in      *os.File
	answers *os.File
	to      *gob.Encoder
	out     *bufio.Writer
	from    *gob.Decoder
	log     *tail
}

func spawn(cfg ChildConfig, logger *slog.Logger) (_ *process, err error) {
	arg, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	orders, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer orders.Close()
	answers, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	defer out.Close()
	p := &process{in: in, answers: answers, log: &tail{log: logger}}
	p.cmd = exec.Command("/proc/self/exe") //nolint:noctx // outlives the start's ctx; end kills it
	p.cmd.Args = []string{startName, string(arg)}
	p.cmd.Stdin, p.cmd.ExtraFiles, p.cmd.Stdout, p.cmd.Stderr = orders, []*os.File{out}, p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C at the terminal is ours, not the engine's
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, in.Close(), answers.Close())
	}
	p.out = bufio.NewWriterSize(in, pipeBytes)
	p.to, p.from = gob.NewEncoder(p.out), gob.NewDecoder(bufio.NewReaderSize(answers, pipeBytes))
	return p, nil
}

func (p *process) exchange(o *order) (*answer, error) {
	if o != nil {
		if err := p.to.Encode(o); err != nil {
			return nil, err
		}
		if err := p.out.Flush(); err != nil {
			return nil, err
		}
	}
	a := new(answer)
	return a, p.from.Decode(a)
}

func (p *process) kill() { _ = p.cmd.Process.Kill() } // it may have gone already

// end kills the child, which keeps nothing that is worth an orderly end, and waits.
func (p *process) end() error {
	p.kill()
	err := p.cmd.Wait()
	return errors.Join(err, p.in.Close(), p.answers.Close())
}

func (p *process) said() string { return p.log.String() }

// tail logs what native code writes, and keeps its end for errors. Only exec writes to it.
type tail struct {
	log  *slog.Logger
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4 << 10

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.log.Debug("the training engine says", "text", strings.TrimSpace(string(b)))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append([]byte(nil), t.text[over:]...)
	}
	return len(b), nil
}

// String is what it keeps.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
