package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/nextstate-rl/nextstate/trainer/gguf"
	"github.com/nextstate-rl/nextstate/trainer/safetensors"
)

// PEFT's names: the truth of a policy version is a safetensors file that Python's peft loads beside an adapter_config.json.
const (
	peftPrefix = "base_model.model."
	peftA      = ".lora_A.weight"
	peftB      = ".lora_B.weight"

	metaConfig = "adapter_config" // the JSON of adapter_config.json
	metaLayers = "nextstate_layers"
	metaStep   = "nextstate_step"

	momentFirst, momentSecond = "first.", "second."
)

// peftConfig is adapter_config.json.
type peftConfig struct {
	PEFTType      string   `json:"peft_type"`
	TaskType      string   `json:"task_type"`
	BaseModel     string   `json:"base_model_name_or_path"`
	Rank          int      `json:"r"`
	Alpha         float64  `json:"lora_alpha"`
	Dropout       float64  `json:"lora_dropout"`
	Targets       []string `json:"target_modules"`
	Bias          string   `json:"bias"`
	FanInFanOut   bool     `json:"fan_in_fan_out"`
	InferenceMode bool     `json:"inference_mode"`
}

// PEFTConfig is the adapter_config.json that belongs to the adapter.
func (a *Adapter) PEFTConfig(baseModel string) ([]byte, error) {
	c := peftConfig{
		PEFTType: "LORA", TaskType: "CAUSAL_LM", BaseModel: baseModel, Rank: a.Rank, Alpha: a.Alpha, Bias: "none", InferenceMode: true, Targets: []string{},
	}
	for _, l := range a.Layers {
		c.Targets = append(c.Targets, l.PEFT[strings.LastIndexByte(l.PEFT, '.')+1:])
	}
	slices.Sort(c.Targets)
	c.Targets = slices.Compact(c.Targets)
	return json.Marshal(c)
}

// WritePEFT writes the adapter as safetensors: the same adapter gives the same bytes.
func (a *Adapter) WritePEFT(w io.Writer, baseModel string) error {
	meta, err := a.metadata(baseModel)
	if err != nil {
		return err
	}
	return safetensors.Write(w, meta, a.tensors(""))
}

// WriteCheckpoint writes the adapter with the optimizer's state: what the next update needs.
func (a *Adapter) WriteCheckpoint(w io.Writer, baseModel string, m *Moments) error {
	meta, err := a.metadata(baseModel)
	if err != nil {
		return err
	}
	meta[metaStep] = strconv.FormatUint(m.Step, 10)
	return safetensors.Write(w, meta, slices.Concat(a.tensors(""), m.First.tensors(momentFirst), m.Second.tensors(momentSecond)))
}

func (a *Adapter) metadata(baseModel string) (map[string]string, error) {
	config, err := a.PEFTConfig(baseModel)
	if err != nil {
		return nil, err
	}
	layers, err := json.Marshal(a.Layers)
	if err != nil {
		return nil, err
	}
	return map[string]string{"format": "pt", metaConfig: string(config), metaLayers: string(layers)}, nil
}

func (a *Adapter) tensors(prefix string) []safetensors.Tensor {
	var list []safetensors.Tensor
	for i, l := range a.Layers {
		list = append(
			list,
			safetensors.Tensor{Name: prefix + peftPrefix + l.PEFT + peftA, Shape: []int{a.Rank, l.In}, Data: a.A[i]},
			safetensors.Tensor{Name: prefix + peftPrefix + l.PEFT + peftB, Shape: []int{l.Out, a.Rank}, Data: a.B[i]},
		)
	}
	return list
}

// ErrNoMoments is returned when a file holds an adapter without the optimizer's state.
var ErrNoMoments = errors.New("the file holds no optimizer state: it is an adapter, not a checkpoint")

// ReadAdapter reads what WritePEFT or WriteCheckpoint wrote. It refuses files that are damaged, of other shapes, or that hold numbers which are not finite.
func ReadAdapter(r io.ReaderAt, size int64) (*Adapter, error) {
	f, err := safetensors.Read(r, size)
	if err != nil {
		return nil, err
	}
	return adapterIn(f, "")
}

// ReadCheckpoint reads what WriteCheckpoint wrote; ErrNoMoments for an adapter.
func ReadCheckpoint(r io.ReaderAt, size int64) (*Adapter, *Moments, error) {
	f, err := safetensors.Read(r, size)
	if err != nil {
		return nil, nil, err
	}
	text, ok := f.Metadata[metaStep]
	if !ok {
		return nil, nil, ErrNoMoments
	}
	m := &Moments{}
	if m.Step, err = strconv.ParseUint(text, 10, 64); err != nil {
		return nil, nil, fmt.Errorf("the checkpoint's step %q: %w", text, err)
	}
	a, err := adapterIn(f, "")
	if err != nil {
		return nil, nil, err
	}
	if m.First, err = adapterIn(f, momentFirst); err != nil {
		return nil, nil, err
	}
	m.Second, err = adapterIn(f, momentSecond)
	return a, m, err
}

func adapterIn(f *safetensors.File, prefix string) (*Adapter, error) {
	var c peftConfig
	if err := json.Unmarshal([]byte(f.Metadata[metaConfig]), &c); err != nil {
		return nil, fmt.Errorf("the file's metadata holds no %s: %w", metaConfig, err)
	}
	var layers []Layer
	if err := json.Unmarshal([]byte(f.Metadata[metaLayers]), &layers); err != nil {
		return nil, fmt.Errorf("the file's metadata holds no %s: %w", metaLayers, err)
	}
	const sizeMax = 1 << 24
	if c.Rank < 1 || c.Rank > sizeMax || len(layers) == 0 {
		return nil, fmt.Errorf("the adapter has rank %d and %d layers", c.Rank, len(layers))
	}
	a := &Adapter{Layers: layers, Rank: c.Rank, Alpha: c.Alpha}
	for _, l := range layers {
		// The sizes come from the tensors that are there: a claim in the metadata allocates nothing.
		left, err := f.Float32(prefix+peftPrefix+l.PEFT+peftA, c.Rank, l.In)
		if err != nil {
			return nil, err
		}
		right, err := f.Float32(prefix+peftPrefix+l.PEFT+peftB, l.Out, c.Rank)
		if err != nil {
			return nil, err
		}
		a.A, a.B = append(a.A, left), append(a.B, right)
	}
	return a, nil
}

// WriteGGUF writes the adapter for llama.cpp.
func (a *Adapter) WriteGGUF(w io.Writer) error {
	var tensors []gguf.Source
	architecture := gguf.Architecture
	for i, l := range a.Layers {
		if l.Architecture != "" {
			architecture = l.Architecture
		}
		b := a.B[i]
		if l.Heads > 0 {
			b = gguf.Permute(b, l.Heads, a.Rank)
		}
		tensors = append(
			tensors,
			gguf.Source{Name: l.GGUF + ".weight.lora_a", Shape: []int{l.In, a.Rank}, Chunks: gguf.Numbers(a.A[i])},
			gguf.Source{Name: l.GGUF + ".weight.lora_b", Shape: []int{a.Rank, l.Out}, Chunks: gguf.Numbers(b)},
		)
	}
	return gguf.Write(w, []gguf.Pair{
		{Key: "general.type", Value: "adapter"},
		{Key: "general.architecture", Value: architecture},
		{Key: "adapter.type", Value: "lora"},
		{Key: "adapter.lora.alpha", Value: float32(a.Alpha)},
	}, tensors)
}
