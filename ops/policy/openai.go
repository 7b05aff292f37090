package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// remoteConfig is what the engines elsewhere need of Config. Zero values have the defaults.
type remoteConfig struct {
	URL, APIKey string
	// Model is the name of the base model there. Default: the first that the server lists.
	Model string
	// RecordTopK alternatives are recorded with each token.
	RecordTopK int
	// MaxTokens and Temperature hold where the caller sets none. 0: until the context is full, and temperature 1.
	MaxTokens   int
	Temperature float64
	// TrainGreedy as in Config.
	TrainGreedy bool
	// Timeout is the longest silence of the server, before its answer and in it. Default 2 min.
	Timeout time.Duration
	// Versions bounds the adapters that are kept loaded. Default 8.
	Versions int
}

// openAI is an engine behind OpenAI's chat completions. vLLM gives token ids and scores; of other servers only text is known.
type openAI struct {
	*remote
	cfg      remoteConfig
	versions *versions
	vllm     bool
	scale    scale
	pieces   pieceTexts
}

// remoteModel is an entry of /v1/models, with the fields that vLLM and SGLang add.
type remoteModel struct {
	ID      string `json:"id"`
	OwnedBy string `json:"owned_by"`
	// Parent is the base model of an adapter.
	Parent      *string `json:"parent"`
	MaxModelLen int     `json:"max_model_len"`
}

// openOpenAI connects: it asks which models there are, and measures what the log-probs of vLLM mean.
func openOpenAI(ctx context.Context, cfg remoteConfig, logger *slog.Logger, client *http.Client) (*openAI, error) {
	if u, err := url.Parse(cfg.URL); err == nil && strings.Trim(u.Path, "/") == "" {
		cfg.URL = strings.TrimRight(cfg.URL, "/") + "/v1"
	}
	r, err := newRemote(cfg.URL, cfg.APIKey, cfg.Timeout, client)
	if err != nil {
		return nil, err
	}
	o := &openAI{remote: r, cfg: cfg}
	base, adapters, err := r.models(ctx, cfg.Model)
	if err != nil {
		return nil, fmt.Errorf("policy engine openai: %w", err)
	}
	o.vllm = base.OwnedBy == "vllm"
	o.versions = newVersions(base.ID, keptVersions(cfg.Versions))
	for _, name := range adapters {
		o.versions.add(name)
	}
	if o.vllm {
		if o.scale, err = o.measure(ctx); err != nil {
			return nil, fmt.Errorf("policy engine openai: measuring the log-probs: %w", err)
		}
	}
	logger.InfoContext(ctx, "policy server", "host", r.host, "model", base.ID, "vllm", o.vllm, "logprobs", o.scale.String(), "adapters", len(adapters))
	return o, nil
}

func keptVersions(n int) int {
	if n <= 0 {
		return 8
	}
	return n
}

// models asks for the base model, by name or the first, and the adapters of it that are loaded.
func (r *remote) models(ctx context.Context, name string) (base remoteModel, adapters []string, err error) {
	var list struct {
		Data []remoteModel `json:"data"`
	}
	if err := r.call(ctx, r.root()+"/v1/models", nil, &list); err != nil {
		return remoteModel{}, nil, err
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
		if base.ID == "" && (name == m.ID || (name == "" && m.Parent == nil)) {
			base = m
		}
	}
	if base.ID == "" {
		return base, nil, fmt.Errorf("the policy's server at %s has no model %q; it has %.300q: set the policy's remote model to one of them", r.host, name, names)
	}
	if base.Parent != nil {
		return base, nil, fmt.Errorf("%q is an adapter of %q: set the policy's remote model to the base model", base.ID, *base.Parent)
	}
	for _, m := range list.Data {
		if m.Parent != nil && *m.Parent == base.ID {
			adapters = append(adapters, m.ID)
		}
	}
	return base, adapters, nil
}

// begin is versions.begin, after another look at the server when the version is new here: another process may have loaded it.
func (o *openAI) begin(ctx context.Context, id string) (*version, error) {
	return beginVersion(ctx, o.remote, o.versions, id)
}

func beginVersion(ctx context.Context, r *remote, known *versions, id string) (*version, error) {
	v, err := known.begin(id)
	if err == nil {
		return v, nil
	}
	_, adapters, e := r.models(ctx, known.model)
	if e != nil {
		return nil, e
	}
	for _, name := range adapters {
		if name == id {
			known.add(name)
			return known.begin(id)
		}
	}
	return nil, err
}

// missing forgets a version when the server no longer knows it.
func missing(known *versions, v *version, err error) {
	var e *gateway.PolicyError
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		known.gone(v)
	}
}

// Versions implements gateway.Policy.
func (o *openAI) Versions(context.Context) ([]gateway.Version, error) { return o.versions.all(), nil }

// Close implements Engine.
func (o *openAI) Close() error {
	o.close()
	return nil
}

// Swap implements Engine: adapter is a path or name that vLLM can read.
func (o *openAI) Swap(ctx context.Context, id, adapter string) error {
	if !o.vllm && adapter != "" {
		return &gateway.PolicyError{Status: http.StatusBadRequest, Message: "the policy's server cannot load adapters: serve with vLLM, SGLang or the embedded engine"}
	}
	return o.versions.swap(ctx, o, id, adapter)
}

func (o *openAI) load(ctx context.Context, name, adapter string) error {
	err := o.call(ctx, o.base+"/load_lora_adapter", map[string]string{"lora_name": name, "lora_path": adapter}, nil)
	return o.loaded(ctx, name, err, "start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True")
}

// loaded judges a refusal to load: an adapter that is there already is what was wanted.
func (r *remote) loaded(ctx context.Context, name string, err error, remedy string) error {
	var e *gateway.PolicyError
	if err == nil || !errors.As(err, &e) {
		return err
	}
	switch e.Status {
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		e.Message += ": " + remedy
	case http.StatusBadRequest:
		var list struct {
			Data []remoteModel `json:"data"`
		}
		if r.call(ctx, r.root()+"/v1/models", nil, &list) == nil {
			for _, m := range list.Data {
				if m.ID == name && m.Parent != nil {
					return nil
				}
			}
		}
	}
	return err
}

func (o *openAI) unload(ctx context.Context, name string) error {
	return unloaded(o.call(ctx, o.base+"/unload_lora_adapter", map[string]string{"lora_name": name}, nil))
}

// unloaded takes an adapter that the server does not know for unloaded.
func unloaded(err error) error {
	var e *gateway.PolicyError
	if errors.As(err, &e) && (e.Status == http.StatusNotFound || e.Status == http.StatusBadRequest) {
		return nil
	}
	return err
}

// inForce is what the caller asked for with our defaults; never nil.
func (c remoteConfig) inForce(asked *schemas.Sampling) *schemas.Sampling {
	s := &schemas.Sampling{}
	if asked != nil {
		s = proto.CloneOf(asked)
	}
	if s.Temperature == nil {
		s.Temperature = proto.Float64(or(c.Temperature, 1))
	}
	if s.MaxTokens == nil && c.MaxTokens > 0 {
		s.MaxTokens = proto.Uint32(uint32(c.MaxTokens))
	}
	return s
}

// filtered reports whether the tokens are drawn from a part of the vocabulary only.
func filtered(s *schemas.Sampling) bool {
	return (s.TopP != nil && s.GetTopP() < 1) || s.GetTopK() > 0 || s.GetMinP() > 0
}

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}
