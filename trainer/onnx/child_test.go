package onnx_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/trainer"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

func TestMain(m *testing.M) {
	onnx.MaybeChild()
	os.Exit(m.Run())
}

var quiet = slog.New(slog.DiscardHandler)

// tinyChild is an engine of the tiny model in a child.
func tinyChild(t *testing.T) *onnx.Child {
	t.Helper()
	c, err := onnx.Start(t.Context(), onnx.ChildConfig{
		Library: filepath.Join(assets.ForTest(t, assets.ONNXRuntime), assets.ONNXRuntimeFile), Model: tinyFile(t),
		Config: onnx.Config{Rank: 2, Alpha: 3, Threads: 1},
	}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// sequences are some of different lengths, with coefficients.
func sequences(r *rand.Rand, lengths ...int) (list []trainer.Sequence, coef [][][]float64) {
	for _, n := range lengths {
		s := trainer.Sequence{Prompt: 1 + n/3, Temperature: 0.5 + r.Float64()}
		for range n {
			s.Tokens = append(s.Tokens, r.Uint32N(vocabulary))
		}
		var rows [][]float64
		for range s.Response() {
			s.Wanted = append(s.Wanted, []uint32{r.Uint32N(vocabulary), r.Uint32N(vocabulary), r.Uint32N(vocabulary)})
			rows = append(rows, []float64{r.NormFloat64(), r.NormFloat64(), r.NormFloat64()})
		}
		list, coef = append(list, s), append(coef, rows)
	}
	return list, coef
}

// outcome is all that an engine says of some sequences.
type outcome struct {
	Logprobs [][][]float32
	Entropy  [][]float32
	Gradient *trainer.Adapter
}

func ask(t *testing.T, e trainer.Engine, a *trainer.Adapter, list []trainer.Sequence, coef [][][]float64) (o outcome) {
	t.Helper()
	var err error
	if o.Logprobs, o.Entropy, err = e.Logprobs(t.Context(), a, list); err != nil {
		t.Fatal(err)
	}
	o.Gradient = a.Zero()
	if err := e.Gradient(t.Context(), a, list, coef, o.Gradient); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestChild: an engine in a child gives the same bits as one in the process, and has the priority that leaves the cores to others.
func TestChild(t *testing.T) {
	c, e := tinyChild(t), open2(t)
	if c.Vocabulary() != vocabulary || !reflect.DeepEqual(c.Layers(), e.Layers()) {
		t.Fatalf("the child has a vocabulary of %d and the layers %v", c.Vocabulary(), c.Layers())
	}
	r := rand.New(rand.NewPCG(3, 4))
	a := randomAdapter(e, 2, 3, r)
	list, coef := sequences(r, 5, 9, 3)
	if got, want := ask(t, c, a, list, coef), ask(t, e, a, list, coef); !reflect.DeepEqual(got, want) {
		t.Errorf("in the child: %v, in the process: %v", got, want)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.PID()))
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')'):]))
		if nice := fields[17]; nice != "10" && nice != "19" { // the tests themselves may be nice
			t.Errorf("%s has the niceness %s", path, nice)
		}
	}
}

// TestChildRefuses: what the engine refuses is an error of the call, and the child lives on.
func TestChildRefuses(t *testing.T) {
	c := tinyChild(t)
	pid := c.PID()
	a := trainer.NewAdapter(c.Layers(), 2, 3)
	list, coef := sequences(rand.New(rand.NewPCG(3, 4)), 5)
	wrong := list[0]
	wrong.Tokens = append([]uint32{vocabulary}, wrong.Tokens[1:]...)
	if _, _, err := c.Logprobs(t.Context(), a, []trainer.Sequence{wrong}); err == nil || !strings.Contains(err.Error(), "not in the vocabulary") {
		t.Errorf("a token outside the vocabulary: %v", err)
	}
	if err := c.Gradient(t.Context(), a, list, coef, trainer.NewAdapter(c.Layers(), 4, 3)); err == nil {
		t.Error("a gradient of another rank was filled in")
	}
	if _, _, err := c.Logprobs(t.Context(), trainer.NewAdapter(c.Layers(), 4, 3), list); err == nil {
		t.Error("an adapter of another rank was taken")
	}
	if _, _, err := c.Logprobs(t.Context(), a, list); err != nil || c.PID() != pid {
		t.Errorf("afterwards: process %d instead of %d, %v", c.PID(), pid, err)
	}
}

// TestChildDies: when the process dies, the call under way fails and the next one has a new process that gives the same numbers. Method: the process is stopped, so
// that the call waits for it, and then killed; then the same with the end of the call's ctx.
func TestChildDies(t *testing.T) {
	c := tinyChild(t)
	r := rand.New(rand.NewPCG(3, 4))
	a := trainer.NewAdapter(c.Layers(), 2, 3)
	a.Initialise(1)
	list, coef := sequences(r, 5, 9, 3)
	want := ask(t, c, a, list, coef)
	for name, end := range map[string]func(pid int, cancel func()){
		"killed":   func(pid int, _ func()) { _ = syscall.Kill(pid, syscall.SIGKILL) },
		"canceled": func(_ int, cancel func()) { cancel() },
	} {
		pid := c.PID()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { end(pid, cancel) })
		_, _, err := c.Logprobs(ctx, a, list)
		cancel()
		if err == nil || name == "canceled" != errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		if got := ask(t, c, a, list, coef); !reflect.DeepEqual(got, want) || c.PID() == pid {
			t.Errorf("%s: afterwards %v instead of %v, in process %d after %d", name, got, want, c.PID(), pid)
		}
	}
}

// TestChildCannotStart: the reason is said.
func TestChildCannotStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, []byte("not a model"), 0o600); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(assets.ForTest(t, assets.ONNXRuntime), assets.ONNXRuntimeFile)
	for want, cfg := range map[string]onnx.ChildConfig{
		"model.gguf":   {Library: library, Model: path},
		"ONNX Runtime": {Library: path, Model: tinyFile(t), Config: onnx.Config{Rank: 2, Alpha: 3, Threads: 1}},
		"rank 0":       {Library: library, Model: tinyFile(t), Config: onnx.Config{Threads: 1}},
	} {
		if c, err := onnx.Start(t.Context(), cfg, quiet); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
			c.Close()
		}
	}
}
