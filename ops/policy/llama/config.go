package llama

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
)

// Config of a Server. Zero fields take the defaults.
type Config struct {
	// Library is the folder that holds libllama.so (the asset `llama`); Model the GGUF file.
	Library, Model string
	// Threads that compute; 0: as many as there are CPUs.
	Threads int
	// Parallel is how many sequences are in work at once; 0: 8.
	Parallel int
	// Context is how many tokens a sequence holds, prompt and response; 0: 4096, or what the model was trained for where that is less.
	Context int
	// Batch is how many tokens a step computes at most; 0: 512.
	Batch int
	// Versions is how many LoRA versions stay loaded, the base not counted; 0: 3. One in use is never dropped.
	Versions int
	// Queue is how many requests may wait for a sequence before further ones are refused with 429; 0: 64.
	Queue int
	// Cache is how keys and values are kept; empty: CacheF16. CacheF32 is for checks: it takes twice the memory and a slower kernel, and gives
	// log-probs as exact as the weights (3e-5 nats on float32 weights, where CacheF16 differs by 0.013).
	Cache CacheType
}

// CacheType is the number format of the KV cache.
type CacheType string

// The formats.
const (
	CacheF16 CacheType = "f16"
	CacheF32 CacheType = "f32"
)

// Validate fills in the defaults and refuses what cannot work.
func (c *Config) Validate() error {
	if c.Library == "" || c.Model == "" {
		return errors.New("llama: library and model are needed; the assets `llama` and `smollm2` hold one of each")
	}
	for _, path := range []*string{&c.Library, &c.Model} { // the child works in another folder
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("llama: %w", err)
		}
		*path = abs
	}
	for _, f := range []struct {
		name           string
		value          *int
		otherwise, max int
	}{
		{"threads", &c.Threads, runtime.NumCPU(), 512},
		{"parallel", &c.Parallel, 8, 256},
		{"context", &c.Context, 4096, 1 << 20},
		{"batch", &c.Batch, 512, 1 << 14},
		{"versions", &c.Versions, 3, 64},
		{"queue", &c.Queue, 64, 1 << 16},
	} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < 1 || *f.value > f.max {
			return fmt.Errorf("llama: %s is %d; choose 1 to %d", f.name, *f.value, f.max)
		}
	}
	if c.Cache == "" {
		c.Cache = CacheF16
	}
	if c.Cache != CacheF16 && c.Cache != CacheF32 {
		return fmt.Errorf("llama: cache is %q; choose %s or %s", c.Cache, CacheF16, CacheF32)
	}
	if c.Batch < c.Parallel {
		return fmt.Errorf("llama: a batch of %d tokens cannot hold one token of each of %d parallel sequences; raise batch", c.Batch, c.Parallel)
	}
	return nil
}

// Info describes the loaded model.
type Info struct {
	// Model is its name as the GGUF gives it, or the file's; Architecture such as "llama".
	Model, Architecture string
	// Context is how many tokens a sequence holds. Vocabulary is how many ids there are.
	Context, Vocabulary int
	// JSON says whether Request.JSON is available.
	JSON bool
}
