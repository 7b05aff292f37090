package apache

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/segmentio/kafka-go"
)

// node is one JVM.
type node struct {
	addr, dir, jars string
	process         *os.Process
	// exited is closed when the process is gone; nil before the first start.
	exited chan struct{}
}

func (n *node) properties() string { return filepath.Join(n.dir, "server.properties") }
func (n *node) log() string        { return filepath.Join(n.dir, "broker.log") }

// jvmFlags are for a short life on few cores: no optimizing compiler, one collector thread.
func jvmFlags(heap string) []string {
	return []string{"-Xms64m", "-Xmx" + heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"}
}

// start starts the JVM.
func (n *node) start() error {
	if n.running() {
		return fmt.Errorf("apache: %s is running", n.addr)
	}
	out, err := os.OpenFile(n.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("apache: %w", err)
	}
	cmd := exec.Command("java", append(jvmFlags("384m"), "-cp", filepath.Join(n.jars, "*"), "kafka.Kafka", n.properties())...) //nolint:gosec,noctx // the arguments are ours; it lives until it is killed
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = n.dir
	dieWithParent(cmd)
	started, exited := make(chan error, 1), make(chan struct{})
	// The kernel kills the child when the thread that started it ends, so that thread is kept for it.
	go func() {
		runtime.LockOSThread()
		defer close(exited)
		defer func() { _ = out.Close() }()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("apache: java: %w", err)
	}
	n.process, n.exited = cmd.Process, exited
	return nil
}

func (n *node) running() bool {
	if n.exited == nil {
		return false
	}
	select {
	case <-n.exited:
		return false
	default:
		return true
	}
}

// kill ends the JVM and returns when it is gone. It is no error when it was not running.
func (n *node) kill() error {
	if !n.running() {
		return nil
	}
	if err := n.process.Kill(); err != nil && n.running() {
		return fmt.Errorf("apache: killing %s: %w", n.addr, err)
	}
	<-n.exited
	return nil
}

// ready waits until the node lists so many brokers and a controller.
func (n *node) ready(ctx context.Context, brokers int) error {
	for {
		err := n.check(ctx, brokers)
		if err == nil {
			return nil
		}
		select {
		case <-n.exited:
			return fmt.Errorf("apache: %s ended before it was ready: %s", n.addr, n.tail())
		case <-ctx.Done():
			return fmt.Errorf("apache: %s is not ready: %w (last: %w)", n.addr, ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (n *node) check(ctx context.Context, brokers int) error {
	conn, err := kafka.DialContext(ctx, "tcp", n.addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	listed, err := conn.Brokers()
	if err != nil {
		return err
	}
	if len(listed) < brokers {
		return fmt.Errorf("%d of %d brokers", len(listed), brokers)
	}
	_, err = conn.Controller()
	return err
}

// tail is the end of the node's log.
func (n *node) tail() string {
	b, err := os.ReadFile(n.log())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}
