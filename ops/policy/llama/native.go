package llama

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/hybridgroup/yzma/pkg/llama"
)

// outputsMax is how many rows of logits a step may ask for: a row is a whole vocabulary of float32. It is below 64 because from there on llama.cpp
// computes the attention of a sequence by another kernel: a response is scored as it was sampled, and so is the last token of a prompt, which is a
// step of its own.
const outputsMax = 48

// native is llama.cpp with one model and one context. All methods but load are for the scheduler's goroutine.
type native struct {
	model   llama.Model
	ctx     llama.Context
	mem     llama.Memory
	vocab   llama.Vocab
	batch   llama.Batch
	inForce llama.AdapterLora // 0: the base
	said    *saying

	info     Info
	parallel int
	adapters sync.Mutex // the model's own list of adapters is not safe for concurrent changes
}

// openNative loads the library and the model. Its errors say what llama.cpp said.
func openNative(cfg *Config) (*native, error) {
	if _, err := os.Stat(filepath.Join(cfg.Library, "libllama.so")); err != nil {
		return nil, fmt.Errorf("the library: %w; fetch it with `nextstate assets fetch llama`", err)
	}
	if err := checkFile(cfg.Model); err != nil {
		return nil, fmt.Errorf("the model: %w", err)
	}
	if err := llama.Load(cfg.Library); err != nil {
		return nil, fmt.Errorf("load the library: %w; it needs libstdc++6 (Debian, Ubuntu: `apt-get install libstdc++6`)", err)
	}
	n := &native{said: &saying{}, parallel: cfg.Parallel}
	llama.LogSet(n.said.callback())
	llama.Init()
	params := llama.ModelDefaultParams()
	params.SetCPUOnly()
	var err error
	if n.model, err = llama.ModelLoadFromFile(cfg.Model, params); err != nil {
		return nil, fmt.Errorf("load the model %s: %w", filepath.Base(cfg.Model), n.said.reason("llama.cpp cannot read it"))
	}
	if !llama.ModelHasDecoder(n.model) || llama.ModelHasEncoder(n.model) {
		return nil, fmt.Errorf("the model %s does not generate text (it is an encoder); choose a causal language model", filepath.Base(cfg.Model))
	}
	n.vocab = llama.ModelGetVocab(n.model)
	n.describe(cfg)
	return n, n.open(cfg)
}

func (n *native) describe(cfg *Config) {
	name, ok := llama.ModelMetaValStr(n.model, "general.name")
	if !ok || name == "" {
		name = strings.TrimSuffix(filepath.Base(cfg.Model), ".gguf")
	}
	architecture, _ := llama.ModelMetaValStr(n.model, "general.architecture")
	n.info = Info{
		Model: name, Architecture: architecture, Context: cfg.Context, Vocabulary: int(llama.VocabNTokens(n.vocab)), JSON: true,
	}
	if trained := int(llama.ModelNCtxTrain(n.model)); trained > 0 {
		n.info.Context = min(n.info.Context, trained)
	}
}

// open makes the context: for each sequence a KV cache of its own, because a shared one makes every token attend over all of them.
func (n *native) open(cfg *Config) error {
	p := llama.ContextDefaultParams()
	p.NSeqMax = uint32(cfg.Parallel)
	p.NCtx = uint32(cfg.Parallel * n.info.Context)
	p.NBatch, p.NUbatch = uint32(cfg.Batch), uint32(min(cfg.Batch, 512))
	p.NOutputsMax = uint32(min(cfg.Batch, max(outputsMax, cfg.Parallel)))
	p.NThreads, p.NThreadsBatch = int32(cfg.Threads), int32(cfg.Threads)
	p.KVUnified, p.NoPerf = 0, 1
	if cfg.Cache == CacheF32 {
		p.TypeK, p.TypeV = llama.GGMLTypeF32, llama.GGMLTypeF32
		p.FlashAttentionType = llama.FlashAttentionTypeDisabled // its kernel rounds to 16 bits whatever the cache
	}
	var err error
	if n.ctx, err = llama.InitFromModel(n.model, p); err != nil {
		return fmt.Errorf("make a context of %d x %d tokens: %w", cfg.Parallel, n.info.Context, n.said.reason("memory is short; lower context or parallel"))
	}
	if n.mem, err = llama.GetMemory(n.ctx); err != nil {
		return err
	}
	n.batch = llama.BatchInit(int32(cfg.Batch), 0, 1)
	pool := llama.ThreadpoolParamsDefault(int32(cfg.Threads))
	pool.Poll = 0 // sleeping threads leave the CPU to the sampler, and to the rest of the machine when idle
	tp, err := llama.ThreadpoolNew(&pool)
	if err != nil {
		return fmt.Errorf("make the thread pool: %w", err)
	}
	llama.AttachThreadpool(n.ctx, uintptr(tp), uintptr(tp))
	return nil
}

// decode computes the batch. The logits of its outputs stay readable until the next call.
func (n *native) decode() error {
	code, err := llama.Decode(n.ctx, n.batch)
	if err == nil && code != 0 {
		err = fmt.Errorf("llama_decode gave %d: %w", code, n.said.reason("no reason was given"))
	}
	return err
}

// logits of the batch's token i: [vocabulary], llama.cpp's memory.
func (n *native) logits(i int) ([]float32, error) {
	row, err := llama.GetLogitsIth(n.ctx, int32(i), n.info.Vocabulary)
	if err == nil && row == nil {
		err = errors.New("llama.cpp has no logits for an output")
	}
	return row, err
}

// trim drops the cache of a sequence from position to on, and says how much is left: 0 where the model's memory cannot drop a part.
func (n *native) trim(seq llama.SeqId, to int) (int, error) {
	done, err := llama.MemorySeqRm(n.mem, seq, llama.Pos(to), -1)
	if err != nil || done {
		return to, err
	}
	_, err = llama.MemorySeqRm(n.mem, seq, -1, -1)
	return 0, err
}

// use puts an adapter in force for the next batches; 0: none. It costs a few ms when it changes, as llama.cpp plans its graph again.
func (n *native) use(a llama.AdapterLora) error {
	if a == n.inForce {
		return nil
	}
	adapter, scale := a, float32(1)
	if a == 0 { // an adapter of scale 0 is not applied at all
		adapter, scale = n.inForce, 0
	}
	if code := llama.SetAdaptersLora(n.ctx, []llama.AdapterLora{adapter}, []float32{scale}); code != 0 {
		return fmt.Errorf("llama_set_adapters_lora gave %d: %w", code, n.said.reason("no reason was given"))
	}
	n.inForce = a
	return nil
}

// load reads a LoRA and tries it. Any goroutine: the context is not touched.
func (n *native) load(path string) (llama.AdapterLora, error) {
	if err := checkFile(path); err != nil {
		return 0, fmt.Errorf("the adapter: %w", err)
	}
	n.adapters.Lock()
	defer n.adapters.Unlock()
	n.said.forget()
	a, err := llama.AdapterLoraInit(n.model, path)
	if err == nil && a == 0 {
		err = n.said.reason("llama.cpp cannot read it")
	}
	if err != nil {
		return 0, fmt.Errorf("the adapter %s does not fit this model or is damaged: %w", filepath.Base(path), err)
	}
	if err := n.probe(a); err != nil {
		return 0, fmt.Errorf("the adapter %s was tried and cannot be served: %w", filepath.Base(path), errors.Join(err, llama.AdapterLoraFree(a)))
	}
	return a, nil
}

// free drops an adapter that is in force nowhere.
func (n *native) free(a llama.AdapterLora) error {
	n.adapters.Lock()
	defer n.adapters.Unlock()
	return llama.AdapterLoraFree(a)
}

// checkFile opens a GGUF as far as to see that it is one.
func checkFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || string(magic[:]) != "GGUF" {
		return fmt.Errorf("%s is not a GGUF file", filepath.Base(path))
	}
	return nil
}

// saying keeps llama.cpp's last errors, for our own, and writes them to standard error, which the parent logs.
type saying struct {
	mu    sync.Mutex
	lines []string
}

// linesMax bounds what is kept.
const linesMax = 8

func (s *saying) callback() uintptr {
	return purego.NewCallback(func(level int32, text, _ uintptr) uintptr {
		if llama.LogLevel(level) == llama.LogLevelError {
			s.add(cString(text))
		}
		return 0
	})
}

func (s *saying) add(text string) {
	text = strings.TrimSpace(text)
	fmt.Fprintln(os.Stderr, text)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines = append(s.lines, text); len(s.lines) > linesMax {
		s.lines = s.lines[1:]
	}
}

func (s *saying) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = nil
}

// reason is what llama.cpp said of late, or otherwise.
func (s *saying) reason(otherwise string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) == 0 {
		return errors.New(otherwise)
	}
	err := errors.New(strings.Join(s.lines, "; "))
	s.lines = nil
	return err
}

// cString copies a C string of at most a page.
func cString(p uintptr) string {
	if p == 0 {
		return ""
	}
	text := unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), 1<<12) // read up to the zero only
	for i := range text {
		if text[i] == 0 {
			return string(bytes.Clone(text[:i]))
		}
	}
	return string(text)
}
