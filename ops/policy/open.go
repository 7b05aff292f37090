package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/ops/policy/llama"
)

// Config says which engine serves the policy, and how. Zero fields take the defaults.
type Config struct {
	// Engine is a name of Engines; empty: llama.
	Engine string
	// Model is the GGUF file, Library the folder with libllama.so: for the engine llama.
	Model, Library string
	// Llama holds the embedded engine's sizes; its Model and Library are those above.
	Llama llama.Config
	// URL and APIKey of the server, and the name of the base model there (empty: the first that it lists): for the other engines.
	URL, APIKey, RemoteModel string
	// RecordTopK is how many of the likeliest tokens are recorded with each token, for the directive signal; 0: 4, negative: none.
	RecordTopK int
	// MaxTokens and DefaultTemperature hold where a request sets none. 0: 1024 tokens (or what is left of the context) at 0.7 for the engine llama;
	// what is left of the context at 1 for the other engines (a server that is neither vLLM nor SGLang decides both).
	MaxTokens          int
	DefaultTemperature float64
	// TrainGreedy lets turns at temperature 0 be trained, as if sampled at temperature 1. By default they are recorded only: without randomness
	// the log-probs of the sampled tokens say nothing about what the policy might have done.
	TrainGreedy bool
	// Timeout is the longest silence of a server elsewhere; 0: 2 min.
	Timeout time.Duration
}

// Defaults of Config.
const (
	recordTopKDefault  = 4
	recordTopKMax      = 64
	maxTokensDefault   = 1024
	temperatureDefault = 0.7
)

// engine is one way to serve the policy.
type engine struct {
	Name string
	// Needs says what of Config has to be set; nil: it is.
	Needs func(c *Config) error
	Open  func(ctx context.Context, c Config, logger *slog.Logger, reg prometheus.Registerer, client *http.Client) (Engine, error)
}

// Engines lists them all; the first is the default.
var Engines = []engine{
	{"llama", needsModel, func(ctx context.Context, c Config, logger *slog.Logger, reg prometheus.Registerer, _ *http.Client) (Engine, error) {
		return opened(openEmbedded(ctx, c, logger, reg))
	}},
	{"openai", needsURL, func(ctx context.Context, c Config, logger *slog.Logger, _ prometheus.Registerer, client *http.Client) (Engine, error) {
		return opened(openOpenAI(ctx, c.remote(), logger, client))
	}},
	{"sglang", needsURL, func(ctx context.Context, c Config, logger *slog.Logger, _ prometheus.Registerer, client *http.Client) (Engine, error) {
		return opened(openSGLang(ctx, c.remote(), logger, client))
	}},
}

// opened keeps a nil engine from becoming an Engine that is not nil.
func opened[E Engine](e E, err error) (Engine, error) {
	if err != nil {
		return nil, err
	}
	return e, nil
}

// EngineNames are the names in Engines.
func EngineNames() []string {
	names := make([]string, len(Engines))
	for i, e := range Engines {
		names[i] = e.Name
	}
	return names
}

// Validate fills in the engine and refuses what cannot work.
func (c *Config) Validate() error {
	if c.Engine == "" {
		c.Engine = Engines[0].Name
	}
	if c.RecordTopK == 0 {
		c.RecordTopK = recordTopKDefault
	}
	c.RecordTopK = max(c.RecordTopK, 0)
	switch {
	case c.RecordTopK > recordTopKMax:
		return fmt.Errorf("policy: record_top_k is %d; choose up to %d", c.RecordTopK, recordTopKMax)
	case c.MaxTokens < 0:
		return errors.New("policy: max_tokens must not be negative; 0 means the default")
	case math.IsNaN(c.DefaultTemperature) || c.DefaultTemperature < 0 || c.DefaultTemperature > 10:
		return fmt.Errorf("policy: the default temperature is %v; choose up to 10, or 0 for the default", c.DefaultTemperature)
	case c.Timeout < 0:
		return errors.New("policy: timeout must not be negative; 0 means the default")
	}
	for _, e := range Engines {
		if e.Name == c.Engine {
			return e.Needs(c)
		}
	}
	return fmt.Errorf("policy: the engine %q is not known; use one of %s", c.Engine, strings.Join(EngineNames(), ", "))
}

func needsModel(c *Config) error {
	if c.Model == "" || c.Library == "" {
		return errors.New("policy: the engine llama needs a model (a GGUF file) and the folder with libllama.so; the assets `smollm2` and `llama` hold one of each")
	}
	return nil
}

func needsURL(c *Config) error {
	if c.URL == "" {
		return fmt.Errorf("policy: the engine %s needs the URL of its server, such as http://host:8000/v1", c.Engine)
	}
	return nil
}

// Open starts or connects the engine that the configuration names. ctx bounds the opening only; the caller closes the engine. reg may be nil, and
// client too (for the engines elsewhere).
func Open(ctx context.Context, c Config, logger *slog.Logger, reg prometheus.Registerer, client *http.Client) (Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	for _, e := range Engines {
		if e.Name == c.Engine {
			return e.Open(ctx, c, logger, reg, client)
		}
	}
	return nil, fmt.Errorf("policy: the engine %q is not known", c.Engine) // Validate has refused it
}

func (c *Config) remote() remoteConfig {
	return remoteConfig{
		URL: c.URL, APIKey: c.APIKey, Model: c.RemoteModel, RecordTopK: c.RecordTopK, MaxTokens: c.MaxTokens, Temperature: c.DefaultTemperature,
		TrainGreedy: c.TrainGreedy, Timeout: c.Timeout,
	}
}
