package embed

import (
	"encoding/gob"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// process is one child with its pipes.
type process struct {
	cmd     *exec.Cmd
	in      *os.File
	answers *os.File
	to      *gob.Encoder
	from    *gob.Decoder
	said    *tail
}

func spawn(cfg Config, logger *slog.Logger) (*process, error) {
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
	p := &process{in: in, answers: answers, to: gob.NewEncoder(in), from: gob.NewDecoder(answers), said: &tail{log: logger}}
	p.cmd = exec.Command("/proc/self/exe") //nolint:noctx // outlives the start's ctx; end kills it
	p.cmd.Args = []string{childName, string(arg)}
	p.cmd.Stdin, p.cmd.ExtraFiles, p.cmd.Stdout, p.cmd.Stderr = orders, []*os.File{out}, p.said, p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C at the terminal is ours, not the model's
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, in.Close(), answers.Close())
	}
	return p, nil
}

func (p *process) exchange(o *order) (*answer, error) {
	if o != nil {
		if err := p.to.Encode(o); err != nil {
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

// tail logs what native code writes, and keeps its end for errors. Safe for concurrent use.
type tail struct {
	log  *slog.Logger
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4 << 10

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.log.Debug("the embedding model says", "text", strings.TrimSpace(string(b)))
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
