package onnx

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/ort"
)

// The child's os.Args[0]: how MaybeChild knows it, and what ps shows. It begins under the first name and goes on under the second.
const (
	startName = "nextstate-train-start"
	childName = "nextstate-train"
)

// failedMark precedes what the parent shows of a child that could not start.
const failedMark = "start: "

// niceness of the child: serving goes first.
const niceness = 10

// MaybeChild turns this process into the training engine when Start executed it, and does not return then. main and every TestMain of a package that
// starts engines call it first.
func MaybeChild() {
	if len(os.Args) != 2 {
		return
	}
	var err error
	switch os.Args[0] {
	case startName:
		err = lowerPriority(os.Args[1])
	case childName:
		err = runChild(os.Args[1])
	default:
		return
	}
	fmt.Fprintln(os.Stderr, failedMark+err.Error())
	os.Exit(1)
}

// lowerPriority executes the binary once more. A priority is a thread's own, and Go's runtime has several by now: only the one that executes lives on, and
// those to come inherit from it.
func lowerPriority(arg string) error {
	runtime.LockOSThread()
	if now, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err != nil || 20-now < niceness { // Linux gives 20 minus the niceness
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, niceness); err != nil {
			return fmt.Errorf("lower the priority: %w", err)
		}
	}
	return fmt.Errorf("execute the child: %w", syscall.Exec("/proc/self/exe", []string{childName, arg}, os.Environ())) //nolint:gosec // ourselves
}

// runChild works until the process ends, or returns why it cannot. It reads orders from standard input and writes answers to file 3. Standard output and
// error are the log: native code writes there.
func runChild(arg string) error {
	var cfg ChildConfig
	if err := json.Unmarshal([]byte(arg), &cfg); err != nil {
		return fmt.Errorf("the child's argument: %w", err)
	}
	// Nearly all of the heap is the model, which lives as long as the process: a heap of twice its size would be for nothing.
	debug.SetGCPercent(gcPercent)
	e, err := openFiles(cfg)
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	orders := make(chan *order)
	go listen(orders) // ends with the process
	pipe := os.NewFile(3, "answers")
	buffered := bufio.NewWriterSize(pipe, pipeBytes)
	to := gob.NewEncoder(buffered)
	say := func(a *answer) error {
		if err := to.Encode(a); err != nil {
			return err
		}
		return buffered.Flush()
	}
	if err := say(&answer{Ready: &ready{e.Layers(), e.model.Vocabulary}}); err != nil {
		return err
	}
	for o := range orders {
		if err := say(e.obey(o)); err != nil {
			return err
		}
	}
	return nil
}

const (
	gcPercent = 10
	pipeBytes = 1 << 16
)

func openFiles(cfg ChildConfig) (*Engine, error) {
	file, err := gguf.Open(cfg.Model)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(cfg.Model), err)
	}
	defer file.Close()
	lib, err := ort.Load(cfg.Library)
	if err != nil {
		return nil, err
	}
	e, err := Open(lib, file, cfg.Config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(cfg.Model), err)
	}
	return e, nil
}

// listen passes the orders on. The end of the pipe, by Close or because the parent died, ends the process at once, native code or not.
func listen(orders chan<- *order) {
	from := gob.NewDecoder(bufio.NewReaderSize(os.Stdin, pipeBytes))
	for {
		o := new(order)
		if err := from.Decode(o); err != nil {
			os.Exit(0)
		}
		orders <- o
	}
}

// obey does one order.
func (e *Engine) obey(o *order) *answer {
	a := trainer.NewAdapter(e.Layers(), e.cfg.Rank, e.cfg.Alpha)
	if err := unflatten(o.Adapter, a); err != nil {
		return &answer{Failed: err.Error()}
	}
	ctx := context.Background() // the parent ends what it no longer wants by ending the process
	if !o.Gradient {
		logprobs, entropy, err := e.Logprobs(ctx, a, o.Sequences)
		if err != nil {
			return &answer{Failed: err.Error()}
		}
		return &answer{Logprobs: logprobs, Entropy: entropy}
	}
	grad := a.Zero()
	if err := e.Gradient(ctx, a, o.Sequences, o.Coef, grad); err != nil {
		return &answer{Failed: err.Error()}
	}
	return &answer{Gradient: flatten(grad)}
}
