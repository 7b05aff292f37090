package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
)

// child is a running nextstate of our own binary.
type child struct {
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	done   chan struct{}
	err    error // of Wait; read after done
}

// start runs the binary with a data folder and further arguments, without the settings of the caller's environment.
func (e *Env) start(ctx context.Context, data string, args ...string) (*child, error) {
	all := append([]string{"--data", data, "--http-addr", "127.0.0.1:0"}, args...)
	if c := e.Config.Assets; c.Cache != "" {
		all = append(all, "--assets-cache", c.Cache)
	}
	if c := e.Config.Assets; c.Prefetched != "" {
		all = append(all, "--assets-prefetched", c.Prefetched)
	}
	c := &child{cmd: exec.CommandContext(ctx, e.Binary, all...), stderr: new(bytes.Buffer), done: make(chan struct{})} //nolint:gosec // our own binary
	c.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "NEXTSTATE_") && !strings.HasPrefix(v, "NEXTSTATE_ASSETS")
	})
	c.cmd.Stderr = c.stderr
	c.cmd.Cancel = func() error { return c.cmd.Process.Signal(syscall.SIGTERM) } // it stops its servers in order
	c.cmd.WaitDelay = time.Minute
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the child, which stop or ctx ends
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// stop asks the child to end and waits for it.
func (c *child) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-c.done
	return nil // an interrupted command has an exit status other than 0
}

// wait waits for a child that ends by itself.
func (c *child) wait() error {
	<-c.done
	if c.err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(c.cmd.Args, " "), c.err, strings.TrimSpace(c.stderr.String()))
	}
	return nil
}

// ready waits until an `up` answers that it is ready, its HTTP endpoint included when it has one.
func (c *child) ready(ctx context.Context, data string, door bool) error {
	for {
		e, ok, err := ops.ReadEndpoints(data)
		var syntax *json.SyntaxError
		if err != nil && !errors.As(err, &syntax) {
			return err
		}
		if ok && err == nil && e.PID == c.cmd.Process.Pid && e.Telemetry != "" && (!door || e.HTTP != "") && answers(ctx, "http://"+e.Telemetry+"/readyz") {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("%s ended before it was ready: %w: %s", strings.Join(c.cmd.Args, " "), c.err, strings.TrimSpace(c.stderr.String()))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}
