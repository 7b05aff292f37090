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

	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/safetensors"
)

//go:embed torch/train.py
var torchScript []byte

//go:embed torch/requirements.txt
var torchRequirements []byte

// torch is PyTorch in a process. For one goroutine.
type torch struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	err   bytes.Buffer
	first torchReady
	last  torchUpdated
}

// torchReady is the script's first line: log-probs at the wanted tokens, [samples, R, 1+k].
type torchReady struct {
	Logprobs    []float64 `json:"logprobs"`
	LibrariesKB int64     `json:"libraries_kb"`
	Version     string    `json:"version"`
}

type torchUpdated struct {
	Seconds float64 `json:"seconds"`
	Loss    float64 `json:"loss"`
	Norm    float64 `json:"norm"`
	PeakKB  int64   `json:"peak_kb"`
}

// torchNiceness is that of our own engine's process.
const torchNiceness = 10

// startTorch writes what the script reads, installs PyTorch where it is not yet there, and starts it. The caller stops it.
func (e *Env) startTorch(ctx context.Context, w *trainWork, dtype string) (*torch, error) {
	python, err := e.python(ctx, "torch", torchRequirements)
	if err != nil {
		return nil, err
	}
	job, err := w.write(dtype)
	if err != nil {
		return nil, err
	}
	script := filepath.Join(e.Dir, "train.py")
	if err := os.WriteFile(script, torchScript, 0o600); err != nil {
		return nil, err
	}
	t := &torch{cmd: exec.CommandContext(ctx, python, script, job)} //nolint:gosec // our own script
	t.cmd.Stderr = &t.err
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.out = bufio.NewReader(out)
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	if err := t.answer(&t.first); err != nil {
		return nil, errors.Join(err, t.stop())
	}
	return t, nil
}

// update lets it make one, and returns the seconds.
func (t *torch) update() (float64, error) {
	if _, err := io.WriteString(t.in, "update\n"); err != nil {
		return 0, fmt.Errorf("PyTorch: %w", err)
	}
	err := t.answer(&t.last)
	return t.last.Seconds, err
}

func (t *torch) answer(to any) error {
	line, err := t.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("PyTorch ended: %w", errors.Join(err, t.stop(), errors.New(strings.TrimSpace(t.err.String()))))
	}
	if err := json.Unmarshal(line, to); err != nil {
		return fmt.Errorf("PyTorch said %q: %w", line, err)
	}
	return nil
}

// stop ends the process.
func (t *torch) stop() error {
	_ = t.in.Close() // the script ends with its input; it may have ended already
	_ = t.cmd.Wait()
	return nil
}

// write makes the script's job: the model in Hugging Face's form, the adapter as the trainer publishes it, and the samples.
func (w *trainWork) write(dtype string) (path string, err error) {
	base, adapter := filepath.Join(w.env.Dir, "base"), filepath.Join(w.env.Dir, "adapter")
	for _, dir := range []string{base, adapter} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return "", err
		}
	}
	if err := w.writeBase(base); err != nil {
		return "", err
	}
	config, err := w.adapter.PEFTConfig(base)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(adapter, "adapter_config.json"), config, 0o600); err != nil {
		return "", err
	}
	if err := writeFile(filepath.Join(adapter, "adapter_model.safetensors"), func(f io.Writer) error { return w.adapter.WritePEFT(f, base) }); err != nil {
		return "", err
	}
	type sample struct {
		Tokens  []uint32    `json:"tokens"`
		Reward  float64     `json:"reward"`
		Student [][]uint32  `json:"student"`
		Teacher [][]float32 `json:"teacher"`
	}
	var samples []sample
	for _, s := range w.samples {
		one := sample{Tokens: append(append([]uint32{}, s.Tokens.PromptIds...), s.Tokens.ResponseIds...), Reward: s.Reward}
		for i := range s.Tokens.ResponseIds {
			one.Student = append(one.Student, s.Tokens.TopK.Ids[i*trainTopK:(i+1)*trainTopK])
			one.Teacher = append(one.Teacher, s.Teacher.LogprobsAtStudent[i*trainTopK:(i+1)*trainTopK])
		}
		samples = append(samples, one)
	}
	job, err := json.Marshal(map[string]any{
		"base": base, "adapter": adapter, "samples": samples, "prompt": trainPrompt, "temperature": trainTemperature, "part": trainPart, "threads": w.threads(),
		"dtype": dtype, "compare": dtype == "float32", "objective": w.recipe.Objective, "optimizer": w.recipe.Optimizer, "niceness": torchNiceness,
	})
	if err != nil {
		return "", err
	}
	path = filepath.Join(w.env.Dir, "job-"+dtype+".json")
	return path, os.WriteFile(path, job, 0o600)
}

// writeBase writes the engine's own weights, dequantised to float32, as a Hugging Face model.
func (w *trainWork) writeBase(dir string) error {
	file, err := gguf.Open(w.model)
	if err != nil {
		return err
	}
	defer file.Close()
	m, err := file.Llama()
	if err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	add := func(from, to string, heads int, shape ...int) {
		if err != nil {
			return
		}
		var data []float32
		if data, err = file.Float32(file.Tensor(from)); heads > 0 && err == nil {
			data = gguf.Unpermute(data, heads, m.Hidden)
		}
		tensors = append(tensors, safetensors.Tensor{Name: to, Shape: shape, Data: data})
	}
	add("token_embd.weight", "model.embed_tokens.weight", 0, m.Vocabulary, m.Hidden)
	add("output_norm.weight", "model.norm.weight", 0, m.Hidden)
	if !m.TiedOutput {
		add("output.weight", "lm_head.weight", 0, m.Vocabulary, m.Hidden)
	}
	for b := range m.Blocks {
		add(fmt.Sprintf("blk.%d.attn_norm.weight", b), fmt.Sprintf("model.layers.%d.input_layernorm.weight", b), 0, m.Hidden)
		add(fmt.Sprintf("blk.%d.ffn_norm.weight", b), fmt.Sprintf("model.layers.%d.post_attention_layernorm.weight", b), 0, m.Hidden)
	}
	for _, l := range w.adapter.Layers {
		add(l.GGUF+".weight", l.PEFT+".weight", l.Heads, l.Out, l.In)
	}
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_size": m.Hidden, "intermediate_size": m.FFN, "num_hidden_layers": m.Blocks,
		"num_attention_heads": m.Heads, "num_key_value_heads": m.KVHeads, "head_dim": m.HeadSize, "vocab_size": m.Vocabulary, "rms_norm_eps": m.Epsilon,
		"max_position_embeddings": m.Context, "hidden_act": "silu", "tie_word_embeddings": m.TiedOutput, "rope_theta": m.RopeBase,
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": m.RopeBase},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "model.safetensors"), func(f io.Writer) error {
		return safetensors.Write(f, map[string]string{"format": "pt"}, tensors)
	})
}

func writeFile(path string, write func(w io.Writer) error) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f)
}
