package bench

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nextstate-rl/nextstate/ops/policy/llama"
)

// nodeVersion of node-llama-cpp has the native library of the asset llama.
const nodeVersion = "3.22.1"

//go:embed serve_node.mjs
var nodeScript []byte

// node is node-llama-cpp in a process. For one goroutine.
type node struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	err bytes.Buffer
}

// nodeCommand is one line to the script, nodeAnswer one line from it.
type nodeCommand struct {
	Verb    string     `json:"verb"`
	Prompts [][]uint32 `json:"prompts"`
	Tokens  int        `json:"tokens"`
}

type nodeAnswer struct {
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"`
}

// startNode installs node-llama-cpp in the scratch folder, through npm, and starts it with the same file, threads, batch and context as cfg. The
// caller stops it.
func (e *Env) startNode(ctx context.Context, cfg llama.Config) (*node, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return nil, errors.New("the baseline needs node and npm: Debian, Ubuntu: `apt-get install nodejs npm`")
	}
	e.note("installing node-llama-cpp %s", nodeVersion)
	install := exec.CommandContext(ctx, npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--omit=optional", "--loglevel=error",
		"--prefix", e.Dir, "node-llama-cpp@"+nodeVersion, "@node-llama-cpp/linux-x64@"+nodeVersion) //nolint:gosec // our own arguments
	install.Dir = e.Dir
	if said, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("npm install node-llama-cpp: %w: %s", err, strings.TrimSpace(string(said)))
	}
	script := filepath.Join(e.Dir, "serve_node.mjs")
	if err := os.WriteFile(script, nodeScript, 0o600); err != nil {
		return nil, err
	}
	arg, err := json.Marshal(map[string]any{
		"model": cfg.Model, "threads": cfg.Threads, "sequences": cfg.Parallel, "context": cfg.Context, "batch": cfg.Batch,
	})
	if err != nil {
		return nil, err
	}
	n := &node{cmd: exec.CommandContext(ctx, "node", script, string(arg))} //nolint:gosec // our own script
	n.cmd.Stderr = &n.err
	if n.in, err = n.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	n.out = bufio.NewScanner(out)
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := n.answer(); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	return n, nil
}

// do runs one command and returns tokens a second.
func (n *node) do(c nodeCommand) (float64, error) {
	line, err := json.Marshal(c)
	if err != nil {
		return 0, err
	}
	if _, err := n.in.Write(append(line, '\n')); err != nil {
		return 0, fmt.Errorf("node-llama-cpp: %w", err)
	}
	a, err := n.answer()
	if err != nil {
		return 0, err
	}
	return float64(a.Tokens) / a.Seconds, nil
}

func (n *node) answer() (a nodeAnswer, err error) {
	if !n.out.Scan() {
		return a, fmt.Errorf("node-llama-cpp ended: %w", errors.Join(n.out.Err(), n.cmd.Wait(), errors.New(strings.TrimSpace(n.err.String()))))
	}
	if err := json.Unmarshal(n.out.Bytes(), &a); err != nil {
		return a, fmt.Errorf("node-llama-cpp said %q: %w", n.out.Text(), err)
	}
	return a, nil
}

// stop ends the process.
func (n *node) stop() error {
	_ = n.in.Close() // the script ends with its input; it may have ended already
	_ = n.cmd.Wait()
	return nil
}
