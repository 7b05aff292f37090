package embed

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nextstate-rl/nextstate/ops/assets"
)

// Config is what Start needs.
type Config struct {
	// Library is the path of ONNX Runtime's library, Model that of the graph, Tokenizer that of its tokenizer.json.
	Library, Model, Tokenizer string
	// Threads of the graph; 1 is best for short texts.
	Threads int
}

// Validate reports a value out of range.
func (c Config) Validate() error {
	if c.Library == "" || c.Model == "" || c.Tokenizer == "" || c.Threads < 1 {
		return fmt.Errorf("the embedding model: library %q, model %q and tokenizer %q are all needed, and a thread at least (%d)", c.Library, c.Model, c.Tokenizer, c.Threads)
	}
	return nil
}

// Assets fetches what is needed, on first need, and returns the configuration that uses it.
func Assets(ctx context.Context, store *assets.Store) (Config, error) {
	if err := store.Ensure(ctx, assets.ONNXRuntime, assets.MiniLM); err != nil {
		return Config{}, err
	}
	dir := store.Dir(assets.MiniLM)
	return Config{
		Library: filepath.Join(store.Dir(assets.ONNXRuntime), assets.ONNXRuntimeFile), Model: filepath.Join(dir, assets.MiniLMFile),
		Tokenizer: filepath.Join(dir, assets.MiniLMTokenizerFile), Threads: 1,
	}, nil
}

// Child embeds texts in a process of its own. Safe for concurrent use: calls are one after the other. When the process dies during a call, the call fails with
// what the process said, and the next call starts it again.
type Child struct {
	cfg       Config
	log       *slog.Logger
	tokenizer *Tokenizer
	turn      chan struct{} // holds one element while nobody uses process
	process   *process      // nil: it died
}

// Start executes our own binary, whose main has called MaybeChild, and returns when the model is loaded. ctx bounds the start. Close it.
func Start(ctx context.Context, cfg Config, logger *slog.Logger) (*Child, error) {
	if os.Args[0] == childName {
		return nil, errors.New("the embedding model: this is the child; main (TestMain in tests) has to call embed.MaybeChild first")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tokenizer, err := OpenTokenizer(cfg.Tokenizer)
	if err != nil {
		return nil, err
	}
	c := &Child{cfg: cfg, log: logger, tokenizer: tokenizer, turn: make(chan struct{}, 1)}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	c.turn <- struct{}{}
	return c, nil
}

// Embed returns a vector of length 1 for each text, [texts][Size]. What is longer than the model can read (about 100 words) is left out at the text's end.
// The end of ctx ends the process, which the next call starts again.
func (c *Child) Embed(ctx context.Context, texts ...string) ([][]float32, error) {
	o := order{IDs: make([][]int64, len(texts))}
	for i, text := range texts {
		o.IDs[i] = c.tokenizer.IDs(text)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.turn:
	}
	defer func() { c.turn <- struct{}{} }()
	if c.process == nil {
		c.log.WarnContext(ctx, "the embedding model is started again")
		if err := c.start(ctx); err != nil {
			return nil, err
		}
	}
	a, err := c.exchange(ctx, &o)
	if err != nil {
		return nil, err
	}
	if a.Failed != "" {
		return nil, errors.New("embed: " + a.Failed)
	}
	return a.Vectors, nil
}

// PID is the process's, 0 when it has died.
func (c *Child) PID() int {
	<-c.turn
	defer func() { c.turn <- struct{}{} }()
	if c.process == nil {
		return 0
	}
	return c.process.cmd.Process.Pid
}

// Close ends the process, after the call that is in work. No call may follow.
func (c *Child) Close() {
	<-c.turn
	defer func() { c.turn <- struct{}{} }()
	if c.process != nil {
		_ = c.process.end() // it was killed, says its status
		c.process = nil
	}
}

func (c *Child) start(ctx context.Context) (err error) {
	if c.process, err = spawn(c.cfg, c.log); err != nil {
		return fmt.Errorf("start the embedding model: %w", err)
	}
	a, err := c.exchange(ctx, nil) // the first answer, without an order, says that the model is loaded
	if err == nil && a.Failed != "" {
		_ = c.process.end() // it was killed, says its status
		c.process = nil
		return errors.New("start the embedding model: " + a.Failed)
	}
	return err
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
	return nil, fmt.Errorf("the embedding model died, and the next call starts it again: %w: %s", errors.Join(err, ended), p.said.String())
}

// childName is the child's os.Args[0]: how MaybeChild knows it, and what ps shows.
const childName = "nextstate-embed"

// order is what the parent asks of the child, one at a time: texts as tokens.
type order struct{ IDs [][]int64 }

// answer is what the child says to an order, and once, without an order, when it is ready.
type answer struct {
	Vectors [][]float32
	// Failed is the error's text; empty for success.
	Failed string
}

// MaybeChild turns this process into the embedding model when Start executed it, and does not return then. main and every TestMain of a package that starts
// one call it first.
func MaybeChild() {
	if len(os.Args) != 2 || os.Args[0] != childName {
		return
	}
	to := gob.NewEncoder(os.NewFile(3, "answers"))
	err := runChild(os.Args[1], gob.NewDecoder(os.Stdin), to)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runChild works until the orders end: by Close, or because the parent died. Standard output and error are the log: native code writes there.
func runChild(arg string, from *gob.Decoder, to *gob.Encoder) error {
	var cfg Config
	if err := json.Unmarshal([]byte(arg), &cfg); err != nil {
		return fmt.Errorf("the child's argument: %w", err)
	}
	m, err := openModel(cfg)
	if err != nil {
		return to.Encode(&answer{Failed: err.Error()})
	}
	if err := to.Encode(&answer{}); err != nil {
		return err
	}
	for {
		var o order
		if err := from.Decode(&o); err != nil {
			return nil //nolint:nilerr // the parent has gone, whatever the pipe says about it
		}
		if err := to.Encode(m.obey(&o)); err != nil {
			return err
		}
	}
}

func (m *model) obey(o *order) *answer {
	a := &answer{Vectors: make([][]float32, len(o.IDs))}
	for i, ids := range o.IDs {
		var err error
		// The parent ends what it no longer wants by ending the process.
		if a.Vectors[i], err = m.vector(context.Background(), ids); err != nil {
			return &answer{Failed: err.Error()}
		}
	}
	return a
}
